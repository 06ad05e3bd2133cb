// A translation says what the English text says: the same fields, and nothing left empty.
import assert from "node:assert/strict";
import { test } from "node:test";
import { speak, t } from "../messages";
import { ENGLISH } from "./en";
import { CHINESE } from "./zh";

const fields = (text: string): string[] => [...text.matchAll(/\{(\w+)/g)].map((one) => one[1]!).sort();

test("every text is there in Chinese, with the same fields", () => {
  for (const [key, text] of Object.entries(ENGLISH)) {
    const found = CHINESE[key as keyof typeof ENGLISH];
    assert.ok(found, key);
    assert.deepEqual(fields(found), fields(text), key);
  }
  const same = Object.entries(ENGLISH).filter(([key, text]) => /[a-z]{4}/.test(text) && CHINESE[key as keyof typeof ENGLISH] === text).map(([key]) => key);
  assert.deepEqual(same.sort(), ["shell.language.en", "shell.name"]);
});

test("texts are said in the language that was chosen", () => {
  speak("zh");
  assert.equal(t("queue.chips", { count: 8 }), "8 个芯片");
  speak("en");
  assert.equal(t("queue.chips", { count: 1 }), "1 chip");
});
