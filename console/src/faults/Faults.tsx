// Faults: what is broken now, where and when it broke (a heat map), what breaks again and again, links, boards, switches.
import { useMemo } from "preact/hooks";
import { number, t } from "../messages";
import { Choices } from "../parts/Choices";
import { Curve } from "../parts/Curve";
import { Select } from "../parts/Links";
import { Sheet } from "../parts/Sheet";
import { Answered, Table } from "../shell/parts";
import { setParam, usePlace } from "../shell/place";
import { Time } from "../shell/times";
import { whole } from "../store/cluster";
import { useApi, useStore } from "../store/store";
import type { Cluster, Fault, Heat, History, Offender } from "../types";
import type { ViewProps } from "../views";
import { HeatMap } from "./HeatMap";
import { chipKey, grouped, type By } from "./groups";

/** Milliseconds after which what happened is read again, while the cluster changes. */
const REREAD = 10_000;
const BYS: readonly By[] = ["code", "chip", "node", "link"];

export function FaultsView({ cluster }: ViewProps) {
  const { params } = usePlace();
  const by = BYS.find((one) => one === params["by"]) ?? "code";
  const only = params["only"] ?? "";
  const groups = useMemo(() => grouped(cluster, by === "link" ? "code" : by), [cluster.faults, by]);
  const picked = groups.find((group) => group.name === only);
  const faults = picked ? picked.faults : cluster.faults;
  return (
    <Sheet name="faults">
      <div class="heading">
        <Choices label={t("faults.by")} of={BYS} value={by} nameOf={(one) => t(`faults.by.${one}`)} choose={(one) => setParam("by", one === "code" ? "" : one)} />
        <p>{t("faults.now", { count: whole(cluster, "faults", cluster.faults.length), nodes: new Set(cluster.faults.map((one) => one.node)).size })}</p>
      </div>
      <HeatSection cluster={cluster} by={by} />
      {by !== "link" && (
        <div class="halves uneven">
          <Table
            caption={t(`faults.groups.${by}`)}
            rows={groups}
            id={(row) => row.name}
            page={25}
            empty={t("faults.none")}
            selected={(row) => row.name === only}
            onSelect={(row) => setParam("only", row.name === only ? "" : row.name, "replace")}
            columns={[
              { title: t(`faults.by.${by}`), cell: (row) => (
                <button type="button" class="fold name" aria-pressed={row.name === only} onClick={() => setParam("only", row.name === only ? "" : row.name, "replace")}>{by === "code" ? <code>{row.name}</code> : row.name}</button>
              ) },
              { title: t("faults.levels"), cell: (row) => row.levels.join(", ") },
              { title: t("faults.count"), cell: (row) => number(row.faults.length), numeric: true },
              { title: t("faults.places"), cell: (row) => number(row.places), numeric: true, minor: true },
            ]}
          />
          <Table
            name="faults"
            caption={picked ? t("faults.listOf", { name: only, count: faults.length }) : t("faults.list", { count: whole(cluster, "faults", faults.length) })}
            rows={faults}
            id={(row) => `${row.node} ${row.chip} ${row.code}`}
            page={25}
            empty={t("faults.none")}
            leftOut={picked ? 0 : cluster.leftOut["faults"] ?? 0}
            columns={[
              { title: t("faults.code"), cell: (row) => <code>{row.code}</code> },
              { title: t("faults.level"), cell: (row) => row.level },
              { title: t("faults.where"), cell: (row) => <Where fault={row} cluster={cluster} /> },
              { title: t("faults.since"), cell: (row) => <Time at={row.since} /> },
              { title: t("faults.times"), cell: (row) => row.count, numeric: true, minor: true },
              { title: t("faults.action"), cell: (row) => <>{row.action}{row.policy && <div class="dim small"><code>{row.policy}</code></div>}</> },
            ]}
          />
        </div>
      )}
      <Offenders rows={cluster.offenders} leftOut={cluster.leftOut["offenders"] ?? 0} />
      <div class="halves">
        <Table
          caption={t("faults.links")}
          rows={cluster.links}
          id={(row) => `${row.link} ${row.node} ${row.prefill} ${row.decode}`}
          page={20}
          empty={t("faults.noLinks")}
          leftOut={cluster.leftOut["links"] ?? 0}
          columns={[
            { title: t("faults.link"), cell: (row) => <>{row.link}{(row.prefill || row.decode) && <div class="dim small">{row.prefill} → {row.decode}</div>}</> },
            { title: t("faults.node"), cell: (row) => (row.node ? <Select kind="node" name={row.node} /> : "–") },
            { title: t("faults.state"), cell: (row) => <><span class={row.error ? "bad" : ""}>{row.state}</span>{row.error && <div class="small">{row.error}</div>}</> },
            { title: t("faults.latency"), cell: (row) => (row.latencyMs === null ? "–" : `${number(row.latencyMs, 2)} ms`), numeric: true },
            { title: t("faults.since"), cell: (row) => <Time at={row.since} />, minor: true },
          ]}
        />
        <Table
          caption={t("faults.boards")}
          rows={cluster.boards}
          id={(row) => `${row.node} ${row.device} ${row.id} ${row.codes.join()}`}
          page={20}
          empty={t("faults.noBoards")}
          leftOut={cluster.leftOut["boards"] ?? 0}
          columns={[
            { title: t("faults.device"), cell: (row) => `${row.device}${row.id === null ? "" : ` ${row.id}`}` },
            { title: t("faults.node"), cell: (row) => <Select kind="node" name={row.node} /> },
            { title: t("faults.level"), cell: (row) => row.level },
            { title: t("faults.codes"), cell: (row) => <code>{row.codes.join(" ")}</code> },
          ]}
        />
      </div>
    </Sheet>
  );
}

function Where({ fault, cluster }: { fault: Fault; cluster: Cluster }) {
  if (fault.chip === null) return <Select kind="node" name={fault.node} />;
  return <Select kind="chip" name={`${fault.node}/${fault.chip}`} shown={chipKey(cluster, fault)} />;
}

function HeatSection({ cluster, by }: { cluster: Cluster; by: By }) {
  const can = useStore((state) => state.viewer?.can.history ?? false);
  const at = useStore((state) => state.at);
  const fresh = { of: cluster.moment.id, pause: REREAD };
  const heat = useApi<Heat>(can ? "heat" : null, { by, to: at ? cluster.moment.time : "" }, fresh);
  const history = useApi<History>(can ? "history" : null, { limit: 500, to: at ? cluster.moment.time : "" }, fresh);
  const curve = useMemo(() => {
    const moments = history.data?.moments ?? [];
    return {
      times: moments.map((one) => Date.parse(one.time) / 1000),
      lines: [
        { name: t("faults.reported"), colour: "phase-stopping", values: moments.map((one) => one.faults), steps: true },
        { name: t("faults.evictions"), colour: "text", values: moments.map((one) => one.evictions || null), points: true },
      ],
    };
  }, [history.data]);
  if (!can) return null;
  return (
    <>
      <Answered answer={heat}>{(data) => <HeatMap heat={data} />}</Answered>
      {curve.times.length > 1 && (
        <section aria-labelledby="faultsOverTime">
          <h2 id="faultsOverTime">{t("faults.overTime")}</h2>
          <Curve label={t("faults.overTimeLabel", { count: curve.times.length })} times={curve.times} lines={curve.lines} height={120} />
        </section>
      )}
    </>
  );
}

function Offenders({ rows, leftOut }: { rows: readonly Offender[]; leftOut: number }) {
  const sorted = useMemo(() => rows.slice().sort((a, b) => b.failures / b.threshold - a.failures / a.threshold), [rows]);
  return (
    <Table
      caption={t("faults.offenders")}
      rows={sorted}
      id={(row) => `${row.node} ${row.chip}`}
      page={20}
      empty={t("faults.noOffenders")}
      leftOut={leftOut}
      columns={[
        { title: t("faults.chip"), cell: (row) => (row.chip ? <Select kind="chip" name={`${row.node}/${row.chip}`} /> : <Select kind="node" name={row.node} />) },
        { title: t("faults.failures"), cell: (row) => <Bar value={row.failures} of={row.threshold} /> },
        { title: t("faults.avoided"), cell: (row) => (row.avoided ? <span class="bad">{t("faults.isAvoided")}</span> : <span class="dim">{t("faults.notAvoided")}</span>) },
      ]}
    />
  );
}

function Bar({ value, of }: { value: number; of: number }) {
  const most = Math.max(value, of, 0.001) * 1.1;
  return (
    <div class="share">
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect class="whole" width="100" height="10" />
        <rect class={value >= of ? "used over" : "used"} width={(value / most) * 100} height="10" />
        <path class="deserved" d={`M${(of / most) * 100} 0v10`} />
      </svg>
      <span class="dim small">{t("faults.failuresOf", { value: value.toFixed(1), threshold: of.toFixed(1) })}</span>
    </div>
  );
}
