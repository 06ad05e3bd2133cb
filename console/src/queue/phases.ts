// What a job does: it waits, it failed, or it has its pods.
import type { Job } from "../types";

export function isWaiting(job: Job): boolean {
  return !isFailed(job) && (job.reason !== "" || job.phase === "Pending");
}

export function isFailed(job: Job): boolean {
  return job.phase === "Failed";
}

/** Who waits longest comes first. */
export function byTime(a: Job, b: Job): number {
  return (a.since ?? "9").localeCompare(b.since ?? "9");
}
