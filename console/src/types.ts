// What the server answers under /api/v1 (engine/serve/console): the contract of both sides.
// Columns are parallel arrays; an index into `nodes` or `jobs` is a position in them.

export interface Moment {
  /** Id of the pass, as /at/{id} takes it. */
  id: string;
  /** RFC 3339. */
  time: string;
  shard: string;
  revision: string;
}

/** Parallel columns, one entry for each node; "" (superPod: -1) where a product has no such part. */
export interface NodeColumns {
  name: readonly string[];
  pool: readonly string[];
  product: readonly string[];
  superPod: readonly number[];
  rack: readonly string[];
  switch: readonly string[];
  /** What comes before a chip's number in its name: "Ascend910-". */
  prefix: readonly string[];
  state: readonly string[];
  level: readonly string[];
  message: readonly string[];
  cordoned: readonly number[];
}

/** Chips as they come: parallel columns of plain numbers. */
export interface ChipColumnsWire {
  node: readonly number[];
  chip: readonly number[];
  ring: readonly number[];
  state: readonly number[];
  job: readonly number[];
  hold: readonly number[];
  /** Templates of the vNPUs that a chip is cut into, 0 for a whole chip. */
  cuts: readonly (readonly string[] | 0 | null)[];
}

/** Chips as the store keeps them: 16 bytes each. */
export interface ChipColumns {
  readonly length: number;
  /** Index of the chip's node. */
  node: Int32Array;
  /** The driver's number of the chip on its node. */
  chip: Int16Array;
  ring: Int16Array;
  /** Code into `states`. */
  state: Uint8Array;
  /** Index of the job that holds it, -1 for none. */
  job: Int32Array;
  /** Code into `holds`, 0 for none. */
  hold: Uint8Array;
  cuts: ReadonlyMap<number, readonly string[]>;
}

export type Resources = Readonly<Record<string, number>>;

export interface Job {
  kind: string;
  namespace: string;
  name: string;
  queue: string;
  phase: string;
  pods: { wanted: number; placed: number; running: number };
  chips: number;
  /** Why it waits, "" when it does not. */
  reason: string;
  message: string;
  /** The cheapest way out of waiting. */
  wayOut: string;
  /** Nodes that the way out concerns, the nearest first; a server before 0.9 sends none. */
  wayOutNodes?: readonly string[];
  /** How many nodes were rejected, by reason. */
  nodes: Readonly<Record<string, number>>;
  since: string | null;
  resources: Resources;
}

export interface Queue {
  name: string;
  weight: number;
  capacity: Resources;
  used: Resources;
  deserved: Resources;
  waiting: number;
  running: number;
  /** Part of what it deserves, 1 is all. */
  share: number;
}

export type StageName =
  "seen" | "graded" | "isolated" | "signalled" | "evicted" | "bound" | "running" | "repaired" | "resumed";

export interface Stage {
  stage: StageName;
  time: string;
}

export interface RecoveryStep {
  time: string;
  /** Seconds since the recovery began. */
  after: number;
  event: string;
  state: string;
  code: number;
}

export interface Recovery {
  /** namespace/kind/name */
  job: string;
  attempt: number;
  cause: string;
  code: string;
  codes: readonly string[];
  level: string;
  stages: readonly Stage[];
  steps: readonly RecoveryStep[];
  seconds: number | null;
  /** null while it goes on. */
  lostChipSeconds: number | null;
  chips: number;
  budget: { spent: number; left: number | null; window: number | null } | null;
}

export interface Fleet {
  /** Seconds. */
  perCause: readonly { cause: string; p50: number | null; p99: number | null; count: number }[];
  /** Seconds, null while nothing has recovered. */
  mttr: number | null;
  /** Effective training time as a part of 1. */
  effectiveTime: number | null;
}

export interface Fault {
  code: string;
  level: string;
  node: string;
  /** null for a fault of the node. */
  chip: number | null;
  since: string | null;
  count: number;
  policy: string;
  action: string;
}

/** What holds a chip out of service, or with chip null a whole node. */
export interface Holder {
  node: string;
  chip: number | null;
  kind: string;
  /** The code, list or document, with reason, place in Git and author. */
  by: string;
  until: string | null;
}

export interface Offender {
  node: string;
  chip: string;
  failures: number;
  threshold: number;
  avoided: boolean;
}

export interface Link {
  link: string;
  node: string;
  decode: string;
  prefill: string;
  state: string;
  latencyMs: number | null;
  error: string;
  since: string | null;
}

export interface Board {
  node: string;
  device: string;
  id: number | null;
  codes: readonly string[];
  level: string;
}

export interface Finding {
  severity: string;
  /** file:line:col */
  where: string;
  field: string;
  message: string;
}

export interface GitRevision {
  id: string;
  author: string;
  signer: string;
  /** When Belay accepted it; null for one that it did not, or whose acceptance is no longer kept. */
  taken?: string | null;
  /** What the check of the signature found; "none" for an unsigned commit. */
  verified: string;
  time: string | null;
  subject: string;
  accepted: boolean;
  findings: readonly Finding[];
  changed: readonly string[];
}

export interface HeldBack {
  what: string;
  action: string;
  budget: string;
  until: string | null;
  why: string;
  /** The command that releases it, "" where only time does. */
  release: string;
}

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  /** "info" where False is a choice and no trouble. */
  severity?: string;
}

export interface Git {
  attempted: string;
  applied: string;
  conditions: readonly Condition[];
  revisions: readonly GitRevision[];
  findings: readonly Finding[];
  held: readonly HeldBack[];
}

/** The part of the document that is the same on the wire and in the store. */
export interface Sections {
  version: number;
  moment: Moment;
  nodes: NodeColumns;
  states: readonly string[];
  holds: readonly string[];
  nodeStates: readonly string[];
  /** Slots are stable, so that chips.job keeps its meaning: null where a job is gone. */
  jobs: readonly (Job | null)[];
  queues: readonly Queue[];
  /** Newest first. */
  recoveries: readonly Recovery[];
  fleet: Fleet;
  faults: readonly Fault[];
  holders: readonly Holder[];
  offenders: readonly Offender[];
  links: readonly Link[];
  boards: readonly Board[];
  git: Git;
  /** What could not be read. */
  problems: readonly string[];
  /** How many rows a list lacks because it was cut, by its name. */
  leftOut: Readonly<Record<string, number>>;
}

export interface StateWire extends Sections {
  chips: ChipColumnsWire;
}

/** The document as views get it: `chips` is compact, everything else as it came. */
export interface Cluster extends Sections {
  chips: ChipColumns;
}

export interface Viewer {
  version: string;
  user: string;
  /** Of a person who signed in; null for others. */
  role?: "viewer" | "changes" | null;
  source: "cluster" | "recording" | "cluster file";
  readOnly: boolean;
  can: { changes: boolean; history: boolean; explain: boolean; whatIf: boolean; branches: boolean; records?: boolean };
  limits: { answerSeconds: number; whatIfSeconds: number };
  /** The server's clock. */
  time?: string;
}

/** One line of the history that stays (/records). */
export interface HistoryRow {
  time: string;
  kind: string;
  /** namespace/kind/name */
  job: string;
  node: string;
  chip: number | null;
  pool: string;
  queue: string;
  user: string;
  text: string;
  cause: string;
  revision: string;
  author: string;
}

export interface Records {
  /** Oldest first. */
  records: readonly HistoryRow[];
  leftOut: number;
  begins: string | null;
  /** Why the history is not written at present, "" where it is. */
  problem: string;
}

/** The report of a time (/report): times in seconds, amounts in chip-hours. */
export interface Report {
  since: string;
  until: string;
  total: { jobs: number; chipHours: number; lostChipHours: number; goodput: number | null };
  lostByCause: readonly { cause: string; recoveries: number; lostChipHours: number }[];
  recoveries: { ended: number; underWay: number; mttr: number | null; mtti: number | null; p50: number | null; p90: number | null };
  outOfService: readonly { by: string; chipHours: number; nodeHours: number }[];
  problem: string;
}

/** One entry of /history, oldest first. */
export interface HistoryMoment {
  id: string;
  time: string;
  revision: string;
  shard: string;
  /** null where nothing is known: the figures beside a recording are lost. */
  faults: number | null;
  evictions: number | null;
  bound: number | null;
  waiting: number | null;
  /** A moment of "status" shows map and lists only; explain and what-if need a recording. */
  source: "recording" | "status";
}

export interface History {
  moments: readonly HistoryMoment[];
  leftOut: number;
}

type End = { id: string; time: string; revision: string };

export interface Between {
  from: End;
  to: End;
  chips: readonly { node: string; chip: number; from: string | null; to: string | null }[];
  nodes: readonly { node: string; from: string | null; to: string | null }[];
  jobs: readonly { job: string; from: string | null; to: string | null; message: string }[];
  faults: readonly { node: string; chip: number | null; code: string; change: "came" | "gone" }[];
  revisions: readonly string[];
  text: readonly string[];
  leftOut: Readonly<Record<string, number>>;
}

export interface Explanation {
  kind: string;
  name: string;
  at: string | null;
  text: readonly string[];
  facts: Readonly<Record<string, unknown>>;
}

/** A change of a column: at positions `i`, values `v`; of a list of rows: cut or extended to `n` rows first. */
export interface IndexedPatch {
  n?: number;
  i: readonly number[];
  v: readonly unknown[];
}

/** By section; what is neither columns nor rows is the whole new value. */
export type Patch = Readonly<Record<string, unknown>>;

export interface Change {
  /** Id of the moment that the patch applies to. */
  from: string;
  moment: Moment;
  patch: Patch;
}

export type WhatIfChange =
  | { do: "fault" | "recover"; node: string; chip: number; code: string }
  | { do: "drain" | "cordon" | "die"; node: string }
  | { do: "job"; yaml: string }
  | { do: "branch"; name: string };

export interface PlannedJob {
  kind: string;
  namespace: string;
  name: string;
  outcome: string;
  after: number | null;
  nodes: Readonly<Record<string, readonly string[]>>;
  reason: string;
  message: string;
  unblock: unknown;
}

export interface PlannedEviction {
  namespace: string;
  pod: string;
  job: string;
  node: string;
  chips: number;
  after: number | null;
  reason: string;
  message: string;
  chipHoursLost: number;
}

export interface PlannedPrune {
  kind: string;
  namespace: string;
  name: string;
  after: number | null;
  heldBy: string;
  until: string | null;
}

export interface Outcome {
  placed: readonly PlannedJob[];
  evicted: readonly PlannedEviction[];
  waiting: readonly PlannedJob[];
  pruned: readonly PlannedPrune[];
  chipHoursLost: number;
}

export interface Frame {
  time: string;
  /** Seconds since the start. */
  after: number;
  events: readonly string[];
  actions: readonly { action: string; on: string; reason: string; message: string }[];
  patch: Patch;
}

export interface WhatIfAnswer {
  before: StateWire;
  frames: readonly Frame[];
  ended: "quiet" | "duration" | "passes" | "time";
  end: string;
  outcome: Outcome;
  recoveries: readonly Recovery[];
  explanations: readonly string[];
  commands: readonly { for: string; text: string; note: string }[];
  leftOut: number;
}

export interface Branch {
  name: string;
  revision: string;
  time: string | null;
  subject: string;
  author: string;
  current: boolean;
}

export interface BranchPlan extends Outcome {
  branch: string;
  revision: string;
  base: string;
  actions: Readonly<Record<string, number>>;
  findings: readonly Finding[];
  diff: readonly string[];
  text: readonly string[];
  ended: string;
  leftOut: Readonly<Record<string, number>>;
}

export interface Heat {
  by: "code" | "chip" | "node" | "link";
  from: string | null;
  to: string | null;
  bucketSeconds: number;
  /** Start of each bucket. */
  buckets: readonly string[];
  rows: readonly { name: string; total: number; cells: readonly number[] }[];
  offenders: readonly Offender[];
  leftOut: number;
}
