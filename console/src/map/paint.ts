// Draws chips into a pixel buffer: a frame costs the pixels it shows, not the chips of the cluster, on any machine and
// without a graphics card. Texts and outlines that a reader needs close up are drawn over it (overlay.ts).
import { type Look, lookOf } from "../shell/palette";
import { indexOf } from "../store/cluster";
import type { Cluster } from "../types";
import { FILL, type Layout } from "./layout";

/** Which part of the map is seen: a point of the map at the upper left pixel, and pixels for each unit. */
export interface Camera {
  x: number;
  y: number;
  scale: number;
}

export interface Theme {
  dark: boolean;
  ground: number;
  line: number;
  ink: number;
}

export const THEMES = {
  light: { dark: false, ground: rgba("#fcfcfb"), line: rgba("#d9dddf"), ink: rgba("#1b2226") },
  dark: { dark: true, ground: rgba("#15191c"), line: rgba("#323a40"), ink: rgba("#e4e8ea") },
} as const satisfies Record<string, Theme>;

/** A colour as a little-endian pixel. */
export function rgba(hex: string): number {
  const value = Number.parseInt(hex.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

function mix(one: number, other: number, part: number): number {
  const at = (shift: number): number => Math.round(((one >> shift) & 255) * (1 - part) + ((other >> shift) & 255) * part) << shift;
  return ((255 << 24) | at(16) | at(8) | at(0)) >>> 0;
}

const CORNER = 5; // from this size on, a hold has its mark
const TEXTURED = 4; // from this size on, a state has its texture
const SOLID = 3.6; // below this scale chips touch: gaps of less than a pixel would only be noise
const OUTLINED = 6; // from this size on, gangs have outlines

const sprites = new Map<string, Uint32Array>();

/** A chip's picture of size × size pixels. */
function sprite(look: Look, size: number, held: boolean, dim: boolean, theme: Theme): Uint32Array {
  const key = `${look.light} ${size} ${held} ${dim} ${theme.dark}`;
  const known = sprites.get(key);
  if (known) return known;
  if (sprites.size > 2000) sprites.clear();
  const fade = dim ? 0.7 : 0;
  const ground = mix(rgba(theme.dark ? look.dark : look.light), theme.ground, fade);
  const ink = mix(rgba(theme.dark ? look.inkDark : look.inkLight), theme.ground, fade);
  const mark = mix(theme.ink, theme.ground, fade);
  const corner = size >= CORNER && held ? Math.max(2, Math.round(size * 0.38)) : 0;
  const pixels = new Uint32Array(size * size);
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++) {
      let colour = size >= TEXTURED && inked(look, x, y, size) ? ink : ground;
      if (size < TEXTURED && look.texture === "hollow") colour = mix(ground, ink, 0.5);
      if (corner && x - (size - 1 - corner) > y) colour = x - (size - corner) > y ? mark : ground;
      pixels[y * size + x] = colour;
    }
  sprites.set(key, pixels);
  return pixels;
}

function inked(look: Look, x: number, y: number, size: number): boolean {
  const edge = Math.min(x, y, size - 1 - x, size - 1 - y);
  const step = size < 10 ? 3 : Math.max(4, Math.round(size / 4));
  const thick = Math.max(1, Math.round(step / 4));
  switch (look.texture) {
    case "plain": return false;
    case "hollow": return edge < Math.max(1, Math.round(size / 14));
    case "frame": return edge < Math.max(1, Math.round(size / 5));
    case "diagonal": return (x + y) % step < thick;
    case "rows": return (y + 1) % step < thick;
    case "columns": return (x + 1) % step < thick;
    case "dots": return x % step < thick && y % step < thick && edge > 0;
    case "cross": {
      const wide = Math.max(0.5, size / 14);
      return size >= 5 && edge > 0 && (Math.abs(x - y) <= wide || Math.abs(x + y - size + 1) <= wide);
    }
  }
}

export interface Painting {
  cluster: Cluster;
  layout: Layout;
  camera: Camera;
  theme: Theme;
  /** Chips for which this is false are dimmed; null: none are. */
  lit: ((chip: number) => boolean) | null;
}

/** Size of a chip's picture at a scale, in pixels. */
export function chipSize(scale: number): number {
  return scale < SOLID ? Math.ceil(scale) : Math.floor(scale * FILL);
}

/** Fills the buffer of width × height pixels. */
export function paint(pixels: Uint32Array, width: number, height: number, { cluster, layout, camera, theme, lit }: Painting): void {
  pixels.fill(theme.ground);
  const { chips, nodes, states } = cluster;
  const { first, order } = indexOf(cluster);
  const { scale } = camera;
  const size = chipSize(scale);
  const looks: Look[] = states.map((state) => lookOf(state, true));
  const free = lookOf("healthy", false);
  const healthy = states.indexOf("healthy");
  const pictures: (Uint32Array | undefined)[] = [];
  const outlined = size >= OUTLINED;
  const urgent: number[] = [];
  const urgentSize = Math.max(size + 1, 4);

  for (let node = 0; node < nodes.name.length; node++) {
    const left = (layout.nodeX[node]! - camera.x) * scale, top = (layout.nodeY[node]! - camera.y) * scale;
    if (left > width || top > height || left + layout.nodeW[node]! * scale < 0 || top + layout.nodeH[node]! * scale < 0) continue;
    const bad = nodes.state[node] !== "healthy" && nodes.state[node] !== "";
    if (bad && scale >= 3) frame(pixels, width, height, left, top, layout.nodeW[node]! * scale, layout.nodeH[node]! * scale, Math.max(1, Math.floor(scale * 0.16)), rgba(nodeColour(nodes.state[node]!, theme)));
    const begin = order[first[node]!];
    if (scale < SOLID && begin !== undefined && first[node]! < first[node + 1]!) {
      // the gaps between rings, in the colour of the first chip that is as most are
      const used = chips.job[begin]! >= 0, code = chips.state[begin]!;
      const look = code === healthy && !used ? free : looks[code] ?? looks.at(-1)!;
      const [colour] = sprite(look, size, false, lit !== null && !lit(begin), theme);
      rect(pixels, width, height, Math.round(left), Math.round(top), Math.round(left + layout.nodeW[node]! * scale), Math.round(top + layout.nodeH[node]! * scale), look.weight > 2 ? sprite(free, size, false, lit !== null, theme)[0]! : colour!);
    }
    for (let at = first[node]!; at < first[node + 1]!; at++) {
      const chip = order[at]!;
      const code = chips.state[chip]!, used = chips.job[chip]! >= 0, held = chips.hold[chip]! > 0;
      const dim = lit !== null && !lit(chip);
      const key = (code << 3) | (used ? 4 : 0) | (held ? 2 : 0) | (dim ? 1 : 0);
      const look = code === healthy && !used ? free : looks[code] ?? looks.at(-1)!;
      const x = Math.round((layout.chipX[chip]! - camera.x) * scale), y = Math.round((layout.chipY[chip]! - camera.y) * scale);
      if (scale < SOLID && look.weight > 1 && !dim) {
        urgent.push(chip);
        continue;
      }
      const picture = (pictures[key] ??= sprite(look, size, held, dim, theme));
      blit(pixels, width, height, picture, size, x, y);
      if (outlined && used && !dim) edges(pixels, width, height, layout, cluster, chip, first[node]!, first[node + 1]!, order, x, y, size, scale, theme.ink);
    }
  }
  // where chips are smaller than a point of interest, what needs a person is drawn last and larger
  urgent.sort((a, b) => looks[chips.state[a]!]!.weight - looks[chips.state[b]!]!.weight);
  for (const chip of urgent) {
    const look = looks[chips.state[chip]!]!;
    const x = Math.round((layout.chipX[chip]! - camera.x) * scale), y = Math.round((layout.chipY[chip]! - camera.y) * scale);
    blit(pixels, width, height, sprite(look, urgentSize, false, false, theme), urgentSize, x, y);
  }
}

export function nodeColour(state: string, theme: Theme): string {
  const look = lookOf(state);
  if (look.texture === "frame" || look.texture === "hollow") return theme.dark ? look.inkDark : look.inkLight;
  return theme.dark ? look.dark : look.light;
}

function blit(pixels: Uint32Array, width: number, height: number, picture: Uint32Array, size: number, left: number, top: number): void {
  const x0 = left < 0 ? -left : 0, x1 = left + size > width ? width - left : size;
  const y0 = top < 0 ? -top : 0, y1 = top + size > height ? height - top : size;
  if (x1 <= x0) return;
  if (size > 12) {
    for (let y = y0; y < y1; y++) pixels.set(picture.subarray(y * size + x0, y * size + x1), (top + y) * width + left + x0);
    return;
  }
  for (let y = y0; y < y1; y++) {
    let to = (top + y) * width + left + x0;
    for (let from = y * size + x0; from < y * size + x1; from++) pixels[to++] = picture[from]!;
  }
}

function frame(pixels: Uint32Array, width: number, height: number, left: number, top: number, w: number, h: number, thick: number, colour: number): void {
  const gap = thick + 1;
  const x0 = Math.round(left) - gap, y0 = Math.round(top) - gap, x1 = Math.round(left + w) + gap - 1, y1 = Math.round(top + h) + gap - 1;
  rect(pixels, width, height, x0, y0, x1, y0 + thick, colour);
  rect(pixels, width, height, x0, y1 - thick, x1, y1, colour);
  rect(pixels, width, height, x0, y0, x0 + thick, y1, colour);
  rect(pixels, width, height, x1 - thick, y0, x1, y1, colour);
}

function rect(pixels: Uint32Array, width: number, height: number, x0: number, y0: number, x1: number, y1: number, colour: number): void {
  const left = Math.max(0, x0), right = Math.min(width, x1);
  if (right <= left) return;
  for (let y = Math.max(0, y0); y < Math.min(height, y1); y++) pixels.fill(colour, y * width + left, y * width + right);
}

/** Outline of a gang: a line on each side of a chip where the next chip of its node is of another job. */
function edges(
  pixels: Uint32Array, width: number, height: number, layout: Layout, cluster: Cluster, chip: number,
  begin: number, end: number, order: Int32Array, x: number, y: number, size: number, scale: number, colour: number,
): void {
  const job = cluster.chips.job[chip]!;
  const cx = layout.chipX[chip]!, cy = layout.chipY[chip]!;
  // chips of the same job beside it: how far away, in pixels, 0 for none; and those across its corners
  let left = 0, right = 0, up = 0, down = 0, corners = 0;
  for (let at = begin; at < end; at++) {
    const other = order[at]!;
    if (cluster.chips.job[other] !== job || other === chip) continue;
    const dx = layout.chipX[other]! - cx, dy = layout.chipY[other]! - cy;
    if (Math.abs(dx) > 1.6 || Math.abs(dy) > 1.6) continue;
    if (Math.abs(dy) < 0.1) dx > 0 ? (right = dx * scale) : (left = -dx * scale);
    else if (Math.abs(dx) < 0.1) dy > 0 ? (down = dy * scale) : (up = -dy * scale);
    else corners |= (dy > 0 ? 4 : 1) << (dx > 0 ? 1 : 0);
  }
  const thick = Math.max(1, Math.floor(scale / 28));
  const gap = Math.max(1, Math.round((scale * (1 - FILL)) / 2));
  const x0 = x - gap, y0 = y - gap, x1 = x + size + gap, y1 = y + size + gap;
  // A side that goes on at the neighbour ends half way to it; at an inner corner it ends at the neighbour's own line.
  const before = (to: number, away: number, inner: boolean): number => (away ? (inner ? to - Math.round(away) + size + gap - thick : to - Math.round((away - size) / 2)) : to - gap);
  const after = (to: number, away: number, inner: boolean): number => (away ? (inner ? to + Math.round(away) - gap + thick : to + size + Math.ceil((away - size) / 2)) : to + size + gap);
  if (!up) rect(pixels, width, height, before(x, left, (corners & 1) > 0), y0, after(x, right, (corners & 2) > 0), y0 + thick, colour);
  if (!down) rect(pixels, width, height, before(x, left, (corners & 4) > 0), y1 - thick, after(x, right, (corners & 8) > 0), y1, colour);
  if (!left) rect(pixels, width, height, x0, before(y, up, (corners & 1) > 0), x0 + thick, after(y, down, (corners & 4) > 0), colour);
  if (!right) rect(pixels, width, height, x1 - thick, before(y, up, (corners & 2) > 0), x1, after(y, down, (corners & 8) > 0), colour);
}
