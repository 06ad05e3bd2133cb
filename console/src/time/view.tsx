// Time: curves of what happened, the recorded moments, and what changed between two of them.
import { useMemo } from "preact/hooks";
import { number, t } from "../messages";
import { Answered, StateText, Table } from "../shell/parts";
import { go, hrefOf, isTime, setParam, usePlace } from "../shell/place";
import { absolute, relative, useNow } from "../shell/times";
import { useApi } from "../store/store";
import type { Between } from "../types";
import type { ViewProps } from "../views";
import { Curves } from "./curves";
import { Night } from "../records/Night";
import { atOrBefore, useHistory } from "./history";

export function TimeView(_: ViewProps) {
  const { moments, error } = useHistory();
  const here = usePlace();
  const now = useNow();
  const newest = useMemo(() => moments.toReversed(), [moments]);
  if (error) return <div class="sheet"><Night /><p class="problem">{t("shell.failed", { reason: error })}</p></div>;
  if (!moments.length) return <div class="sheet"><Night /><p class="dim">{t("time.none")}</p></div>;
  const show = (id: string): void => go({ at: id }, here.at ? "replace" : "push");
  const from = here.params["from"] ?? "", to = (here.at && atOrBefore(moments, here.at)?.id) || moments.at(-1)!.id;
  return (
    <div class="sheet">
      <Night />
      <section>
        <h2>{t("time.curves")}</h2>
        <Curves moments={moments} show={(moment) => show(moment.id)} />
      </section>
      <section>
        <h2>{t("time.between")}</h2>
        <p class="pair">
          <label>{t("time.from")}{" "}
            <select value={from} onChange={(event) => setParam("from", event.currentTarget.value, "replace")}>
              <option value="" />
              {newest.slice(0, 500).map((moment) => <option value={moment.id}>{absolute(moment.time)}</option>)}
            </select>
          </label>
          <span>{t("time.to")} {here.at ? <strong><Absolute id={here.at} moments={moments} /></strong> : t("time.toPresent")}</span>
        </p>
        {from ? <Changes from={from} to={to} /> : <p class="dim">{t("time.pickFrom")}</p>}
      </section>
      <section>
        <Table caption={t("time.moments", { count: moments.length })} rows={newest} id={(moment) => moment.id} page={50}
          selected={(moment) => moment.id === here.at} onSelect={(moment) => show(moment.id)}
          columns={[
            { title: t("time.moment"), cell: (moment) => <a href={hrefOf({ at: moment.id })} title={relative(moment.time, now)}>{absolute(moment.time)}</a> },
            { title: t("time.series.faults"), cell: (moment) => count(moment.faults), numeric: true },
            { title: t("time.series.evictions"), cell: (moment) => count(moment.evictions), numeric: true },
            { title: t("time.series.bound"), cell: (moment) => count(moment.bound), numeric: true },
            { title: t("time.series.waiting"), cell: (moment) => count(moment.waiting), numeric: true },
            { title: t("time.revision"), cell: (moment) => <code>{moment.revision.slice(0, 10)}</code>, minor: true },
            { title: t("time.source"), cell: (moment) => t(`time.source.${moment.source}`), minor: true },
            { title: t("time.compare"), cell: (moment) => <button type="button" aria-pressed={moment.id === from} onClick={() => setParam("from", moment.id === from ? "" : moment.id, "replace")}>{t("time.compareFrom")}</button> },
          ]} />
      </section>
    </div>
  );
}

function count(value: number | null): string {
  return value === null ? "–" : number(value);
}

function Absolute({ id, moments }: { id: string; moments: readonly { id: string; time: string }[] }) {
  const found = moments.find((moment) => moment.id === id);
  return <>{found || isTime(id) ? absolute(found?.time ?? id) : id}</>;
}

function Changes({ from, to }: { from: string; to: string }) {
  const answer = useApi<Between>(`between/${encodeURIComponent(from)}/${encodeURIComponent(to)}`);
  return (
    <Answered answer={answer}>
      {(between) => {
        const places = [
          ...between.chips.map((one) => ({ kind: "chip" as const, name: `${one.node}/${one.chip}`, from: one.from, to: one.to })),
          ...between.nodes.map((one) => ({ kind: "node" as const, name: one.node, from: one.from, to: one.to })),
        ];
        const left = Object.values(between.leftOut).reduce((sum, one) => sum + one, 0);
        if (!between.text.length && !places.length && !between.jobs.length && !between.faults.length) return <p class="dim">{t("time.same")}</p>;
        return (
          <div class="between">
            <ul class="explained">{between.text.slice(0, 200).map((line) => <li>{line}</li>)}</ul>
            {left ? <p class="dim">{t("shell.leftOut", { count: left })}</p> : null}
            {places.length ? <Table caption={t("time.changedChips")} rows={places} id={(row) => `${row.kind} ${row.name}`} page={50} columns={[
              { title: t("time.what"), cell: (row) => <a href={hrefOf({ view: "map", select: `${row.kind}/${row.name}` })}>{row.name}</a> },
              { title: t("time.was"), cell: (row) => <State state={row.from} /> },
              { title: t("time.is"), cell: (row) => <State state={row.to} /> },
            ]} /> : null}
            {between.jobs.length ? <Table caption={t("time.changedJobs")} rows={between.jobs} id={(row) => row.job} page={50} columns={[
              { title: t("time.what"), cell: (row) => <a href={hrefOf({ view: "map", select: `job/${row.job}` })}>{row.job}</a> },
              { title: t("time.was"), cell: (row) => row.from ?? "–" },
              { title: t("time.is"), cell: (row) => <>{row.to ?? "–"} <span class="dim">{row.message}</span></> },
            ]} /> : null}
            {between.faults.length ? <Table caption={t("time.changedFaults")} rows={between.faults} id={(row) => `${row.node}/${row.chip}/${row.code}/${row.change}`} page={50} columns={[
              { title: t("time.code"), cell: (row) => <code>{row.code}</code> },
              { title: t("time.what"), cell: (row) => <a href={hrefOf({ view: "map", select: row.chip === null ? `node/${row.node}` : `chip/${row.node}/${row.chip}` })}>{row.chip === null ? row.node : `${row.node}/${row.chip}`}</a> },
              { title: t("time.change"), cell: (row) => (row.change === "came" ? t("time.came") : t("time.gone")) },
            ]} /> : null}
          </div>
        );
      }}
    </Answered>
  );
}

function State({ state }: { state: string | null }) {
  return state ? <StateText state={state} /> : <span class="dim">–</span>;
}
