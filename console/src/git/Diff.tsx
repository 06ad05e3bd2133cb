// A diff with line numbers; removed and added lines differ by sign, colour and, within a line, by the words that changed.
import { useMemo, useState } from "preact/hooks";
import { t } from "../messages";
import { rowsOf, type DiffRow } from "./unified";

const STEP = 400;

export function Diff({ lines, label }: { lines: readonly string[]; label: string }) {
  const [limit, setLimit] = useState(STEP);
  const rows = useMemo(() => rowsOf(lines.slice(0, limit)), [lines, limit]);
  if (!lines.length) return null;
  return (
    <div class="scroll diff" role="region" aria-label={label} tabIndex={0}>
      <table>
        <caption>{label}</caption>
        <tbody>{rows.map((row, index) => <Row key={index} row={row} />)}</tbody>
      </table>
      {lines.length > limit && <button type="button" class="more" onClick={() => setLimit(limit + STEP)}>{t("shell.more", { count: Math.min(STEP, lines.length - limit) })}</button>}
    </div>
  );
}

function Row({ row }: { row: DiffRow }) {
  if (row.is === "file") return <tr class="file"><th colSpan={4} scope="rowgroup">{row.name}</th></tr>;
  if (row.is === "hunk") return <tr class="hunk"><td colSpan={4}>{row.text}</td></tr>;
  const sign = row.is === "old" ? "−" : row.is === "new" ? "+" : "";
  const Line = row.is === "old" ? "del" : row.is === "new" ? "ins" : "span";
  return (
    <tr class={row.is}>
      <td class="line" data-line={row.old ?? ""} />
      <td class="line" data-line={row.new ?? ""} />
      <td class="sign">{sign}</td>
      <td><Line>{row.words.map((word, index) => (word.changed ? <mark key={index}>{word.text}</mark> : word.text))}</Line></td>
    </tr>
  );
}
