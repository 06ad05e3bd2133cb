// Names of chips, nodes, jobs and pods as links: following one selects it, on this view and on the map.
import { hrefOf, usePlace, type SelectionKind } from "../shell/place";
import { t } from "../messages";

export function Select({ kind, name, shown }: { kind: SelectionKind; name: string; shown?: string }) {
  const { select } = usePlace();
  const key = `${kind}/${name}`;
  return <a class="name" href={hrefOf({ select: key })} aria-current={select === key ? "true" : undefined}>{shown ?? name}</a>;
}

/** The same on the map. */
export function OnMap({ kind, name }: { kind: SelectionKind; name: string }) {
  return <a class="on-map" href={hrefOf({ view: "map", select: `${kind}/${name}` })} aria-label={t("parts.onMapThis", { name })}>{t("parts.onMap")}</a>;
}

/** NAMESPACE/KIND/NAME of a job row. */
export function keyOfJob(job: { namespace: string; kind: string; name: string }): string {
  return `${job.namespace}/${job.kind}/${job.name}`;
}

/** namespace/name of NAMESPACE/KIND/NAME, for reading. */
export function shortJob(key: string): string {
  const parts = key.split("/");
  return parts.length === 3 ? `${parts[0]}/${parts[2]}` : key;
}
