// The history that the server keeps: its rows and its report, asked again as the present moves on.
import { type Answer, useApi, useStore } from "../store/store";
import type { Records, Report } from "../types";
import type { Span } from "./span";

/** Milliseconds from one question to the next at least. */
const PAUSE = 10_000;

/** Whether this server keeps a history. */
export function useKept(): boolean {
  return useStore((state) => state.viewer?.can.records ?? false);
}

function useFresh(span: Span): { of: string; pause: number } {
  const moment = useStore((state) => state.present?.moment.id ?? "");
  return { of: span.until ? "past" : moment, pause: PAUSE };
}

export function useRecords(span: Span, about: { subject: string; name: string } | null, limit: number): Answer<Records> {
  const kept = useKept(), fresh = useFresh(span);
  return useApi<Records>(kept ? "records" : null, { since: span.since, until: span.until, limit, ...about }, fresh);
}

export function useReport(span: Span): Answer<Report> {
  const kept = useKept(), fresh = useFresh(span);
  return useApi<Report>(kept ? "report" : null, { since: span.since, until: span.until }, fresh);
}
