// The forecast beside what is: two maps, frame by frame; lanes; what happens to jobs; commands to copy.
import { useEffect, useMemo, useState } from "preact/hooks";
import { t } from "../messages";
import { Figures } from "../parts/Figures";
import { OutcomeLists } from "../parts/Outcome";
import { LaneChart } from "../recovery/LaneChart";
import { type Lane, laneOf, sorted } from "../recovery/lanes";
import { hours } from "../recovery/Recovery";
import { Command, Table } from "../shell/parts";
import { duration } from "../shell/times";
import { applyPatch, copyCluster, readCluster } from "../store/cluster";
import type { Cluster, Frame, Recovery, WhatIfAnswer } from "../types";
import { PlainMap } from "./PlainMap";

const TURN = 700;
const LANES = 6;
const NONE: readonly number[] = [];

interface Props {
  answer: WhatIfAnswer;
  real: Cluster;
  pick: (node: string, chip: number | null) => void;
  drop: (data: DataTransfer, node: string, chip: number | null) => void;
}

export function Forecast({ answer, real, pick, drop }: Props) {
  const last = answer.frames.length - 1;
  const [frame, setFrame] = useState(last);
  const [playing, setPlaying] = useState(false);
  const before = useMemo(() => readCluster(answer.before), [answer]);
  const then = useMemo(() => {
    let cluster = copyCluster(before);
    for (const one of answer.frames.slice(0, frame + 1)) cluster = applyPatch(cluster, one.patch);
    return cluster;
  }, [before, answer, frame]);
  const marked = useMemo(() => differences(before, then), [before, then]);
  useEffect(() => {
    if (!playing) return undefined;
    if (frame >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => setFrame(frame + 1), TURN);
    return () => clearTimeout(timer);
  }, [playing, frame, last]);
  // moments at which nothing happens are on the slider, but no steps
  const steps = answer.frames.map((one, index) => ({ one, index })).filter(({ one, index }) => index === 0 || index === last || one.events.length > 0 || one.actions.length > 0);
  const now = answer.frames[frame];
  const { outcome } = answer;
  return (
    <>
      <section aria-labelledby="forecast">
        <h2 id="forecast">{t("whatif.forecast")}</h2>
        <ul class="plain sentences">{answer.explanations.slice(0, 30).map((line, index) => <li key={index}>{line}</li>)}</ul>
        <Figures
          of={[
            { name: t("whatif.ended"), value: duration(answer.frames.at(-1)?.after ?? 0), note: t(`whatif.ended.${answer.ended}`) },
            { name: t("whatif.lost"), value: hours(outcome.chipHoursLost) },
            { name: t("whatif.evicted"), value: outcome.evicted.length },
            { name: t("whatif.placed"), value: outcome.placed.length },
            { name: t("whatif.waiting"), value: outcome.waiting.length },
          ]}
        />
      </section>
      <section aria-label={t("whatif.frames")}>
        <div class="player">
          <button type="button" onClick={() => { if (frame >= last) setFrame(0); setPlaying(!playing); }}>{playing ? t("whatif.pause") : t("whatif.play")}</button>
          <input type="range" min={0} max={Math.max(0, last)} value={frame} aria-label={t("whatif.frame")} aria-valuetext={now ? t("whatif.after", { duration: duration(now.after) }) : ""}
            onInput={(event) => { setPlaying(false); setFrame(Number(event.currentTarget.value)); }} />
          <output>{now ? t("whatif.after", { duration: duration(now.after) }) : ""}</output>
        </div>
        <div class="halves maps">
          <figure>
            <figcaption>{t("whatif.now")}</figcaption>
            <PlainMap cluster={before} label={t("whatif.mapNow")} marked={NONE} turn={answer} pick={pick} drop={drop} />
          </figure>
          <figure>
            <figcaption>{t("whatif.then", { duration: duration(now?.after ?? 0) })} <span class="dim">{t("whatif.changed", { count: marked.length })}</span></figcaption>
            <PlainMap cluster={then} label={t("whatif.mapThen", { count: marked.length })} marked={marked} turn={frame} />
          </figure>
        </div>
      </section>
      <Table
        caption={t("whatif.steps")}
        rows={steps}
        id={(row) => String(row.index)}
        page={25}
        leftOut={answer.leftOut}
        selected={(row) => row.index === frame}
        onSelect={(row) => setFrame(row.index)}
        columns={[
          { title: t("whatif.time"), cell: (row) => <button type="button" class="fold name" onClick={() => setFrame(row.index)}>{`+${duration(row.one.after)}`}</button>, numeric: true },
          { title: t("whatif.happens"), cell: (row) => <Happens frame={row.one} /> },
        ]}
      />
      <div class="halves">
        <Lanes title={t("whatif.lanesThen")} rows={answer.recoveries} now={Date.parse(answer.end)} />
        <Lanes title={t("whatif.lanesNow")} rows={real.recoveries} now={Date.parse(real.moment.time)} />
      </div>
      <OutcomeLists outcome={outcome} />
      <section aria-labelledby="commands">
        <h2 id="commands">{t("whatif.commands")}</h2>
        <p class="dim intro">{t("whatif.commandsNote")}</p>
        <div class="commands">{answer.commands.map((one, index) => <Command key={index} text={one.text} note={one.note} />)}</div>
      </section>
    </>
  );
}

function Happens({ frame }: { frame: Frame }) {
  const shown = frame.actions.slice(0, 12);
  if (!frame.events.length && !shown.length) return <span class="dim">{t("whatif.nothing")}</span>;
  return (
    <ul class="plain">
      {frame.events.slice(0, 12).map((event, index) => <li key={`e${index}`}><em>{event}</em></li>)}
      {shown.map((one, index) => <li key={index}><strong>{one.action}</strong> {one.on} <span class="dim">{one.reason}{one.message ? `: ${one.message}` : ""}</span></li>)}
      {frame.actions.length > shown.length && <li class="dim">{t("outcome.moreNodes", { count: frame.actions.length - shown.length })}</li>}
    </ul>
  );
}

function Lanes({ title, rows, now }: { title: string; rows: readonly Recovery[]; now: number }) {
  const lanes = sorted(rows.map((one) => laneOf(one, now)).filter((lane): lane is Lane => lane !== null), "newest").slice(0, LANES);
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      {lanes.length ? <LaneChart lanes={lanes} /> : <p class="dim">{t("recovery.none")}</p>}
    </section>
  );
}

/** Chips whose state, job or hold differ. */
function differences(one: Cluster, other: Cluster): number[] {
  const found: number[] = [];
  const length = Math.min(one.chips.length, other.chips.length);
  for (let chip = 0; chip < length; chip++)
    if (one.chips.state[chip] !== other.chips.state[chip] || one.chips.job[chip] !== other.chips.job[chip] || one.chips.hold[chip] !== other.chips.hold[chip]) found.push(chip);
  return found;
}
