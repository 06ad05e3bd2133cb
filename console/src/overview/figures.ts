// What the overview says, counted from the document: what is broken, what waits, what is lost.
import { inGroup, isNodeOut, OUT, WATCHED } from "../map/rows";
import { byTime, isFailed, isWaiting } from "../queue/phases";
import { laneOf, lostOf } from "../recovery/lanes";
import { whole } from "../store/cluster";
import type { Cluster, Git, Job } from "../types";

export type Tone = "good" | "warn" | "bad";

/** Whether what Git declares is in force, and why not. */
export interface Standing {
  tone: Tone;
  text: "isInForce" | "notInForce" | "partInForce" | "comesInForce" | "unknownInForce";
  why: string;
}

/** Reasons that end with time: objects are on their way, or wait for a budget that is listed beside. */
const ON_ITS_WAY = "Applying", HELD_BACK = "HeldBack";

/** By what the cluster answered, not by what was read: a commit that is read may be refused by the API server. */
export function standingOf(git: Git): Standing {
  const ready = git.conditions.find((one) => one.type === "Ready");
  const why = ready && ready.status !== "True" ? [ready.reason, ready.message].filter(Boolean).join(": ") : "";
  if (!git.applied || (git.attempted !== "" && git.attempted !== git.applied)) return { tone: "bad", text: "notInForce", why };
  if (ready?.status === "Unknown") return { tone: "bad", text: "unknownInForce", why };
  if (why && ready?.reason === ON_ITS_WAY) return { tone: "warn", text: "comesInForce", why };
  if (why) return { tone: ready?.reason === HELD_BACK ? "warn" : "bad", text: "partInForce", why };
  const found = git.held.length || git.findings.some((one) => one.severity !== "info");
  return { tone: found ? "warn" : "good", text: "isInForce", why: "" };
}

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
  const out = inGroup(cluster.states, OUT), watched = inGroup(cluster.states, WATCHED);
  for (const state of cluster.chips.state) {
    if (out[state]) chipsOut += 1;
    else if (watched[state]) chipsWatched += 1;
  }
  const nodesOut = cluster.nodes.state.reduce((sum, state) => sum + Number(isNodeOut(state)), 0);
  const times = cluster.faults.map((fault) => fault.since).filter((time): time is string => Boolean(time)).sort();
  return { chipsOut, chipsWatched, nodesOut, failed: jobsOf(cluster).filter(isFailed).sort(byTime), faults: whole(cluster, "faults", cluster.faults.length), since: times[0] ?? null };
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
