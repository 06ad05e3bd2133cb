// Run by `npm test`: the map of clusters of all shapes.
import assert from "node:assert/strict";
import { test } from "node:test";
import { readCluster } from "../store/cluster";
import { chipAt, FILL, layoutOf, neighbour } from "./layout";
import { paint, rgba, THEMES } from "./paint";

function cluster(nodes: number, chips: number, rings: number, pods: number) {
  const each = <T>(make: (node: number) => T): T[] => Array.from({ length: nodes }, (_, node) => make(node));
  const all = <T>(make: (chip: number) => T): T[] => Array.from({ length: nodes * chips }, (_, chip) => make(chip));
  return readCluster({
    version: 1, moment: { id: "a", time: "", shard: "", revision: "" }, states: ["healthy", "isolated"], holds: [""],
    nodes: {
      name: each((node) => `n-${node}`), pool: each((node) => (node % 3 ? "a" : "b")), superPod: each((node) => (pods ? node % pods : -1)),
      state: each(() => "healthy"),
    },
    chips: {
      node: all((chip) => Math.floor(chip / chips)), chip: all((chip) => chip % chips), ring: all((chip) => Math.floor(((chip % chips) * rings) / chips)),
      state: all(() => 0), job: all(() => -1), hold: all(() => 0), cuts: [],
    },
  });
}

const SHAPES = [[1, 1, 1, 0], [13, 8, 2, 0], [50, 16, 8, 4], [7, 7, 1, 7], [300, 16, 1, 30], [2, 64, 8, 0]] as const;

for (const [nodes, chips, rings, pods] of SHAPES)
  test(`${nodes} nodes of ${chips} chips in ${rings} rings and ${pods} super pods: every chip has a place of its own and is found there`, () => {
    const one = cluster(nodes, chips, rings, pods);
    for (const [width, height] of [[1400, 760], [380, 600]] as const) {
      const layout = layoutOf(one, width, height);
      const places = new Set<string>();
      for (let chip = 0; chip < one.chips.length; chip++) {
        const x = layout.chipX[chip]!, y = layout.chipY[chip]!;
        assert.ok(x >= 0 && y >= 0 && x + FILL <= layout.w + 0.5 && y + FILL <= layout.h + 0.5, `chip ${chip} lies at ${x}, ${y}`);
        places.add(`${x.toFixed(2)} ${y.toFixed(2)}`);
        assert.equal(chipAt(layout, one, x + FILL / 2, y + FILL / 2, 0), chip);
      }
      assert.equal(places.size, one.chips.length);
    }
  });

test("arrow keys reach every chip of a node, and lead back", () => {
  const one = cluster(13, 8, 2, 0), layout = layoutOf(one, 1400, 760);
  const reached = new Set([0]), queue = [0];
  for (let chip = queue.pop(); chip !== undefined; chip = queue.pop())
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]] as const) {
      const next = neighbour(layout, one, chip, dx, dy);
      if (!reached.has(next)) {
        reached.add(next);
        queue.push(next);
      }
    }
  assert.equal(reached.size, one.chips.length);
});

test("an isolated chip is seen even where a chip is less than a pixel", () => {
  const one = cluster(300, 16, 1, 30);
  one.chips.state[777] = 1;
  const layout = layoutOf(one, 60, 40), scale = Math.min(60 / layout.w, 40 / layout.h);
  const pixels = new Uint32Array(60 * 40);
  paint(pixels, 60, 40, { cluster: one, layout, camera: { x: 0, y: 0, scale }, theme: THEMES.light, lit: null });
  assert.ok(scale < 1);
  assert.ok(pixels.includes(rgba("#c9421c")));
});
