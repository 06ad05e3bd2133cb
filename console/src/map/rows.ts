// Which chips and nodes the map's tables show: what is not as it should be first.
import type { Cluster } from "../types";

/** The legend's entry for the nodes of all ways out. */
export const WAYS = "ways-out";
/** Groups of states to which the overview's numbers lead. */
export const OUT = "out-of-service", WATCHED = "not-healthy";

/** States in which a chip takes no work. */
const TAKES_NO_WORK = new Set(["isolated", "manually-isolated", "resetting", "recovering"]);
const WELL = new Set(["healthy", "free"]);

/** Whether a chip's state is in a group, for each state of the cluster. */
export function inGroup(states: readonly string[], group: string): boolean[] {
  return states.map((state) => (group === OUT ? TAKES_NO_WORK.has(state) : group === WATCHED ? !TAKES_NO_WORK.has(state) && !WELL.has(state) : state === group));
}

/** Whether a node takes no work. */
export function isNodeOut(state: string): boolean {
  return state !== "healthy" && state !== "sub-healthy";
}

/** Positions of the chips to show; -1 for any job and any node. */
export function chipRows(cluster: Cluster, { state, job, node }: { state: string; job: number; node: number }): number[] {
  const { chips, states } = cluster;
  const healthy = states.indexOf("healthy"), member = inGroup(states, state);
  const isShown = (chip: number): boolean => {
    if ((job >= 0 && chips.job[chip] !== job) || (node >= 0 && chips.node[chip] !== node)) return false;
    if (state === "" || state === WAYS) return true;
    if (state === "held") return chips.hold[chip]! > 0;
    if (state === "free") return chips.state[chip] === healthy && chips.job[chip]! < 0;
    return member[chips.state[chip]!]! && (state !== "healthy" || chips.job[chip]! >= 0);
  };
  const found: number[] = [], rest: number[] = [];
  for (let chip = 0; chip < chips.length; chip++) if (isShown(chip)) (chips.state[chip] === healthy ? rest : found).push(chip);
  return found.concat(rest);
}

/** Positions of the nodes that take no work, then of those that are not quite healthy. */
export function nodeRows(cluster: Cluster): number[] {
  const out: number[] = [], watched: number[] = [];
  cluster.nodes.state.forEach((state, node) => {
    if (isNodeOut(state)) out.push(node);
    else if (state !== "healthy") watched.push(node);
  });
  return out.concat(watched);
}
