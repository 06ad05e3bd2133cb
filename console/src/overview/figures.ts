// What the overview says, counted from the document: what is broken, what waits, what is lost.
import { byTime, isFailed, isWaiting } from "../queue/Queue";
import { laneOf, lostOf } from "../recovery/lanes";
import type { Cluster, Job } from "../types";

/** States in which a chip takes no work. */
const OUT = new Set(["isolated", "manually-isolated", "resetting", "recovering"]);
const WELL = new Set(["healthy", "free"]);

export interface Broken {
  chipsOut: number;
  chipsWatched: number;
  nodesOut: number;
  failed: readonly Job[];
  faults: number;
  /** When the oldest fault that is still there came. */
  since: string | null;
}

export function brokenOf(cluster: Cluster): Broken {
  let chipsOut = 0, chipsWatched = 0;
  const out = cluster.states.map((state) => OUT.has(state)), well = cluster.states.map((state) => WELL.has(state));
  for (const state of cluster.chips.state) {
    if (out[state]) chipsOut += 1;
    else if (!well[state]) chipsWatched += 1;
  }
  const nodesOut = cluster.nodes.state.reduce((sum, state) => sum + Number(state !== "healthy" && state !== "sub-healthy"), 0);
  const times = cluster.faults.map((fault) => fault.since).filter((time): time is string => Boolean(time)).sort();
  return { chipsOut, chipsWatched, nodesOut, failed: jobsOf(cluster).filter(isFailed).sort(byTime), faults: cluster.faults.length, since: times[0] ?? null };
}

export interface Waits {
  jobs: readonly Job[];
  chips: number;
  since: string | null;
}

export function waitsOf(cluster: Cluster): Waits {
  const jobs = jobsOf(cluster).filter(isWaiting).sort(byTime);
  return { jobs, chips: jobs.reduce((sum, job) => sum + job.chips, 0), since: jobs[0]?.since ?? null };
}

export interface Lost {
  underWay: number;
  chips: number;
  /** Chip-hours. */
  soFar: number;
  since: string | null;
}

/** What stands still now: a recovery under way costs more with every second. `now` in ms since 1970. */
export function lostOfAll(cluster: Cluster, now: number): Lost {
  const open = cluster.recoveries.flatMap((one) => {
    const lane = laneOf(one, now);
    return lane && !lane.finished ? [lane] : [];
  });
  const first = open.reduce((least, lane) => Math.min(least, lane.begin), Infinity);
  return {
    underWay: open.length,
    chips: open.reduce((sum, lane) => sum + lane.recovery.chips, 0),
    soFar: open.reduce((sum, lane) => sum + lostOf(lane), 0) / 3600,
    since: open.length ? new Date(first).toISOString() : null,
  };
}

function jobsOf(cluster: Cluster): Job[] {
  return cluster.jobs.filter((job): job is Job => job !== null);
}
