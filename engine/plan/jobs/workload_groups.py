"""PodGroups of workloads that Volcano does not expand: Deployments, StatefulSets, Jobs, kinds of other controllers, and
pods without any.

One group per controller of pods, ``podgroup-<its uid>``, made while a pod of it waits for a node; a pod without
controller gets one of its own. Kinds that the engine
does not know (RoleSet of AIBrix, for example) form a gang by their group. LeaderWorkerSet and others that name a group
in their pods keep theirs. Source: github.com/volcano-sh/volcano/pkg/controllers/podgroup/pg_controller_handler.go.
"""

from __future__ import annotations

from typing import Any, Final

from belay.engine.gangs.owners import (
    GENERATED_GROUP,
    VOLCANO_API,
    controller_of,
    generated_group,
    non_negative,
    stated_group,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import GROUP_MIN_MEMBER, GROUP_QUEUE_NAME, VOLCANO_PREFIX
from belay.engine.model.quantities import text_of, whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map, string_map
from belay.engine.plan import roles
from belay.engine.plan.grouping import shard_of
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, ExpansionContext, JobObject

_KNOWN: Final = frozenset({"ReplicaSet", "StatefulSet", "Job"})
#: Controllers whose pods never start together, or whose groups are made elsewhere.
_OTHERS: Final = frozenset({"AscendJob", "DaemonSet", "Node"})


def expand(context: ExpansionContext) -> None:
    """Create the missing groups, and delete those of controllers that were scaled to zero."""
    if not context.pod_groups or not (context.plays("schedule") and context.plays("expand_volcano_job")):
        return
    facts, gangs = context.facts, context.gangs
    names, seen = roles.names(facts), set[tuple[str, str]]()
    for key, pod in facts.observed.pods.items():
        if pod.node or pod.finished or pod.owner_kind in _OTHERS or not roles.is_ours(pod, names):
            continue
        name = generated_group(pod)
        if pod.owner_api == VOLCANO_API or pod.deleting is not None or (pod.namespace, name) in seen:
            continue
        if not name or stated_group(pod) not in ("", name):
            continue
        seen.add((pod.namespace, name))
        group = ObjectKey(POD_GROUP_API, "PodGroup", pod.namespace, name)
        gang = gangs.get(gangs.of_pod.get(key, ""))
        if group not in facts.observed.objects and gang is not None and shard_of(facts, gang) == facts.shard:
            _create(context, pod, group)
            context.made_groups.add((pod.namespace, name))
    for group in context.kinds.get((POD_GROUP_API, "PodGroup"), ()):
        if group.name.startswith(GENERATED_GROUP):
            _delete_of_none(context, group)


def _create(context: ExpansionContext, pod: Pod, group: ObjectKey) -> None:
    api, kind, name, uid = pod.owner_api, pod.owner_kind, pod.owner_name, pod.owner_uid
    if not uid:
        api, kind, name, uid = "v1", "Pod", pod.name, pod.uid
    owner = _controller(context, api, kind, pod.namespace, name)
    stated = whole_number(owner.annotations.get(GROUP_MIN_MEMBER, ""), digits=6)
    least = stated if stated is not None else 1
    spec: dict[str, Any] = {
        "minMember": least,
        "minResources": {name: text_of(name, amount * least) for name, amount in sorted(pod.requests.items())},
    }
    if pod.priority_class:
        spec["priorityClassName"] = pod.priority_class
    if queue := pod.annotations.get(GROUP_QUEUE_NAME):
        spec["queue"] = queue
    metadata: dict[str, Any] = {"name": group.name, "namespace": group.namespace}
    annotations = {**_inherited(owner.annotations), **_inherited(pod.annotations)}
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    if labels := _inherited(pod.labels):
        metadata["labels"] = dict(sorted(labels.items()))
    metadata["ownerReferences"] = [{"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}]
    body = {"apiVersion": POD_GROUP_API, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    whose = f"{kind} {pod.namespace}/{name} has" if kind == "Pod" else f"pods of {kind} {pod.namespace}/{name} have"
    text = f"{whose} no PodGroup: creating it"
    context.create_object(owner, body, ActionReason.POD_GROUP_MISSING, text)


def _delete_of_none(context: ExpansionContext, group: ObjectKey) -> None:
    """Delete the group of a ReplicaSet or StatefulSet of zero replicas, so that none stays after a roll-out."""
    above = controller_of(context.facts.observed.objects[group])
    kind, name = str(above.get("kind")), str(above.get("name"))
    if kind not in ("ReplicaSet", "StatefulSet"):
        return
    owner = _controller(context, str(above.get("apiVersion")), kind, group.namespace, name)
    if (
        owner.uid
        and owner.uid == above.get("uid")
        and non_negative(nested_map(owner.raw, "spec").get("replicas"), 1) == 0
    ):
        text = f"{kind} {group.namespace}/{name} has no replicas: deleting its PodGroup"
        context.delete(owner, group, ActionReason.SCALED_DOWN, text)


def _controller(context: ExpansionContext, api: str, kind: str, namespace: str, name: str) -> JobObject:
    key = ObjectKey(api, kind, namespace, name)
    raw = context.facts.observed.objects.get(key, {}) if kind in _KNOWN else {}
    return JobObject(key, raw, nested_map(raw, "metadata"))


def _inherited(notes: dict[str, str]) -> dict[str, str]:
    """Annotations or labels for the group: Volcano's own, and those of NPU jobs."""
    return {key: value for key, value in string_map(notes).items() if key.startswith(VOLCANO_PREFIX)}
