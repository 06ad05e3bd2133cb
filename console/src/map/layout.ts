// Where chips lie on the map: pool → super pod, rack or switch → node → ring or module → chip. One unit is the pitch of a
// chip; the layout depends on the cluster and on the shape of the window, never on the state or the zoom.
import { ascending } from "d3-array";
import { indexOf } from "../store/cluster";
import type { Cluster } from "../types";

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

export type GroupKind = "superPod" | "rack" | "switch" | "none";

export interface Group extends Box {
  kind: GroupKind;
  name: string;
  pool: string;
  /** Positions of its nodes, in the order of the map. */
  nodes: Int32Array;
  /** Size of a node's place with its gap, and how many stand side by side. */
  stepX: number;
  stepY: number;
  columns: number;
}

export interface PoolBox extends Box {
  name: string;
  product: string;
  nodes: number;
  chips: number;
}

export interface Layout extends Box {
  /** Height of the line with a pool's name, in units. */
  poolHead: number;
  /** The same for a super pod, rack or switch. */
  groupHead: number;
  pools: readonly PoolBox[];
  groups: readonly Group[];
  /** Upper left corner and size of each node. */
  nodeX: Float32Array;
  nodeY: Float32Array;
  nodeW: Float32Array;
  nodeH: Float32Array;
  groupOf: Int32Array;
  /** Upper left corner of each chip. */
  chipX: Float32Array;
  chipY: Float32Array;
  /** Nodes in the order of the map, and each node's place in it. */
  order: Int32Array;
  rank: Int32Array;
}

/** Part of the pitch that a chip fills. */
export const FILL = 0.82;
const RING_GAP = 0.35;
const NODE_GAP = 1;
/** Pixels for names and gaps when the whole map is seen, and the units that they are at least and at most. */
const POOL_HEAD = { pixels: 18, least: 0.45, most: 24 };
const GROUP_HEAD = { pixels: 15, least: 0.4, most: 2.2 };
const POOL_GAP = { pixels: 10, least: 0.3, most: 2 };
const GROUP_GAP = { pixels: 12, least: 0.4, most: 2 };
/** Under the last node there is room for its name. */
const FOOT = 0.7;

interface Template {
  w: number;
  h: number;
  x: Float32Array;
  y: Float32Array;
}

/** How many of a ring's chips stand side by side: a full rectangle, up to twice as wide as high, where there is one. */
function acrossOf(count: number): number {
  const square = Math.ceil(Math.sqrt(count));
  for (let across = square; across * across <= 2 * count + 1; across++) if (count % across === 0) return across;
  return square;
}

/** Places for the chips of a node whose rings are given in the order of its chips. */
function template(rings: readonly number[]): Template {
  const members = new Map<number, number[]>();
  rings.forEach((ring, at) => (members.get(ring) ?? members.set(ring, []).get(ring)!).push(at));
  const blocks = [...members.entries()].sort((a, b) => a[0] - b[0]).map(([, chips]) => chips);
  const largest = Math.max(1, ...blocks.map((chips) => chips.length));
  const across = acrossOf(largest);
  const down = Math.ceil(largest / across);
  let columns = 1;
  for (let one = 1; one <= blocks.length; one++) {
    const wide = one * across, tall = Math.ceil(blocks.length / one) * down;
    columns = one;
    if (wide >= tall) break;
  }
  const x = new Float32Array(rings.length), y = new Float32Array(rings.length);
  blocks.forEach((chips, block) => {
    const left = (block % columns) * (across + RING_GAP), top = Math.floor(block / columns) * (down + RING_GAP);
    chips.forEach((chip, at) => {
      x[chip] = left + (at % across);
      y[chip] = top + Math.floor(at / across);
    });
  });
  const lines = Math.ceil(blocks.length / columns);
  const used = Math.min(columns, Math.max(1, blocks.length));
  return { w: used * across + (used - 1) * RING_GAP, h: Math.max(1, lines * down + (lines - 1) * RING_GAP), x, y };
}

const names = new Intl.Collator("en", { numeric: true });
const KINDS: readonly GroupKind[] = ["superPod", "rack", "switch", "none"];

/** The layout whose whole is largest in a window of width × height pixels. */
export function layoutOf(cluster: Cluster, width: number, height: number): Layout {
  const { nodes, chips } = cluster;
  const { first, order: chipOrder } = indexOf(cluster);
  const count = nodes.name.length;
  const templates = new Map<string, Template>();
  const templateOf: Template[] = new Array<Template>(count);
  for (let node = 0; node < count; node++) {
    const rings: number[] = [];
    for (let at = first[node]!; at < first[node + 1]!; at++) rings.push(chips.ring[chipOrder[at]!]!);
    const key = rings.join();
    templateOf[node] = templates.get(key) ?? templates.set(key, template(rings)).get(key)!;
  }

  // pools and groups, in natural order of their names
  const gathered = new Map<string, Map<string, { kind: GroupKind; name: string; nodes: number[] }>>();
  for (let node = 0; node < count; node++) {
    const pool = nodes.pool[node]!;
    const [kind, name]: [GroupKind, string] = nodes.superPod[node]! >= 0 ? ["superPod", String(nodes.superPod[node])]
      : nodes.rack[node] ? ["rack", nodes.rack[node]!] : nodes.switch[node] ? ["switch", nodes.switch[node]!] : ["none", ""];
    const groups = gathered.get(pool) ?? gathered.set(pool, new Map()).get(pool)!;
    const key = `${kind} ${name}`;
    (groups.get(key) ?? groups.set(key, { kind, name, nodes: [] }).get(key)!).nodes.push(node);
  }
  const pools = [...gathered.entries()].sort((a, b) => names.compare(a[0], b[0])).map(([name, groups]) => ({
    name,
    groups: [...groups.values()].sort((a, b) => ascending(KINDS.indexOf(a.kind), KINDS.indexOf(b.kind)) || names.compare(a.name, b.name)).map((group) => {
      const sorted = group.nodes.sort((a, b) => names.compare(nodes.rack[a]!, nodes.rack[b]!) || names.compare(nodes.name[a]!, nodes.name[b]!));
      return {
        ...group, nodes: Int32Array.from(sorted),
        stepX: Math.max(...sorted.map((node) => templateOf[node]!.w)) + NODE_GAP,
        stepY: Math.max(...sorted.map((node) => templateOf[node]!.h)) + NODE_GAP,
      };
    }),
  }));
  type Gathered = (typeof pools)[number]["groups"][number];
  const columnsOf = (group: Gathered, space: number, alone: boolean): number => {
    const count = group.nodes.length;
    const most = Math.max(1, Math.min(count, Math.floor((space + NODE_GAP) / group.stepX)));
    if (alone) return most;
    // about square, with the fewest empty places
    const square = Math.sqrt((count * group.stepY) / group.stepX);
    let best = 1, least = Infinity;
    for (let columns = Math.max(1, Math.floor(square * 0.8)); columns <= Math.ceil(square * 1.7); columns++) {
      const empty = (Math.ceil(count / columns) * columns) / count + 0.15 * Math.abs(Math.log(columns / (square * 1.2)));
      if (empty < least) {
        least = empty;
        best = columns;
      }
    }
    return Math.min(most, best);
  };

  // groups flow into lines of one width: the one at which the whole map is seen largest
  let poolHead = 5, groupHead: number = GROUP_HEAD.most, poolGap: number = POOL_GAP.most, groupGap: number = GROUP_GAP.most;
  const flow = (width: number, put?: (group: Gathered, box: Box, columns: number, pool: number) => void, pooled?: (pool: number, box: Box) => void): { w: number; h: number } => {
    let y = 0, widest = 0;
    pools.forEach((pool, at) => {
      const begin = y;
      y += poolHead;
      let x = 0, line = 0;
      for (const group of pool.groups) {
        const columns = columnsOf(group, width, pool.groups.length === 1);
        const head = group.kind === "none" ? 0 : groupHead;
        const w = columns * group.stepX - NODE_GAP;
        const h = head + Math.ceil(group.nodes.length / columns) * group.stepY - NODE_GAP;
        if (x > 0 && x + w > width) {
          x = 0;
          y += line + groupGap + FOOT;
          line = 0;
        }
        put?.(group, { x, y, w, h }, columns, at);
        widest = Math.max(widest, x + w);
        x += w + Math.max(NODE_GAP, groupGap);
        line = Math.max(line, h);
      }
      y += line;
      pooled?.(at, { x: 0, y: begin, w: width, h: y - begin });
      y += FOOT + poolGap;
    });
    return { w: Math.max(1, widest), h: Math.max(1, y - poolGap) };
  };
  const scaleOf = ({ w, h }: { w: number; h: number }): number => Math.min(width / w, height / h);
  const guess = Math.sqrt((chips.length * 1.8 + count * 6) * Math.max(0.2, width / height)) + 4;
  let best = guess;
  for (let turn = 0; turn < 2; turn++) {
    let most = 0;
    for (let at = -24; at <= 24; at++) {
      const tried = guess * 1.045 ** at, scale = scaleOf(flow(tried));
      if (scale > most) {
        most = scale;
        best = tried;
      }
    }
    const units = ({ pixels, least, most: limit }: typeof POOL_HEAD): number => Math.min(limit, Math.max(least, pixels / most));
    poolHead = units(POOL_HEAD);
    groupHead = units(GROUP_HEAD);
    poolGap = units(POOL_GAP);
    groupGap = units(GROUP_GAP);
  }

  const groups: Group[] = [], boxes: PoolBox[] = [];
  const nodeX = new Float32Array(count), nodeY = new Float32Array(count), nodeW = new Float32Array(count), nodeH = new Float32Array(count);
  const groupOf = new Int32Array(count), order = new Int32Array(count), rank = new Int32Array(count);
  const chipX = new Float32Array(chips.length), chipY = new Float32Array(chips.length);
  let turn = 0;
  const whole = flow(best, (group, box, columns, pool) => {
    const head = group.kind === "none" ? 0 : groupHead;
    group.nodes.forEach((node, at) => {
      const { w, h, x, y } = templateOf[node]!;
      const left = box.x + (at % columns) * group.stepX, top = box.y + head + Math.floor(at / columns) * group.stepY;
      nodeX[node] = left;
      nodeY[node] = top;
      nodeW[node] = w;
      nodeH[node] = h;
      groupOf[node] = groups.length;
      order[turn] = node;
      rank[node] = turn++;
      for (let one = first[node]!; one < first[node + 1]!; one++) {
        chipX[chipOrder[one]!] = left + x[one - first[node]!]!;
        chipY[chipOrder[one]!] = top + y[one - first[node]!]!;
      }
    });
    groups.push({ ...box, kind: group.kind, name: group.name, pool: pools[pool]!.name, nodes: group.nodes, stepX: group.stepX, stepY: group.stepY, columns });
  }, (at, box) => {
    const members = pools[at]!.groups.flatMap((group) => [...group.nodes]);
    const products = [...new Set(members.map((node) => nodes.product[node]!))];
    boxes.push({ ...box, name: pools[at]!.name, product: products.join(", "), nodes: members.length, chips: members.reduce((sum, node) => sum + first[node + 1]! - first[node]!, 0) });
  });
  return { x: 0, y: 0, w: whole.w, h: whole.h, poolHead, groupHead, pools: boxes, groups, nodeX, nodeY, nodeW, nodeH, groupOf, chipX, chipY, order, rank };
}

/** The node at a point of the map, -1 for none; the gap around a node belongs to it. */
export function nodeAt(layout: Layout, x: number, y: number): number {
  for (const group of layout.groups) {
    if (x < group.x - 0.5 || y < group.y || x > group.x + group.w + 0.5 || y > group.y + group.h + 0.5) continue;
    const head = group.kind === "none" ? 0 : layout.groupHead;
    const column = Math.floor((x - group.x) / group.stepX), line = Math.floor((y - group.y - head) / group.stepY);
    if (column < 0 || column >= group.columns || line < 0) return -1;
    return group.nodes[line * group.columns + column] ?? -1;
  }
  return -1;
}

/** The chip at a point of the map, -1 for none. `slack`: how far beside a chip still counts, in units. */
export function chipAt(layout: Layout, cluster: Cluster, x: number, y: number, slack: number): number {
  const node = nodeAt(layout, x, y);
  if (node < 0) return -1;
  const { first, order } = indexOf(cluster);
  let best = -1, least = slack + 0.5;
  for (let at = first[node]!; at < first[node + 1]!; at++) {
    const chip = order[at]!;
    const away = Math.max(Math.abs(layout.chipX[chip]! + FILL / 2 - x), Math.abs(layout.chipY[chip]! + FILL / 2 - y));
    if (away < least) {
      least = away;
      best = chip;
    }
  }
  return best;
}

/** The next chip in a direction, by keys: on the same node if there is one, else on the nearest node that way. */
export function neighbour(layout: Layout, cluster: Cluster, chip: number, dx: number, dy: number): number {
  const node = cluster.chips.node[chip]!;
  const x = layout.chipX[chip]!, y = layout.chipY[chip]!;
  const { first, order } = indexOf(cluster);
  const nearest = (candidates: Iterable<number>): number => {
    let best = -1, least = Infinity;
    for (const one of candidates) {
      const ahead = (layout.chipX[one]! - x) * dx + (layout.chipY[one]! - y) * dy;
      const aside = Math.abs((layout.chipX[one]! - x) * dy) + Math.abs((layout.chipY[one]! - y) * dx);
      if (ahead <= 0.1) continue;
      const cost = ahead + aside * 3;
      if (cost < least) {
        least = cost;
        best = one;
      }
    }
    return best;
  };
  const chipsOf = (one: number): Int32Array => order.subarray(first[one]!, first[one + 1]!);
  const own = nearest(chipsOf(node));
  if (own >= 0 && Math.abs((layout.chipX[own]! - x) * dy) + Math.abs((layout.chipY[own]! - y) * dx) < 0.6) return own;
  // walk on over gaps and heads until another node lies there
  for (let step = 1; step < 400; step++) {
    const next = nodeAt(layout, x + 0.4 + dx * step * 0.7, y + 0.4 + dy * step * 0.7);
    if (next >= 0 && next !== node && first[next + 1]! > first[next]!) return nearest(chipsOf(next));
  }
  return chip;
}
