import assert from "node:assert/strict";
import { test } from "node:test";
import { brokenOf } from "../overview/figures";
import type { Cluster } from "../types";
import { chipRows, nodeRows, OUT, WATCHED } from "./rows";

const STATES = ["healthy", "sub-healthy", "suspect", "isolated", "resetting", "recovering", "manually-isolated"];

function cluster(): Cluster {
  const state = Uint8Array.from([0, 3, 1, 6, 0, 2, 4, 5]);
  const chips = { length: state.length, node: Int32Array.from([0, 0, 0, 0, 1, 1, 1, 1]), state, job: new Int32Array(8).fill(-1), hold: new Uint8Array(8) };
  const nodes = { name: ["a", "b", "c"], state: ["healthy", "sub-healthy", "not-ready"] };
  return { states: STATES, chips, nodes, jobs: [], faults: [], leftOut: {} } as unknown as Cluster;
}

test("a number of the overview leads to as many rows", () => {
  const found = cluster(), broken = brokenOf(found), any = { job: -1, node: -1 };
  assert.deepEqual(chipRows(found, { state: OUT, ...any }), [1, 3, 6, 7]);
  assert.deepEqual(chipRows(found, { state: WATCHED, ...any }), [2, 5]);
  assert.equal(chipRows(found, { state: OUT, ...any }).length, broken.chipsOut);
  assert.equal(chipRows(found, { state: WATCHED, ...any }).length, broken.chipsWatched);
  assert.deepEqual(nodeRows(found), [2, 1]);
  assert.equal(broken.nodesOut, 1);
});

test("what is not healthy stands first", () => {
  assert.deepEqual(chipRows(cluster(), { state: "", job: -1, node: 1 }), [5, 6, 7, 4]);
});
