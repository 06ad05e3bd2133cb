// Chip-hours lost, by cause: of any time where the server keeps a history, else of what the status still says.
import { useMemo } from "preact/hooks";
import { number, t } from "../messages";
import { Figures } from "../parts/Figures";
import { useKept, useReport } from "../records/records";
import { SpanChoice, useSpan } from "../records/span";
import { Answered, Command, Table } from "../shell/parts";
import { hrefOf } from "../shell/place";
import { duration } from "../shell/times";
import type { Report } from "../types";
import { lostByCause, type Lane } from "./lanes";
import { hours } from "./Recovery";

export function Losses({ lanes }: { lanes: readonly Lane[] }) {
  const kept = useKept();
  const span = useSpan("week");
  const answer = useReport(span);
  return (
    <section aria-labelledby="losses" data-rows="losses" tabIndex={-1}>
      <div class="heading">
        <h2 id="losses">{t("records.report")}</h2>
        {kept ? <SpanChoice value={span.name} usual="week" /> : <span class="dim">{t("records.fromStatus")}</span>}
      </div>
      {kept ? <Command text="belay usage --by user > usage.csv" note={t("acts.usage")} /> : null}
      {kept ? <Answered answer={answer}>{(report) => <Kept report={report} window={span.name} />}</Answered> : <Causes rows={lostByCause(lanes)} />}
    </section>
  );
}

function Kept({ report, window }: { report: Report; window: string }) {
  const { total, recoveries } = report;
  return (
    <>
      {report.problem ? <p class="problem" role="status">{report.problem}</p> : null}
      <Figures
        of={[
          { name: t("recovery.lost"), value: hours(total.lostChipHours) },
          { name: t("records.goodput"), value: total.goodput === null ? "–" : `${(total.goodput * 100).toFixed(2)} %` },
          {
            name: t("recovery.count"), value: <a href={hrefOf({ view: "time", params: { window, kind: "recovery" } })}>{number(recoveries.ended + recoveries.underWay)}</a>,
            note: recoveries.underWay ? t("recovery.running", { count: recoveries.underWay }) : undefined,
          },
          { name: t("recovery.mttr"), value: recoveries.mttr === null ? "–" : duration(recoveries.mttr) },
          { name: t("records.mtti"), value: recoveries.mtti === null ? "–" : duration(recoveries.mtti) },
        ]}
      />
      <div class="halves">
        <Causes rows={report.lostByCause} />
        <Table
          caption={t("records.out")}
          rows={report.outOfService}
          id={(row) => row.by}
          empty={t("records.nothingOut")}
          page={10}
          columns={[
            { title: t("records.by"), cell: (row) => row.by },
            { title: t("records.chipHours"), cell: (row) => number(row.chipHours, 2), numeric: true },
            { title: t("records.nodeHours"), cell: (row) => number(row.nodeHours, 2), numeric: true },
          ]}
        />
      </div>
    </>
  );
}

function Causes({ rows }: { rows: Report["lostByCause"] }) {
  const most = useMemo(() => Math.max(0.0001, ...rows.map((row) => row.lostChipHours)), [rows]);
  return (
    <Table
      caption={t("records.lost")}
      rows={rows}
      id={(row) => row.cause}
      empty={t("records.nothingLost")}
      page={10}
      columns={[
        { title: t("records.cause"), cell: (row) => <code>{row.cause}</code> },
        { title: t("records.recoveries"), cell: (row) => number(row.recoveries), numeric: true },
        { title: t("records.chipHours"), cell: (row) => number(row.lostChipHours, 2), numeric: true },
        { title: t("records.part"), cell: (row) => <Bar part={row.lostChipHours / most} />, minor: true },
      ]}
    />
  );
}

function Bar({ part }: { part: number }) {
  return <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width={Math.max(0.5, part * 100)} height="8" /></svg>;
}
