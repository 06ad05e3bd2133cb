// Lines of the history, as they are shown.
import type { HistoryRow } from "../types";

/** What the history is asked about for a selection; a pod has no history of its own. */
export function aboutOf(select: string): { subject: string; name: string } | null {
  const [kind = "", ...rest] = select.split("/");
  return ["chip", "node", "job"].includes(kind) && rest.length ? { subject: kind, name: rest.join("/") } : null;
}

/** Newest first, and what was said twice in a row once. */
export function shownRows(rows: readonly HistoryRow[], kind: string): readonly HistoryRow[] {
  const newest = rows.toReversed().filter((row) => !kind || row.kind === kind);
  return newest.filter((row, at) => {
    const after = newest[at - 1];
    return !after || after.text !== row.text || after.job !== row.job || after.node !== row.node || after.time !== row.time;
  });
}

/** Selection of what a row is about, "" where it is about nothing that can be shown. */
export function subjectOf(row: HistoryRow): string {
  if (row.job) return `job/${row.job}`;
  if (row.node) return row.chip === null ? `node/${row.node}` : `chip/${row.node}/${row.chip}`;
  return "";
}
