// Where the reader is: view, moment, selection and a view's own parameters, all in the address, so that a link and the
// back button keep them. #/map?at=ID&select=chip/node-1/3
import { useEffect, useState } from "preact/hooks";

export interface Place {
  view: string;
  /** ID of a recorded moment, or a time (RFC 3339): the newest moment up to it; "" for the present. */
  at: string;
  /** chip/NODE/NUMBER, node/NODE, job/NAMESPACE/KIND/NAME, pod/NAMESPACE/NAME, or "". */
  select: string;
  params: Readonly<Record<string, string>>;
}

export type SelectionKind = "chip" | "node" | "job" | "pod";

export interface Selection {
  kind: SelectionKind;
  name: string;
}

/** Whether `at` names a time rather than the ID of a moment. */
export function isTime(at: string): boolean {
  return /^\d{4}-\d\d-\d\dT/.test(at);
}

const listeners = new Set<() => void>();
let here = read();

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const params = Object.fromEntries(new URLSearchParams(query));
  const { at = "", select = "", ...rest } = params;
  return { view: path || "overview", at, select, params: rest };
}

export function place(): Place {
  return here;
}

/** The address of a place, for links; what is not given stays as it is. A change of view leaves the parameters behind. */
export function hrefOf(change: Partial<Place>): string {
  const next = { ...here, ...(change.view !== undefined && change.view !== here.view ? { params: {} } : {}), ...change };
  const query = new URLSearchParams();
  if (next.at) query.set("at", next.at);
  if (next.select) query.set("select", next.select);
  for (const [name, value] of Object.entries(next.params)) if (value) query.set(name, value);
  const text = query.toString().replaceAll("%2F", "/");
  return `#/${next.view}${text ? `?${text}` : ""}`;
}

/** Goes to a place; "replace" leaves no step for the back button. */
export function go(change: Partial<Place>, how: "push" | "replace" = "push"): void {
  const href = hrefOf(change);
  if (href === location.hash) return;
  if (how === "push") history.pushState(null, "", href);
  else history.replaceState(null, "", href);
  changed();
}

/** One parameter of the view; "" removes it. */
export function setParam(name: string, value: string, how: "push" | "replace" = "push"): void {
  const { [name]: _, ...rest } = here.params;
  go({ params: value ? { ...rest, [name]: value } : rest }, how);
}

export function select(kind: SelectionKind, name: string): void {
  go({ select: `${kind}/${name}` });
}

export function selectionOf(text: string): Selection | null {
  const found = /^(chip|node|job|pod)\/(.+)$/s.exec(text);
  return found ? { kind: found[1] as SelectionKind, name: found[2]! } : null;
}

function changed(): void {
  here = read();
  for (const listener of [...listeners]) listener();
}
addEventListener("popstate", changed);
addEventListener("hashchange", changed);

export function onPlace(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function usePlace(): Place {
  const [, draw] = useState(0);
  useEffect(() => onPlace(() => draw((turn) => turn + 1)), []);
  return here;
}
