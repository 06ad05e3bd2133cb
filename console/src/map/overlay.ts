// What is drawn over the chips: names, cuts, what is pointed at, focused and selected.
import { indexOf } from "../store/cluster";
import type { Cluster } from "../types";
import { t } from "../messages";
import { type Box, FILL, type Group, type Layout } from "./layout";
import { type Camera, chipSize } from "./paint";

export interface Marks {
  pointed: number;
  focused: number;
  chip: number;
  node: number;
  /** Nodes of a way out, the nearest first. */
  ways: readonly number[];
  dark: boolean;
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
/** Texts drawn in one frame at most: more could not be read. */
const TEXTS = 1500;

export function groupName(group: Pick<Group, "kind" | "name">): string {
  return group.kind === "none" ? "" : t(`map.group.${group.kind}`, { name: group.name });
}

/** Draws onto a canvas of width × height CSS pixels, `ratio` device pixels each. The camera is in CSS pixels. */
export function drawOverlay(context: CanvasRenderingContext2D, width: number, height: number, ratio: number, cluster: Cluster, layout: Layout, camera: Camera, marks: Marks): void {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const { scale } = camera;
  const ink = marks.dark ? "#e4e8ea" : "#1b2226", dim = marks.dark ? "#9aa6ad" : "#5a666e", accent = marks.dark ? "#7fb8e6" : "#1f5f96";
  const sx = (x: number): number => (x - camera.x) * scale;
  const sy = (y: number): number => (y - camera.y) * scale;
  const seen = (x: number, y: number, w: number, h: number): boolean => x < width && y < height && x + w > 0 && y + h > 0;
  const limit = (text: string, space: number, letter: number): string => {
    const fits = Math.floor(space / letter);
    return text.length <= fits ? text : fits < 4 ? "" : `${text.slice(0, fits - 1)}…`;
  };
  context.textBaseline = "alphabetic";

  for (const pool of layout.pools) {
    const x = sx(pool.x), y = sy(pool.y), head = layout.poolHead * scale;
    if (!seen(x, y, pool.w * scale, head) || head < 11) continue;
    const size = Math.min(14, Math.max(11, head * 0.5));
    const base = y + head - Math.max(4, Math.min(10, head * 0.3));
    const begin = Math.max(x, 4);
    context.font = `600 ${size}px ${FONT}`;
    context.fillStyle = ink;
    context.fillText(pool.name, begin, base);
    const after = begin + context.measureText(pool.name).width + 8;
    context.font = `${size - 1}px ${FONT}`;
    context.fillStyle = dim;
    context.fillText(limit(t("map.poolNote", { product: pool.product, nodes: pool.nodes, chips: pool.chips }), width - after, size * 0.55), after, base);
  }

  if (layout.groupHead * scale >= 9.5) {
    const size = Math.min(12, Math.max(9, scale * 1.6));
    context.font = `${size}px ${FONT}`;
    context.fillStyle = dim;
    for (const group of layout.groups) {
      if (group.kind === "none") continue;
      const x = sx(group.x), y = sy(group.y), w = group.w * scale, h = layout.groupHead * scale;
      if (!seen(x, y, w, h)) continue;
      const begin = Math.max(x, 4);
      const long = groupName(group);
      const text = limit(long, x + w - begin, size * 0.56) === long ? long : limit(group.name, x + w - begin, size * 0.6);
      context.fillText(text, begin, y + h - Math.min(6, h * 0.25));
    }
  }

  const size = chipSize(scale);
  if (size >= 8) details(context, cluster, layout, camera, size, { width, height, ink, dim, seen, limit });

  const box = (chip: number, colour: string, line: number, dash: number[]): void => {
    const gap = line / 2 + 1.5;
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.setLineDash(dash);
    context.strokeRect(sx(layout.chipX[chip]!) - gap, sy(layout.chipY[chip]!) - gap, size + 2 * gap, size + 2 * gap);
    context.setLineDash([]);
  };
  const outline = (node: number, gap: number): Box => {
    const less = 2 * gap - scale * (1 - FILL);
    return { x: sx(layout.nodeX[node]!) - gap, y: sy(layout.nodeY[node]!) - gap, w: layout.nodeW[node]! * scale + less, h: layout.nodeH[node]! * scale + less };
  };
  ways(context, marks.ways.map((node) => outline(node, Math.max(4, scale * 0.36))), marks.dark);
  if (marks.node >= 0) {
    const { x, y, w, h } = outline(marks.node, Math.max(3, scale * 0.3));
    context.strokeStyle = accent;
    context.lineWidth = 2;
    context.strokeRect(x, y, w, h);
    if (w < 40) ring(context, x + w / 2, y + h / 2, 22, accent);
  }
  if (marks.chip >= 0) {
    box(marks.chip, accent, 2, []);
    if (size < 14) ring(context, sx(layout.chipX[marks.chip]!) + size / 2, sy(layout.chipY[marks.chip]!) + size / 2, 14, accent);
  }
  if (marks.pointed >= 0 && marks.pointed !== marks.chip) box(marks.pointed, ink, 1, []);
  if (marks.focused >= 0) {
    box(marks.focused, ink, 2, [4, 2]);
    if (size < 14) ring(context, sx(layout.chipX[marks.focused]!) + size / 2, sy(layout.chipY[marks.focused]!) + size / 2, 11, ink);
  }
}

/** Nodes of a way out: a dashed frame, and their number where it can be read; a ring around the nearest where all are small. */
function ways(context: CanvasRenderingContext2D, boxes: readonly Box[], dark: boolean): void {
  const colour = dark ? "#f2c14e" : "#8a4b00", ground = dark ? "#15191c" : "#ffffff";
  boxes.forEach(({ x, y, w, h }, at) => {
    context.lineWidth = 2;
    context.strokeStyle = colour;
    context.setLineDash(w < 16 ? [3, 2] : [6, 3]);
    context.strokeRect(x, y, w, h);
    context.setLineDash([]);
    if (at === 0 && w < 24) ring(context, x + w / 2, y + h / 2, 16, colour);
    if (w < 24 || boxes.length < 2) return;
    const text = String(at + 1), wide = 6 * text.length + 6;
    context.fillStyle = colour;
    context.fillRect(x + w - wide, y - 7, wide, 13);
    context.fillStyle = ground;
    context.font = `600 10px ${FONT}`;
    context.fillText(text, x + w - wide + 3, y + 3);
  });
}

/** A circle that shows where something lies that is too small to be seen. */
function ring(context: CanvasRenderingContext2D, x: number, y: number, radius: number, colour: string): void {
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(x, y, radius, 0, Math.PI * 2);
  context.stroke();
}

interface Pen {
  width: number;
  height: number;
  ink: string;
  dim: string;
  seen: (x: number, y: number, w: number, h: number) => boolean;
  limit: (text: string, space: number, letter: number) => string;
}

function details(context: CanvasRenderingContext2D, cluster: Cluster, layout: Layout, camera: Camera, size: number, pen: Pen): void {
  const { chips, nodes, states } = cluster;
  const { first, order } = indexOf(cluster);
  const { scale } = camera;
  let texts = 0;
  const cuts = new Path2D();
  for (let node = 0; node < nodes.name.length; node++) {
    const x = (layout.nodeX[node]! - camera.x) * scale, y = (layout.nodeY[node]! - camera.y) * scale;
    const w = layout.nodeW[node]! * scale, h = layout.nodeH[node]! * scale;
    if (!pen.seen(x, y, w, h + scale)) continue;
    if (scale >= 13 && texts++ < TEXTS) {
      const font = Math.min(12, Math.max(9, scale * 0.62));
      context.font = `${font}px ${FONT}`;
      context.fillStyle = nodes.state[node] === "healthy" ? pen.dim : pen.ink;
      const name = nodes.name[node]!, bad = nodes.state[node] !== "healthy" && nodes.state[node] !== "";
      const cordoned = nodes.cordoned[node] ? ` · ${t("map.cordoned")}` : "";
      const space = w + scale * 0.5;
      // half of a word says nothing: its frame shows the state too, and the whole is read by pointing at it
      const whole = [bad ? `${name} · ${nodes.state[node]}${cordoned}` : "", `${name}${cordoned}`, name];
      // names share their beginning: where one does not fit, its end says more
      const text = whole.find((one) => one && context.measureText(one).width <= space) ?? (name.length < 5 ? name : `…${name.slice(-Math.max(3, Math.floor(space / (font * 0.58)) - 1))}`);
      context.fillText(text, x, y + h + Math.min(scale * 0.72, font + 1) - scale * (1 - FILL) * 0.5 + (bad ? 1.5 : 0));
    }
    for (let at = first[node]!; at < first[node + 1]!; at++) {
      const chip = order[at]!;
      const left = Math.round((layout.chipX[chip]! - camera.x) * scale), top = Math.round((layout.chipY[chip]! - camera.y) * scale);
      if (!pen.seen(left, top, size, size)) continue;
      const templates = chips.cuts.get(chip);
      if (templates) {
        const sizes = templates.map(cores), whole = Math.max(8, sizes.reduce((sum, one) => sum + one, 0));
        let from = 0;
        for (const one of sizes) {
          from += one;
          const across = left + Math.round((size * from) / whole);
          if (from < whole) {
            cuts.moveTo(across, top);
            cuts.lineTo(across, top + size);
          }
        }
        cuts.moveTo(left, top + size - 2);
        cuts.lineTo(left + size, top + size - 2);
      }
      if (size >= 22 && texts++ < TEXTS) {
        const state = states[chips.state[chip]!] ?? "unknown", job = cluster.jobs[chips.job[chip]!];
        const plain = state === "healthy";
        const font = Math.min(13, Math.max(9, size * 0.28));
        label(context, String(chips.chip[chip]), left + 4, top + font + 3, font, pen, !plain || templates !== undefined);
        if (size >= 84) {
          const small = 11;
          const lines = [plain && !job ? t("map.free") : state, ...(chips.hold[chip] ? [t("map.heldBy", { hold: cluster.holds[chips.hold[chip]!] ?? "?" })] : []),
            ...(job ? [job.name] : []), ...(templates ? [templates.join(" + ")] : [])];
          lines.slice(0, Math.floor((size - font - 12) / 15)).forEach((line, row) =>
            label(context, pen.limit(line, size - 10, small * 0.56), left + 4, top + font + 20 + row * 15, small, pen, true));
        }
      }
    }
  }
  context.strokeStyle = pen.ink;
  context.lineWidth = size < 20 ? 1 : 1.5;
  context.stroke(cuts);
}

/** Text that stays legible on any texture: on a plate of the ground's colour. */
function label(context: CanvasRenderingContext2D, text: string, x: number, y: number, size: number, pen: Pen, plate: boolean): void {
  if (!text) return;
  context.font = `${size}px ${FONT}`;
  if (plate) {
    context.fillStyle = pen.ink === "#e4e8ea" ? "#15191ce6" : "#fcfcfbe6";
    context.fillRect(x - 2, y - size, context.measureText(text).width + 4, size + 4);
    context.fillStyle = pen.ink;
  } else context.fillStyle = pen.ink === "#e4e8ea" ? "#ffffff" : "#0b1a26";
  context.fillText(text, x, y);
}

/** AI cores that a template's name says: vir04 is 4, vir02_1c is 2. */
export function cores(template: string): number {
  return Number(/\d+/.exec(template)?.[0] ?? 1) || 1;
}
