import assert from "node:assert/strict";
import { test } from "node:test";
import type { Cluster, Holder } from "../types";
import { holdersByText, holding } from "./holders";

const BY = "Isolation/optics (optics are replaced, desired/x.yaml:1@aaaaaaaaaaaa by Ada)";
const holders: Holder[] = [
  { node: "n-1", chip: 3, kind: "frequency", by: "80C98001 of FaultPolicy/strict", until: "2026-09-02T08:00:00Z" },
  { node: "n-2", chip: null, kind: "manual", by: BY, until: null },
  { node: "n-3", chip: 0, kind: "manual", by: BY, until: null },
];

test("the legend names each holder once, with what it holds", () => {
  assert.deepEqual(holdersByText({ holders }), [
    [`manual: ${BY}`, ["n-2", "n-3/0"]],
    ["frequency: 80C98001 of FaultPolicy/strict, until 2026-09-02T08:00:00Z", ["n-1/3"]],
  ]);
});

test("a chip is held by its own hold, by its node's, or by what the document has a code for", () => {
  const cluster = {
    holders, holds: ["", "fault", "manual"],
    nodes: { name: ["n-1", "n-2"] }, chips: { node: [0, 0, 1], chip: [3, 4, 0], hold: [2, 1, 2] },
  } as unknown as Cluster;
  assert.equal(holding(cluster, 0).startsWith("frequency: 80C98001"), true);
  assert.equal(holding(cluster, 1), "fault");
  assert.equal(holding(cluster, 2), `manual: ${BY}`);
});
