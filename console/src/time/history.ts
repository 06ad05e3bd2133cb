// The recorded moments, oldest first; read again while the present moves on.
import { useEffect, useState } from "preact/hooks";
import { get } from "../store/api";
import { isTime } from "../shell/place";
import { current, subscribe } from "../store/store";
import type { History, HistoryMoment } from "../types";

/** Milliseconds between two readings at least. */
const PAUSE = 10_000;

let moments: readonly HistoryMoment[] = [];
let error = "";
let read = 0;
let complete = 0;
let timer: ReturnType<typeof setTimeout> | undefined;
let seen = "";
const listeners = new Set<() => void>();

/** Milliseconds between two readings of all moments at least. */
const OLDER = 120_000;
/** Moments of one request; older ones are asked for until all are there. */
const PAGE = 500;

async function load(): Promise<void> {
  timer = undefined;
  read = Date.now();
  try {
    moments = await whole();
    error = "";
  } catch (reason) {
    error = reason instanceof Error ? reason.message : String(reason);
  }
  for (const listener of [...listeners]) listener();
}

/** Every moment that the server keeps. The older ones are asked for now and then only: the server may thin them out. */
async function whole(): Promise<readonly HistoryMoment[]> {
  let { moments: found, leftOut } = await get<History>("history", { limit: PAGE });
  const known = moments.findIndex((moment) => moment.id === found[0]?.id);
  if (leftOut > 0 && known >= 0 && Date.now() - complete < OLDER) return [...moments.slice(0, known), ...found];
  while (leftOut > 0 && found.length) {
    const page: History = await get<History>("history", { limit: PAGE, to: found[0]!.time });
    const ids = new Set(found.map((moment) => moment.id));
    const older = page.moments.filter((moment) => !ids.has(moment.id));
    if (!older.length) break;
    found = [...older, ...found];
    leftOut = page.leftOut;
  }
  complete = Date.now();
  return found;
}

/** The moment of an ID, or the newest one up to a time. */
export function atOrBefore(rows: readonly HistoryMoment[], at: string): HistoryMoment | undefined {
  if (!isTime(at)) return rows.find((moment) => moment.id === at);
  const time = Date.parse(at);
  return rows.findLast((moment) => Date.parse(moment.time) <= time);
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
