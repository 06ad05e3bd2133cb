// A map without a camera: every chip in one picture, what changed outlined. Clicking or dropping tells which chip was hit.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { chipAt, FILL, layoutOf, nodeAt } from "../map/layout";
import { drawOverlay } from "../map/overlay";
import { paint, THEMES } from "../map/paint";
import { usePreferences } from "../shell/preferences";
import type { Cluster } from "../types";

interface Props {
  cluster: Cluster;
  label: string;
  /** Chips to outline. */
  marked: readonly number[];
  /** Changes whenever the chips' columns were patched in place. */
  turn: unknown;
  pick?: (node: string, chip: number | null) => void;
  drop?: (data: DataTransfer, node: string, chip: number | null) => void;
  /** Nodes of a way out, the nearest first. */
  ways?: readonly number[];
}

const NONE: readonly number[] = [];
const HEIGHT = 360;
/** Pixels around the map, for the frames of the outermost nodes. */
const EDGE = 8;
const LARGEST = 26;

export function PlainMap({ cluster, label, marked, turn, pick, drop, ways = NONE }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null), names = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [over, setOver] = useState(false);
  const { dark } = usePreferences();
  const layout = useMemo(() => layoutOf(cluster, width || 600, HEIGHT), [cluster.nodes.name, cluster.nodes.pool, cluster.chips.node, width]);
  useEffect(() => {
    const host = canvas.current?.parentElement;
    if (!host) return undefined;
    const watch = new ResizeObserver(() => setWidth(host.clientWidth));
    watch.observe(host);
    setWidth(host.clientWidth);
    return () => watch.disconnect();
  }, []);
  const scale = width ? Math.min(LARGEST, (width - 2 * EDGE) / Math.max(1, layout.w), HEIGHT / Math.max(1, layout.h)) : 0;
  const height = Math.max(40, Math.ceil(layout.h * scale) + EDGE);
  useEffect(() => {
    const context = canvas.current?.getContext("2d"), above = names.current?.getContext("2d");
    if (!context || !above || !scale) return;
    const ratio = devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    for (const one of [context.canvas, above.canvas]) {
      one.width = across;
      one.height = down;
    }
    const image = context.createImageData(across, down);
    paint(new Uint32Array(image.data.buffer), across, down, { cluster, layout, camera: { x: -EDGE / scale, y: 0, scale: scale * ratio }, theme: dark ? THEMES.dark : THEMES.light, lit: null });
    context.putImageData(image, 0, 0);
    drawOverlay(above, width, height, ratio, cluster, layout, { x: -EDGE / scale, y: 0, scale }, { pointed: -1, focused: -1, chip: -1, node: -1, ways, dark });
    above.strokeStyle = dark ? "#ffffff" : "#000000";
    above.lineWidth = 1.5;
    const size = Math.max(3, scale * FILL) + 3;
    for (const chip of marked) above.strokeRect(EDGE + layout.chipX[chip]! * scale - 1.5, layout.chipY[chip]! * scale - 1.5, size, size);
  }, [cluster, turn, layout, width, scale, dark, marked, ways]);
  const hit = (event: MouseEvent): [string, number | null] | null => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left - EDGE) / scale, (event.clientY - box.top) / scale];
    const chip = chipAt(layout, cluster, x, y, 0.6);
    const node = chip >= 0 ? cluster.chips.node[chip]! : nodeAt(layout, x, y);
    return node < 0 ? null : [cluster.nodes.name[node]!, chip >= 0 ? cluster.chips.chip[chip]! : null];
  };
  const size = { width: `${width}px`, height: `${height}px` };
  return (
    <div
      class={over ? "plain-map over" : "plain-map"}
      onDragOver={drop && ((event) => { event.preventDefault(); setOver(true); })}
      onDragLeave={drop && (() => setOver(false))}
      onDrop={drop && ((event) => {
        event.preventDefault();
        setOver(false);
        const found = hit(event);
        if (event.dataTransfer) drop(event.dataTransfer, found?.[0] ?? "", found?.[1] ?? null);
      })}
      onClick={pick && ((event) => { const found = hit(event); if (found) pick(...found); })}
    >
      <canvas ref={canvas} role="img" aria-label={label} style={size} />
      <canvas ref={names} aria-hidden="true" style={size} />
    </div>
  );
}
