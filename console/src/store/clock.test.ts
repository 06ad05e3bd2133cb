// What a reader's wrong clock changes: nothing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { serverNow, setServerTime } from "./clock";

const LATER = 60 * 86_400_000;

test("time is the server's, however wrong this machine's clock is", (context) => {
  context.mock.timers.enable({ apis: ["Date"] });
  context.mock.timers.tick(LATER);
  for (const wrong of [-3_600_000, 0, 3_600_000, 40 * 86_400_000]) {
    const here = Date.now();
    setServerTime(new Date(here - wrong).toISOString(), here - 100, here + 100);
    assert.equal(serverNow(), here - wrong);
    context.mock.timers.tick(5000);
    assert.equal(serverNow(), here - wrong + 5000);
  }
});

test("what the answer's way took is no difference, and a server without a time changes nothing", (context) => {
  context.mock.timers.enable({ apis: ["Date"] });
  context.mock.timers.tick(LATER);
  setServerTime(new Date(LATER).toISOString(), LATER - 12_000, LATER);
  assert.equal(serverNow(), LATER);
  setServerTime("", LATER, LATER);
  assert.equal(serverNow(), LATER);
});
