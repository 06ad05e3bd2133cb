// Recoveries as lanes: the stages of each in order, how long each phase took, and figures over all of them.
import type { Recovery } from "../types";

/** What the job waits for between two stages; one colour and one texture each. */
export type Phase = "judging" | "stopping" | "placing" | "starting" | "repairing";

export const PHASES: readonly Phase[] = ["judging", "stopping", "placing", "starting", "repairing"];

/** The phase that ends with a stage. */
const ENDS: Readonly<Record<string, Phase>> = {
  graded: "judging", isolated: "judging", signalled: "stopping", evicted: "stopping", bound: "placing", running: "starting",
  repaired: "repairing", resumed: "repairing",
};
/** What an unfinished recovery does after its newest stage. */
const AFTER: Readonly<Record<string, Phase>> = {
  seen: "judging", graded: "judging", isolated: "stopping", signalled: "stopping", evicted: "placing", bound: "starting",
  running: "repairing", repaired: "repairing",
};

export interface Segment {
  phase: Phase;
  /** Stage at which the segment ends; "" while it goes on. */
  stage: string;
  /** Seconds since the fault. */
  from: number;
  to: number;
}

export interface Lane {
  recovery: Recovery;
  /** Moment of the first stage, in ms since 1970. */
  begin: number;
  segments: readonly Segment[];
  /** Seconds from the fault to the last stage, or to `now` while it goes on. */
  seconds: number;
  finished: boolean;
}

/** Chip-seconds without progress: what a recovery cost, or has cost so far. */
export function lostOf(lane: Lane): number {
  return lane.recovery.lostChipSeconds ?? (lane.finished ? 0 : lane.recovery.chips * lane.seconds);
}

/** A recovery without a single readable time has no lane. `now` in ms since 1970. */
export function laneOf(recovery: Recovery, now: number): Lane | null {
  const stages = recovery.stages
    .map((one) => ({ stage: one.stage, at: one.time ? Date.parse(one.time) : NaN }))
    .filter((one) => Number.isFinite(one.at))
    .sort((a, b) => a.at - b.at);
  const first = stages[0];
  if (!first) return null;
  const segments: Segment[] = [];
  // where no process answered, training goes on as soon as the new pods run: nothing was repaired
  const asked = recovery.steps.length > 0;
  let from = 0;
  for (const one of stages.slice(1)) {
    const to = (one.at - first.at) / 1000;
    segments.push({ phase: one.stage === "resumed" && !asked ? "starting" : ENDS[one.stage] ?? "judging", stage: one.stage, from, to });
    from = to;
  }
  const last = stages[stages.length - 1]!.stage;
  const finished = last === "running" || last === "resumed" || last === "repaired" || typeof recovery.seconds === "number";
  if (!finished) {
    const to = Math.max(from, (now - first.at) / 1000);
    segments.push({ phase: AFTER[last] ?? "judging", stage: "", from, to });
    from = to;
  }
  return { recovery, begin: first.at, segments, seconds: from, finished };
}

/** Chip-hours lost, by cause, the costliest first. */
export function lostByCause(lanes: readonly Lane[]): { cause: string; recoveries: number; lostChipHours: number }[] {
  const found = new Map<string, { recoveries: number; seconds: number }>();
  for (const lane of lanes) {
    const cause = [lane.recovery.cause, lane.recovery.code].filter(Boolean).join(" ");
    const { recoveries, seconds } = found.get(cause) ?? { recoveries: 0, seconds: 0 };
    found.set(cause, { recoveries: recoveries + 1, seconds: seconds + lostOf(lane) });
  }
  const rows = [...found].map(([cause, { recoveries, seconds }]) => ({ cause, recoveries, lostChipHours: seconds / 3600 }));
  return rows.sort((a, b) => b.lostChipHours - a.lostChipHours || a.cause.localeCompare(b.cause));
}

export type LaneOrder = "newest" | "longest" | "costliest";

export function sorted(lanes: readonly Lane[], order: LaneOrder): Lane[] {
  const copy = lanes.slice();
  if (order === "newest") copy.sort((a, b) => Number(a.finished) - Number(b.finished) || b.begin - a.begin);
  else if (order === "longest") copy.sort((a, b) => b.seconds - a.seconds);
  else copy.sort((a, b) => lostOf(b) - lostOf(a));
  return copy;
}

/** Seconds that each phase took in all lanes together, and its part of the whole. */
export function phaseShares(lanes: readonly Lane[]): { phase: Phase; seconds: number; share: number }[] {
  const sums = new Map<Phase, number>(PHASES.map((phase) => [phase, 0]));
  let all = 0;
  for (const lane of lanes)
    for (const { phase, from, to } of lane.segments) {
      sums.set(phase, sums.get(phase)! + to - from);
      all += to - from;
    }
  return PHASES.map((phase) => ({ phase, seconds: sums.get(phase)!, share: all ? sums.get(phase)! / all : 0 }));
}

/** Round numbers of seconds from 0 to `longest`, about `count` of them. */
export function ticks(longest: number, count: number): number[] {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const wanted = longest / Math.max(1, count);
  const step = steps.find((one) => one >= wanted) ?? Math.ceil(wanted / 86400) * 86400;
  const marks: number[] = [];
  for (let at = 0; at <= longest; at += step) marks.push(at);
  return marks;
}

/** The seconds that the chart shows: all of them, unless a few lanes are so long that the others would be dots. */
export function shownSeconds(lanes: readonly Lane[]): number {
  const all = lanes.map((lane) => lane.seconds).sort((a, b) => a - b);
  const longest = all.at(-1) ?? 0;
  const usual = all[Math.floor((all.length - 1) * 0.75)] ?? 0;
  return Math.max(1, longest > usual * 4 && all.length > 2 ? usual * 1.6 : longest);
}
