// Small parts that every view uses: marks of states, commands to copy, tables, answers on their way.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { known, t } from "../messages";
import type { Answer } from "../store/store";
import { type Look, lookOf } from "./palette";
import { usePreferences } from "./preferences";

/** A square with colour and texture of a state, as on the map; decoration beside the state's name. */
export function StateMark({ state, used = true, size = 11 }: { state: string; used?: boolean; size?: number }) {
  const { dark } = usePreferences();
  const look = lookOf(state, used);
  const ink = dark ? look.inkDark : look.inkLight;
  return (
    <svg class="mark" width={size} height={size} viewBox="0 0 12 12" aria-hidden="true">
      <rect x="0.5" y="0.5" width="11" height="11" fill={dark ? look.dark : look.light} stroke={look.texture === "hollow" ? ink : "none"} />
      <path d={PATHS[look.texture]} stroke={ink} stroke-width={look.texture === "frame" ? 2.4 : 1.5} fill="none" />
    </svg>
  );
}

const PATHS: Readonly<Record<Look["texture"], string>> = {
  plain: "",
  hollow: "",
  diagonal: "M0 8L8 0M4 12L12 4",
  dots: "M2 3h2M7 3h2M4.5 6h2M9.5 6h2M2 9h2M7 9h2",
  cross: "M2 2L10 10M10 2L2 10",
  rows: "M1 3h10M1 6h10M1 9h10",
  columns: "M3 1v10M6 1v10M9 1v10",
  frame: "M1.7 1.7h8.6v8.6h-8.6z",
};

/** What a state is called in the reader's language. */
export function nameOfState(state: string): string {
  const key = `state.${state}`;
  return known(key) ? t(key) : state;
}

/** A state with its mark; the text is the state's own name. */
export function StateText({ state, used }: { state: string; used?: boolean }) {
  return (
    <span class="state">
      <StateMark state={state} used={used ?? true} /> {nameOfState(state)}
    </span>
  );
}

/** A command or commit to run, ready to copy. The page itself writes nothing. */
export function Command({ text, note }: { text: string; note?: string }) {
  const [done, setDone] = useState<"" | "copied" | "failed">("");
  const code = useRef<HTMLElement>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setDone("copied");
    } catch {
      // no permission, or no secure context: the text is marked, the reader copies it
      getSelection()?.selectAllChildren(code.current!);
      setDone("failed");
    }
    setTimeout(() => setDone(""), 2000);
  };
  return (
    <div class="command">
      <code ref={code}>{text}</code>
      <button type="button" onClick={() => void copy()}>{done === "copied" ? t("shell.copied") : done === "failed" ? t("shell.copyFailed") : t("shell.copy")}</button>
      {note ? <span class="dim">{note}</span> : null}
    </div>
  );
}

export interface Column<Row> {
  /** Shown in the head, and its name for assistive technology. */
  title: string;
  cell: (row: Row) => ComponentChildren;
  /** Numbers stand right. */
  numeric?: boolean;
  /** Left out on narrow screens. */
  minor?: boolean;
}

/** A table with a caption; `rows` are shown a page at a time, so that 100,000 of them cost nothing. */
export function Table<Row>(props: {
  caption: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  id: (row: Row) => string;
  page?: number;
  selected?: (row: Row) => boolean;
  onSelect?: (row: Row) => void;
  leftOut?: number;
  empty?: string;
  /** By which a link leads to these rows (`rows=NAME` in the address). */
  name?: string;
}) {
  const page = props.page ?? 100;
  const [shown, setShown] = useState(page);
  const rows = props.rows.slice(0, shown);
  const rest = props.rows.length - rows.length;
  if (!props.rows.length) return <div class="empty"><p class="caption">{props.caption}</p><p class="dim">{props.empty ?? t("shell.nothing")}</p></div>;
  return (
    <div class="scroll" role="region" aria-label={props.caption} tabIndex={0} data-rows={props.name}>
      <table class="rows">
        <caption>{props.caption}</caption>
        <thead>
          <tr>{props.columns.map((column) => <th scope="col" class={classOf(column)}>{column.title}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={props.id(row)} aria-selected={props.selected ? props.selected(row) : undefined} class={props.onSelect ? "choose" : ""}
              onClick={props.onSelect ? (event) => !(event.target as HTMLElement).closest("a, button") && props.onSelect!(row) : undefined}>
              {props.columns.map((column) => <td class={classOf(column)} data-title={column.title}>{column.cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
      {rest > 0 ? <button type="button" class="more" onClick={() => setShown(shown + page)}>{t("shell.more", { count: Math.min(rest, page) })}</button> : null}
      {props.leftOut ? <p class="dim">{t("shell.leftOut", { count: props.leftOut })}</p> : null}
    </div>
  );
}

function classOf(column: { numeric?: boolean; minor?: boolean }): string {
  return [column.numeric ? "numeric" : "", column.minor ? "minor" : ""].join(" ").trim();
}

/** Shows an answer once it is here, or why it is not. */
export function Answered<T>({ answer, children }: { answer: Answer<T>; children: (data: T) => ComponentChildren }) {
  if (answer.error) return <p class="problem" role="status">{t("shell.failed", { reason: answer.error.message })}</p>;
  if (answer.data === null) return answer.loading ? <p class="dim" role="status">{t("shell.loading")}</p> : null;
  return <div class={answer.loading ? "stale" : ""}>{children(answer.data)}</div>;
}
