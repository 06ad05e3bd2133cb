// What happened in a time, on one screen: figures that lead to their rows, then the rows.
import { number, t } from "../messages";
import { Figures } from "../parts/Figures";
import { hours } from "../recovery/Recovery";
import { Answered } from "../shell/parts";
import { hrefOf, setParam, usePlace } from "../shell/place";
import { absolute, duration } from "../shell/times";
import { useState } from "preact/hooks";
import type { HistoryRow, Records } from "../types";
import { useKept, useRecords, useReport } from "./records";
import { aboutOf, shownRows } from "./rows";
import { type Span, SpanChoice, useSpan } from "./span";
import { kindName, Timeline } from "./Timeline";

const MOST = 2000;
const PAGE = 40;

export function Night() {
  const { params, select } = usePlace();
  const span = useSpan("night");
  const kept = useKept();
  const subject = aboutOf(select), all = params["of"] === "all";
  const answer = useRecords(span, subject && !all ? subject : null, MOST);
  const from = absolute(span.since), to = span.until ? absolute(span.until) : t("time.present");
  return (
    <section aria-labelledby="night">
      <div class="heading">
        <h2 id="night">{t("records.title")}</h2>
        {kept ? <SpanChoice value={span.name} usual="night" /> : null}
        {kept ? <span class="dim">{t("records.between", { from, to })}</span> : <span class="dim">{t("records.without")}</span>}
        {kept && subject ? (
          <label class="check">
            <input type="checkbox" checked={!all} onChange={() => setParam("of", all ? "" : "all", "replace")} />
            {t("records.only", { name: subject.name })}
          </label>
        ) : null}
      </div>
      {kept ? <Sums span={span} /> : null}
      <Answered answer={answer}>{(records) => <Rows records={records} />}</Answered>
    </section>
  );
}

/** The time in figures; each leads to what it is made of. */
function Sums({ span }: { span: Span }) {
  const { data } = useReport(span);
  if (!data) return null;
  const { total, recoveries } = data;
  const window = { window: span.name };
  return (
    <Figures
      of={[
        { name: t("recovery.lost"), value: <a href={hrefOf({ view: "recovery", params: window })}>{hours(total.lostChipHours)}</a> },
        { name: t("records.goodput"), value: total.goodput === null ? "–" : `${(total.goodput * 100).toFixed(2)} %` },
        {
          name: t("recovery.count"), value: <a href={hrefOf({ params: { ...window, kind: "recovery" } })}>{number(recoveries.ended + recoveries.underWay)}</a>,
          note: recoveries.underWay ? t("recovery.running", { count: recoveries.underWay }) : undefined,
        },
        { name: t("recovery.mttr"), value: recoveries.mttr === null ? "–" : duration(recoveries.mttr) },
        { name: t("records.mtti"), value: recoveries.mtti === null ? "–" : duration(recoveries.mtti) },
      ]}
    />
  );
}

function Rows({ records }: { records: Records }) {
  const { params } = usePlace();
  const [shown, setShown] = useState(PAGE);
  const kinds = [...new Set(records.records.map((row) => row.kind))].sort();
  const kind = kinds.includes(params["kind"] ?? "") ? params["kind"]! : "";
  const rows = shownRows(records.records, kind);
  return (
    <>
      {records.problem ? <p class="problem" role="status">{records.problem}</p> : null}
      <p class="kinds">
        <a href={hrefOf({ params: without(params, "kind") })} aria-current={kind ? undefined : "true"}>{t("records.kind.all")} {number(records.records.length)}</a>{" "}
        {kinds.map((one) => <><a key={one} href={hrefOf({ params: { ...params, kind: one } })} aria-current={one === kind ? "true" : undefined}>{kindName(one)} {number(count(records.records, one))}</a>{" "}</>)}
      </p>
      {rows.length ? <Timeline rows={rows.slice(0, shown)} label={t("records.title")} /> : <p class="dim">{t("records.nothing")}</p>}
      {rows.length > shown ? <button type="button" class="more" onClick={() => setShown(shown + 5 * PAGE)}>{t("shell.more", { count: Math.min(5 * PAGE, rows.length - shown) })}</button> : null}
      {records.leftOut ? <p class="dim">{t("shell.leftOut", { count: records.leftOut })}</p> : null}
      {records.begins ? <p class="dim">{t("records.begins", { time: absolute(records.begins) })}</p> : null}
    </>
  );
}

function count(rows: readonly HistoryRow[], kind: string): number {
  return rows.reduce((sum, row) => sum + Number(row.kind === kind), 0);
}

function without(params: Readonly<Record<string, string>>, name: string): Record<string, string> {
  const { [name]: _, ...rest } = params;
  return rest;
}
