// What a reader chose for this browser: theme, and relative or absolute times. Shared by its tabs.
import { useEffect, useState } from "preact/hooks";

export type Theme = "auto" | "light" | "dark";
export type Times = "relative" | "absolute";

interface Preferences {
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
    theme: found.theme === "light" || found.theme === "dark" ? found.theme : "auto",
    times: found.times === "absolute" ? "absolute" : "relative",
  };
}

function show(): void {
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
