// The recorded moments, oldest first; read again while the present moves on.
import { useEffect, useState } from "preact/hooks";
import { get } from "../store/api";
import { current, subscribe } from "../store/store";
import type { History, HistoryMoment } from "../types";

/** Milliseconds between two readings at least. */
const PAUSE = 10_000;

let moments: readonly HistoryMoment[] = [];
let error = "";
let read = 0;
let timer: ReturnType<typeof setTimeout> | undefined;
let seen = "";
const listeners = new Set<() => void>();

async function load(): Promise<void> {
  timer = undefined;
  read = Date.now();
  try {
    const { moments: found } = await get<History>("history");
    moments = found;
    error = "";
  } catch (reason) {
    error = reason instanceof Error ? reason.message : String(reason);
  }
  for (const listener of [...listeners]) listener();
}

function follow(): void {
  const moment = current().present?.moment.id ?? "";
  if (moment === seen || timer) return;
  seen = moment;
  timer = setTimeout(() => void load(), Math.max(0, read + PAUSE - Date.now()));
}

export function useHistory(): { moments: readonly HistoryMoment[]; error: string } {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = (): void => draw((turn) => turn + 1);
    listeners.add(listener);
    follow();
    const leave = subscribe(follow);
    return () => {
      listeners.delete(listener);
      leave();
    };
  }, []);
  return { moments, error };
}
