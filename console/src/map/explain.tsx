// What is known of a chip, node or job: the facts of the document at once, and what `belay explain` says as it comes.
import { useEffect, useMemo, useState } from "preact/hooks";
import { number, t } from "../messages";
import { StateText } from "../shell/parts";
import { go, hrefOf, select, type Selection } from "../shell/place";
import { Time, Timed } from "../shell/times";
import { serverNow } from "../store/clock";
import { chipName, findChip, findJob, indexOf, jobName } from "../store/cluster";
import { useApi } from "../store/store";
import type { Cluster, Explanation, Job } from "../types";
import { shellWord } from "../parts/words";
import { partsOf } from "./explained";
import { holding } from "./holders";
import { Command } from "../shell/parts";

/** Milliseconds that a pointer rests before the server is asked. */
const REST = 120;
/** Milliseconds from one question about the same thing to the next at least: the server reads the cluster for it. */
const PAUSE = 4000;

/** One line about a chip, for screen readers. */
export function describe(cluster: Cluster, chip: number): string {
  const { chips } = cluster;
  const job = cluster.jobs[chips.job[chip]!];
  return [
    t("map.chip", { name: chipName(cluster, chip) }),
    cluster.states[chips.state[chip]!] ?? "unknown",
    chips.hold[chip] ? t("map.heldBy", { hold: holding(cluster, chip) }) : "",
    job ? t("map.usedBy", { job: jobName(job) }) : t("map.free"),
    chips.cuts.get(chip)?.join(" + ") ?? "",
  ].filter(Boolean).join(", ");
}

/** What the document says of a chip, node, job or pod, as a text: while that is the same, so is its explanation. */
function factsOf(cluster: Cluster, { kind, name }: Selection): string {
  const { chips, nodes } = cluster;
  const chipFacts = (chip: number): unknown => [chips.state[chip], holding(cluster, chip), jobFacts(chips.job[chip]!)];
  const jobFacts = (at: number): unknown => {
    const job = cluster.jobs[at];
    return job ? [jobName(job), job.phase, job.reason, job.message, job.pods] : null;
  };
  if (kind === "job") return JSON.stringify(jobFacts(findJob(cluster, name)));
  if (kind === "pod") return cluster.moment.id;
  const index = indexOf(cluster), node = index.nodes.get(name.split("/")[0]!);
  if (node === undefined) return "";
  const faults = cluster.faults.filter((fault) => fault.node === nodes.name[node]);
  const own = [...index.order.subarray(index.first[node], index.first[node + 1])];
  const one = kind === "chip" ? findChip(cluster, nodes.name[node]!, Number(/\d+$/.exec(name)?.[0] ?? -1)) : -1;
  return JSON.stringify([
    nodes.state[node], nodes.cordoned[node], nodes.message[node], (one < 0 ? own : [one]).map(chipFacts),
    faults.map((fault) => [fault.chip, fault.code, fault.level, fault.action]),
  ]);
}

/** Where a node stands: its pool, and the super pod, rack or switch it belongs to. */
export function standing(cluster: Cluster, node: number): string {
  const { nodes } = cluster;
  return [
    nodes.pool[node]!, nodes.superPod[node]! >= 0 ? t("map.group.superPod", { name: String(nodes.superPod[node]) }) : "",
    nodes.rack[node] ? t("map.group.rack", { name: nodes.rack[node]! }) : "", nodes.switch[node] ? t("map.group.switch", { name: nodes.switch[node]! }) : "",
  ].filter(Boolean).join(" › ");
}

export function Tip(props: { cluster: Cluster; chip: number; at: string; x: number; y: number; width: number; height: number }) {
  const { cluster, chip, at, x, y, width, height } = props;
  const name = chipName(cluster, chip);
  const [asked, setAsked] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setAsked(name), REST);
    return () => clearTimeout(timer);
  }, [name]);
  const of = useMemo(() => factsOf(cluster, { kind: "chip", name }), [cluster, name]);
  const answer = useApi<Explanation>(asked === name ? `explain/chip/${path(name)}` : null, { at }, { of, pause: PAUSE });
  const right = x > width / 2, lower = y > height / 2;
  const style = {
    left: right ? "auto" : `${x + 16}px`, right: right ? `${width - x + 16}px` : "auto",
    top: lower ? "auto" : `${y + 12}px`, bottom: lower ? `${height - y + 12}px` : "auto",
  };
  const text = answer.data?.name === name || answer.data?.name.startsWith(`${name.split("/")[0]}/`) ? answer.data.text : [];
  return (
    <div class="tip" style={style}>
      <p class="hidden" role="status">{describe(cluster, chip)}</p>
      <div aria-hidden="true"><ChipFacts cluster={cluster} chip={chip} /></div>
      {text.length ? <Explained lines={text} most={6} passing /> : null}
    </div>
  );
}

/** What `belay explain` says, in the shape that it has in a terminal. `passing`: it is gone before it could be scrolled. */
function Explained({ lines, most, passing }: { lines: readonly string[]; most: number; passing?: boolean }) {
  const parts = useMemo(() => partsOf(lines.filter((line) => line.trim()).slice(0, most)), [lines, most]);
  return (
    <div class="explanation">
      {parts.map((part) =>
        part.kind === "table" ? (
          <div class="scroll" {...(passing ? {} : { role: "region", "aria-label": t("map.explain"), tabIndex: 0 })}>
            <table><thead><tr>{part.lines[0]!.map((cell) => <th scope="col">{cell.toLowerCase()}</th>)}</tr></thead>
              <tbody>{part.lines.slice(1).map((row) => <tr>{row.map((cell) => <td><Timed text={cell} /></td>)}</tr>)}</tbody></table>
          </div>
        ) : part.kind === "title" ? <p class="dim">{part.lines[0]![0]}</p>
          : <p style={part.depth ? { paddingLeft: `${part.depth * 10}px` } : undefined}><Timed text={part.lines[0]![0]!} /></p>)}
    </div>
  );
}

function ChipFacts({ cluster, chip }: { cluster: Cluster; chip: number }) {
  const { chips } = cluster;
  const node = chips.node[chip]!, job = cluster.jobs[chips.job[chip]!];
  return (
    <>
      <p><strong>{chipName(cluster, chip)}</strong> <StateText state={cluster.states[chips.state[chip]!] ?? "unknown"} used={chips.job[chip]! >= 0} /></p>
      <p class="dim">{standing(cluster, node)} › {t("map.ring", { ring: chips.ring[chip]! })}</p>
      <p>{job ? t("map.usedBy", { job: jobName(job) }) : <span class="dim">{t("map.free")}</span>}{chips.hold[chip] ? ` · ${t("map.heldBy", { hold: holding(cluster, chip) })}` : ""}</p>
      {chips.cuts.has(chip) ? <p>{t("map.cuts", { cuts: chips.cuts.get(chip)!.join(" + ") })}</p> : null}
    </>
  );
}

/** The panel of what is selected. */
export function Inspector({ cluster, selection, at }: { cluster: Cluster; selection: Selection; at: string }) {
  const of = useMemo(() => factsOf(cluster, selection), [cluster, selection.kind, selection.name]);
  // of a pod the document says nothing: every change may concern it
  const pause = selection.kind === "pod" ? 5 * PAUSE : PAUSE;
  const answer = useApi<Explanation>(`explain/${selection.kind}/${path(selection.name)}`, { at }, { of, pause });
  const current = answer.data !== null && !answer.loading && !answer.old;
  return (
    <aside class="inspector" aria-label={t("map.inspector", { name: selection.name })}>
      <div class="title">
        <h2><span class="dim">{t(`map.kind.${selection.kind}`)}</span> {selection.name}</h2>
        <button type="button" onClick={() => go({ select: "" })} aria-label={t("map.clear")} title={t("map.clear")}>×</button>
      </div>
      {selection.kind === "chip" ? <ChipPanel cluster={cluster} name={selection.name} />
        : selection.kind === "node" ? <NodePanel cluster={cluster} name={selection.name} />
        : selection.kind === "job" ? <JobPanel cluster={cluster} name={selection.name} /> : null}
      <section>
        <h3>{t("map.explain")}</h3>
        {answer.error ? <p class="dim">{t("shell.failed", { reason: answer.error.message })}</p>
          : answer.data ? <div class={current ? "" : "stale"}><Explained lines={answer.data.text} most={80} /></div>
          : <p class="dim">{t("shell.loading")}</p>}
        {selection.kind === "chip" || selection.kind === "node" ? <p><a href={hrefOf({ view: "whatif", params: {} })}>{t("map.whatIf")}</a></p> : null}
        <p><a href={hrefOf({ view: "time", params: {} })}>{t("acts.history")}</a></p>
        <Command text={`belay explain ${selection.kind} ${selection.kind === "job" ? short(selection.name) : selection.name}`} />
      </section>
      {selection.kind === "chip" || selection.kind === "node" ? <TakeOut name={selection.name} pool={selection.kind === "node" ? poolOf(cluster, selection.name) : ""} />
        : selection.kind === "job" ? <ChangeJob name={selection.name} /> : null}
    </aside>
  );
}

/** How to take a chip or node out of service for real: commands that commit; the page writes nothing. */
function TakeOut({ name, pool }: { name: string; pool: string }) {
  const target = shellWord(name);
  const drain = JSON.stringify([{ do: "drain", node: name }]);
  return (
    <section>
      <h3>{t("acts.title")}</h3>
      {pool ? <Command text={`belay drain ${target} --reason 'to be looked at' --until ${friday(serverNow())}`} note={t("acts.drainCommit")} /> : null}
      {pool ? <p><a href={hrefOf({ view: "whatif", params: { changes: drain } })}>{t("acts.drain", { name })}</a></p> : null}
      <Command text={`belay isolate ${target} --reason 'to be looked at' --until ${friday(serverNow())}`} note={t("acts.isolate")} />
      <Command text={`belay release ${target}`} note={t("acts.release")} />
      {pool ? <Command text={`belay new layout NAME --pool ${shellWord(pool)} --cut 0-3=TEMPLATE,TEMPLATE`} note={t("acts.layout")} /> : null}
    </section>
  );
}

/** The pool of a node, "" for one that is not there. */
function poolOf(cluster: Cluster, name: string): string {
  return cluster.nodes.pool[indexOf(cluster).nodes.get(name) ?? -1] ?? "";
}

/** How to change a job: commands that commit. Which of them a kind of job has, the command says. */
function ChangeJob({ name }: { name: string }) {
  const job = shellWord(short(name));
  return (
    <section>
      <h3>{t("acts.job")}</h3>
      <Command text={`belay priority ${job} CLASS --why 'it is urgent'`} note={t("acts.priority")} />
      <Command text={`belay scale ${job} N`} note={t("acts.scale")} />
      <Command text={`belay suspend ${job}`} note={t("acts.suspend")} />
      <Command text={`belay adopt ${shellWord(name)}`} note={t("acts.adopt")} />
    </section>
  );
}

/** The next Friday, 18:00 UTC, at least a day ahead. */
export function friday(now: number): string {
  const date = new Date(now + 86_400_000);
  date.setUTCDate(date.getUTCDate() + ((12 - date.getUTCDay()) % 7));
  return `${date.toISOString().slice(0, 10)}T18:00:00Z`;
}

/** NAMESPACE/NAME, as the command takes it. */
function short(job: string): string {
  const parts = job.split("/");
  return parts.length === 3 ? `${parts[0]}/${parts[2]}` : job;
}

function path(name: string): string {
  return name.split("/").map(encodeURIComponent).join("/");
}

function Missing({ name }: { name: string }) {
  return <p class="dim">{t("map.missing", { name })}</p>;
}

function JobLink({ job }: { job: Job }) {
  return <a href={hrefOf({ select: `job/${jobName(job)}` })}>{jobName(job)}</a>;
}

function ChipPanel({ cluster, name }: { cluster: Cluster; name: string }) {
  const [node = "", number = ""] = name.split("/");
  const chip = findChip(cluster, node, Number(/\d+$/.exec(number)?.[0] ?? -1));
  if (chip < 0) return <Missing name={name} />;
  const { chips } = cluster;
  const job = cluster.jobs[chips.job[chip]!], at = chips.node[chip]!;
  const faults = cluster.faults.filter((fault) => fault.node === node && (fault.chip === null || fault.chip === chips.chip[chip]));
  return (
    <>
      <dl class="facts">
        <dt>{t("map.fact.state")}</dt><dd><StateText state={cluster.states[chips.state[chip]!] ?? "unknown"} used={chips.job[chip]! >= 0} /></dd>
        <dt>{t("map.fact.hold")}</dt><dd>{chips.hold[chip] ? holding(cluster, chip) : <span class="dim">{t("map.none")}</span>}</dd>
        <dt>{t("map.fact.job")}</dt><dd>{job ? <JobLink job={job} /> : <span class="dim">{t("map.none")}</span>}</dd>
        <dt>{t("map.fact.node")}</dt><dd><a href={hrefOf({ select: `node/${node}` })}>{node}</a> <span class="dim">{cluster.nodes.state[at]}</span></dd>
        <dt>{t("map.fact.place")}</dt><dd>{standing(cluster, at)} › {t("map.ring", { ring: chips.ring[chip]! })}</dd>
        {chips.cuts.has(chip) ? <><dt>{t("map.fact.cuts")}</dt><dd>{chips.cuts.get(chip)!.join(" + ")}</dd></> : null}
      </dl>
      {faults.length ? <Faults faults={faults} /> : null}
    </>
  );
}

function Faults({ faults }: { faults: Cluster["faults"] }) {
  return (
    <section>
      <h3>{t("map.fact.faults")}</h3>
      <ul class="explained">{faults.slice(0, 20).map((fault) => <li><code>{fault.code}</code> {fault.level} <span class="dim"><Time at={fault.since} /> {fault.action}</span></li>)}</ul>
    </section>
  );
}

function NodePanel({ cluster, name }: { cluster: Cluster; name: string }) {
  const index = indexOf(cluster), node = index.nodes.get(name);
  if (node === undefined) return <Missing name={name} />;
  const { nodes, chips } = cluster;
  const own = [...index.order.subarray(index.first[node], index.first[node + 1])];
  const jobs = [...new Set(own.map((chip) => chips.job[chip]!))].flatMap((job) => cluster.jobs[job] ?? []);
  const faults = cluster.faults.filter((fault) => fault.node === name);
  return (
    <>
      <dl class="facts">
        <dt>{t("map.fact.state")}</dt><dd><StateText state={nodes.state[node]!} /> {nodes.cordoned[node] ? t("map.cordoned") : ""}</dd>
        {nodes.message[node] ? <><dt>{t("map.fact.message")}</dt><dd>{nodes.message[node]}</dd></> : null}
        <dt>{t("map.fact.place")}</dt><dd>{standing(cluster, node)}</dd>
        <dt>{t("map.fact.product")}</dt><dd>{nodes.product[node]}</dd>
        <dt>{t("map.fact.jobs")}</dt><dd>{jobs.length ? jobs.map((job) => <div><JobLink job={job} /></div>) : <span class="dim">{t("map.none")}</span>}</dd>
        <dt>{t("map.fact.chips")}</dt>
        <dd class="chips">{own.map((chip) => {
          const state = cluster.states[chips.state[chip]!] ?? "unknown";
          return <button type="button" title={describe(cluster, chip)} aria-label={describe(cluster, chip)} onClick={() => select("chip", chipName(cluster, chip))}><StateText state={state} used={chips.job[chip]! >= 0} /> <span class="dim">{chips.chip[chip]}</span></button>;
        })}</dd>
      </dl>
      {faults.length ? <Faults faults={faults} /> : null}
    </>
  );
}

function JobPanel({ cluster, name }: { cluster: Cluster; name: string }) {
  const at = findJob(cluster, name), job = cluster.jobs[at];
  if (!job) return <Missing name={name} />;
  let lit = 0;
  const nodes = new Set<number>();
  cluster.chips.job.forEach((one, chip) => {
    if (one === at) {
      lit += 1;
      nodes.add(cluster.chips.node[chip]!);
    }
  });
  return (
    <dl class="facts">
      <dt>{t("map.fact.phase")}</dt><dd>{job.phase} <span class="dim"><Time at={job.since} /></span></dd>
      <dt>{t("map.fact.queue")}</dt><dd>{job.queue || <span class="dim">{t("map.none")}</span>}</dd>
      <dt>{t("map.fact.pods")}</dt><dd>{t("map.podsOf", { running: job.pods.running, placed: job.pods.placed, wanted: job.pods.wanted })}</dd>
      <dt>{t("map.fact.chips")}</dt><dd>{number(lit)} <span class="dim">{t("map.onNodes", { count: nodes.size })}</span></dd>
      {job.reason ? <><dt>{t("map.fact.reason")}</dt><dd>{job.reason} <span class="dim">{job.message}</span></dd></> : null}
      {job.wayOut ? <><dt>{t("map.fact.wayOut")}</dt><dd>{job.wayOut}</dd></> : null}
      {job.wayOutNodes?.length ? (
        <><dt>{t("map.fact.wayOutNodes")}</dt><dd>{job.wayOutNodes.slice(0, 12).map((node, at) => <>{at ? ", " : ""}<a href={hrefOf({ select: `node/${node}` })}>{node}</a></>)}
          {job.wayOutNodes.length > 12 ? ` ${t("outcome.moreNodes", { count: job.wayOutNodes.length - 12 })}` : ""}</dd></>
      ) : null}
    </dl>
  );
}
