// The texts of the page in the language of the reader; the tables are in texts/.
import { ENGLISH } from "./texts/en";
import { CHINESE } from "./texts/zh";

export type MessageKey = keyof typeof ENGLISH;
export type Texts = Readonly<Record<MessageKey, string>>;

export type Language = "en" | "zh";

let texts: Texts = ENGLISH;

/** Has the page speak a language from now on; what is drawn already must be drawn again. */
export function speak(language: Language): void {
  texts = language === "zh" ? CHINESE : ENGLISH;
}

const numbers = new Intl.NumberFormat("en");

/** A text of the catalogue with its fields filled in: {name}, or {name|one|many} for a number and what it counts. */
export function t(key: MessageKey, fields: Readonly<Record<string, string | number>> = {}): string {
  return texts[key].replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, (whole, name: string, one?: string, many?: string) => {
    const value = fields[name];
    if (value === undefined) return whole;
    const text = typeof value === "number" ? numbers.format(value) : value;
    return one === undefined ? text : `${text} ${value === 1 ? one : many}`;
  });
}

/** A number with separators: 80,000. */
export function number(value: number, digits = 0): string {
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Whether the catalogue has a text under a key that is made at run time. */
export function known(key: string): key is MessageKey {
  return Object.hasOwn(ENGLISH, key);
}
