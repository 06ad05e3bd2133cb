// What happened, one line each: its time, a mark of its kind, and beside the mark what it was.
import { known, t } from "../messages";
import { shortJob } from "../parts/Links";
import { runs } from "../parts/words";
import { hrefOf } from "../shell/place";
import { absolute, Time, Timed } from "../shell/times";
import type { HistoryRow } from "../types";
import { subjectOf } from "./rows";

/** A shape for each kind, so that a mark is known without its colour. */
const MARKS: Readonly<Record<string, string>> = {
  fault: "M2 2L10 10M10 2L2 10",
  held: "M1.5 6h9",
  recovery: "M10 6a4 4 0 1 1-1.5-3.1M8.5 0.8v2.4h-2.4",
  waiting: "M2 1.5h8L2 10.5h8z",
  placed: "M6 1.5v8M2.5 6.5L6 10l3.5-3.5",
  released: "M6 10.5v-8M2.5 5.5L6 2l3.5 3.5",
  holds: "M2.5 2.5h7v7h-7z",
  decision: "M6 1.5L10.5 6L6 10.5L1.5 6z",
  action: "M2 6h7M6 2.5L9.5 6L6 9.5",
  revision: "M6 1v3M6 8v3M3.8 6a2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0-4.4 0",
  confirmation: "M2 6.5L5 9.5L10 2.5",
  history: "M2 3h8M2 6h8M2 9h8",
};

export function KindMark({ kind }: { kind: string }) {
  return (
    <svg class={`kind-mark ${kind}`} width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">
      <path d={MARKS[kind] ?? MARKS["history"]} fill="none" stroke="currentColor" stroke-width="1.6" />
    </svg>
  );
}

export function kindName(kind: string): string {
  const key = `records.kind.${kind}`;
  return known(key) ? t(key) : kind;
}

export function Timeline({ rows, label }: { rows: readonly HistoryRow[]; label: string }) {
  return (
    <ol class="timeline" aria-label={label}>
      {rows.map((row, at) => (
        <li key={`${row.time} ${row.kind} ${row.job} ${row.node} ${row.text} ${at}`}>
          <a class="when" href={hrefOf({ view: "map", at: row.time, select: subjectOf(row) })} title={t("records.moment", { time: absolute(row.time) })}><Time at={row.time} /></a>
          <span class="kind"><KindMark kind={row.kind} /> {kindName(row.kind)}</span>
          <span class="what"><Subject row={row} /> <Timed text={runs(row.text)} /> <By row={row} /></span>
        </li>
      ))}
    </ol>
  );
}

function Subject({ row }: { row: HistoryRow }) {
  const select = subjectOf(row);
  if (!select) return null;
  const name = row.job ? shortJob(row.job) : row.chip === null ? row.node : `${row.node}/${row.chip}`;
  return <a class="name" href={hrefOf({ view: "map", select })}>{name}</a>;
}

/** Who asked for it, and by which commit. */
function By({ row }: { row: HistoryRow }) {
  if (!row.author && !row.revision) return null;
  return (
    <span class="dim">
      {row.author.replace(/\s*<.*>$/, "")} {row.revision ? <a href={hrefOf({ view: "git", params: { revision: row.revision } })}><code>{row.revision.slice(0, 10)}</code></a> : null}
    </span>
  );
}
