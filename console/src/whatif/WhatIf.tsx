// What if: changes on a copy of the cluster, played forward by the simulator beside what is. Nothing is written; what a
// person would do is a command to copy.
import { useState } from "preact/hooks";
import { t } from "../messages";
import { Sheet } from "../parts/Sheet";
import { setParam, usePlace } from "../shell/place";
import { absolute } from "../shell/times";
import { ApiError, post } from "../store/api";
import { useStore } from "../store/store";
import type { WhatIfAnswer, WhatIfChange } from "../types";
import type { ViewProps } from "../views";
import { changeOf, type Draft, EMPTY, fromAddress, type Kind, KINDS, toAddress, wordsOf } from "./changes";
import { Forecast } from "./Forecast";
import { Form } from "./Form";
import { PlainMap } from "./PlainMap";

const HORIZONS: readonly number[] = [60, 600, 3600, 6 * 3600];
const NONE: readonly number[] = [];
const LARGEST_FILE = 256 * 1024;

// what a visit to another view must not lose
let kept: { changes: WhatIfChange[]; answer: WhatIfAnswer | null; asked: string } = { changes: [], answer: null, asked: "" };

export function WhatIfView({ cluster }: ViewProps) {
  const { params, at, select } = usePlace();
  const viewer = useStore((state) => state.viewer);
  const [changes, setChanges] = useState<readonly WhatIfChange[]>(() => (params["changes"] ? fromAddress(params["changes"]) : kept.changes));
  const [draft, setDraft] = useState<Draft>(() => ({ ...EMPTY, ...selected(select) }));
  const [horizon, setHorizon] = useState(600);
  const [problem, setProblem] = useState("");
  const [running, setRunning] = useState<AbortController | null>(null);
  const [failed, setFailed] = useState("");
  const [answer, setAnswer] = useState<WhatIfAnswer | null>(kept.answer);
  const put = (next: readonly WhatIfChange[]): void => {
    kept = { ...kept, changes: next.slice() };
    setChanges(next);
    setParam("changes", toAddress(next), "replace");
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
      kept = { ...kept, answer: found };
      setAnswer(found);
    } catch (error) {
      if (!leave.signal.aborted) setFailed(error instanceof ApiError ? error.message : String(error));
    } finally {
      setRunning(null);
    }
  };
  const drop = (data: DataTransfer, node: string, chip: number | null): void => {
    const file = data.files[0];
    if (file) {
      if (file.size > LARGEST_FILE) setProblem(t("whatif.yamlTooLarge"));
      else void file.text().then((yaml) => add({ ...draft, kind: "job", yaml }));
      return;
    }
    const kind = KINDS.find((one) => one === data.getData("text/plain"));
    if (!kind) return;
    const next = { ...draft, kind, ...(node ? { node } : {}), ...(chip === null ? {} : { chip: String(chip) }) };
    setDraft(next);
    add(next);
  };
  if (viewer && !viewer.can.whatIf) return <Sheet name="whatif"><p>{t("whatif.cannot")}</p></Sheet>;
  return (
    <Sheet name="whatif">
      <section aria-labelledby="changes">
        <h2 id="changes">{t("whatif.title")}</h2>
        <p class="dim intro">{t("whatif.intro")}</p>
        <Form cluster={cluster} draft={draft} problem={problem} add={() => add(draft)} change={(part) => { setDraft({ ...draft, ...part }); setProblem(""); }} />
        <div class="dragged" aria-hidden="true">
          {(["fault", "drain", "cordon"] as const).map((kind) => <Dragged key={kind} kind={kind} code={draft.code} />)}
          <span class="dim">{t("whatif.drag")}</span>
        </div>
        {changes.length > 0 && (
          <ol class="changes" aria-label={t("whatif.changes")}>
            {changes.map((change, index) => (
              <li key={index}>{wordsOf(change)} <button type="button" class="fold" aria-label={t("whatif.removeThis", { change: wordsOf(change) })} onClick={() => put(changes.filter((_, other) => other !== index))}>✕</button></li>
            ))}
          </ol>
        )}
        <div class="run">
          <label>{t("whatif.horizon")}{" "}
            <select value={horizon} onChange={(event) => setHorizon(Number(event.currentTarget.value))}>
              {HORIZONS.map((one) => <option key={one} value={one}>{one < 3600 ? t("whatif.minutes", { count: one / 60 }) : t("whatif.hours", { count: one / 3600 })}</option>)}
            </select>
          </label>
          {running
            ? <button type="button" onClick={() => running.abort()}>{t("whatif.stop")}</button>
            : <button type="button" class="primary" disabled={!changes.length} onClick={() => void run()}>{t("whatif.run")}</button>}
          <span role="status" class="dim">{running ? t("whatif.running") : at ? t("whatif.from", { time: absolute(cluster.moment.time) }) : ""}</span>
        </div>
        {failed && <p class="problem" role="alert">{t("whatif.failed", { reason: failed })}</p>}
      </section>
      {answer
        ? <Forecast key={answer.end + answer.frames.length} answer={answer} real={cluster} pick={(node, chip) => setDraft({ ...draft, node, ...(chip === null ? {} : { chip: String(chip) }) })} drop={drop} />
        : (
          <figure>
            <figcaption>{t("whatif.now")}</figcaption>
            <PlainMap cluster={cluster} label={t("whatif.mapNow")} marked={NONE} turn={cluster.moment.id} drop={drop}
              pick={(node, chip) => setDraft({ ...draft, node, ...(chip === null ? {} : { chip: String(chip) }) })} />
          </figure>
        )}
    </Sheet>
  );
}

function Dragged({ kind, code }: { kind: Kind; code: string }) {
  return (
    <span class="drag" draggable onDragStart={(event) => event.dataTransfer?.setData("text/plain", kind)}>
      {t(`whatif.kind.${kind}`)}{kind === "fault" ? ` ${code}` : ""}
    </span>
  );
}

/** What is selected elsewhere fills the form. */
function selected(select: string): Partial<Draft> {
  const [kind, node = "", chip = ""] = select.split("/");
  if (kind === "node") return { node };
  return kind === "chip" ? { node, chip: /(\d+)$/.exec(chip)?.[1] ?? "0" } : {};
}
