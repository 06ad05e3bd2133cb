// Queues: what each may use and uses, and every waiting job with its reason and its cheapest way out.
import { useMemo } from "preact/hooks";
import { t } from "../messages";
import { Choices } from "../parts/Choices";
import { Curve } from "../parts/Curve";
import { keyOfJob, OnMap, Select } from "../parts/Links";
import { Sheet } from "../parts/Sheet";
import { Table } from "../shell/parts";
import { hrefOf, select, setParam, usePlace } from "../shell/place";
import { Time } from "../shell/times";
import { useApi, useStore } from "../store/store";
import type { Cluster, History, Job, Queue, Resources } from "../types";
import type { ViewProps } from "../views";
import { waysOut } from "../map/view";
import { PlainMap } from "../whatif/PlainMap";
import { byTime, isFailed, isWaiting } from "./phases";
import { Share } from "./Share";

const ALL = "all";
const NONE: readonly number[] = [];
/** Characters of a message that are shown: the server sends 400, another one may not. */
const LONGEST = 2000;

export function QueueView({ cluster }: ViewProps) {
  const { params, select: selected } = usePlace();
  const jobs = useMemo(() => cluster.jobs.filter((job): job is Job => job !== null), [cluster.jobs]);
  const waiting = useMemo(() => jobs.filter(isWaiting).sort(byTime), [jobs]);
  const failed = useMemo(() => jobs.filter(isFailed).sort(byTime), [jobs]);
  const running = useMemo(() => jobs.filter((job) => !isWaiting(job) && !isFailed(job)).sort((a, b) => b.chips - a.chips), [jobs]);
  const queues = [ALL, ...cluster.queues.map((queue) => queue.name)];
  const queue = queues.includes(params["queue"] ?? "") ? params["queue"]! : ALL;
  const of = (rows: readonly Job[]): readonly Job[] => (queue === ALL ? rows : rows.filter((job) => job.queue === queue));
  const chosen = (job: Job): boolean => selected === `job/${keyOfJob(job)}`;
  return (
    <Sheet name="queue">
      <Table
        caption={t("queue.queues")}
        rows={cluster.queues}
        id={(row) => row.name}
        empty={t("queue.noQueues")}
        page={30}
        columns={[
          { title: t("queue.queue"), cell: (row) => row.name },
          { title: t("queue.weight"), cell: (row) => row.weight, numeric: true, minor: true },
          { title: t("queue.use"), cell: (row) => <Uses queue={row} /> },
          { title: t("queue.share"), cell: (row) => `${Math.round(row.share * 100)} %`, numeric: true },
          { title: t("queue.runningJobs"), cell: (row) => row.running, numeric: true },
          { title: t("queue.waitingJobs"), cell: (row) => row.waiting, numeric: true },
        ]}
      />
      <section aria-label={t("queue.waitingLabel")}>
        <div class="heading">
          {queues.length > 2 && queues.length < 8 && (
            <Choices label={t("queue.queue")} of={queues} value={queue} nameOf={(one) => (one === ALL ? t("queue.all") : one)} choose={(one) => setParam("queue", one === ALL ? "" : one, "replace")} />
          )}
          <Why jobs={of(waiting)} />
        </div>
        <Table
          name="waiting"
          caption={t("queue.waiting", { count: of(waiting).length })}
          rows={of(waiting)}
          id={keyOfJob}
          empty={t("queue.nothingWaits")}
          page={50}
          selected={chosen}
          leftOut={cluster.leftOut["jobs"] ?? 0}
          columns={[
            { title: t("queue.job"), cell: (row) => <JobName job={row} /> },
            { title: t("queue.wants"), cell: (row) => t("queue.chips", { count: row.chips }), numeric: true },
            { title: t("queue.since"), cell: (row) => <Time at={row.since} /> },
            { title: t("queue.reason"), cell: (row) => <><strong>{row.reason}</strong><div>{row.message.slice(0, LONGEST)}</div><Rejected nodes={row.nodes} /></> },
            { title: t("queue.wayOut"), cell: (row) => <WayOut job={row} /> },
          ]}
        />
        <WayOutMap cluster={cluster} job={of(waiting).find(chosen) ?? null} />
      </section>
      {failed.length ? (
        <Table
          name="failed"
          caption={t("queue.failed", { count: of(failed).length })}
          rows={of(failed)}
          id={keyOfJob}
          empty={t("queue.nothingFailed")}
          page={25}
          selected={chosen}
          columns={[
            { title: t("queue.job"), cell: (row) => <JobName job={row} /> },
            { title: t("queue.since"), cell: (row) => <Time at={row.since} /> },
            { title: t("git.why"), cell: (row) => <>{row.reason && <strong>{row.reason} </strong>}{row.message.slice(0, LONGEST)}</> },
            { title: t("queue.wayOut"), cell: (row) => <WayOut job={row} /> },
          ]}
        />
      ) : null}
      <Waits cluster={cluster} />
      <Table
        caption={t("queue.running", { count: of(running).length })}
        rows={of(running)}
        id={keyOfJob}
        empty={t("queue.nothingRuns")}
        page={25}
        selected={chosen}
        columns={[
          { title: t("queue.job"), cell: (row) => <JobName job={row} /> },
          { title: t("queue.queue"), cell: (row) => row.queue },
          { title: t("queue.phase"), cell: (row) => row.phase },
          { title: t("queue.has"), cell: (row) => t("queue.chips", { count: row.chips }), numeric: true },
          { title: t("queue.pods"), cell: (row) => `${row.pods.running}/${row.pods.wanted}`, numeric: true },
          { title: t("queue.since"), cell: (row) => <Time at={row.since} />, minor: true },
        ]}
      />
    </Sheet>
  );
}

function JobName({ job }: { job: Job }) {
  const key = keyOfJob(job);
  return (
    <>
      <Select kind="job" name={key} shown={`${job.namespace}/${job.name}`} />
      <div class="dim small">{job.kind} · {job.queue} · <OnMap kind="job" name={key} /></div>
    </>
  );
}

function WayOut({ job }: { job: Job }) {
  if (!job.wayOut) return <span class="dim">{t("queue.noWayOut")}</span>;
  const key = keyOfJob(job);
  return (
    <>
      {job.wayOut}
      {job.wayOutNodes?.length ? (
        <div class="small">
          <a href={hrefOf({ view: "map", select: `job/${key}` })} aria-label={t("queue.wayOutOnMapOf", { name: key })}>{t("queue.wayOutOnMap")}</a>{" "}
          <span class="dim">{job.wayOutNodes.slice(0, 4).join(", ")}{job.wayOutNodes.length > 4 ? " …" : ""}</span>
        </div>
      ) : null}
    </>
  );
}

/** The cluster with the nodes of the selected job's way out framed. */
function WayOutMap({ cluster, job }: { cluster: Cluster; job: Job | null }) {
  const ways = useMemo(() => waysOut(cluster, [job]), [cluster.nodes.name, job]);
  if (!job || !ways.length) return null;
  const label = t("queue.wayOutMap", { name: `${job.namespace}/${job.name}`, count: ways.length });
  return (
    <figure class="way-out">
      <figcaption>{label}</figcaption>
      <PlainMap cluster={cluster} label={label} marked={NONE} ways={ways} turn={cluster.moment.id} pick={(node) => select("node", node)} />
    </figure>
  );
}

function Uses({ queue }: { queue: Queue }) {
  const resources = [...new Set([...Object.keys(queue.capacity), ...Object.keys(queue.used), ...Object.keys(queue.deserved)])].sort();
  const of = (what: Resources, name: string): number | null => (typeof what[name] === "number" ? what[name] : null);
  return (
    <>
      {resources.slice(0, 6).map((name) => (
        <Share key={name} name={name} used={of(queue.used, name) ?? 0} deserved={of(queue.deserved, name)} capacity={of(queue.capacity, name)} />
      ))}
    </>
  );
}

/** How many nodes said no, by reason. */
function Rejected({ nodes }: { nodes: Job["nodes"] }) {
  const rows = Object.entries(nodes).filter(([, count]) => typeof count === "number").sort((a, b) => b[1] - a[1]);
  if (!rows.length) return null;
  return <div class="dim small">{rows.slice(0, 4).map(([reason, count]) => `${t("queue.nodes", { count })}: ${reason}`).join(" · ")}</div>;
}

/** The reasons that jobs wait for, the commonest first. */
function Why({ jobs }: { jobs: readonly Job[] }) {
  const counts = new Map<string, number>();
  for (const job of jobs) counts.set(job.reason || job.phase, (counts.get(job.reason || job.phase) ?? 0) + 1);
  if (counts.size < 2) return null;
  const rows = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 5);
  return <p class="dim">{rows.map(([reason, count]) => `${count} ${reason}`).join(" · ")}</p>;
}

/** Milliseconds after which the recorded moments are read again, while the cluster changes. */
const REREAD = 10_000;

/** Waiting jobs over the recorded moments. */
function Waits({ cluster }: { cluster: Cluster }) {
  const can = useStore((state) => state.viewer?.can.history ?? false);
  const at = useStore((state) => state.at);
  const history = useApi<History>(can ? "history" : null, { limit: 500, to: at ? cluster.moment.time : "" }, { of: cluster.moment.id, pause: REREAD });
  const curve = useMemo(() => {
    const moments = history.data?.moments ?? [];
    return {
      times: moments.map((one) => Date.parse(one.time) / 1000),
      lines: [{ name: t("queue.waitingJobs"), colour: "phase-placing", values: moments.map((one) => one.waiting), steps: true }],
    };
  }, [history.data]);
  if (curve.times.length < 2) return null;
  return (
    <section aria-labelledby="waits">
      <h2 id="waits">{t("queue.overTime")}</h2>
      <Curve label={t("queue.overTimeLabel", { count: curve.times.length })} times={curve.times} lines={curve.lines} height={120} />
    </section>
  );
}
