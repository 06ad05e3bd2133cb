// Run by `npm test`: what the store does with documents and events of all kinds.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Cluster, StateWire } from "../types";
import { applyPatch, findChip, findJob, indexOf, readCluster, whole } from "./cluster";
import { EventParser, type StreamEvent } from "./events";

function wire(): StateWire {
  return {
    version: 1, moment: { id: "a", time: "2026-03-12T03:12:00Z", shard: "main", revision: "" },
    states: ["healthy", "isolated"], holds: ["", "fault"], nodeStates: ["healthy"],
    nodes: {
      name: ["n-1", "n-2"], pool: ["p", "p"], product: ["x", "x"], superPod: [-1, -1], rack: ["", ""], switch: ["", ""],
      prefix: ["Ascend910-", "Ascend910-"], state: ["healthy", "healthy"], level: ["", ""], message: ["", ""], cordoned: [0, 0],
    },
    chips: { node: [0, 0, 1], chip: [1, 0, 0], ring: [0, 0, 0], state: [0, 0, 0], job: [0, -1, -1], hold: [0, 0, 0], cuts: [0, ["vir04"], 0] },
    jobs: [{ kind: "AscendJob", namespace: "t", name: "j" } as never], queues: [], recoveries: [],
    fleet: { perCause: [], mttr: null, effectiveTime: null }, faults: [], holders: [], offenders: [], links: [], boards: [],
    git: { attempted: "", applied: "", conditions: [], revisions: [], findings: [], held: [] }, problems: [], leftOut: {},
  };
}

test("columns of chips are compact and cuts sparse", () => {
  const cluster = readCluster(wire());
  assert.equal(cluster.chips.length, 3);
  assert.deepEqual([...cluster.chips.job], [0, -1, -1]);
  assert.deepEqual([...cluster.chips.cuts], [[1, ["vir04"]]]);
});

test("a document of another version, or with columns of unlike length, is refused by name", () => {
  assert.throws(() => readCluster({ ...wire(), version: 2 }), /version/);
  assert.throws(() => readCluster({ ...wire(), nodes: { ...wire().nodes, pool: ["p"] } }), /nodes\.pool/);
  assert.throws(() => readCluster({ ...wire(), chips: { ...wire().chips, state: [0] } }), /chips\.state/);
  assert.throws(() => readCluster({ ...wire(), chips: { ...wire().chips, node: [0, 0, 7] } }), /node 7 of 2/);
});

test("a column that a server does not send counts as empty", () => {
  const { cordoned: _, ...nodes } = wire().nodes;
  assert.deepEqual(readCluster({ ...wire(), nodes }).nodes.cordoned, [0, 0]);
});

test("a second document shares what it has in common with the first", () => {
  const first = readCluster(wire()), second = readCluster({ ...wire(), chips: { ...wire().chips, state: [1, 0, 0] } }, first);
  assert.equal(second.chips.node, first.chips.node);
  assert.equal(second.nodes.name, first.nodes.name);
  assert.equal(indexOf(second), indexOf(first));
  assert.equal(first.chips.state[0], 0);
});

test("chips and jobs are found by name", () => {
  const cluster = readCluster(wire());
  assert.equal(findChip(cluster, "n-1", 0), 1);
  assert.equal(findChip(cluster, "n-2", 5), -1);
  assert.equal(findJob(cluster, "t/AscendJob/j"), 0);
  assert.equal(findJob(cluster, "t/j"), 0);
});

test("a patch changes single entries, rows and whole sections", () => {
  const before = readCluster(wire());
  const after = applyPatch(before, {
    chips: { state: { i: [2], v: [1] }, cuts: { i: [1, 2], v: [0, ["vir02"]] } }, nodes: { state: { i: [1], v: ["isolated"] } },
    jobs: { n: 2, i: [0, 1], v: [null, { name: "k" }] }, fleet: { perCause: [], mttr: 4, effectiveTime: null },
  });
  assert.deepEqual([...after.chips.state], [0, 0, 1]);
  assert.deepEqual([...after.chips.cuts], [[2, ["vir02"]]]);
  assert.deepEqual(after.nodes.state, ["healthy", "isolated"]);
  assert.deepEqual(before.nodes.state, ["healthy", "healthy"]);
  assert.deepEqual(after.jobs, [null, { name: "k" }]);
  assert.equal(after.fleet.mttr, 4);
  assert.deepEqual(applyPatch(after, { jobs: { n: 1, i: [], v: [] } }).jobs, [null]);
});

test("a patch that does not fit is refused", () => {
  const cluster = readCluster(wire());
  assert.throws(() => applyPatch(cluster, { chips: { state: { i: [9], v: [1] } } }), /entry 9 of 3/);
  assert.throws(() => applyPatch(cluster, { chips: { state: { i: [1], v: [] } } }), /one length/);
  assert.throws(() => applyPatch(cluster, { chips: { colour: { i: [1], v: [1] } } }), /colour/);
  assert.throws(() => applyPatch(cluster, { nodes: { state: 5 } }), /one length/);
});

test("events are read in whatever pieces they come", () => {
  const text = ": hello\nid: 7\nevent: patch\ndata: {\"a\":\ndata: 1}\n\n\ndata:x\r\n\r\nid: 8\n\n";
  for (let size = 1; size < text.length; size++) {
    const found: StreamEvent[] = [];
    const parser = new EventParser((event) => found.push(event));
    for (let at = 0; at < text.length; at += size) parser.feed(text.slice(at, at + size));
    assert.deepEqual(found, [{ id: "7", event: "patch", data: '{"a":\n1}' }, { id: "7", event: "message", data: "x" }]);
  }
});

test("a number counts the rows that the document leaves out, too", () => {
  const cluster = { leftOut: { faults: 1500 } } as unknown as Cluster;
  assert.equal(whole(cluster, "faults", 2000), 3500);
  assert.equal(whole(cluster, "findings", 7), 7);
});
