// The text of `belay explain` by its shape: sentences, headings with what stands indented below them, small tables.

export interface Part {
  kind: "text" | "title" | "rows" | "table";
  /** One line; the cells of a table's rows are apart. */
  lines: readonly (readonly string[])[];
  /** Steps of indentation of each line. */
  depth: number;
}

const STEP = 2;

export function partsOf(lines: readonly string[]): Part[] {
  const parts: Part[] = [];
  for (let at = 0; at < lines.length; at++) {
    const text = lines[at]!.trim(), depth = depthOf(lines[at]!);
    if (!text) continue;
    const heads = /^[A-Z][A-Z0-9 /_-]*$/.test(text) && depth > 0 ? columnsOf(lines[at]!) : [];
    if (heads.length > 1) {
      const rows = [cut(lines[at]!, heads)];
      while (at + 1 < lines.length && lines[at + 1]!.trim() && depthOf(lines[at + 1]!) >= depth) rows.push(cut(lines[++at]!, heads));
      parts.push({ kind: "table", lines: rows, depth });
    } else if (depth === 0 && depthOf(lines[at + 1] ?? "") > 0) parts.push({ kind: "title", lines: [[text]], depth });
    else if (depth === 0) parts.push({ kind: "text", lines: [[text]], depth });
    else parts.push({ kind: "rows", lines: [[text]], depth });
  }
  return parts;
}

function depthOf(line: string): number {
  return Math.floor((line.length - line.trimStart().length) / STEP);
}

/** Where the columns of a table begin: words that two spaces part from the one before. */
function columnsOf(head: string): number[] {
  return [...head.matchAll(/(?<=^ *|  )\S/g)].map((found) => found.index);
}

function cut(line: string, columns: readonly number[]): string[] {
  return columns.map((begin, index) => line.slice(begin, columns[index + 1]).trim());
}
