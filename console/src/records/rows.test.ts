import assert from "node:assert/strict";
import { test } from "node:test";
import type { HistoryRow } from "../types";
import { aboutOf, shownRows, subjectOf } from "./rows";

const row = (change: Partial<HistoryRow>): HistoryRow => ({
  time: "2026-11-29T03:00:00Z", kind: "fault", job: "", node: "node-1", chip: 3, pool: "", queue: "", user: "", text: "fault", cause: "", revision: "", author: "", ...change,
});

test("rows are shown newest first, what was said twice once", () => {
  const rows = [row({ text: "a" }), row({ text: "a" }), row({ text: "b", kind: "held" })];
  assert.deepEqual(shownRows(rows, "").map((one) => one.text), ["b", "a"]);
  assert.deepEqual(shownRows(rows, "fault").map((one) => one.text), ["a"]);
});

test("a row leads to what it is about", () => {
  assert.equal(subjectOf(row({})), "chip/node-1/3");
  assert.equal(subjectOf(row({ chip: null })), "node/node-1");
  assert.equal(subjectOf(row({ job: "a/AscendJob/b" })), "job/a/AscendJob/b");
  assert.equal(subjectOf(row({ node: "" })), "");
});

test("the history is asked about chips, nodes and jobs", () => {
  assert.deepEqual(aboutOf("job/a/AscendJob/b"), { subject: "job", name: "a/AscendJob/b" });
  assert.deepEqual(aboutOf("chip/node-1/3"), { subject: "chip", name: "node-1/3" });
  assert.equal(aboutOf("pod/a/b"), null);
  assert.equal(aboutOf(""), null);
});
