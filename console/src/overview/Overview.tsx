// The first screen, read in five seconds: are we in force, what is broken, what waits, what is lost, since when.
// Every number leads to its rows.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { OUT, WATCHED } from "../map/rows";
import { number, t } from "../messages";
import { keyOfJob } from "../parts/Links";
import { Sheet } from "../parts/Sheet";
import { runs } from "../parts/words";
import { hours } from "../recovery/Recovery";
import { useKept, useRecords, useReport } from "../records/records";
import { shownRows } from "../records/rows";
import { spanOf } from "../records/span";
import { Timeline } from "../records/Timeline";
import { Answered, Command } from "../shell/parts";
import { hrefOf, usePlace } from "../shell/place";
import { Time, useNow } from "../shell/times";
import { whole } from "../store/cluster";
import { useStore } from "../store/store";
import type { Cluster, Git, Job } from "../types";
import type { ViewProps } from "../views";
import { brokenOf, lostOfAll, standingOf, type Tone, waitsOf } from "./figures";

const ROWS = 8;
const LAST = 12;
/** Characters of a reason on this page; the view behind it has the whole. */
const SHORT = 160;

export function OverviewView({ cluster }: ViewProps) {
  return (
    <Sheet name="overview">
      <section aria-labelledby="verdicts">
        <h2 id="verdicts" class="hidden">{t("overview.title")}</h2>
        <dl class="verdicts">
          <InForce cluster={cluster} />
          <Broken cluster={cluster} />
          <Waiting cluster={cluster} />
          <Lost cluster={cluster} />
          <Itself cluster={cluster} />
        </dl>
      </section>
      <div class="halves">
        <Person cluster={cluster} />
        <Last />
      </div>
    </Sheet>
  );
}

function Verdict({ tone, name, children, since }: { tone: Tone; name: string; children: ComponentChildren; since?: string | null }) {
  const mark = { good: "✓", warn: "!", bad: "✗" }[tone];
  return (
    <div class={`verdict ${tone}`}>
      <dt><span aria-hidden="true" class="sign">{mark}</span> {name} <span class="hidden">{t(`overview.${tone}`)}</span></dt>
      <dd>
        {children}
        {since ? <small class="dim"> {t("overview.since")} <Time at={since} /></small> : null}
      </dd>
    </div>
  );
}

/** Parts of a sentence, with commas between those that are there. */
function Parts({ of }: { of: readonly ComponentChildren[] }) {
  const there = of.filter((part) => part !== null && part !== false);
  return <>{there.map((part, at) => <span key={at}>{at ? ", " : ""}{part}</span>)}</>;
}

function InForce({ cluster }: { cluster: Cluster }) {
  const { git } = cluster;
  const about = (id: string): Git["revisions"][number] | undefined => git.revisions.find((one) => one.id === id);
  const behind = git.attempted !== "" && git.attempted !== git.applied;
  const shown = about(behind ? git.attempted : git.applied);
  const stands = standingOf(git);
  const text = !git.applied && !behind ? t("overview.noRevision")
    : t(`overview.${stands.text}`, { revision: (behind ? git.attempted : git.applied).slice(0, 10) });
  const findings = hrefOf({ view: "git", params: { rows: "findings" } }), held = hrefOf({ view: "git", params: { rows: "held" } });
  return (
    <Verdict tone={stands.tone} name={t("overview.inForce")} since={shown?.taken ?? shown?.time ?? null}>
      <Parts
        of={[
          <a href={hrefOf({ view: "git", params: {} })}>{text}</a>,
          git.findings.length > 0 && <a href={findings}>{t("overview.findings", { count: whole(cluster, "findings", git.findings.length) })}</a>,
          git.held.length > 0 && <a href={held}>{t("overview.held", { count: git.held.length })}</a>,
        ]}
      />
      {stands.why ? <div class="small">{stands.why.slice(0, SHORT)}</div> : null}
      {shown ? <div class="dim">{shown.subject} · {shown.author}</div> : null}
    </Verdict>
  );
}

function Broken({ cluster }: { cluster: Cluster }) {
  const found = useMemo(() => brokenOf(cluster), [cluster]);
  const { chipsOut, chipsWatched, nodesOut, failed, faults } = found;
  const tone: Tone = failed.length || nodesOut || chipsOut ? "bad" : chipsWatched || faults ? "warn" : "good";
  if (tone === "good") return <Verdict tone={tone} name={t("overview.broken")}>{t("overview.nothingBroken")}</Verdict>;
  const chips = (state: string): string => hrefOf({ view: "map", params: { form: "table", state } });
  return (
    <Verdict tone={tone} name={t("overview.broken")} since={found.since}>
      <Parts
        of={[
          failed.length > 0 && <a href={hrefOf({ view: "queue", params: { rows: "failed" } })}>{t("overview.failed", { count: failed.length })}</a>,
          nodesOut > 0 && <a href={hrefOf({ view: "map", params: { form: "nodes", state: OUT } })}>{t("overview.nodesOut", { count: nodesOut })}</a>,
          chipsOut > 0 && <a href={chips(OUT)}>{t("overview.chipsOut", { count: chipsOut })}</a>,
          chipsWatched > 0 && <a href={chips(WATCHED)}>{t("overview.chipsWatched", { count: chipsWatched })}</a>,
          faults > 0 && <a href={hrefOf({ view: "faults", params: { rows: "faults" } })}>{t("overview.faults", { count: faults })}</a>,
        ]}
      />
    </Verdict>
  );
}

function Waiting({ cluster }: { cluster: Cluster }) {
  const { jobs, chips, since } = useMemo(() => waitsOf(cluster), [cluster.jobs]);
  if (!jobs.length) return <Verdict tone="good" name={t("overview.waits")}>{t("overview.nothingWaits")}</Verdict>;
  return (
    <Verdict tone="warn" name={t("overview.waits")} since={since}>
      <a href={hrefOf({ view: "queue", params: { rows: "waiting" } })}>{t("overview.jobsWait", { count: jobs.length })} {t("overview.chipsWanted", { count: chips })}</a>
    </Verdict>
  );
}

function Lost({ cluster }: { cluster: Cluster }) {
  const live = useStore((state) => state.connection.kind === "live" && !state.at);
  const clock = useNow();
  const now = live ? Math.floor(clock / 1000) * 1000 : Date.parse(cluster.moment.time);
  const lost = lostOfAll(cluster, now);
  const { at } = usePlace();
  const day = useReport(spanOf("day", now, at !== "")).data?.total;
  const { effectiveTime } = cluster.fleet;
  const recovery = hrefOf({ view: "recovery", params: {} }), lanes = hrefOf({ view: "recovery", params: { rows: "lanes" } });
  return (
    <Verdict tone={lost.underWay ? "bad" : "good"} name={t("overview.lost")} since={lost.since}>
      <Parts
        of={[
          lost.underWay ? <a href={lanes}>{t("overview.recovering", { count: lost.underWay })}</a> : t("overview.nothingLost"),
          lost.underWay > 0 && <a href={lanes}>{t("overview.standing", { count: lost.chips })}</a>,
          lost.underWay > 0 && <a href={lanes}>{t("overview.lostSoFar", { hours: hours(lost.soFar) })}</a>,
          day ? <a href={hrefOf({ view: "recovery", params: { window: "day", rows: "losses" } })}>{t("overview.lostDay", { hours: hours(day.lostChipHours) })}</a> : null,
          effectiveTime !== null && <a href={recovery}>{t("overview.effective", { share: `${(effectiveTime * 100).toFixed(2)} %` })}</a>,
        ]}
      />
    </Verdict>
  );
}

/** What the server itself cannot read or do. */
function Itself({ cluster }: { cluster: Cluster }) {
  const { problems } = cluster;
  if (!problems.length) return <Verdict tone="good" name={t("overview.itself")}>{t("overview.serverGood")}</Verdict>;
  return (
    <Verdict tone="bad" name={t("overview.itself")}>
      {t("overview.serverBad", { count: problems.length })}
      <ul>{problems.slice(0, ROWS).map((one) => <li>{one}</li>)}</ul>
      {problems.length > ROWS ? <p class="dim">{t("shell.leftOut", { count: problems.length - ROWS })}</p> : null}
    </Verdict>
  );
}

/** What does not go on without somebody: each with what to do. */
function Person({ cluster }: { cluster: Cluster }) {
  const { git } = cluster;
  const failed = useMemo(() => brokenOf(cluster).failed, [cluster]);
  const waiting = useMemo(() => waitsOf(cluster).jobs, [cluster.jobs]);
  const refused = git.revisions.filter((one) => !one.accepted && one.id === git.attempted);
  const released = git.held.filter((one) => one.release);
  const nothing = !failed.length && !refused.length && !released.length;
  return (
    <div class="stack">
      <section aria-labelledby="person">
        <h2 id="person">{t("overview.person")}</h2>
        {nothing ? <p class="dim">{t("overview.nothingForPerson")}</p> : null}
        <ul class="plain tasks">
          {refused.map((one) => (
            <li key={one.id}><a href={hrefOf({ view: "git", params: { revision: one.id } })}>{t("overview.refused", { revision: one.id.slice(0, 10), count: one.findings.length })}</a>
              {one.findings[0] ? <div class="dim small">{one.findings[0].where} {one.findings[0].message.slice(0, SHORT)}</div> : null}</li>
          ))}
          {failed.slice(0, ROWS).map((job) => <li key={keyOfJob(job)}><JobLine job={job} /> {t("overview.failedJob")} <div class="dim small">{job.message.slice(0, SHORT)}</div></li>)}
          {released.slice(0, ROWS).map((one) => <li key={`${one.action} ${one.what}`}>{runs(one.what)} <span class="dim">{one.why}</span><Command text={one.release} /></li>)}
        </ul>
      </section>
      {waiting.length ? (
        <section aria-labelledby="longest">
          <h2 id="longest">{t("overview.longestWaits")}</h2>
          <ul class="plain tasks">
            {waiting.slice(0, ROWS).map((job) => (
              <li key={keyOfJob(job)}><JobLine job={job} /> <span class="dim">{t("queue.chips", { count: job.chips })} · <Time at={job.since} /></span> {job.reason}
                {job.wayOut ? <div class="small">{t("map.fact.wayOut")}: {job.wayOut.slice(0, SHORT)}</div> : null}</li>
            ))}
          </ul>
          {waiting.length > ROWS ? <p><a href={hrefOf({ view: "queue", params: { rows: "waiting" } })}>{t("overview.more")} ({number(waiting.length)})</a></p> : null}
        </section>
      ) : null}
    </div>
  );
}

function JobLine({ job }: { job: Job }) {
  return <a class="name" href={hrefOf({ view: "queue", params: {}, select: `job/${keyOfJob(job)}` })}>{job.namespace}/{job.name}</a>;
}

/** The newest lines of the history. */
function Last() {
  const kept = useKept();
  const { at } = usePlace();
  const now = useNow();
  const answer = useRecords(spanOf("night", now, at !== ""), null, 100);
  if (!kept) return null;
  return (
    <section aria-labelledby="last">
      <h2 id="last">{t("overview.last")}</h2>
      <Answered answer={answer}>
        {(records) => records.records.length
          ? <Timeline rows={shownRows(records.records, "").slice(0, LAST)} label={t("overview.last")} />
          : <p class="dim">{t("records.nothing")}</p>}
      </Answered>
      <p><a href={hrefOf({ view: "time", params: {} })}>{t("overview.more")}</a></p>
    </section>
  );
}
