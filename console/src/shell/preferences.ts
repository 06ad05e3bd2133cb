// What a reader chose for this browser: language, theme, and relative or absolute times. Shared by its tabs.
import { useEffect, useState } from "preact/hooks";
import { type Language, speak } from "../messages";

export type Spoken = "auto" | Language;
export type Theme = "auto" | "light" | "dark";
export type Times = "relative" | "absolute";

interface Preferences {
  language: Spoken;
  theme: Theme;
  times: Times;
}

const KEY = "belay.preferences";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let chosen = stored();
show();

function stored(): Preferences {
  let found: Partial<Preferences> = {};
  try {
    found = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Preferences>;
  } catch {
    // another program's value, or no storage: the defaults hold
  }
  return {
    language: found.language === "en" || found.language === "zh" ? found.language : "auto",
    theme: found.theme === "light" || found.theme === "dark" ? found.theme : "auto",
    times: found.times === "absolute" ? "absolute" : "relative",
  };
}

/** The language that is shown: the reader's choice, else the first of the browser's that there is. */
export function language(): Language {
  if (chosen.language !== "auto") return chosen.language;
  for (const one of navigator.languages) if (/^(zh|en)\b/i.test(one)) return one.toLowerCase().startsWith("zh") ? "zh" : "en";
  return "en";
}

function show(): void {
  speak(language());
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  if (chosen.theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen.theme;
  for (const listener of [...listeners]) listener();
}
addEventListener("storage", (event) => {
  if (event.key === KEY) {
    chosen = stored();
    show();
  }
});
system.addEventListener("change", show);

export function prefer(change: Partial<Preferences>): void {
  chosen = { ...chosen, ...change };
  try {
    localStorage.setItem(KEY, JSON.stringify(chosen));
  } catch {
    // without storage the choice holds for this tab
  }
  show();
}

export function preferences(): Preferences {
  return chosen;
}

export function isDark(): boolean {
  return chosen.theme === "auto" ? system.matches : chosen.theme === "dark";
}

export function usePreferences(): Preferences & { dark: boolean } {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = (): void => draw((turn) => turn + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return { ...chosen, dark: isDark() };
}
