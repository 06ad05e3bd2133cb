// What a plan or a forecast does to jobs: placed, evicted, waiting, pruned.
import { t } from "../messages";
import { Table } from "../shell/parts";
import { duration, Time } from "../shell/times";
import type { Outcome, PlannedJob } from "../types";
import { keyOfJob, Select } from "./Links";

export function OutcomeLists({ outcome }: { outcome: Outcome }) {
  const { placed, evicted, waiting, pruned } = outcome;
  if (placed.length + evicted.length + waiting.length + pruned.length === 0) return <p class="dim">{t("outcome.nothing")}</p>;
  return (
    <>
      {placed.length > 0 && (
        <Table
          caption={t("outcome.placed", { count: placed.length })}
          rows={placed}
          id={keyOfJob}
          page={20}
          columns={[
            { title: t("outcome.job"), cell: (row) => <Job job={row} /> },
            { title: t("outcome.after"), cell: (row) => after(row.after), numeric: true },
            { title: t("outcome.on"), cell: (row) => <Nodes nodes={row.nodes} /> },
          ]}
        />
      )}
      {evicted.length > 0 && (
        <Table
          caption={t("outcome.evicted", { count: evicted.length })}
          rows={evicted}
          id={(row) => `${row.namespace}/${row.pod} ${row.after}`}
          page={20}
          columns={[
            { title: t("outcome.pod"), cell: (row) => <Select kind="pod" name={`${row.namespace}/${row.pod}`} /> },
            { title: t("outcome.after"), cell: (row) => after(row.after), numeric: true },
            { title: t("outcome.from"), cell: (row) => <Select kind="node" name={row.node} /> },
            { title: t("outcome.why"), cell: (row) => <><strong>{row.reason}</strong> {row.message}</> },
            { title: t("outcome.lost"), cell: (row) => t("recovery.chipHours", { hours: row.chipHoursLost.toFixed(2) }), numeric: true },
          ]}
        />
      )}
      {waiting.length > 0 && (
        <Table
          caption={t("outcome.waiting", { count: waiting.length })}
          rows={waiting}
          id={keyOfJob}
          page={20}
          columns={[
            { title: t("outcome.job"), cell: (row) => <Job job={row} /> },
            { title: t("outcome.why"), cell: (row) => <><strong>{row.reason}</strong> {row.message}</> },
            { title: t("outcome.wayOut"), cell: (row) => (typeof row.unblock === "string" ? row.unblock : row.unblock ? JSON.stringify(row.unblock).slice(0, 300) : "–") },
          ]}
        />
      )}
      {pruned.length > 0 && (
        <Table
          caption={t("outcome.pruned", { count: pruned.length })}
          rows={pruned}
          id={keyOfJob}
          page={20}
          columns={[
            { title: t("outcome.object"), cell: (row) => `${row.kind} ${row.namespace}/${row.name}` },
            { title: t("outcome.after"), cell: (row) => (row.heldBy ? <>{t("outcome.heldBy", { budget: row.heldBy })} {row.until && <Time at={row.until} />}</> : after(row.after)) },
          ]}
        />
      )}
    </>
  );
}

function Job({ job }: { job: PlannedJob }) {
  return <><Select kind="job" name={keyOfJob(job)} shown={`${job.namespace}/${job.name}`} /> {job.outcome === "moved" && <span class="dim">{t("outcome.moved")}</span>}</>;
}

function Nodes({ nodes }: { nodes: PlannedJob["nodes"] }) {
  const names = Object.keys(nodes).sort();
  return (
    <>
      {names.slice(0, 4).map((name, index) => <span key={name}>{index > 0 && ", "}<Select kind="node" name={name} /> <span class="dim">({nodes[name]!.length})</span></span>)}
      {names.length > 4 && <span class="dim"> {t("outcome.moreNodes", { count: names.length - 4 })}</span>}
    </>
  );
}

function after(seconds: number | null): string {
  return seconds === null ? "–" : duration(seconds);
}
