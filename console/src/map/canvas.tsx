// The picture of the map: two canvases, what moves the camera, and the keys. It draws when something changed, else never.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { t } from "../messages";
import { usePreferences } from "../shell/preferences";
import { indexOf } from "../store/cluster";
import type { Cluster } from "../types";
import { Tip } from "./explain";
import { chipAt, layoutOf, neighbour } from "./layout";
import { drawOverlay } from "./overlay";
import { type Camera, paint, THEMES } from "./paint";

export interface MapCanvasProps {
  cluster: Cluster;
  /** Moment for explanations, "" for the present. */
  at: string;
  /** What is selected, -1 for nothing; `job` is a position in `jobs`. */
  chip: number;
  node: number;
  job: number;
  /** A state whose chips are lit, "" for all. */
  state: string;
  /** Chips that are lit instead, by position. */
  lit?: ReadonlySet<number> | undefined;
  /** Nodes of a way out, the nearest first. */
  ways: readonly number[];
  choose: (chip: number) => void;
}

const FARTHEST = 0.5; // part of the scale at which everything fits
const NEAREST = 260; // pixels of a chip
const DRAGGED = 4; // pixels that a pointer moves before it drags

export function MapCanvas({ cluster, at, chip, node, job, state, lit, ways, choose }: MapCanvasProps) {
  const { dark } = usePreferences();
  const stage = useRef<HTMLDivElement>(null), below = useRef<HTMLCanvasElement>(null), above = useRef<HTMLCanvasElement>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [pointed, setPointed] = useState({ chip: -1, x: 0, y: 0 });
  const [focused, setFocused] = useState(-1);
  // a panel that opens beside the map does not lay it out afresh, another window does
  const shape = size.height ? Math.round(Math.log2(size.width / size.height) * 2) : null;
  const layout = useMemo(() => (shape === null ? null : layoutOf(cluster, size.width - 16, size.height - 12)), [cluster.chips.node, cluster.nodes.name, cluster.nodes.pool, shape]);
  const camera = useRef<Camera>({ x: 0, y: 0, scale: 0 });
  const fitted = useRef(true);
  const buffer = useRef<ImageData | null>(null);
  const frame = useRef(0);
  const shownChip = focused < cluster.chips.length ? focused : -1;

  useEffect(() => {
    const host = stage.current!;
    const watch = new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = host;
      setSize((last) => (last.width === width && last.height === height ? last : { width, height }));
    });
    watch.observe(host);
    return () => watch.disconnect();
  }, []);

  const fit = (): Camera => {
    const scale = Math.max(0.05, Math.min((size.width - 16) / layout!.w, (size.height - 12) / layout!.h));
    return { scale, x: -(size.width / scale - layout!.w) / 2, y: -Math.min(6 / scale, (size.height / scale - layout!.h) / 2) };
  };

  const draw = (): void => {
    frame.current = 0;
    if (!layout || !below.current || !above.current || !size.width) return;
    if (fitted.current || !camera.current.scale) camera.current = fit();
    const ratio = Math.min(2, devicePixelRatio || 1);
    const width = Math.round(size.width * ratio), height = Math.round(size.height * ratio);
    for (const canvas of [below.current, above.current])
      if (canvas.width !== width || canvas.height !== height) {
        canvas.width = width;
        canvas.height = height;
      }
    const context = below.current.getContext("2d", { alpha: false, willReadFrequently: true })!;
    if (buffer.current?.width !== width || buffer.current.height !== height) buffer.current = context.createImageData(width, height);
    const code = state ? cluster.states.indexOf(state) : -1;
    const { chips } = cluster;
    const isLit = lit ? (one: number) => lit.has(one) : job >= 0 ? (one: number) => chips.job[one] === job
      : state === "free" ? (one: number) => chips.job[one]! < 0 && cluster.states[chips.state[one]!] === "healthy"
      : state === "healthy" ? (one: number) => chips.job[one]! >= 0 && chips.state[one] === code
      : state === "held" ? (one: number) => chips.hold[one]! > 0
      : code >= 0 ? (one: number) => chips.state[one] === code : null;
    const device = { x: camera.current.x, y: camera.current.y, scale: camera.current.scale * ratio };
    paint(new Uint32Array(buffer.current.data.buffer), width, height, { cluster, layout, camera: device, theme: dark ? THEMES.dark : THEMES.light, lit: isLit });
    context.putImageData(buffer.current, 0, 0);
    drawOverlay(above.current.getContext("2d")!, size.width, size.height, ratio, cluster, layout, camera.current, { pointed: pointed.chip, focused: shownChip, chip, node, ways, dark });
    const { dataset } = stage.current!;
    if (!dataset["drawn"]) requestAnimationFrame(() => performance.mark("belay-map-drawn"));
    dataset["drawn"] = String(Number(dataset["drawn"] ?? 0) + 1);
    dataset["moment"] = cluster.moment.id;
  };
  const latest = useRef(draw);
  latest.current = draw;
  const ask = (): void => {
    if (!frame.current) frame.current = requestAnimationFrame(() => latest.current());
  };
  // before the next frame, not after it
  useLayoutEffect(ask);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  const move = (next: Camera): void => {
    if (!layout) return;
    const least = fit().scale * FARTHEST, scale = Math.min(NEAREST, Math.max(least, next.scale));
    // some of the map stays in sight
    const x = Math.min(layout.w - 20 / scale, Math.max(20 / scale - size.width / scale, next.x));
    const y = Math.min(layout.h - 20 / scale, Math.max(20 / scale - size.height / scale, next.y));
    camera.current = { x, y, scale };
    fitted.current = false;
    ask();
  };
  const zoom = (factor: number, px = size.width / 2, py = size.height / 2): void => {
    const { x, y, scale } = camera.current;
    const next = Math.min(NEAREST, Math.max(fit().scale * FARTHEST, scale * factor));
    move({ scale: next, x: x + px / scale - px / next, y: y + py / scale - py / next });
  };
  const showAll = (): void => {
    fitted.current = true;
    ask();
  };
  const show = (left: number, top: number, right: number, bottom: number, most: number): void => {
    const scale = Math.min(most, size.width / (right - left + 6), size.height / (bottom - top + 6));
    move({ scale, x: (left + right) / 2 - size.width / 2 / scale, y: (top + bottom) / 2 - size.height / 2 / scale });
  };
  const showChip = (one: number): void => show(layout!.chipX[one]!, layout!.chipY[one]!, layout!.chipX[one]! + 1, layout!.chipY[one]! + 1, 48);
  const showSelection = (): void => {
    if (!layout) return;
    const chosen = job >= 0 ? [...cluster.chips.job].flatMap((one, index) => (one === job ? [index] : [])) : [];
    if (chosen.length) {
      const xs = chosen.map((one) => layout.chipX[one]!), ys = chosen.map((one) => layout.chipY[one]!);
      show(Math.min(...xs), Math.min(...ys), Math.max(...xs) + 1, Math.max(...ys) + 1, 40);
    } else if (ways.length) {
      const xs = ways.map((one) => layout.nodeX[one]!), ys = ways.map((one) => layout.nodeY[one]!);
      const right = ways.map((one) => layout.nodeX[one]! + layout.nodeW[one]!), lower = ways.map((one) => layout.nodeY[one]! + layout.nodeH[one]!);
      show(Math.min(...xs), Math.min(...ys), Math.max(...right), Math.max(...lower), 40);
    } else if (chip >= 0 || shownChip >= 0) showChip(chip >= 0 ? chip : shownChip);
    else if (node >= 0) show(layout.nodeX[node]!, layout.nodeY[node]!, layout.nodeX[node]! + layout.nodeW[node]!, layout.nodeY[node]! + layout.nodeH[node]!, 60);
  };
  const keepInSight = (one: number): void => {
    const { x, y, scale } = camera.current;
    const px = (layout!.chipX[one]! - x) * scale, py = (layout!.chipY[one]! - y) * scale;
    if (px < 30 || py < 30 || px > size.width - 30 || py > size.height - 30) move({ scale, x: layout!.chipX[one]! - size.width / 2 / scale, y: layout!.chipY[one]! - size.height / 2 / scale });
  };

  // ---- pointers: one drags, two zoom
  const pointers = useRef(new Map<number, { x: number; y: number }>());
  const drag = useRef({ active: false, moved: 0, distance: 0 });
  const local = (event: MouseEvent): { x: number; y: number } => {
    const box = stage.current!.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const under = (x: number, y: number): number => {
    if (!layout) return -1;
    const { scale } = camera.current;
    return chipAt(layout, cluster, camera.current.x + x / scale, camera.current.y + y / scale, Math.min(3, 3 / scale));
  };
  const down = (event: PointerEvent): void => {
    if (event.button > 0) return;
    const here = local(event);
    pointers.current.set(event.pointerId, here);
    drag.current = { active: true, moved: 0, distance: spread() };
    stage.current!.setPointerCapture(event.pointerId);
  };
  const spread = (): number => {
    const [a, b] = [...pointers.current.values()];
    return a && b ? Math.hypot(a.x - b.x, a.y - b.y) : 0;
  };
  const moved = (event: PointerEvent): void => {
    const here = local(event);
    const last = pointers.current.get(event.pointerId);
    if (!last) {
      const found = under(here.x, here.y);
      if (found !== pointed.chip || found >= 0) setPointed({ chip: found, ...here });
      return;
    }
    drag.current.moved += Math.abs(here.x - last.x) + Math.abs(here.y - last.y);
    const { x, y, scale } = camera.current;
    pointers.current.set(event.pointerId, here);
    if (drag.current.moved < DRAGGED) return;
    if (pointed.chip >= 0) setPointed({ chip: -1, ...here });
    if (pointers.current.size > 1) {
      const now = spread();
      if (drag.current.distance) zoom(now / drag.current.distance, here.x, here.y);
      drag.current.distance = now;
    } else move({ scale, x: x - (here.x - last.x) / scale, y: y - (here.y - last.y) / scale });
  };
  const up = (event: PointerEvent): void => {
    const here = local(event);
    if (pointers.current.delete(event.pointerId) && drag.current.moved < DRAGGED && event.type === "pointerup") choose(under(here.x, here.y));
    drag.current.distance = spread();
  };
  useEffect(() => {
    const wheel = (event: WheelEvent): void => {
      event.preventDefault();
      const here = local(event);
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
      if (event.shiftKey) move({ ...camera.current, x: camera.current.x + (event.deltaX + event.deltaY) / camera.current.scale });
      else zoom(Math.exp(-event.deltaY * lines * 0.0016), here.x, here.y);
    };
    const element = stage.current!;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  // ---- keys
  const focus = (one: number): void => {
    if (one < 0) return;
    setFocused(one);
    setPointed({ chip: -1, x: 0, y: 0 });
    keepInSight(one);
  };
  const start = (): number => (shownChip >= 0 ? shownChip : chip >= 0 ? chip : layout ? firstChip(cluster, layout.order[0] ?? -1) : -1);
  const trouble = (step: 1 | -1): void => {
    const order = indexOf(cluster), ranks = layout!.rank, healthy = cluster.states.indexOf("healthy");
    const position = (one: number): number => ranks[cluster.chips.node[one]!]! * 4096 + cluster.chips.chip[one]!;
    const from = shownChip >= 0 ? position(shownChip) : step > 0 ? -1 : Infinity;
    let best = -1, least = Infinity;
    for (const one of order.order) {
      if (cluster.chips.state[one] === healthy) continue;
      const away = (position(one) - from) * step;
      if (away > 0 && away < least) {
        least = away;
        best = one;
      }
    }
    focus(best);
  };
  const nodeStep = (step: 1 | -1): void => {
    const one = start();
    if (one < 0 || !layout) return;
    const next = layout.order[layout.rank[cluster.chips.node[one]!]! + step];
    if (next !== undefined) focus(firstChip(cluster, next));
  };
  const key = (event: KeyboardEvent): void => {
    if (!layout || event.ctrlKey || event.altKey || event.metaKey) return;
    const arrows: Readonly<Record<string, readonly [number, number]>> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const arrow = arrows[event.key];
    const one = start();
    if (arrow) {
      if (one >= 0) focus(shownChip < 0 ? one : neighbour(layout, cluster, one, arrow[0], arrow[1]));
    } else if (event.key === "PageDown") nodeStep(1);
    else if (event.key === "PageUp") nodeStep(-1);
    else if (event.key === "]") trouble(1);
    else if (event.key === "[") trouble(-1);
    else if (event.key === "Home") focus(firstChip(cluster, layout.order[0] ?? -1));
    else if (event.key === "End") focus(firstChip(cluster, layout.order.at(-1) ?? -1));
    else if (event.key === "Enter") choose(shownChip);
    else if (event.key === "+" || event.key === "=") zoom(1.5, ...centre());
    else if (event.key === "-") zoom(1 / 1.5, ...centre());
    else if (event.key === "0") showAll();
    else if (event.key === "z") showSelection();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const centre = (): [number, number] => {
    if (shownChip < 0 || !layout) return [size.width / 2, size.height / 2];
    const { x, y, scale } = camera.current;
    return [(layout.chipX[shownChip]! - x) * scale, (layout.chipY[shownChip]! - y) * scale];
  };

  const tip = pointed.chip >= 0 && pointed.chip < cluster.chips.length ? pointed
    : shownChip >= 0 && shownChip !== chip && layout ? { chip: shownChip, x: (layout.chipX[shownChip]! - camera.current.x) * camera.current.scale, y: (layout.chipY[shownChip]! - camera.current.y) * camera.current.scale }
    : null;
  return (
    <div class="map-frame">
      <div class="stage" ref={stage} tabIndex={0} role="application" aria-label={t("map.label")} aria-describedby="map-keys"
        onPointerDown={down} onPointerMove={moved} onPointerUp={up} onPointerCancel={up}
        onPointerLeave={() => pointed.chip >= 0 && setPointed({ chip: -1, x: 0, y: 0 })}
        onDblClick={(event) => zoom(2.5, local(event).x, local(event).y)} onKeyDown={key} onBlur={() => setFocused(-1)}>
        <canvas ref={below} aria-hidden="true" />
        <canvas ref={above} aria-hidden="true" />
      </div>
      <p id="map-keys" class="hidden">{t("map.keys")}</p>
      {tip ? <Tip cluster={cluster} chip={tip.chip} at={at} x={tip.x} y={tip.y} width={size.width} height={size.height} /> : null}
      <div class="zoom" role="group" aria-label={t("map.zoom")}>
        <button type="button" onClick={() => zoom(1.6)} aria-label={t("map.zoomIn")} title={t("map.zoomIn")}>+</button>
        <button type="button" onClick={() => zoom(1 / 1.6)} aria-label={t("map.zoomOut")} title={t("map.zoomOut")}>−</button>
        <button type="button" onClick={showAll}>{t("map.all")}</button>
        <button type="button" onClick={showSelection} disabled={chip < 0 && node < 0 && job < 0 && !ways.length}>{t("map.selection")}</button>
      </div>
    </div>
  );
}

function firstChip(cluster: Cluster, node: number): number {
  if (node < 0) return -1;
  const { first, order } = indexOf(cluster);
  return first[node]! < first[node + 1]! ? order[first[node]!]! : -1;
}
