// Times and durations as people read them, relative to the moment that is shown, or absolute.
import { useEffect, useState } from "preact/hooks";
import { t } from "../messages";
import { serverNow } from "../store/clock";
import { useStore } from "../store/store";
import { usePreferences } from "./preferences";

/** "3 s", "4 min", "2 h 10 min", "5 d 3 h". */
export function duration(seconds: number): string {
  const whole = Math.round(Math.abs(seconds));
  if (Math.abs(seconds) < 10) return `${Math.round(Math.abs(seconds) * 10) / 10} s`;
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  if (whole < 172_800) return two(whole, 3600, 60, "h", "min");
  return two(whole, 86_400, 3600, "d", "h");
}

function two(whole: number, large: number, small: number, one: string, other: string): string {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${one}${rest ? ` ${rest} ${other}` : ""}`;
}

/** 2026-11-23 18:40:45, in the reader's zone. */
export function absolute(time: string): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return time;
  const two = (value: number): string => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(time)}`;
}

/** 18:40:45 */
export function clock(time: string): string {
  const date = new Date(time);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((value) => String(value).padStart(2, "0")).join(":");
}

/** Marks of an axis of time: 18:40, or 18:40:45 where they are less than a minute apart; the day where it begins. */
export function axisTimes(marks: readonly number[]): string[] {
  const seconds = marks.length > 1 && marks[1]! - marks[0]! < 60;
  let day = "";
  return marks.map((mark) => {
    const time = new Date(mark * 1000).toISOString(), here = absolute(time).slice(0, 10);
    const text = clock(time).slice(0, seconds ? 8 : 5);
    const shown = here === day ? text : `${text}\n${here}`;
    day = here;
    return shown;
  });
}

export function relative(time: string, now: number): string {
  const seconds = (now - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return time;
  if (Math.abs(seconds) < 1) return t("time.now");
  return seconds > 0 ? t("time.ago", { duration: duration(seconds) }) : t("time.ahead", { duration: duration(seconds) });
}

const tickers = new Set<() => void>();
setInterval(() => document.visibilityState === "visible" && tickers.forEach((one) => one()), 1000);

/** The time that "ago" counts from, in Unix ms: the server's clock, or the moment that is shown. */
export function useNow(): number {
  const past = useStore((state) => (state.at && state.cluster ? state.cluster.moment.time : ""));
  const [now, setNow] = useState(serverNow());
  useEffect(() => {
    if (past) return undefined;
    const tick = (): void => setNow(serverNow());
    tickers.add(tick);
    return () => void tickers.delete(tick);
  }, [past]);
  return past ? Date.parse(past) : now;
}

/** A time, relative or absolute as the reader prefers, the other one as its title. */
export function Time({ at }: { at: string | null | undefined }) {
  const { times } = usePreferences();
  const now = useNow();
  if (!at) return <span class="dim">–</span>;
  const [shown, title] = times === "relative" ? [relative(at, now), absolute(at)] : [absolute(at), relative(at, now)];
  return <time dateTime={at} title={title}>{shown}</time>;
}

const MOMENT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;
const LONGEST = 2000;

/** Text of the cluster whose moments are shown as the reader wants times, and go on counting. */
export function Timed({ text }: { text: string }) {
  return <>{text.slice(0, LONGEST).split(MOMENT).map((part, at) => (at % 2 ? <Time at={part} /> : part))}</>;
}
