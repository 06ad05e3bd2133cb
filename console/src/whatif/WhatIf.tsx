// What if: changes on a copy of the cluster, played forward by the simulator beside what is. Nothing is written; what a
// person would do is a command to copy.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { t } from "../messages";
import { Sheet } from "../parts/Sheet";
import { useKeys } from "../shell/keys";
import { go, setParam, usePlace } from "../shell/place";
import { absolute } from "../shell/times";
import { ApiError, post } from "../store/api";
import { useApi, useStore } from "../store/store";
import type { Branch, WhatIfAnswer, WhatIfChange } from "../types";
import type { ViewProps } from "../views";
import { changeOf, type Draft, EMPTY, fromAddress, toAddress, wordsOf } from "./changes";
import { Forecast } from "./Forecast";
import { Form } from "./Form";
import { PlainMap } from "./PlainMap";
import { type Carried, carried, Tray } from "./Tray";

const HORIZONS: readonly number[] = [60, 600, 3600, 6 * 3600];
const NONE: readonly number[] = [];
const LARGEST_FILE = 256 * 1024;
const MOST_FILES = 20;

// what a visit to another view must not lose
interface Kept {
  changes: readonly WhatIfChange[];
  /** What was tried before each step, the newest last. */
  before: readonly (readonly WhatIfChange[])[];
  horizon: number;
  answer: WhatIfAnswer | null;
  asked: string;
}

let kept: Kept = { changes: [], before: [], horizon: 600, answer: null, asked: "" };
const MOST_STEPS = 50;

export function WhatIfView({ cluster }: ViewProps) {
  const { params, at, select } = usePlace();
  const viewer = useStore((state) => state.viewer);
  const [changes, setChanges] = useState<readonly WhatIfChange[]>(() => (params["changes"] ? fromAddress(params["changes"]) : kept.changes));
  const [draft, setDraft] = useState<Draft>(() => ({ ...EMPTY, ...selected(select) }));
  const [horizon, setHorizon] = useState(kept.horizon);
  const [problem, setProblem] = useState("");
  const [running, setRunning] = useState<AbortController | null>(null);
  const [failed, setFailed] = useState("");
  const [answer, setAnswer] = useState<WhatIfAnswer | null>(kept.answer);
  const question = JSON.stringify([changes, horizon, at]);
  const [armed, setArmed] = useState<Carried | null>(null);
  const latest = useRef(changes);
  latest.current = changes;
  const found = useApi<{ branches: readonly Branch[] }>(viewer?.can.branches ? "branches" : null);
  const branches = useMemo(() => (found.data?.branches ?? []).filter((one) => !one.current).map((one) => one.name), [found.data]);
  const put = (next: readonly WhatIfChange[]): void => {
    kept = { ...kept, before: [...kept.before, latest.current].slice(-MOST_STEPS) };
    show(next);
  };
  const show = (next: readonly WhatIfChange[]): void => {
    kept = { ...kept, changes: next };
    setChanges(next);
    setParam("changes", toAddress(next), "replace");
  };
  const undo = (): void => {
    const last = kept.before.at(-1);
    if (!last) return;
    kept = { ...kept, before: kept.before.slice(0, -1) };
    show(last);
  };
  const add = (from: Draft): void => {
    const change = changeOf(from, cluster);
    if (typeof change === "string") setProblem(change);
    else {
      setProblem("");
      put([...changes, change]);
    }
  };
  const run = async (): Promise<void> => {
    const leave = new AbortController();
    setRunning(leave);
    setFailed("");
    try {
      const found = await post<WhatIfAnswer>("what-if", { at: at || null, changes, horizon }, { signal: leave.signal });
      kept = { ...kept, answer: found, asked: question };
      setAnswer(found);
    } catch (error) {
      if (!leave.signal.aborted) setFailed(error instanceof ApiError ? error.message : String(error));
    } finally {
      setRunning(null);
    }
  };
  const addFiles = async (files: Iterable<File>): Promise<void> => {
    const found: WhatIfChange[] = [];
    for (const file of [...files].slice(0, MOST_FILES)) {
      const change = file.size > LARGEST_FILE ? t("whatif.yamlTooLarge") : changeOf({ ...EMPTY, kind: "job", yaml: await file.text() }, cluster);
      if (typeof change === "string") return setProblem(`${file.name.slice(0, 80)}: ${change}`);
      found.push(change);
    }
    setProblem("");
    put([...latest.current, ...found]);
  };
  /** Something lands on the map: at a chip, a node, or beside them. */
  const place = (what: Carried, node: string, chip: number | null): void => {
    const next = { ...draft, ...what, ...(node ? { node } : {}), ...(chip === null ? {} : { chip: String(chip) }) };
    setDraft(next);
    add(next);
  };
  const drop = (data: DataTransfer, node: string, chip: number | null): void => {
    if (data.files.length) void addFiles(data.files);
    else {
      const what = carried(data.getData("text/plain"));
      if (what) place(what, node, chip);
    }
  };
  const pick = (node: string, chip: number | null): void => {
    if (armed) place(armed, node, chip);
    else setDraft({ ...draft, node, ...(chip === null ? {} : { chip: String(chip) }) });
  };
  useEffect(() => {
    // a file that misses the map must not take the place of the page
    const hold = (event: DragEvent): void => event.preventDefault();
    for (const name of ["dragover", "drop"] as const) addEventListener(name, hold);
    return () => {
      for (const name of ["dragover", "drop"] as const) removeEventListener(name, hold);
    };
  }, []);
  useKeys({ u: undo, Escape: () => (armed ? setArmed(null) : select && go({ select: "" })) });
  if (viewer && !viewer.can.whatIf) return <Sheet name="whatif"><p>{t("whatif.cannot")}</p></Sheet>;
  return (
    <Sheet name="whatif">
      <section aria-labelledby="changes">
        <h2 id="changes">{t("whatif.title")}</h2>
        <p class="dim intro">{t("whatif.intro")}</p>
        <Form cluster={cluster} draft={draft} problem={problem} add={() => add(draft)} addFiles={(files) => void addFiles(files)} branches={branches}
          change={(part) => { setDraft({ ...draft, ...part }); setProblem(""); }} />
        <Tray code={draft.code} branches={branches} hasJob={draft.yaml.trim() !== ""} armed={armed} arm={setArmed} />
        {changes.length > 0 && (
          <ol class="changes" aria-label={t("whatif.changes")}>
            {changes.map((change, index) => (
              <li key={index}>{wordsOf(change)} <button type="button" class="fold" aria-label={t("whatif.removeThis", { change: wordsOf(change) })} onClick={() => put(changes.filter((_, other) => other !== index))}>✕</button></li>
            ))}
          </ol>
        )}
        <div class="run">
          <label>{t("whatif.horizon")}{" "}
            <select value={horizon} onChange={(event) => { kept = { ...kept, horizon: Number(event.currentTarget.value) }; setHorizon(kept.horizon); }}>
              {HORIZONS.map((one) => <option key={one} value={one}>{one < 3600 ? t("whatif.minutes", { count: one / 60 }) : t("whatif.hours", { count: one / 3600 })}</option>)}
            </select>
          </label>
          {running
            ? <button type="button" onClick={() => running.abort()}>{t("whatif.stop")}</button>
            : <button type="button" class="primary" disabled={!changes.length} onClick={() => void run()}>{t("whatif.run")}</button>}
          <button type="button" disabled={!kept.before.length} onClick={undo} aria-keyshortcuts="u">{t("whatif.undo")}</button>
          <span role="status" class="dim">{running ? t("whatif.running") : at ? t("whatif.from", { time: absolute(cluster.moment.time) }) : ""}</span>
        </div>
        {failed && <p class="problem" role="alert">{t("whatif.failed", { reason: failed })}</p>}
      </section>
      {answer && kept.asked !== question && <p class="warn" role="status">{t("whatif.other")}</p>}
      {answer
        ? <Forecast key={answer.end + answer.frames.length} answer={answer} real={cluster} pick={pick} drop={drop} />
        : (
          <figure>
            <figcaption>{t("whatif.now")}</figcaption>
            <PlainMap cluster={cluster} label={t("whatif.mapNow")} marked={NONE} turn={cluster.moment.id} drop={drop} pick={pick} />
          </figure>
        )}
    </Sheet>
  );
}

/** What is selected elsewhere fills the form. */
function selected(select: string): Partial<Draft> {
  const [kind, node = "", chip = ""] = select.split("/");
  if (kind === "node") return { node };
  return kind === "chip" ? { node, chip: /(\d+)$/.exec(chip)?.[1] ?? "0" } : {};
}
