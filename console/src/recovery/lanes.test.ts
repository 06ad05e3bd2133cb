// What a job waited for between two stages of its recovery.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Recovery } from "../types";
import { laneOf, lostByCause } from "./lanes";

function recovery(names: readonly string[], steps: readonly unknown[]): Recovery {
  const stages = names.map((stage, second) => ({ stage, time: new Date(second * 1000).toISOString() }));
  return { stages, steps, seconds: 1 } as unknown as Recovery;
}

function phases(names: readonly string[], steps: readonly unknown[] = []): string[] {
  return laneOf(recovery(names, steps), 0)!.segments.map((one) => one.phase);
}

test("new pods start until training goes on, unless its processes repair it", () => {
  assert.deepEqual(phases(["seen", "isolated", "evicted", "bound", "resumed"]), ["judging", "stopping", "placing", "starting"]);
  assert.deepEqual(phases(["seen", "isolated", "evicted", "bound", "running", "resumed"], [{}]), ["judging", "stopping", "placing", "starting", "repairing"]);
  assert.deepEqual(phases(["seen", "isolated", "signalled", "repaired", "resumed"], [{}]), ["judging", "stopping", "repairing", "repairing"]);
});

test("what was lost is summed by cause, the recovery under way included", () => {
  const of = (cause: string, lost: number | null): Recovery => ({ ...recovery(["seen", "evicted"], []), cause, code: "", chips: 8, lostChipSeconds: lost, seconds: lost === null ? null : 1 } as Recovery);
  const lanes = [of("A", 3600), of("B", null), of("A", 3600)].map((one) => laneOf(one, 7_200_000)!);
  assert.deepEqual(lostByCause(lanes), [{ cause: "B", recoveries: 1, lostChipHours: 16 }, { cause: "A", recoveries: 2, lostChipHours: 2 }]);
});
