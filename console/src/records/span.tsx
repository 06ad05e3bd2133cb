// The time that a reader asks about: so long until now, or around the moment that is shown.
import { t } from "../messages";
import { Choices } from "../parts/Choices";
import { setParam, usePlace } from "../shell/place";
import { useNow } from "../shell/times";

export const WINDOWS = ["hour", "night", "day", "week", "month"] as const;
export type WindowName = (typeof WINDOWS)[number];

const SECONDS: Readonly<Record<WindowName, number>> = { hour: 3600, night: 12 * 3600, day: 86_400, week: 7 * 86_400, month: 30 * 86_400 };
/** Seconds after a moment that belong to "what happened then". */
const AFTER = 300;
/** Seconds to which a beginning is rounded: a question that moves with every second would be asked every second. */
const STEP = 300;

export interface Span {
  name: WindowName;
  since: string;
  /** "" up to now. */
  until: string;
}

/** The span of the address: `window`, up to now or, at a moment of the past, up to shortly after it. */
export function spanOf(name: WindowName, now: number, past: boolean): Span {
  const end = past ? now + AFTER * 1000 : now;
  const begin = Math.floor((end / 1000 - SECONDS[name]) / STEP) * STEP;
  return { name, since: iso(begin * 1000), until: past ? iso(end) : "" };
}

function iso(time: number): string {
  return new Date(time).toISOString().replace(/\.\d+Z$/, "Z");
}

export function useSpan(usual: WindowName): Span {
  const { params, at } = usePlace();
  const now = useNow();
  return spanOf(WINDOWS.find((one) => one === params["window"]) ?? usual, now, at !== "");
}

export function SpanChoice({ value, usual }: { value: WindowName; usual: WindowName }) {
  return (
    <Choices label={t("records.window")} of={WINDOWS} value={value} nameOf={(one) => t(`records.window.${one}`)}
      choose={(one) => setParam("window", one === usual ? "" : one, "replace")} />
  );
}
