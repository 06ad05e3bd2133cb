"""``.status`` of PodGroups of Kubernetes itself, as its own scheduler writes it.

One condition says whether the group was scheduled: ``True`` with reason ``Scheduled``, or ``False`` with reason
``Unschedulable`` and why. Sources: Kubernetes, "PodGroup lifecycle"; k8s.io/api/scheduling/v1beta1 (PodGroupStatus).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model.actions import Evidence, PatchObject, PatchType, Preconditions
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.native_groups import (
    NATIVE_GROUP,
    NATIVE_GROUP_APIS,
    SCHEDULED_CONDITION,
    find_native_group,
    gang_minimum,
)
from belay.engine.model.plan import Pending
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs, shard_of
from belay.engine.plan.jobs.podgroup_status import MAX_MESSAGE, counts

RULE: Final = "native-podgroup"
SCHEDULED: Final = "Scheduled"
UNSCHEDULABLE: Final = "Unschedulable"


def write_status(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Patch the condition of every PodGroup whose pods Belay places, where it differs."""
    if not any(key.kind == NATIVE_GROUP and key.api_version in NATIVE_GROUP_APIS for key in facts.observed.objects):
        return

    members: dict[tuple[str, str], list[Pod]] = {}
    for _, pod in sorted(facts.observed.pods.items()):
        if pod.scheduling_group:
            members.setdefault((pod.namespace, pod.scheduling_group), []).append(pod)

    waiting = {f"{entry.namespace}/{pod}": entry for entry in draft.pending for pod in entry.pods}
    for (namespace, name), pods in sorted(members.items()):
        api, raw = find_native_group(facts.observed.objects, namespace, name)
        if raw and not nested_map(raw, "metadata").get("deletionTimestamp") and _is_ours(facts, gangs, pods):
            _reconcile(facts, draft, ObjectKey(api, NATIVE_GROUP, namespace, name), raw, pods, waiting)


def _is_ours(facts: Facts, gangs: PassGangs, pods: Sequence[Pod]) -> bool:
    """Whether Belay places all pods of the group, and this shard does."""
    keys = {gangs.of_pod[pod.key] for pod in pods if pod.key in gangs.of_pod}
    here = all(shard_of(facts, gangs[key]) == facts.shard for key in keys)
    return bool(keys) and here and all(roles.schedules(facts, pod) for pod in pods)


def _reconcile(
    facts: Facts,
    draft: Draft,
    key: ObjectKey,
    raw: Mapping[str, Any],
    pods: Sequence[Pod],
    waiting: Mapping[str, Pending],
) -> None:
    kind = SCHEDULED_CONDITION[key.api_version]
    rows = nested_list(raw, "status", "conditions")
    before: Mapping[str, Any] = next((row for row in rows if row.get("type") == kind), {})
    if before.get("status") == "True":
        return  # the last state: it is about the first time that the group was scheduled

    condition = _condition(kind, raw, pods, waiting)
    if condition is None or _says_the_same(before, condition):
        return
    moved = before.get("status") != condition["status"]
    stamp = rfc3339(float(int(facts.now))) if moved else before.get("lastTransitionTime")

    others = [row for row in rows if row.get("type") != kind]
    conditions = [*others, {**condition, "lastTransitionTime": stamp}]
    uid = str(nested_map(raw, "metadata").get("uid") or "")
    draft.actions.append(
        PatchObject(
            reason=f"PodGroup{condition['reason']}",
            message=f"PodGroup {key.namespace}/{key.name} is {condition['reason']}",
            evidence=Evidence(rule=RULE),
            patch_type=PatchType.MERGE,
            preconditions=Preconditions(uid=uid or None),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            patch={"status": {"conditions": conditions}},
        )
    )


def _says_the_same(before: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """Whether a condition may stay: its message changes with Belay's reason, not with every number in it."""
    if before.get("status") != condition["status"] or before.get("reason") != condition["reason"]:
        return False
    return str(before.get("message") or "").partition(": ")[0] == str(condition["message"]).partition(": ")[0]


def _condition(
    kind: str, raw: Mapping[str, Any], pods: Sequence[Pod], waiting: Mapping[str, Pending]
) -> dict[str, Any] | None:
    """What the condition says now, without its time; None while nothing is known."""
    placed = counts(pods).placed
    if placed and placed >= gang_minimum(raw):
        return {"type": kind, "status": "True", "reason": SCHEDULED, "message": ""}

    why = next((waiting[pod.key] for pod in pods if pod.key in waiting), None)
    if why is None:
        return None
    text = f"{why.reason}: {why.line}"[:MAX_MESSAGE]
    return {"type": kind, "status": "False", "reason": UNSCHEDULABLE, "message": text}
