// What holds chips and nodes out of service, in words.
import { t } from "../messages";
import type { Cluster, Holder } from "../types";

/** One hold: its kind, what holds, and until when. */
export function holderText({ kind, by, until }: Holder): string {
  const text = by ? `${kind}: ${by}` : kind;
  return until ? `${text}, ${t("map.until", { time: until })}` : text;
}

/** What holds a chip: its own holds and those of its node. Where the document names none, as for a fault, the kind. */
export function holding(cluster: Cluster, chip: number): string {
  const { chips, nodes } = cluster, node = nodes.name[chips.node[chip]!];
  const own = cluster.holders.filter((one) => one.node === node && (one.chip === null || one.chip === chips.chip[chip]));
  return own.map(holderText).join("; ") || (cluster.holds[chips.hold[chip]!] ?? "?");
}

/** Each holder once, in words, with the nodes and chips that it holds; what holds most comes first. */
export function holdersByText(cluster: Pick<Cluster, "holders">): [string, string[]][] {
  const found = new Map<string, string[]>();
  for (const one of cluster.holders) {
    const text = holderText(one), name = one.chip === null ? one.node : `${one.node}/${one.chip}`;
    found.set(text, [...(found.get(text) ?? []), name]);
  }
  return [...found].sort(([, a], [, b]) => b.length - a.length);
}
