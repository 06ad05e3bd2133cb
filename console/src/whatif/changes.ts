// What a reader drops on the copy of the cluster: checked here, so that a mistake is named before the server is asked.
import { t } from "../messages";
import { findChip, indexOf } from "../store/cluster";
import type { Cluster, WhatIfChange } from "../types";

export type Kind = "fault" | "die" | "drain" | "cordon" | "job" | "branch";
export const KINDS: readonly Kind[] = ["fault", "die", "drain", "cordon", "job", "branch"];

/** What the form holds; every field is text. */
export interface Draft {
  kind: Kind;
  node: string;
  chip: string;
  code: string;
  yaml: string;
  branch: string;
}

export const EMPTY: Draft = { kind: "fault", node: "", chip: "0", code: "80C98001", yaml: "", branch: "" };
const LARGEST_YAML = 256 * 1024;
/** An address keeps changes up to this size; longer ones live in the tab alone. */
const ADDRESS = 1500;

/** The change that a draft says, or what is wrong with it. */
export function changeOf(draft: Draft, cluster: Cluster): WhatIfChange | string {
  const { kind } = draft;
  if (kind === "branch") return draft.branch ? { do: "branch", name: draft.branch } : t("whatif.noBranch");
  if (kind === "job") {
    if (!draft.yaml.trim()) return t("whatif.noYaml");
    return draft.yaml.length > LARGEST_YAML ? t("whatif.yamlTooLarge") : { do: "job", yaml: draft.yaml };
  }
  const node = draft.node.trim();
  if (!node) return t("whatif.noNode");
  if (!indexOf(cluster).nodes.has(node)) return t("whatif.unknownNode", { name: node.slice(0, 80) });
  if (kind !== "fault") return { do: kind, node };
  const chip = Number(draft.chip);
  if (!/^\d{1,3}$/.test(draft.chip.trim()) || findChip(cluster, node, chip) < 0) return t("whatif.unknownChip", { name: node, chip: draft.chip.slice(0, 20) });
  const code = draft.code.trim().toUpperCase();
  return /^[0-9A-F]{8}$/.test(code) ? { do: "fault", node, chip, code } : t("whatif.badCode", { code: code.slice(0, 20) });
}

/** A change in a few words. */
export function wordsOf(change: WhatIfChange): string {
  switch (change.do) {
    case "fault": return t("whatif.saysFault", { code: change.code, name: `${change.node}/${change.chip}` });
    case "recover": return t("whatif.saysRecover", { code: change.code, name: `${change.node}/${change.chip}` });
    case "drain": return t("whatif.saysDrain", { name: change.node });
    case "die": return t("whatif.saysDie", { name: change.node });
    case "cordon": return t("whatif.saysCordon", { name: change.node });
    case "branch": return t("whatif.saysBranch", { name: change.name });
    case "job": return t("whatif.saysJob", { name: /^\s*name:\s*(\S+)/m.exec(change.yaml)?.[1]?.slice(0, 80) ?? "YAML" });
  }
}

/** Changes as an address keeps them, "" where they are too long for one. */
export function toAddress(changes: readonly WhatIfChange[]): string {
  const text = changes.length ? JSON.stringify(changes) : "";
  return text.length > ADDRESS ? "" : text;
}

/** Changes of an address; whatever is no change is left out. */
export function fromAddress(text: string): WhatIfChange[] {
  try {
    const rows: unknown = JSON.parse(text || "[]");
    return Array.isArray(rows) ? rows.filter(isChange).slice(0, 200) : [];
  } catch {
    return [];
  }
}

function isChange(row: unknown): row is WhatIfChange {
  if (typeof row !== "object" || row === null) return false;
  const { do: what, node, chip, code, yaml, name } = row as Record<string, unknown>;
  if (what === "fault" || what === "recover") return typeof node === "string" && typeof chip === "number" && typeof code === "string";
  if (what === "drain" || what === "cordon" || what === "die") return typeof node === "string";
  return (what === "job" && typeof yaml === "string") || (what === "branch" && typeof name === "string");
}
