import assert from "node:assert/strict";
import { test } from "node:test";
import type { Git } from "../types";
import { standingOf } from "./figures";

const GOOD: Git = { attempted: "b", applied: "b", conditions: [{ type: "Ready", status: "True", reason: "Everything", message: "" }], revisions: [], findings: [], held: [] };

function ready(status: string, reason: string): Git {
  return { ...GOOD, conditions: [{ type: "PruneHeld", status: "True", reason: "", message: "" }, { type: "Ready", status, reason, message: "first x" }] };
}

test("a commit that is read is in force only when the cluster says so", () => {
  assert.deepEqual(standingOf(GOOD), { tone: "good", text: "isInForce", why: "" });
  assert.deepEqual(standingOf(ready("False", "RefusedByServer")), { tone: "bad", text: "partInForce", why: "RefusedByServer: first x" });
  assert.equal(standingOf(ready("False", "Applying")).text, "comesInForce");
  assert.equal(standingOf(ready("False", "HeldBack")).tone, "warn");
  assert.deepEqual(standingOf(ready("Unknown", "NoPass")), { tone: "bad", text: "unknownInForce", why: "NoPass: first x" });
  assert.equal(standingOf({ ...ready("False", "Rejected"), attempted: "c" }).text, "notInForce");
  assert.equal(standingOf({ ...GOOD, findings: [{ severity: "warning", where: "", field: "", message: "" }] }).tone, "warn");
});
