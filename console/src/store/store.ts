// What the page knows: the present document kept up to date, or a document of the past, and how the connection is.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { t } from "../messages";
import { isTime } from "../shell/place";
import type { Change, Cluster, History, StateWire, Viewer } from "../types";
import { ApiError, get, seekFor, useToken } from "./api";
import { ask, type Asking } from "./asking";
import { setServerTime } from "./clock";
import { applyPatch, readCluster } from "./cluster";
import type { StreamEvent } from "./events";
import { readStream } from "./stream";

export type Connection =
  | { kind: "connecting" }
  | { kind: "live" }
  /** The server offers a recording or a file: nothing changes. */
  | { kind: "still" }
  /** The tab is hidden; it reads again when it is looked at. */
  | { kind: "paused" }
  | { kind: "lost"; since: number; reason: string; retryAt: number }
  /** 401 or 403: nothing is shown. */
  | { kind: "refused"; status: number; reason: string; login: boolean };

export interface State {
  viewer: Viewer | null;
  present: Cluster | null;
  /** The document that views show: the present one, or that of moment `at`; null before the first. */
  cluster: Cluster | null;
  /** Id of the moment that was asked for, "" for the present. */
  at: string;
  /** Whether the document of `at` is still on its way. */
  waiting: boolean;
  /** Why the document of `at` cannot be shown. */
  problem: string;
  connection: Connection;
}

const FIRST_RETRY = 1000;
const LAST_RETRY = 15_000;
/** How long a hidden tab keeps its connection, ms: browsers allow six for each server, and tabs are many. */
const HIDDEN = 30_000;
const KEPT_MOMENTS = 8;

let state: State = {
  viewer: null, present: null, cluster: null, at: "", waiting: false, problem: "", connection: { kind: "connecting" },
};
const listeners = new Set<() => void>();

/** The state as it is now, outside of components. */
export function current(): State {
  return state;
}

export function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function set(change: Partial<State>): void {
  state = { ...state, ...change };
  // a moment that cannot be shown leaves the reader with the present, and the banner that says so
  if (state.at === "" || (state.problem && !state.cluster)) state.cluster = state.present;
  for (const listener of [...listeners]) listener();
}

/** A part of the state; the component is drawn again when that part is another value. */
export function useStore<T>(select: (state: State) => T): T {
  const [, draw] = useState(0);
  const value = select(state);
  useLayoutEffect(() => {
    let last = value;
    const check = (): void => {
      const now = select(state);
      if (!Object.is(now, last)) {
        last = now;
        draw((turn) => turn + 1);
      }
    };
    check();
    return subscribe(check);
  });
  return value;
}

// ---- the present, and its changes

let lastEvent = "";
let stop: AbortController | null = null;
let wake: (() => void) | null = null;
let buffered: Change[] | null = null;

/** Reads the document, then its changes, for as long as the page lives. */
export function connect(): void {
  document.addEventListener("visibilitychange", visibility);
  addEventListener("online", () => retryNow());
  void run();
}

/** Tries at once instead of at the next turn. */
export function retryNow(): void {
  wake?.();
}

/** Shows a token to the server, and tries again. */
export function signIn(token: string): void {
  useToken(token);
  retryNow();
}

async function meet(): Promise<void> {
  const asked = Date.now();
  const viewer = await get<Viewer>("viewer");
  setServerTime(viewer.time ?? "", asked, Date.now());
  seekFor(viewer.limits.answerSeconds);
  set({ viewer });
}

async function run(): Promise<void> {
  let wait = FIRST_RETRY;
  for (;;) {
    stop = new AbortController();
    const signal = stop.signal;
    try {
      if (!state.viewer) void meet().catch(() => undefined);
      if (!state.present) await load(signal);
      if (state.viewer && !state.viewer.can.changes) {
        set({ connection: { kind: "still" } });
        return;
      }
      await readStream("changes", lastEvent, signal, () => {
        wait = FIRST_RETRY;
        set({ connection: { kind: "live" } });
      }, (event) => receive(event, signal));
      throw new ApiError(0, "the server ended the connection");
    } catch (error) {
      if (signal.aborted) {
        set({ connection: { kind: "paused" } });
        await pause(Infinity);
        continue;
      }
      const { status, message, login } = error instanceof ApiError ? error : new ApiError(0, String(error));
      if (status === 401 || status === 403) {
        set({ present: null, cluster: null, connection: { kind: "refused", status, reason: message, login } });
        lastEvent = "";
        await pause(Infinity);
        continue;
      }
      const since = state.connection.kind === "lost" ? state.connection.since : Date.now();
      const delay = wait * (0.75 + Math.random() / 2);
      set({ connection: { kind: "lost", since, reason: message, retryAt: Date.now() + delay } });
      await pause(delay);
      wait = Math.min(LAST_RETRY, wait * 2);
    }
  }
}

function pause(delay: number): Promise<void> {
  return new Promise((done) => {
    const timer = Number.isFinite(delay) ? setTimeout(() => wake?.(), delay) : undefined;
    wake = () => {
      clearTimeout(timer);
      wake = null;
      done();
    };
  });
}

let hidden: ReturnType<typeof setTimeout> | undefined;

function visibility(): void {
  clearTimeout(hidden);
  if (document.visibilityState === "hidden") hidden = setTimeout(() => state.connection.kind === "live" && stop?.abort(), HIDDEN);
  else if (state.connection.kind === "paused" || state.connection.kind === "lost") retryNow();
}

async function load(signal: AbortSignal): Promise<void> {
  const present = readCluster(await get<StateWire>("state", {}, { signal }), state.present);
  set({ present });
}

function receive({ id, event, data }: StreamEvent, signal: AbortSignal): void {
  if (id) lastEvent = id;
  if (event === "patch") {
    const change = JSON.parse(data) as Change;
    if (buffered) buffered.push(change);
    else if (!follow([change])) void reload(signal);
  } else if (event === "reset") void reload(signal);
  else if (event === "hello") {
    const { moment } = JSON.parse(data) as Pick<Change, "moment">;
    if (moment.id !== state.present?.moment.id) void reload(signal);
  }
}

/** Applies changes to the present document; false where they do not follow from it. */
function follow(changes: readonly Change[]): boolean {
  let present = state.present;
  if (!present) return false;
  const begin = changes.findIndex((change) => change.from === present!.moment.id);
  if (begin < 0) return changes.length === 0 || changes.at(-1)!.moment.id === present.moment.id;
  try {
    for (const change of changes.slice(begin)) {
      if (change.from !== present.moment.id) return false;
      present = { ...applyPatch(present, change.patch), moment: change.moment };
    }
  } catch {
    return false; // half a patch may be in place: the caller reads the document again
  }
  set({ present });
  return true;
}

/** Reads the document again; changes that come meanwhile are kept and applied to it. */
async function reload(signal: AbortSignal): Promise<void> {
  if (buffered) return;
  buffered = [];
  try {
    for (let turn = 0; turn < 5; turn++) {
      await load(signal);
      if (follow(buffered)) return;
      await new Promise((done) => setTimeout(done, 200 * 2 ** turn));
    }
    throw new ApiError(0, "the server's changes do not follow from its document");
  } catch (error) {
    if (!signal.aborted) {
      set({ connection: { kind: "lost", since: Date.now(), reason: error instanceof Error ? error.message : String(error), retryAt: Date.now() } });
      stop?.abort();
      setTimeout(retryNow, FIRST_RETRY);
    }
  } finally {
    buffered = null;
  }
}

// ---- the past

const kept = new Map<string, Promise<Cluster>>();

/** The document of a recorded moment; the last few are kept. Raises ApiError. */
export function momentOf(id: string): Promise<Cluster> {
  let known = kept.get(id);
  if (known) kept.delete(id);
  else {
    known = recordedAt(id).then((found) => get<StateWire>(`at/${encodeURIComponent(found)}`)).then((wire) => readCluster(wire, state.cluster ?? state.present));
    known.catch(() => kept.delete(id));
  }
  kept.set(id, known);
  for (const oldest of kept.keys()) {
    if (kept.size <= KEPT_MOMENTS) break;
    kept.delete(oldest);
  }
  return known;
}

/** The ID of a moment; of a time, that of the newest moment recorded until then. */
async function recordedAt(at: string): Promise<string> {
  if (!isTime(at)) return at;
  const { moments } = await get<History>("history", { to: at, limit: 1 });
  const found = moments.at(-1);
  if (!found) throw new ApiError(404, t("time.tooOld"));
  return found.id;
}

let fetching = false;

/**
 * Shows the document of a moment, "" for the present. Until it is here, the one before stays. Where a slider asks for
 * moments faster than they come, those in between are left out.
 */
export async function showMoment(id: string): Promise<void> {
  if (id === state.at && !state.problem) return;
  if (id === "") {
    set({ at: "", waiting: false, problem: "" });
    return;
  }
  set({ at: id, waiting: true, problem: "" });
  if (fetching) return;
  fetching = true;
  try {
    for (let asked = ""; state.at && state.at !== asked; ) {
      asked = state.at;
      try {
        const cluster = await momentOf(asked);
        if (state.at) set({ cluster, waiting: state.at !== asked });
      } catch (error) {
        if (state.at === asked) set({ waiting: false, problem: error instanceof Error ? error.message : String(error) });
      }
    }
  } finally {
    fetching = false;
  }
}

// ---- answers to questions

export interface Answer<T> {
  data: T | null;
  error: ApiError | null;
  loading: boolean;
  /** Whether what the answer is about has changed since; the next answer is on its way. */
  old: boolean;
}

/** What makes an answer old: it is asked for again when `of` is another text, `pause` milliseconds after the last time at least. */
export interface Fresh {
  /** "" while it is not known yet. */
  of: string;
  pause: number;
}

/**
 * An answer of the API for as long as the component lives; null as path asks nothing. The last answer stays while the
 * next one comes.
 */
export function useApi<T>(path: string | null, query: Readonly<Record<string, string | number | null | undefined>> = {}, fresh?: Fresh): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ data: null, error: null, loading: path !== null, old: false });
  const asking = useRef<Asking | null>(null);
  const key = path === null ? "" : `${path}?${JSON.stringify(query)}`;
  useEffect(() => {
    if (path === null) {
      setAnswer({ data: null, error: null, loading: false, old: false });
      return undefined;
    }
    setAnswer((last) => ({ ...last, loading: true }));
    asking.current = ask((signal) => get<T>(path, query, { signal }), fresh?.pause ?? 0, {
      done: (data) => setAnswer({ data, error: null, loading: false, old: false }),
      failed: (error) => setAnswer({ data: null, error: error instanceof ApiError ? error : new ApiError(0, String(error)), loading: false, old: false }),
    });
    return () => {
      asking.current?.end();
      asking.current = null;
    };
  }, [key]);
  const seen = useRef({ key, of: fresh?.of });
  useEffect(() => {
    const before = seen.current;
    seen.current = { key, of: fresh?.of };
    if (before.key !== key || !before.of || before.of === fresh?.of || !asking.current) return;
    setAnswer((last) => ({ ...last, old: true }));
    asking.current.again();
  }, [key, fresh?.of]);
  return answer;
}
