// Texts of the cluster, written shorter.
import assert from "node:assert/strict";
import { test } from "node:test";
import { runs, severityClass } from "./words";

test("runs of chips are short, other lists stay", () => {
  assert.equal(runs("Ascend910-0, Ascend910-1, Ascend910-2 of node-1 held"), "Ascend910-0..2 of node-1 held");
  assert.equal(runs("Ascend910-8, Ascend910-9, Ascend910-10"), "Ascend910-8..10");
  for (const text of ["Ascend910-0, Ascend910-1", "Ascend910-0, Ascend910-2, Ascend910-3", "node-1, rack-2, node-3", "a".repeat(100_000)]) assert.equal(runs(text), text);
});

test("what is no error is not red", () => {
  assert.deepEqual(["error", "", "warning", "info"].map(severityClass), ["bad", "bad", "warn", "dim"]);
});
