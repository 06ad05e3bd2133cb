// A unified diff, line by line, as rows with line numbers; changed lines are compared word by word.
import { diffWordsWithSpace } from "diff";

export interface Word {
  text: string;
  changed: boolean;
}

export type DiffRow =
  | { is: "file"; name: string }
  | { is: "hunk"; text: string }
  | { is: "same" | "old" | "new"; old: number | null; new: number | null; words: readonly Word[] };

/** Lines that are longer are not compared by words: the search is quadratic. */
const LONGEST = 400;
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

/** Rows of a diff. Lines before the first header are context without numbers. */
export function rowsOf(lines: readonly string[]): DiffRow[] {
  const rows: DiffRow[] = [];
  let old = 0;
  let fresh = 0;
  let inHunk = false;
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at]!;
    const hunk = HUNK.exec(line);
    if (hunk) {
      old = Number(hunk[1]);
      fresh = Number(hunk[2]);
      inHunk = true;
      rows.push({ is: "hunk", text: line });
    } else if (line.startsWith("--- ") && (lines[at + 1] ?? "").startsWith("+++ ")) {
      inHunk = false;
      rows.push({ is: "file", name: fileName(line, lines[at + 1]!) });
      at += 1;
    } else if (inHunk && (line.startsWith("-") || line.startsWith("+"))) {
      const removed: string[] = [];
      const added: string[] = [];
      while (at < lines.length && lines[at]!.startsWith("-") && !(lines[at]!.startsWith("--- ") && (lines[at + 1] ?? "").startsWith("+++ ")))
        removed.push(lines[at++]!.slice(1));
      while (at < lines.length && lines[at]!.startsWith("+")) added.push(lines[at++]!.slice(1));
      at -= 1;
      const pairs = removed.map((text, index) => compared(text, added[index]));
      for (const [index] of removed.entries()) rows.push({ is: "old", old: old++, new: null, words: pairs[index]![0] });
      for (const [index, text] of added.entries())
        rows.push({ is: "new", old: null, new: fresh++, words: pairs[index]?.[1] ?? plain(text) });
    } else if (inHunk && line.startsWith(" ")) rows.push({ is: "same", old: old++, new: fresh++, words: plain(line.slice(1)) });
    else rows.push({ is: "same", old: null, new: null, words: plain(line) });
  }
  return rows;
}

function fileName(from: string, to: string): string {
  const name = (line: string): string => line.slice(4).split("\t")[0]!.replace(/^[ab]\//, "");
  const [before, after] = [name(from), name(to)];
  if (before === "/dev/null") return `${after} (new)`;
  if (after === "/dev/null") return `${before} (deleted)`;
  return before === after ? after : `${before} → ${after}`;
}

function plain(text: string): Word[] {
  return [{ text, changed: false }];
}

function compared(before: string, after: string | undefined): [Word[], Word[]] {
  if (after === undefined || before.length > LONGEST || after.length > LONGEST) return [plain(before), plain(after ?? "")];
  const parts = diffWordsWithSpace(before, after);
  const same = parts.filter((part) => !part.added && !part.removed).reduce((sum, part) => sum + part.value.length, 0);
  // two lines that share little are two lines, not a change of one
  if (same * 3 < Math.max(before.length, after.length)) return [plain(before), plain(after)];
  const side = (skip: "added" | "removed"): Word[] =>
    parts.filter((part) => !part[skip]).map((part) => ({ text: part.value, changed: Boolean(part.added || part.removed) }));
  return [side("added"), side("removed")];
}
