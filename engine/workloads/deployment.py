"""Deployment: one ReplicaSet per template, replaced step by step within the surge and unavailability limits.

Follows kube-controller-manager's deployment controller (rolling.go, sync.go, progress.go), except that a change of
`replicas` in the middle of a roll-out goes to the newest ReplicaSet instead of being split in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from belay.engine.model.labels import (
    DEPLOYMENT_DESIRED,
    DEPLOYMENT_MAXIMUM,
    DEPLOYMENT_REVISION,
    LAST_APPLIED,
    POD_TEMPLATE_HASH,
)
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, create, delete, patch, patch_status, status

_PRIVATE = frozenset(
    {
        LAST_APPLIED,
        DEPLOYMENT_REVISION,
        DEPLOYMENT_DESIRED,
        DEPLOYMENT_MAXIMUM,
        "deprecated.deployment.rollback.to",
    }
)


def reconcile(deployment: Json, replica_sets: Sequence[Json], pods: Sequence[Json], now: float) -> Reconciled:
    """One step for ``deployment``; ``replica_sets`` are those it controls, ``pods`` those that they control."""
    if o.deleting(deployment):
        return Reconciled()
    newest = _newest(deployment, replica_sets)
    old = [rs for rs in replica_sets if rs is not newest]
    paused = bool(deployment["spec"].get("paused"))
    writes: list[Write] = []
    if newest is None and not paused:
        return _first_step(deployment, old)
    if newest is not None:
        writes += _revision(deployment, newest, old)
    if paused:
        writes += _scale_all(deployment, newest, old)
    elif newest is not None and _strategy(deployment) == "Recreate":
        writes += _recreate(deployment, newest, old, pods)
    elif newest is not None:
        writes += _roll(deployment, newest, old)
    body, again = _status(deployment, newest, replica_sets, now)
    if not paused and _complete(deployment, body):
        writes += _forget_history(deployment, old)
    if write := status(deployment, "Deployment", body):
        writes.append(write)
    return Reconciled(tuple(writes), again)


def limits(deployment: Json) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods: surge rounded up, unavailable down, and never both 0."""
    total = o.replicas_of(deployment)
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    surge = o.share(rolling.get("maxSurge"), total, up=True)
    unavailable = min(total, o.share(rolling.get("maxUnavailable"), total, up=False))
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _strategy(deployment: Json) -> str:
    return str((deployment["spec"].get("strategy") or {}).get("type") or "RollingUpdate")


def _template(thing: Json) -> Json:
    """The pod template without the label that distinguishes ReplicaSets."""
    template: Json = deepcopy(thing["spec"].get("template") or {})
    labels = (template.get("metadata") or {}).get("labels")
    if labels:
        labels.pop(POD_TEMPLATE_HASH, None)
    return template


def made_from(deployment: Json, replica_set: Json) -> bool:
    """Whether the ReplicaSet has the deployment's present pod template."""
    return _template(replica_set) == _template(deployment)


def _newest(deployment: Json, replica_sets: Sequence[Json]) -> Json | None:
    """The ReplicaSet with the deployment's template; the oldest one if there are several."""
    wanted = _template(deployment)
    same = [rs for rs in replica_sets if _template(rs) == wanted]
    return min(
        same, key=lambda rs: (o.time_of(rs["metadata"].get("creationTimestamp")), rs["metadata"]["name"]), default=None
    )


def _first_step(deployment: Json, old: Sequence[Json]) -> Reconciled:
    """Create the ReplicaSet of a new template; the next step sees it and scales."""
    status_now = deployment.get("status") or {}
    digest = o.template_hash(_template(deployment), int(status_now.get("collisionCount") or 0))
    template = _template(deployment)
    template.setdefault("metadata", {}).setdefault("labels", {})[POD_TEMPLATE_HASH] = digest
    selector = deepcopy(deployment["spec"].get("selector") or {})
    selector.setdefault("matchLabels", {})[POD_TEMPLATE_HASH] = digest
    surge, _ = limits(deployment)
    held = sum(o.replicas_of(rs) for rs in old)
    room = max(0, o.replicas_of(deployment) + (surge if held else 0) - held)
    recreate = _strategy(deployment) == "Recreate" and held > 0
    meta = deployment["metadata"]
    body = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{meta['name']}-{digest}",
            "namespace": meta["namespace"],
            "labels": dict(template["metadata"]["labels"]),
            "annotations": _inherited(deployment)
            | _bounds(deployment)
            | {DEPLOYMENT_REVISION: str(_next_revision(old))},
            "ownerReferences": [o.owner_reference(deployment, "apps/v1", "Deployment")],
        },
        "spec": {
            "replicas": 0 if recreate else min(o.replicas_of(deployment), room),
            "minReadySeconds": deployment["spec"].get("minReadySeconds") or 0,
            "selector": selector,
            "template": template,
        },
    }
    return Reconciled((create(body),))


def collided(deployment: Json) -> Write:
    """The write after a new ReplicaSet's name was taken by another template: the next try uses another digest."""
    count = int((deployment.get("status") or {}).get("collisionCount") or 0)
    return patch_status(deployment, "Deployment", {"collisionCount": count + 1})


def _inherited(deployment: Json) -> dict[str, str]:
    return {k: v for k, v in (deployment["metadata"].get("annotations") or {}).items() if k not in _PRIVATE}


def _bounds(deployment: Json) -> dict[str, str]:
    total = o.replicas_of(deployment)
    return {DEPLOYMENT_DESIRED: str(total), DEPLOYMENT_MAXIMUM: str(total + limits(deployment)[0])}


def _revision_of(thing: Json) -> int:
    text = str((thing["metadata"].get("annotations") or {}).get(DEPLOYMENT_REVISION, "0"))
    return int(text) if text.isdecimal() else 0


def _next_revision(replica_sets: Sequence[Json]) -> int:
    return max((_revision_of(rs) for rs in replica_sets), default=0) + 1


def _revision(deployment: Json, newest: Json, old: Sequence[Json]) -> list[Write]:
    """The newest ReplicaSet carries the highest revision (also after a rollback), and the deployment repeats it."""
    writes = []
    number = max(_revision_of(newest), _next_revision(old))
    wanted = _inherited(deployment) | _bounds(deployment) | {DEPLOYMENT_REVISION: str(number)}
    present = newest["metadata"].get("annotations") or {}
    if changed := {k: v for k, v in wanted.items() if present.get(k) != v}:
        writes.append(patch(newest, "ReplicaSet", {"metadata": {"annotations": changed}}))
    if _revision_of(deployment) != number:
        writes.append(
            patch(deployment, "Deployment", {"metadata": {"annotations": {DEPLOYMENT_REVISION: str(number)}}})
        )
    return writes


def _scale(replica_set: Json, count: int) -> list[Write]:
    if o.replicas_of(replica_set) == count:
        return []
    return [patch(replica_set, "ReplicaSet", {"spec": {"replicas": count}})]


def _scale_all(deployment: Json, newest: Json | None, old: Sequence[Json]) -> list[Write]:
    """Scale the only ReplicaSet with pods; a paused deployment changes nothing else."""
    with_pods = [rs for rs in (*old, newest) if rs is not None and o.replicas_of(rs)]
    target = with_pods[0] if len(with_pods) == 1 else newest if not with_pods else None
    return _scale(target, o.replicas_of(deployment)) if target is not None else []


def _available(replica_set: Json) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas") or 0)


def _recreate(deployment: Json, newest: Json, old: Sequence[Json], pods: Sequence[Json]) -> list[Write]:
    down = [write for rs in old for write in _scale(rs, 0)]
    old_uids = {rs["metadata"]["uid"] for rs in old}
    lingering = any(o.controller_uid(pod) in old_uids and not o.finished(pod) for pod in pods)
    return down or ([] if lingering else _scale(newest, o.replicas_of(deployment)))


def _roll(deployment: Json, newest: Json, old: Sequence[Json]) -> list[Write]:
    """Scale the newest up as far as the surge allows, else the old ones down as far as availability allows."""
    total = o.replicas_of(deployment)
    surge, unavailable = limits(deployment)
    size = o.replicas_of(newest)
    held = size + sum(o.replicas_of(rs) for rs in old)
    if size > total:
        return _scale(newest, total)
    if size < total and (room := total + surge - held) > 0:
        return _scale(newest, min(total, size + room))
    return _shrink(
        old, newest, held - (total - unavailable) - (size - min(size, _available(newest))), total - unavailable
    )


def _shrink(old: Sequence[Json], newest: Json, may_go: int, least: int) -> list[Write]:
    """Take ``may_go`` pods from old ReplicaSets: first unavailable pods, then available ones down to
    ``least`` in all."""
    sizes = {rs["metadata"]["name"]: o.replicas_of(rs) for rs in old}
    by_age = sorted(old, key=lambda rs: (o.time_of(rs["metadata"].get("creationTimestamp")), rs["metadata"]["name"]))
    for rs in by_age:
        broken = sizes[rs["metadata"]["name"]] - min(_available(rs), sizes[rs["metadata"]["name"]])
        gone = max(0, min(broken, may_go))
        sizes[rs["metadata"]["name"]] -= gone
        may_go -= gone
    spare = min(
        may_go, _available(newest) + sum(min(_available(rs), sizes[rs["metadata"]["name"]]) for rs in old) - least
    )
    for rs in by_age:
        gone = max(0, min(sizes[rs["metadata"]["name"]], spare))
        sizes[rs["metadata"]["name"]] -= gone
        spare -= gone
    return [write for rs in by_age for write in _scale(rs, sizes[rs["metadata"]["name"]])]


def _forget_history(deployment: Json, old: Sequence[Json]) -> list[Write]:
    """Delete empty old ReplicaSets beyond ``revisionHistoryLimit``, oldest revision first."""
    limit = deployment["spec"].get("revisionHistoryLimit")
    keep = 10 if limit is None else int(limit)
    empty = [
        rs
        for rs in old
        if not o.replicas_of(rs) and not (rs.get("status") or {}).get("replicas") and not o.deleting(rs)
    ]
    surplus = max(0, len(old) - keep)
    return [delete(rs, "ReplicaSet") for rs in sorted(empty, key=_revision_of)[:surplus]]


def _complete(deployment: Json, body: Json) -> bool:
    total = o.replicas_of(deployment)
    return bool(body["updatedReplicas"] == total == body["replicas"] and body["availableReplicas"] == total)


def _sum(replica_sets: Sequence[Json], field: str) -> int:
    return sum(int((rs.get("status") or {}).get(field) or 0) for rs in replica_sets)


def _status(
    deployment: Json, newest: Json | None, replica_sets: Sequence[Json], now: float
) -> tuple[Json, float | None]:
    total = o.replicas_of(deployment)
    available = _sum(replica_sets, "availableReplicas")
    body: Json = {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": _sum(replica_sets, "replicas"),
        "updatedReplicas": _sum([newest], "replicas") if newest else 0,
        "readyReplicas": _sum(replica_sets, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(0, total - available),
    }
    enough = available >= total - limits(deployment)[1]
    kind, text = ("MinimumReplicasAvailable", "has") if enough else ("MinimumReplicasUnavailable", "does not have")
    conditions = o.set_condition(
        deployment, "Available", "True" if enough else "False", kind, f"Deployment {text} minimum availability.", now
    )
    body["conditions"], again = _progress(
        deployment, {**deployment, "status": {"conditions": conditions}}, newest, body, now
    )
    return body, again


def _progress(
    deployment: Json, with_available: Json, newest: Json | None, body: Json, now: float
) -> tuple[list[Json], float | None]:
    """Condition Progressing: complete, moving, or stuck beyond ``progressDeadlineSeconds``."""
    name = newest["metadata"]["name"] if newest else deployment["metadata"]["name"]
    found = o.condition(deployment, "Progressing")
    if _complete(deployment, body):
        text = f'ReplicaSet "{name}" has successfully progressed.'
        return o.set_condition(with_available, "Progressing", "True", "NewReplicaSetAvailable", text, now), None
    if found and found.get("reason") == "NewReplicaSetAvailable" and body["replicas"] == body["updatedReplicas"]:
        return with_available["status"]["conditions"], None  # the roll-out was complete; a lost pod starts no new one
    before = deployment.get("status") or {}
    moved = any(
        int(body[field]) > int(before.get(field) or 0)
        for field in ("updatedReplicas", "readyReplicas", "availableReplicas")
    ) or body["observedGeneration"] != before.get("observedGeneration")
    if found is None or moved or found.get("reason") == "NewReplicaSetAvailable":
        conditions = [c for c in with_available["status"]["conditions"] if c["type"] != "Progressing"]
        fresh = o.set_condition(
            {"status": {}}, "Progressing", "True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.', now
        )
        if found and found.get("status") == "True":
            fresh[0]["lastTransitionTime"] = found.get("lastTransitionTime") or fresh[0]["lastTransitionTime"]
        return conditions + fresh, None
    limit = float(deployment["spec"].get("progressDeadlineSeconds") or 600)
    left = o.time_of(found.get("lastUpdateTime")) + limit - now
    if found.get("reason") == "ProgressDeadlineExceeded":
        return with_available["status"]["conditions"], None
    if left <= 0:
        text = f'ReplicaSet "{name}" has timed out progressing.'
        return o.set_condition(with_available, "Progressing", "False", "ProgressDeadlineExceeded", text, now), None
    return with_available["status"]["conditions"], left
