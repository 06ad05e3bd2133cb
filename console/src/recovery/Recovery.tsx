// Recovery lanes: for each recovery of a job the way from its fault to running again, and figures over the fleet.
import { useMemo, useState } from "preact/hooks";
import { t } from "../messages";
import { Choices } from "../parts/Choices";
import { Curve } from "../parts/Curve";
import { Figures } from "../parts/Figures";
import { Select, shortJob } from "../parts/Links";
import { Sheet } from "../parts/Sheet";
import { Table } from "../shell/parts";
import { setParam, usePlace } from "../shell/place";
import { duration, Time, useNow } from "../shell/times";
import { useStore } from "../store/store";
import type { Recovery as Row } from "../types";
import type { ViewProps } from "../views";
import { LaneChart } from "./LaneChart";
import { laneOf, lostOf, phaseShares, sorted, type Lane, type LaneOrder } from "./lanes";
import { Losses } from "./Losses";
import { PhaseKey } from "./PhaseKey";
import { Spread } from "./Spread";

const ORDERS: readonly LaneOrder[] = ["newest", "longest", "costliest"];
const STEP = 20;

export function RecoveryView({ cluster }: ViewProps) {
  const { params, select } = usePlace();
  const live = useStore((state) => state.connection.kind === "live" && !state.at);
  const clock = useNow();
  const now = live ? clock : Date.parse(cluster.moment.time);
  const order = ORDERS.find((one) => one === params["order"]) ?? "newest";
  const job = select.startsWith("job/") ? select.slice(4) : "";
  const onlyJob = params["job"] === "selected" && job !== "";
  // a lane that goes on grows with the clock, by whole seconds
  const second = Math.floor(now / 1000) * 1000;
  const open = cluster.recoveries.some((one) => !isOver(one));
  const lanes = useMemo(
    () => cluster.recoveries.map((one) => laneOf(one, second)).filter((lane): lane is Lane => lane !== null),
    [cluster.recoveries, open ? second : 0],
  );
  const shown = sorted(onlyJob ? lanes.filter((lane) => lane.recovery.job === job) : lanes, order);
  const [limit, setLimit] = useState(STEP);
  const cost = lanes.reduce((sum, one) => sum + lostOf(one), 0) / 3600;
  const running = lanes.filter((lane) => !lane.finished).length;
  const { fleet } = cluster;
  const dots = useMemo(() => points(lanes), [cluster.recoveries]);
  return (
    <Sheet name="recovery">
      <Figures
        of={[
          { name: t("recovery.mttr"), value: fleet.mttr === null ? "–" : duration(fleet.mttr) },
          { name: t("recovery.effective"), value: fleet.effectiveTime === null ? "–" : `${(fleet.effectiveTime * 100).toFixed(2)} %` },
          { name: t("recovery.lost"), value: hours(cost) },
          { name: t("recovery.count"), value: lanes.length, note: running ? t("recovery.running", { count: running }) : undefined },
        ]}
      />
      <section aria-labelledby="lanes" data-rows="lanes" tabIndex={-1}>
        <header class="heading">
          <h2 id="lanes">{t("recovery.lanes")}</h2>
          <Choices label={t("recovery.order")} of={ORDERS} value={order} nameOf={(one) => t(`recovery.order.${one}`)} choose={(one) => setParam("order", one === "newest" ? "" : one, "replace")} />
          {job && (
            <label class="check">
              <input type="checkbox" checked={onlyJob} onChange={() => setParam("job", onlyJob ? "" : "selected", "replace")} />
              {t("recovery.only", { job: shortJob(job) })}
            </label>
          )}
        </header>
        <PhaseKey shares={phaseShares(shown)} />
        {shown.length ? <LaneChart lanes={shown.slice(0, limit)} /> : <p class="dim">{t("recovery.none")}</p>}
        {shown.length > limit ? <button type="button" class="more" onClick={() => setLimit(limit + STEP)}>{t("shell.more", { count: Math.min(STEP, shown.length - limit) })}</button> : null}
        {cluster.leftOut["recoveries"] ? <p class="dim">{t("shell.leftOut", { count: cluster.leftOut["recoveries"] })}</p> : null}
      </section>
      <Losses lanes={lanes} />
      <div class="halves">
        <Table
          caption={t("recovery.causes")}
          rows={fleet.perCause}
          id={(row) => row.cause}
          empty={t("recovery.noCauses")}
          columns={[
            { title: t("recovery.cause"), cell: (row) => <code>{row.cause}</code> },
            { title: t("recovery.times"), cell: (row) => row.count, numeric: true },
            { title: "p50", cell: (row) => seconds(row.p50), numeric: true },
            { title: "p99", cell: (row) => seconds(row.p99), numeric: true },
            { title: t("recovery.spread"), cell: (row) => <Spread p50={row.p50} p99={row.p99} most={Math.max(...fleet.perCause.map((one) => one.p99 ?? 0))} /> },
          ]}
        />
        <section aria-labelledby="overTime">
          <h2 id="overTime">{t("recovery.overTime")}</h2>
          {dots.times.length > 1
            ? <Curve label={t("recovery.overTimeLabel", { count: dots.times.length })} times={dots.times} lines={dots.lines} format={duration} />
            : <p class="dim">{t("recovery.tooFew")}</p>}
        </section>
      </div>
      <Table
        caption={t("recovery.budgets")}
        rows={newestOfEachJob(cluster.recoveries)}
        id={(row) => row.job}
        empty={t("recovery.none")}
        page={20}
        columns={[
          { title: t("recovery.job"), cell: (row) => <Select kind="job" name={row.job} shown={shortJob(row.job)} /> },
          { title: t("recovery.attempts"), cell: (row) => row.budget?.spent ?? row.attempt, numeric: true },
          { title: t("recovery.left"), cell: (row) => <Left row={row} />, numeric: true },
          { title: t("recovery.window"), cell: (row) => (row.budget?.window ? duration(row.budget.window) : t("recovery.ever")) },
          { title: t("recovery.last"), cell: (row) => <Time at={row.stages.find((stage) => stage.time)?.time} /> },
        ]}
      />
    </Sheet>
  );
}

function Left({ row }: { row: Row }) {
  if (!row.budget || row.budget.left === null) return <span class="dim">–</span>;
  const left = row.budget.left;
  return left > 0 ? <>{left}</> : <strong class="bad">{t("recovery.noneLeft")}</strong>;
}

function isOver(row: Row): boolean {
  return typeof row.seconds === "number" || row.stages.some(({ stage, time }) => time && (stage === "running" || stage === "resumed"));
}

/** The newest recovery of each job: its budget is the present one. */
function newestOfEachJob(rows: readonly Row[]): Row[] {
  const seen = new Map<string, Row>();
  for (const row of rows) if (!seen.has(row.job)) seen.set(row.job, row);
  return [...seen.values()];
}

function points(lanes: readonly Lane[]) {
  const over = lanes.filter((lane) => lane.finished).sort((a, b) => a.begin - b.begin);
  return {
    times: over.map((lane) => lane.begin / 1000),
    lines: [{ name: t("recovery.took"), colour: "phase-starting", values: over.map((lane) => lane.seconds), points: true }],
  };
}

function seconds(value: number | null): string {
  return value === null ? "–" : duration(value);
}

export function hours(value: number): string {
  return t("recovery.chipHours", { hours: value < 10 ? value.toFixed(2) : value < 1000 ? value.toFixed(1) : Math.round(value).toLocaleString("en") });
}

