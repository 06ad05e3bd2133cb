// The map: legend with counts, the picture or its table, and what is selected.
import { useMemo, useState } from "preact/hooks";
import { number, t } from "../messages";
import { nameOfState, StateMark } from "../shell/parts";
import { go, select, selectionOf, setParam, usePlace } from "../shell/place";
import { chipName, findChip, findJob, indexOf, jobName } from "../store/cluster";
import type { Cluster, Job } from "../types";
import type { ViewProps } from "../views";
import { MapCanvas } from "./canvas";
import { Inspector } from "./explain";
import { holdersByText } from "./holders";
import { WAYS } from "./rows";
import { ChipTable, NodeTable } from "./tables";

/** Holders that the legend lists; the table has all chips. */
const MOST_HOLDERS = 12;

export function MapView({ cluster }: ViewProps) {
  const here = usePlace();
  const selection = selectionOf(here.select);
  const [nodeName = "", number = ""] = selection?.kind === "chip" ? selection.name.split("/") : [];
  const chip = selection?.kind === "chip" ? findChip(cluster, nodeName, Number(/\d+$/.exec(number)?.[0] ?? -1)) : -1;
  const node = selection?.kind === "node" ? indexOf(cluster).nodes.get(selection.name) ?? -1 : -1;
  const job = selection?.kind === "job" ? findJob(cluster, selection.name) : -1;
  const state = here.params["state"] ?? "", form = here.params["form"] ?? "", table = form === "table" || form === "nodes";
  const ways = useMemo(() => waysOut(cluster, state === WAYS ? cluster.jobs : [cluster.jobs[job] ?? null]), [cluster.jobs, cluster.nodes.name, job, state]);
  // a job that waits has no chips yet: those of its way out are lit
  const lit = useMemo(() => (state === WAYS || (ways.length && !cluster.chips.job.includes(job)) ? chipsOf(cluster, ways) : undefined), [cluster.chips, ways, state, job]);
  const choose = (one: number): void => {
    if (one < 0) {
      if (here.select) go({ select: "" });
      return;
    }
    const held = cluster.jobs[cluster.chips.job[one]!];
    if (one === chip && held) select("job", jobName(held));
    else select("chip", chipName(cluster, one));
  };
  return (
    <div class="map">
      <div class="bar">
        <Legend cluster={cluster} state={state} />
        <Find cluster={cluster} />
        <button type="button" aria-pressed={table} onClick={() => setParam("form", table ? "" : "table")}>{t("map.table")}</button>
      </div>
      <div class="body">
        {form === "nodes" ? <NodeTable cluster={cluster} state={state} />
          : form === "table" ? <ChipTable cluster={cluster} state={state} job={job} node={node} />
          : <MapCanvas cluster={cluster} at={here.at} chip={chip} node={node} job={job} state={state} lit={lit} ways={ways} choose={choose} />}
        {selection ? <Inspector key={here.select} cluster={cluster} selection={selection} at={here.at} /> : null}
      </div>
    </div>
  );
}

/** Positions of the nodes that the ways out of waiting jobs concern, each once. */
export function waysOut(cluster: Cluster, jobs: readonly (Job | null)[]): number[] {
  const { nodes } = indexOf(cluster);
  const found = new Set<number>();
  for (const job of jobs)
    for (const name of job?.wayOutNodes ?? []) {
      const at = nodes.get(name);
      if (at !== undefined) found.add(at);
    }
  return [...found];
}

function chipsOf(cluster: Cluster, nodes: readonly number[]): Set<number> {
  const { first, order } = indexOf(cluster);
  return new Set(nodes.flatMap((node) => [...order.subarray(first[node], first[node + 1])]));
}

/** States with how many chips are in them; pressing one lights its chips. */
function Legend({ cluster, state }: { cluster: Cluster; state: string }) {
  const { states, chips } = cluster;
  const { counts, held } = useMemo(() => {
    const counts = new Map<string, number>(states.map((name) => [name, 0]));
    const healthy = states.indexOf("healthy"), each = new Int32Array(256);
    let free = 0, held = 0;
    for (let chip = 0; chip < chips.length; chip++) {
      each[chips.state[chip]!]! += 1;
      if (chips.state[chip] === healthy && chips.job[chip]! < 0) free += 1;
      if (chips.hold[chip]! > 0) held += 1;
    }
    states.forEach((name, code) => counts.set(name, each[code]!));
    counts.set("healthy", (counts.get("healthy") ?? 0) - free);
    return { counts: new Map([["free", free], ...counts]), held };
  }, [chips]);
  const ways = useMemo(() => waysOut(cluster, cluster.jobs).length, [cluster.jobs, cluster.nodes.name]);
  return (
    <div class="legend" role="group" aria-label={t("map.legend")}>
      {[...counts].filter(([name, count]) => count > 0 || name === "healthy" || name === state).map(([name, count]) => (
        <button type="button" aria-pressed={state === name} onClick={() => setParam("state", state === name ? "" : name, "replace")}>
          <StateMark state={name === "free" ? "healthy" : name} used={name !== "free"} /> {name === "free" ? t("map.legend.free") : name === "healthy" ? t("map.legend.used") : nameOfState(name)}{" "}
          <span class="count">{number(count)}</span>
        </button>
      ))}
      {held ? <button type="button" aria-pressed={state === "held"} onClick={() => setParam("state", state === "held" ? "" : "held", "replace")}>
        <svg class="mark" width="11" height="11" viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" fill="none" stroke="currentColor" opacity=".4" /><path d="M5 0h7v7z" fill="currentColor" /></svg>
        {" "}{t("map.legend.held")}{" "}<span class="count">{number(held)}</span></button> : null}
      {held && state === "held" ? <Holders cluster={cluster} /> : null}
      {ways ? <button type="button" aria-pressed={state === WAYS} title={t("map.legend.waysNote")} onClick={() => setParam("state", state === WAYS ? "" : WAYS, "replace")}>
        <svg class="mark way" width="11" height="11" viewBox="0 0 12 12" aria-hidden="true"><rect x="1" y="1" width="10" height="10" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="4 2" /></svg>
        {" "}{t("map.legend.ways")}{" "}<span class="count">{t("queue.nodes", { count: ways })}</span></button> : null}
    </div>
  );
}

/** What holds the chips that the legend counts: each code, list or document once, with what it holds. */
function Holders({ cluster }: { cluster: Cluster }) {
  const rows = useMemo(() => holdersByText(cluster), [cluster.holders]);
  return (
    <ul class="holders" aria-label={t("map.legend.holders")}>
      {rows.slice(0, MOST_HOLDERS).map(([text, names]) => <li>{text} <span class="count">{names.slice(0, 3).join(", ")}{names.length > 3 ? ` ${t("map.legend.more", { count: names.length - 3 })}` : ""}</span></li>)}
      {rows.length > MOST_HOLDERS ? <li class="dim">{t("map.legend.more", { count: rows.length - MOST_HOLDERS })}</li> : null}
    </ul>
  );
}

/** Finds a node, chip or job by a part of its name. */
function Find({ cluster }: { cluster: Cluster }) {
  const [text, setText] = useState("");
  const found = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    if (wanted.length < 2) return [];
    const hits: { kind: "node" | "job" | "chip"; name: string }[] = [];
    const [node, chip] = [wanted.slice(0, wanted.lastIndexOf("/")), Number(/\/\D*(\d+)$/.exec(wanted)?.[1] ?? NaN)];
    if (node && !Number.isNaN(chip) && findChip(cluster, node, chip) >= 0) hits.push({ kind: "chip", name: `${node}/${chip}` });
    for (const job of cluster.jobs) {
      if (hits.length >= 6) break;
      if (job && jobName(job).toLowerCase().includes(wanted)) hits.push({ kind: "job", name: jobName(job) });
    }
    for (const name of cluster.nodes.name) {
      if (hits.length >= 12) break;
      if (name.toLowerCase().includes(wanted)) hits.push({ kind: "node", name });
    }
    return hits;
  }, [text, cluster.nodes.name, cluster.jobs]);
  const choose = (hit: (typeof found)[number]): void => {
    select(hit.kind, hit.name);
    setText("");
  };
  return (
    <form class="find" role="search" onSubmit={(event) => { event.preventDefault(); if (found[0]) choose(found[0]); }}>
      <input type="search" placeholder={t("map.find")} aria-label={t("map.find")} value={text} spellcheck={false} autocomplete="off"
        onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => event.key === "Escape" && setText("")} />
      {text.trim().length >= 2 ? (
        <ul>{found.length ? found.map((hit) => <li><button type="button" onClick={() => choose(hit)}><span class="dim">{t(`map.kind.${hit.kind}`)}</span> {hit.name}</button></li>) : <li class="dim">{t("map.notFound")}</li>}</ul>
      ) : null}
    </form>
  );
}
