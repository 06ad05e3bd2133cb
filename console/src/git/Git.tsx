// Git: what is in force, what the newest revisions found, what is held back, and what a branch would do.
import { number, t } from "../messages";
import { Figures } from "../parts/Figures";
import { Sheet } from "../parts/Sheet";
import { runs, severityClass, shellWord } from "../parts/words";
import { Command, Table } from "../shell/parts";
import { setParam, usePlace } from "../shell/place";
import { Time, Timed } from "../shell/times";
import { whole } from "../store/cluster";
import type { Condition, Finding, Git, GitRevision } from "../types";
import type { ViewProps } from "../views";
import { Branches } from "./Branches";
import { Findings } from "./Findings";

export function GitView({ cluster }: ViewProps) {
  const { git } = cluster;
  return (
    <Sheet name="git">
      <InForce git={git} />
      {git.held.length > 0 && (
        <Table
          name="held"
          caption={t("git.held", { count: git.held.length })}
          rows={git.held}
          id={(row) => `${row.action} ${row.what}`}
          leftOut={cluster.leftOut["held"] ?? 0}
          columns={[
            { title: t("git.what"), cell: (row) => <>{row.what}<div class="dim small">{row.action}</div></> },
            { title: t("git.why"), cell: (row) => <>{row.why}{row.budget && <div class="dim small">{t("git.budget", { name: row.budget })}</div>}</> },
            { title: t("git.until"), cell: (row) => (row.until ? <Time at={row.until} /> : t("git.untilReleased")) },
            { title: t("git.release"), cell: (row) => (row.release ? <Command text={row.release} /> : <span class="dim">{t("git.onlyTime")}</span>) },
          ]}
        />
      )}
      {git.findings.length > 0 && <Findings caption={t("git.findings", { count: whole(cluster, "findings", git.findings.length) })} rows={git.findings} name="findings" leftOut={cluster.leftOut["findings"] ?? 0} />}
      <Revisions git={git} leftOut={cluster.leftOut["revisions"] ?? 0} />
      <Branches />
    </Sheet>
  );
}

function InForce({ git }: { git: Git }) {
  const subject = (id: string): string => git.revisions.find((one) => one.id === id)?.subject ?? "";
  const behind = git.attempted && git.attempted !== git.applied;
  return (
    <section aria-labelledby="inForce">
      <h2 id="inForce" class="hidden">{t("git.inForce")}</h2>
      <Figures
        of={[
          { name: t("git.inForce"), value: <code class="big">{short(git.applied) || t("git.none")}</code>, note: subject(git.applied) },
          ...(behind ? [{ name: t("git.newest"), value: <code class="big bad">{short(git.attempted)}</code>, note: subject(git.attempted) }] : []),
        ]}
      />
      <ul class="conditions">
        {git.conditions.map((one) => (
          <li key={one.type}>
            <ConditionMark of={one} />{" "}
            <strong>{one.type}</strong> {one.status !== "True" && one.severity !== "info" && <>{one.status} </>}{one.reason} <span class="dim">{one.message}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function ConditionMark({ of }: { of: Condition }) {
  const [tone, mark] = of.severity === "info" ? ["dim", "ⓘ"] : of.status === "True" ? ["good", "✓"] : of.status === "False" ? ["bad", "✗"] : ["dim", "?"];
  return <span class={tone} aria-hidden="true">{mark}</span>;
}

function Revisions({ git, leftOut }: { git: Git; leftOut: number }) {
  const { params } = usePlace();
  const open = params["revision"] ?? "";
  return (
    <Table
      caption={t("git.revisions")}
      rows={git.revisions}
      id={(row) => row.id}
      page={20}
      empty={t("git.noRevisions")}
      leftOut={leftOut}
      selected={(row) => row.id === open}
      columns={[
        {
          title: t("git.revision"),
          cell: (row) => (
            <>
              <button type="button" class="fold" aria-expanded={row.id === open} onClick={() => setParam("revision", row.id === open ? "" : row.id, "replace")}>
                <code title={row.id}>{short(row.id)}</code> <span aria-hidden="true">{row.id === open ? "▾" : "▸"}</span>
              </button>
              {row.id === git.applied && <div class="good small">{t("git.isInForce")}</div>}
            </>
          ),
        },
        { title: t("git.subject"), cell: (row) => <>{row.subject}<div class="dim small">{row.author}</div>{row.id === open && <Opened row={row} />}</> },
        { title: t("git.signature"), cell: (row) => <Signature row={row} /> },
        { title: t("git.changed"), cell: (row) => number(row.changed.length), numeric: true },
        { title: t("git.judged"), cell: (row) => <Judged row={row} /> },
        { title: t("git.time"), cell: (row) => <Time at={row.time} /> },
      ]}
    />
  );
}

function Signature({ row }: { row: GitRevision }) {
  const good = ["good", "valid", "verified", "yes"].includes(row.verified);
  const none = !row.verified || row.verified === "none" || row.verified === "unsigned";
  return (
    <span class={good ? "good" : none ? "dim" : "bad"}>
      <span aria-hidden="true">{good ? "✓ " : none ? "– " : "✗ "}</span>
      {good ? row.signer || t("git.good") : none ? t("git.unsigned") : `${row.verified}${row.signer ? `: ${row.signer}` : ""}`}
    </span>
  );
}

function Judged({ row }: { row: GitRevision }) {
  const worst = ["bad", "warn"].find((one) => row.findings.some((finding) => severityClass(finding.severity) === one)) ?? "dim";
  return (
    <>
      {row.accepted ? <span class="good"><span aria-hidden="true">✓ </span>{t("git.accepted")}</span> : <span class="bad"><span aria-hidden="true">✗ </span>{t("git.refused")}</span>}
      {row.findings.length > 0 && <div class={`${worst} small`}>{t("git.findingsShort", { count: row.findings.length })}</div>}
    </>
  );
}

function Opened({ row }: { row: GitRevision }) {
  return (
    <div class="opened">
      {row.findings.length > 0 && <Lines rows={row.findings} />}
      <ul class="plain">{row.changed.slice(0, 60).map((file) => <li key={file}><code>{file}</code></li>)}</ul>
      {row.changed.length > 60 && <p class="dim">{t("git.moreFiles", { count: row.changed.length - 60 })}</p>}
      <Command text={`git show ${shellWord(row.id.slice(0, 12))}`} />
      {row.accepted ? <Command text={`belay rollback ${shellWord(row.id.slice(0, 12))}`} note={t("acts.rollback")} /> : null}
    </div>
  );
}

function Lines({ rows }: { rows: readonly Finding[] }) {
  return (
    <ul class="plain findings">
      {rows.slice(0, 60).map((one, index) => <li key={index}><code>{one.where}</code> <span class={severityClass(one.severity)}>{one.field ? `${one.field}: ` : ""}<Timed text={runs(one.message)} /></span></li>)}
      {rows.length > 60 && <li class="dim">{t("git.moreFindings", { count: rows.length - 60 })}</li>}
    </ul>
  );
}

export function short(id: string): string {
  return id.slice(0, 10);
}
