// The map as tables, for screen readers and for reading off: chips, and the nodes that are not as they should be.
import { useMemo } from "preact/hooks";
import { t } from "../messages";
import { nameOfState, StateMark, StateText, Table } from "../shell/parts";
import { hrefOf, select } from "../shell/place";
import { chipName, jobName } from "../store/cluster";
import type { Cluster } from "../types";
import { standing } from "./explain";
import { chipRows, isNodeOut, nodeRows, OUT } from "./rows";

/** Chips: what is not as it should be first, then everything. */
export function ChipTable({ cluster, state, job, node }: { cluster: Cluster; state: string; job: number; node: number }) {
  const { chips, nodes, states } = cluster;
  const rows = useMemo(() => chipRows(cluster, { state, job, node }), [chips, nodes, state, job, node]);
  const nameOf = (chip: number): string => states[chips.state[chip]!] ?? "unknown";
  return (
    <div class="sheet">
      <Table caption={t("map.tableCaption", { count: rows.length })} rows={rows} id={String} onSelect={(chip) => select("chip", chipName(cluster, chip))}
        columns={[
          { title: t("map.fact.chip"), cell: (chip) => <a href={hrefOf({ select: `chip/${chipName(cluster, chip)}` })}>{chipName(cluster, chip)}</a> },
          { title: t("map.fact.state"), cell: (chip) => <span class="state"><StateMark state={nameOf(chip)} used={chips.job[chip]! >= 0} /> {nameOfState(nameOf(chip))}</span> },
          { title: t("map.fact.hold"), cell: (chip) => cluster.holds[chips.hold[chip]!] ?? "" },
          { title: t("map.fact.job"), cell: (chip) => { const held = cluster.jobs[chips.job[chip]!]; return held ? jobName(held) : ""; } },
          { title: t("map.fact.cuts"), cell: (chip) => chips.cuts.get(chip)?.join(" + ") ?? "", minor: true },
          { title: t("map.fact.place"), cell: (chip) => standing(cluster, chips.node[chip]!), minor: true },
          { title: t("map.fact.nodeState"), cell: (chip) => nameOfState(nodes.state[chips.node[chip]!] ?? ""), minor: true },
        ]} />
    </div>
  );
}

/** Nodes that are not healthy: those that take no work first, or only they. */
export function NodeTable({ cluster, state }: { cluster: Cluster; state: string }) {
  const { nodes } = cluster;
  const rows = useMemo(() => nodeRows(cluster).filter((node) => state !== OUT || isNodeOut(nodes.state[node]!)), [nodes, state]);
  return (
    <div class="sheet">
      <Table caption={t("map.nodesCaption", { count: rows.length })} rows={rows} id={String} empty={t("overview.nothingBroken")} onSelect={(node) => select("node", nodes.name[node]!)}
        columns={[
          { title: t("map.fact.node"), cell: (node) => <a href={hrefOf({ select: `node/${nodes.name[node]!}` })}>{nodes.name[node]}</a> },
          { title: t("map.fact.state"), cell: (node) => <><StateText state={nodes.state[node]!} /> {nodes.cordoned[node] ? t("map.cordoned") : ""}</> },
          { title: t("map.fact.message"), cell: (node) => nodes.message[node] },
          { title: t("map.fact.place"), cell: (node) => standing(cluster, node), minor: true },
          { title: t("map.fact.product"), cell: (node) => nodes.product[node], minor: true },
        ]} />
    </div>
  );
}
