// A question that is asked again: never two at once, never without its pause, and not once more than wanted.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ask } from "./asking";

/** Lets what is ready run. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 10; turn++) await Promise.resolve();
}

function asked() {
  const open: { answer: (text: string) => void; fail: (reason: string) => void; signal: AbortSignal }[] = [];
  const said: string[] = [];
  const asking = ask(
    (signal) => new Promise<string>((done, failed) => open.push({ answer: done, fail: (reason) => failed(new Error(reason)), signal })), 4000,
    { done: (text) => said.push(text), failed: (error) => said.push(String(error)) },
  );
  return { open, said, asking };
}

test("changes during an answer and its pause are one more question", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { open, said, asking } = asked();
  assert.equal(open.length, 1);
  asking.again();
  asking.again();
  context.mock.timers.tick(60_000);
  assert.equal(open.length, 1, "an answer that takes long is waited for");
  open[0]!.answer("one");
  await settle();
  context.mock.timers.tick(0);
  assert.equal(open.length, 2);
  open[1]!.answer("two");
  await settle();
  asking.again();
  asking.again();
  context.mock.timers.tick(3999);
  assert.equal(open.length, 2, "not before the pause is over");
  context.mock.timers.tick(1);
  assert.equal(open.length, 3);
  open[2]!.fail("away");
  await settle();
  context.mock.timers.tick(60_000);
  assert.equal(open.length, 3, "nothing changed: nothing is asked");
  assert.deepEqual(said, ["one", "two", "Error: away"]);
});

test("nobody hears an answer after the end, and nothing is asked", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { open, said, asking } = asked();
  asking.again();
  asking.end();
  assert.ok(open[0]!.signal.aborted);
  open[0]!.answer("late");
  await settle();
  asking.again();
  context.mock.timers.tick(60_000);
  assert.equal(open.length, 1);
  assert.deepEqual(said, []);
});
