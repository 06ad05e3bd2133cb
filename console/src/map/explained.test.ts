// Text of `belay explain` becomes sentences, titles and small tables.
import assert from "node:assert/strict";
import { test } from "node:test";
import { partsOf } from "./explained";

test("an explanation keeps its shape", () => {
  const parts = partsOf([
    "chip node-1/Ascend910-0 is resetting, level RestartNPU by 80C98001",
    "resets: 2026-11-24T06:22:48.109Z",
    "",
    "faults",
    "  CODE       KIND            LEVEL        USED BY",
    "  80C98001   CardUnhealthy   RestartNPU   ns/a job",
    "  80E01801   CardUnhealthy   SeparateNPU",
    "",
    "failures",
    "  rate: 0.9",
    "    of: 2",
    "what comes next: nothing",
  ]);
  assert.deepEqual(parts.map((part) => [part.kind, part.depth]), [
    ["text", 0], ["text", 0], ["title", 0], ["table", 1], ["title", 0], ["rows", 1], ["rows", 2], ["text", 0],
  ]);
  assert.deepEqual(parts[3]!.lines, [
    ["CODE", "KIND", "LEVEL", "USED BY"], ["80C98001", "CardUnhealthy", "RestartNPU", "ns/a job"], ["80E01801", "CardUnhealthy", "SeparateNPU", ""],
  ]);
});

test("a single word in capitals is no table, and an empty text is nothing", () => {
  assert.deepEqual(partsOf(["levels", "  NORMAL"]).map((part) => part.kind), ["title", "rows"]);
  assert.deepEqual(partsOf(["", "  "]), []);
});
