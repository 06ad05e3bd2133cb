// Keys of the whole page. A key pressed in a field, or with Ctrl, Alt or Meta, belongs to the browser.
import { useEffect, useRef } from "preact/hooks";

export type Keys = Readonly<Record<string, (event: KeyboardEvent) => void>>;

export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const listener = (event: KeyboardEvent): void => {
      if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
      const target = event.target as HTMLElement | null;
      if (target?.closest("input, textarea, select, [contenteditable]") && event.key !== "Escape") return;
      if (document.querySelector("dialog[open]")) return;
      const run = latest.current[event.key];
      if (run) {
        event.preventDefault();
        run(event);
      }
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}
