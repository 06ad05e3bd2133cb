// Present faults by code, chip or node.
import type { Cluster, Fault } from "../types";

export type By = "code" | "chip" | "node" | "link";

export interface Group {
  name: string;
  faults: readonly Fault[];
  levels: readonly string[];
  /** How many chips and nodes are hit. */
  places: number;
}

/** A chip's name as on its node: node/Ascend910-3. */
export function chipKey(cluster: Cluster, fault: Fault): string {
  if (fault.chip === null) return fault.node;
  const at = prefixes(cluster).get(fault.node);
  return `${fault.node}/${at ?? ""}${fault.chip}`;
}

const known = new WeakMap<readonly string[], ReadonlyMap<string, string>>();

function prefixes(cluster: Cluster): ReadonlyMap<string, string> {
  const { name, prefix } = cluster.nodes;
  let found = known.get(name);
  if (!found) {
    found = new Map(name.map((node, index) => [node, prefix[index] ?? ""]));
    known.set(name, found);
  }
  return found;
}

/** Groups of faults, the largest first. */
export function grouped(cluster: Cluster, by: "code" | "chip" | "node"): Group[] {
  const groups = new Map<string, Fault[]>();
  for (const fault of cluster.faults) {
    const name = by === "code" ? fault.code : by === "node" ? fault.node : chipKey(cluster, fault);
    const rows = groups.get(name);
    if (rows) rows.push(fault);
    else groups.set(name, [fault]);
  }
  return [...groups]
    .map(([name, faults]) => ({
      name, faults, levels: [...new Set(faults.map((one) => one.level))].sort(),
      places: new Set(faults.map((one) => `${one.node}/${one.chip}`)).size,
    }))
    .sort((a, b) => b.faults.length - a.faults.length || a.name.localeCompare(b.name));
}
