// The document in memory: read from the wire, patched by changes, indexed for views.
import type { ChipColumns, ChipColumnsWire, Cluster, IndexedPatch, NodeColumns, Patch, StateWire } from "../types";

const NODE_COLUMNS = { name: "", pool: "", product: "", superPod: -1, rack: "", switch: "", prefix: "", state: "", level: "", message: "", cordoned: 0 };
const ROWS = new Set(["jobs", "queues", "recoveries", "faults", "holders", "offenders", "links", "boards", "problems"]);

/**
 * A document from the wire. What it has in common with `like`, a document read before, is the same object, so that layouts
 * and indexes made for one hold for the other. Raises an Error that names the part that is not as agreed.
 */
export function readCluster(wire: unknown, like: Cluster | null = null): Cluster {
  if (!isObject(wire) || wire["version"] !== 1) throw new Error("the server's document is not of version 1");
  const { chips, ...sections } = wire as unknown as StateWire;
  const nodes = { ...sections.nodes } as unknown as Record<string, readonly unknown[]>;
  const count = nodes["name"]?.length ?? 0;
  for (const [column, missing] of Object.entries(NODE_COLUMNS)) {
    const values = (nodes[column] ??= new Array<unknown>(count).fill(missing));
    if (values.length !== count) throw new Error(`nodes.${column} has ${values.length} entries, nodes.name ${count}`);
    const before = like?.nodes[column as keyof NodeColumns] as readonly unknown[] | undefined;
    if (before && same(before, values)) nodes[column] = before;
  }
  return {
    ...EMPTY_SECTIONS,
    ...sections,
    nodes: nodes as unknown as NodeColumns,
    chips: shared(readChips(chips, count), like?.chips),
  };
}

function same(one: ArrayLike<unknown>, other: ArrayLike<unknown>): boolean {
  if (one.length !== other.length) return false;
  for (let at = 0; at < one.length; at++) if (one[at] !== other[at]) return false;
  return true;
}

function shared(chips: ChipColumns, like: ChipColumns | undefined): ChipColumns {
  if (!like || !same(chips.node, like.node) || !same(chips.chip, like.chip) || !same(chips.ring, like.ring)) return chips;
  return { ...chips, node: like.node, chip: like.chip, ring: like.ring };
}

const EMPTY_SECTIONS = {
  states: [], holds: [], nodeStates: [], jobs: [], queues: [], recoveries: [], faults: [], holders: [], offenders: [], links: [], boards: [],
  fleet: { perCause: [], mttr: null, effectiveTime: null },
  git: { attempted: "", applied: "", conditions: [], revisions: [], findings: [], held: [] },
  problems: [], leftOut: {},
} as const;

function readChips(wire: ChipColumnsWire, nodes: number): ChipColumns {
  const length = wire.node.length;
  for (const column of ["chip", "ring", "state", "job", "hold"] as const)
    if (wire[column].length !== length) throw new Error(`chips.${column} has ${wire[column].length} entries, chips.node ${length}`);
  const node = new Int32Array(wire.node);
  for (let at = 0, index = 0; at < length; at++) if ((index = node[at]!) < 0 || index >= nodes) throw new Error(`chips.node names node ${index} of ${nodes}`);
  const cuts = new Map<number, readonly string[]>();
  const templates = wire.cuts ?? [];
  for (let index = 0; index < templates.length; index++) {
    const value = templates[index];
    if (value && value.length) cuts.set(index, value);
  }
  return {
    length,
    node,
    chip: new Int16Array(wire.chip),
    ring: new Int16Array(wire.ring),
    state: new Uint8Array(wire.state),
    job: new Int32Array(wire.job),
    hold: new Uint8Array(wire.hold),
    cuts,
  };
}

/**
 * The document after a patch. Columns of chips change in place, for speed; the sections that changed are new objects, so a
 * view may compare by identity. Raises an Error where the patch does not fit; the caller then reads the document afresh.
 */
export function applyPatch(cluster: Cluster, patch: Patch): Cluster {
  const next = { ...cluster } as unknown as Record<string, unknown>;
  for (const [section, value] of Object.entries(patch)) {
    if (section === "chips") next["chips"] = patchChips(cluster.chips, value, cluster.nodes.name.length);
    else if (section === "nodes") next["nodes"] = patchColumns(cluster.nodes as unknown as Record<string, readonly unknown[]>, value);
    else if (ROWS.has(section)) next[section] = patchRows((next[section] ?? []) as readonly unknown[], value);
    else next[section] = value;
  }
  return next as unknown as Cluster;
}

/** A copy whose chips may be patched without changing the original's. */
export function copyCluster(cluster: Cluster): Cluster {
  const chips = cluster.chips;
  return {
    ...cluster,
    chips: {
      ...chips,
      node: chips.node.slice(), chip: chips.chip.slice(), ring: chips.ring.slice(),
      state: chips.state.slice(), job: chips.job.slice(), hold: chips.hold.slice(),
    },
  };
}

function patchChips(chips: ChipColumns, value: unknown, nodes: number): ChipColumns {
  if (!isObject(value)) throw new Error("a patch of chips is no object");
  if (Array.isArray(value["node"])) return readChips({ ...wireOf(chips), ...value } as unknown as ChipColumnsWire, nodes);
  const next: ChipColumns = { ...chips };
  for (const [column, change] of Object.entries(value)) {
    if (column === "cuts") {
      const cuts = new Map(chips.cuts);
      each(change, chips.length, (index, cut) => (Array.isArray(cut) && cut.length ? cuts.set(index, cut as string[]) : cuts.delete(index)));
      next.cuts = cuts;
    } else if (column === "state" || column === "job" || column === "hold" || column === "ring" || column === "chip") {
      // where a chip is may be shared with other documents, what it does is this document's own
      const target = column === "ring" || column === "chip" ? chips[column].slice() : chips[column];
      Object.assign(next, { [column]: target });
      each(change, chips.length, (index, one) => (target[index] = one as number));
    } else if (column !== "node") throw new Error(`a patch changes chips.${column}, which is unknown`);
  }
  return next;
}

function wireOf(chips: ChipColumns): ChipColumnsWire {
  const plain = (column: ArrayLike<number>): number[] => Array.from(column);
  const cuts = Array.from({ length: chips.length }, (_, index) => chips.cuts.get(index) ?? 0);
  return { node: plain(chips.node), chip: plain(chips.chip), ring: plain(chips.ring), state: plain(chips.state), job: plain(chips.job), hold: plain(chips.hold), cuts };
}

function patchColumns(columns: Record<string, readonly unknown[]>, value: unknown): Record<string, readonly unknown[]> {
  if (!isObject(value)) throw new Error("a patch of columns is no object");
  const next = { ...columns };
  for (const [column, change] of Object.entries(value)) {
    if (Array.isArray(change)) next[column] = change;
    else {
      const copy = (columns[column] ?? []).slice();
      each(change, copy.length, (index, one) => (copy[index] = one));
      next[column] = copy;
    }
  }
  return next;
}

function each(change: unknown, length: number, put: (index: number, value: unknown) => void): void {
  if (Array.isArray(change)) {
    if (change.length !== length) throw new Error(`a column of ${change.length} entries replaces one of ${length}`);
    change.forEach((one, index) => put(index, one));
    return;
  }
  const { i, v } = (isObject(change) ? change : {}) as unknown as IndexedPatch;
  if (!Array.isArray(i) || !Array.isArray(v) || i.length !== v.length) throw new Error("a change of a column has no i and v of one length");
  i.forEach((index, at) => {
    if (!(index >= 0 && index < length)) throw new Error(`a change names entry ${index} of ${length}`);
    put(index, v[at]);
  });
}

function patchRows(rows: readonly unknown[], value: unknown): readonly unknown[] {
  if (Array.isArray(value)) return value;
  const length = (value as IndexedPatch).n ?? rows.length;
  const next = rows.slice(0, length);
  while (next.length < length) next.push(null);
  each(value, length, (index, row) => (next[index] = row));
  return next;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Positions by name, and the chips of each node and job; made once for each set of columns. */
export interface Index {
  /** Position of a node by its name. */
  nodes: ReadonlyMap<string, number>;
  /** The chips of node n are order[first[n]] … order[first[n + 1] - 1], by number. */
  first: Int32Array;
  order: Int32Array;
}

const indexes = new WeakMap<Int32Array, { names: readonly string[]; index: Index }>();

export function indexOf(cluster: Cluster): Index {
  const { nodes, chips } = cluster;
  const known = indexes.get(chips.node);
  if (known && known.names === nodes.name) return known.index;
  const first = new Int32Array(nodes.name.length + 1);
  for (const node of chips.node) first[node + 1]! += 1;
  for (let node = 0; node < nodes.name.length; node++) first[node + 1]! += first[node]!;
  const order = new Int32Array(chips.length);
  const next = first.slice();
  for (let chip = 0; chip < chips.length; chip++) order[next[chips.node[chip]!]!++] = chip;
  for (let node = 0; node < nodes.name.length; node++)
    order.subarray(first[node]!, first[node + 1]!).sort((a, b) => chips.chip[a]! - chips.chip[b]!);
  const index = { nodes: new Map(nodes.name.map((name, at) => [name, at])), first, order };
  indexes.set(chips.node, { names: nodes.name, index });
  return index;
}

/** Position of a chip by its node's name and its number, -1 if there is none. */
export function findChip(cluster: Cluster, node: string, number: number): number {
  const index = indexOf(cluster);
  const at = index.nodes.get(node);
  if (at === undefined) return -1;
  for (let one = index.first[at]!; one < index.first[at + 1]!; one++)
    if (cluster.chips.chip[index.order[one]!] === number) return index.order[one]!;
  return -1;
}

/** NODE/NUMBER, as `belay explain chip` takes it. */
export function chipName(cluster: Cluster, chip: number): string {
  return `${cluster.nodes.name[cluster.chips.node[chip]!]}/${cluster.chips.chip[chip]}`;
}

/** NAMESPACE/KIND/NAME, as `belay explain job` takes it. */
export function jobName(job: { namespace: string; kind: string; name: string }): string {
  return `${job.namespace}/${job.kind}/${job.name}`;
}

/** Position of a job by NAMESPACE/KIND/NAME or NAMESPACE/NAME, -1 if there is none. */
export function findJob(cluster: Cluster, name: string): number {
  return cluster.jobs.findIndex((job) => job !== null && (jobName(job) === name || `${job.namespace}/${job.name}` === name));
}

/** How many rows of a section there are, those beyond the bound of the document too. */
export function whole({ leftOut }: Cluster, section: string, shown: number): number {
  return shown + (leftOut[section] ?? 0);
}
