"""StatefulSet: pods with an ordinal, created in ascending and deleted in descending order.

Each pod's PersistentVolumeClaims are created before it, and stay when it goes; `volume.py` makes their volumes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy

from belay.engine.model.labels import CONTROLLER_REVISION_HASH, STATEFUL_SET_POD_INDEX, STATEFUL_SET_POD_NAME
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, create, delete, status


def reconcile(
    stateful_set: Json, pods: Sequence[Json], revisions: Sequence[Json], now: float, claims: Collection[str] = ()
) -> Reconciled:
    """One step; ``pods`` and ``revisions`` (ControllerRevisions) are those that it controls, ``claims`` the names of
    the namespace's PersistentVolumeClaims.
    """
    if o.deleting(stateful_set):
        return Reconciled()
    name = revision_name(stateful_set)
    writes: list[Write] = []
    if all(revision["metadata"]["name"] != name for revision in revisions):
        return Reconciled((create(controller_revision(stateful_set, name, revisions)),))
    status_now = stateful_set.get("status") or {}
    current = str(status_now.get("currentRevision") or name)
    line = {ordinal(stateful_set, pod): pod for pod in pods}
    line.pop(-1, None)
    writes += _sizes(stateful_set, line, revisions, current, name, now)
    writes = [*_missing_claims(stateful_set, writes, claims), *writes]
    if not writes:
        writes += _update(stateful_set, line, name)
    writes += _forget_history(stateful_set, revisions, {current, name} | {_pod_revision(pod) for pod in pods})
    body, again = _status(stateful_set, line, current, name, now)
    if write := status(stateful_set, "StatefulSet", body):
        writes.append(write)
    return Reconciled(tuple(writes), again)


def ordinal(stateful_set: Json, pod: Json) -> int:
    """The pod's ordinal; -1 for a pod whose name does not belong to this set."""
    tail = str(pod["metadata"]["name"]).removeprefix(f"{stateful_set['metadata']['name']}-")
    return int(tail) if tail.isascii() and tail.isdecimal() else -1


def revision_name(stateful_set: Json) -> str:
    """The name of the ControllerRevision that holds the set's present pod template."""
    return f"{stateful_set['metadata']['name']}-{o.template_hash(stateful_set['spec'].get('template') or {})}"


def controller_revision(stateful_set: Json, name: str, revisions: Sequence[Json]) -> Json:
    """The ControllerRevision that holds the set's present pod template, under this name."""
    meta = stateful_set["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": dict(((stateful_set["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}),
            "ownerReferences": [o.owner_reference(stateful_set, "apps/v1", "StatefulSet")],
        },
        "revision": max((int(r.get("revision") or 0) for r in revisions), default=0) + 1,
        "data": {"spec": {"template": {**deepcopy(stateful_set["spec"].get("template") or {}), "$patch": "replace"}}},
    }


def _template(stateful_set: Json, revisions: Sequence[Json], name: str) -> Json:
    """The pod template of a revision; the set's own if the revision is gone."""
    for revision in revisions:
        if revision["metadata"]["name"] == name:
            template = deepcopy((((revision.get("data") or {}).get("spec")) or {}).get("template") or {})
            template.pop("$patch", None)
            return dict(template)
    return dict(stateful_set["spec"].get("template") or {})


def _parallel(stateful_set: Json) -> bool:
    return str(stateful_set["spec"].get("podManagementPolicy")) == "Parallel"


def _partition(stateful_set: Json) -> int:
    rolling = (stateful_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return int(rolling.get("partition") or 0)


def _pod_revision(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(CONTROLLER_REVISION_HASH, ""))


def _healthy(stateful_set: Json, pod: Json, now: float) -> bool:
    wait = o.available_in(pod, float(stateful_set["spec"].get("minReadySeconds") or 0), now)
    return wait == 0.0 and not o.deleting(pod)


def _sizes(
    stateful_set: Json, line: dict[int, Json], revisions: Sequence[Json], current: str, newest: str, now: float
) -> list[Write]:
    """Create missing pods, replace ended ones, delete those beyond the size; one at a time unless Parallel."""
    total = o.replicas_of(stateful_set)
    writes: list[Write] = []
    for number in range(total):
        pod = line.get(number)
        if pod is None:
            old = number < _partition(stateful_set) and current != newest
            writes.append(create(_pod(stateful_set, number, revisions, current if old else newest)))
        elif o.finished(pod) and not o.deleting(pod):
            writes.append(delete(pod, "Pod"))  # the ordinal is taken until the pod is gone
        if not _parallel(stateful_set) and (pod is None or not _healthy(stateful_set, pod, now)):
            return writes
    for number in sorted((n for n in line if n >= total), reverse=True):
        if not o.deleting(line[number]):
            writes.append(delete(line[number], "Pod"))
        if not _parallel(stateful_set):
            return writes
    return writes


def _update(stateful_set: Json, line: dict[int, Json], newest: str) -> list[Write]:
    """Replace pods of older revisions from the last down to the partition, each only if those above it are
    healthy."""
    if (stateful_set["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
        return []
    for number in range(o.replicas_of(stateful_set) - 1, _partition(stateful_set) - 1, -1):
        pod = line.get(number)
        if pod is None or o.deleting(pod):
            return []
        if _pod_revision(pod) != newest:
            return [delete(pod, "Pod")]
        if not o.ready(pod):
            return []
    return []


def _pod(stateful_set: Json, number: int, revisions: Sequence[Json], revision: str) -> Json:
    pod = o.pod_from_template(stateful_set, "StatefulSet", "apps/v1", _template(stateful_set, revisions, revision))
    name = f"{stateful_set['metadata']['name']}-{number}"
    pod["metadata"]["name"] = name
    pod["metadata"]["labels"] |= {
        CONTROLLER_REVISION_HASH: revision,
        STATEFUL_SET_POD_NAME: name,
        STATEFUL_SET_POD_INDEX: str(number),
    }
    pod["spec"]["hostname"] = name
    if service := stateful_set["spec"].get("serviceName"):
        pod["spec"]["subdomain"] = service
    claims = [c["metadata"]["name"] for c in stateful_set["spec"].get("volumeClaimTemplates") or ()]
    volumes = [v for v in pod["spec"].get("volumes") or () if v.get("name") not in claims]
    volumes += [{"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}} for claim in claims]
    if volumes:
        pod["spec"]["volumes"] = volumes
    return pod


def _missing_claims(stateful_set: Json, writes: Sequence[Write], claims: Collection[str]) -> list[Write]:
    """The claims that pods about to be created name."""
    spec, meta = stateful_set["spec"], stateful_set["metadata"]
    out = []
    for template in spec.get("volumeClaimTemplates") or ():
        for write in writes:
            name = f"{template['metadata']['name']}-{write.name}"
            if write.verb == "create" and write.kind == "Pod" and name not in claims:
                labels = dict((spec.get("selector") or {}).get("matchLabels") or {})
                head = {"name": name, "namespace": meta["namespace"], "labels": labels}
                body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head}
                out.append(create({**body, "spec": deepcopy(template.get("spec") or {})}))
    return out


def _forget_history(stateful_set: Json, revisions: Sequence[Json], used: set[str]) -> list[Write]:
    limit = stateful_set["spec"].get("revisionHistoryLimit")
    keep = 10 if limit is None else int(limit)
    idle = sorted(
        (r for r in revisions if r["metadata"]["name"] not in used), key=lambda r: int(r.get("revision") or 0)
    )
    return [delete(revision, "ControllerRevision") for revision in idle[: max(0, len(idle) - keep)]]


def _status(
    stateful_set: Json, line: dict[int, Json], current: str, newest: str, now: float
) -> tuple[Json, float | None]:
    total = o.replicas_of(stateful_set)
    live = [pod for pod in line.values() if not o.finished(pod)]
    updated = [pod for pod in live if _pod_revision(pod) == newest]
    min_ready = float(stateful_set["spec"].get("minReadySeconds") or 0)
    waits = [o.available_in(pod, min_ready, now) for pod in live]
    ready = sum(wait is not None for wait in waits)
    complete = len(updated) == len(live) == total == ready and _partition(stateful_set) == 0
    current = newest if complete else current
    return {
        "observedGeneration": stateful_set["metadata"].get("generation", 1),
        "replicas": len(live),
        "readyReplicas": ready,
        "availableReplicas": sum(wait == 0.0 for wait in waits),
        "currentReplicas": sum(_pod_revision(pod) == current for pod in live),
        "updatedReplicas": len(updated),
        "currentRevision": current,
        "updateRevision": newest,
        "collisionCount": int((stateful_set.get("status") or {}).get("collisionCount") or 0),
    }, min((wait for wait in waits if wait), default=None)
