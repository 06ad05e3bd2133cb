"""``.status`` of PodGroups while Belay schedules, for the operators and people who read it.

An operator that creates pods itself waits until its group's phase is neither empty nor Pending, so groups without pods
are enqueued too. Phases, conditions and their words are Volcano's: github.com/volcano-sh/volcano, packages
pkg/scheduler/framework (jobStatus) and pkg/scheduler/plugins/gang (OnSessionClose). A second condition is that of
MindCluster's plugin, which names the step at which a job is stuck (component/ascend-for-volcano/plugin/job.go; ClusterD
reads it). A condition's message changes with its reason or its numbers of tasks, not with every count of nodes in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.gangs.job_status import merge_patch
from belay.engine.model.actions import (
    DeleteObject,
    Evidence,
    PatchObject,
    PatchType,
    Preconditions,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import Gang
from belay.engine.model.pending_reasons import (
    ENQUEUE_FAILED,
    GANG_INCOMPLETE,
    INVALID_REQUEST,
    NOT_SUPPORTED,
    QUEUE_CLOSED,
    QUEUE_EXHAUSTED,
    QUEUE_MISSING,
    RejectedAt,
)
from belay.engine.model.phases import PodGroupPhase
from belay.engine.model.plan import Pending
from belay.engine.model.plan_cache import CacheKey, NoOps
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.model.wording import counted
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs, shard_for, shard_of
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API
from belay.engine.plan.queue import dequeue

RULE: Final = "podgroup"
SCHEDULED: Final = "Scheduled"
UNSCHEDULABLE: Final = "Unschedulable"
READY: Final = "tasks in gang are ready to be scheduled"
SHORT: Final = "NotEnoughResources"
_OURS: Final = frozenset({SCHEDULED, UNSCHEDULABLE})
#: The first step at which MindCluster's plugin refuses a job: an invalid request.
VALIDATE_FAILED: Final = "JobValidateFailed"
_INVALID: Final = frozenset({INVALID_REQUEST, NOT_SUPPORTED, GANG_INCOMPLETE})
_QUEUES: Final = frozenset({QUEUE_EXHAUSTED, QUEUE_CLOSED, QUEUE_MISSING})
MAX_MESSAGE: Final = 1000
#: By shard: the snapshot after whose pass every group's status was as it should be.
_SNAPSHOTS: Final = CacheKey("snapshots whose PodGroups need no patch", NoOps, limit=16)
#: The same by shard and group.
_GROUPS: Final = CacheKey("PodGroups that need no patch", NoOps, limit=65536)


class PodGroupCounts(NamedTuple):
    """Pods of a group: ``placed`` are bound and not terminating, or have succeeded."""

    running: int
    succeeded: int
    failed: int
    placed: int
    waiting: int


def write_status(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Patch the status of every PodGroup whose pods Belay places, where it differs."""
    deleted = (a for a in draft.actions if isinstance(a, DeleteObject) and a.object_kind == "PodGroup")
    going = {(action.namespace, action.name) for action in deleted}
    inputs = (
        facts.observed.pods,
        facts.observed.objects,
        tuple(draft.pending),
        going,
        facts.desired,
    )
    settled = facts.cache[_SNAPSHOTS]
    if settled.holds(facts.shard, inputs):
        return
    before = len(draft.actions)
    timed = _all(facts, draft, gangs, going)
    if len(draft.actions) == before and not timed:
        settled.add(facts.shard, inputs)


def _all(facts: Facts, draft: Draft, gangs: PassGangs, going: set[tuple[str, str]]) -> bool:
    """Reconcile all PodGroups; returns whether any of their states can change with time alone."""
    keys = sorted(key for key in facts.observed.objects if key.kind == "PodGroup" and key.api_version == POD_GROUP_API)
    if not keys or not roles.plays(facts, "schedule"):
        return False
    timed = False
    rivals: dict[str, set[str]] | None = None
    by_group = {(gang.namespace, gang.pod_group): gang for gang in gangs.values() if gang.pod_group}
    pending = {(entry.namespace, entry.kind, entry.name): entry for entry in draft.pending}
    # with one shard for everything, a group's status follows from the group, its pods and its pending entry alone
    alone = all(pool.document.spec.shard == facts.shard for pool in facts.desired.pools)
    names, unchanged = roles.names(facts), facts.cache[_GROUPS]
    for key in keys:
        raw = facts.observed.objects[key]
        if (key.namespace, key.name) in going or nested_map(raw, "metadata").get("deletionTimestamp"):
            continue
        gang = by_group.get((key.namespace, key.name))
        pods = gangs.members[gang.key] if gang is not None else ()
        waits = pending.get((gang.namespace, gang.kind, gang.name)) if gang is not None else None
        inputs = (raw, pods, waits, gang, names)
        if alone and unchanged.holds((facts.shard, key), inputs):
            continue
        if not _is_ours(facts, raw, gang, pods):
            continue
        if dequeue.allowed(nested_map(raw, "metadata", "annotations")):
            timed = True
            rivals = dequeue.waiting_gangs(draft, gangs) if rivals is None else rivals
            _reconcile(facts, draft, key, raw, counts(pods), waits, gang, rivals)
        elif not _reconcile(facts, draft, key, raw, counts(pods), waits) and alone:
            unchanged.add((facts.shard, key), inputs)
    return timed


def counts(pods: Sequence[Pod]) -> PodGroupCounts:
    """A group's pods, counted as Volcano counts them."""
    phases = [pod.phase for pod in pods]
    placed = [pod for pod in pods if pod.phase == "Succeeded" or (pod.holds_chips and pod.deleting is None)]
    waiting = [pod for pod in pods if not pod.node and not pod.finished]
    return PodGroupCounts(
        phases.count("Running"), phases.count("Succeeded"), phases.count("Failed"), len(placed), len(waiting)
    )


def phase(old: str, numbers: PodGroupCounts, least: int, pending: Pending | None) -> PodGroupPhase:
    """The group's phase.

    Running once enough pods are placed, Completed once these have succeeded, Unknown while some run and others cannot
    be placed, Pending while its queue or the cluster has too little, else Inqueue.
    """
    if numbers.running and pending is not None and numbers.placed < least:
        return PodGroupPhase.UNKNOWN
    if numbers.placed and numbers.placed >= least:
        return PodGroupPhase.COMPLETED if numbers.succeeded == numbers.placed else PodGroupPhase.RUNNING
    if pending is not None and pending.reason in (QUEUE_EXHAUSTED, ENQUEUE_FAILED):
        return PodGroupPhase.PENDING
    if old == PodGroupPhase.COMPLETED and not numbers.waiting and not numbers.placed:
        return PodGroupPhase.COMPLETED  # its pods were cleaned up
    return PodGroupPhase.INQUEUE


def _is_ours(facts: Facts, raw: Mapping[str, Any], gang: Gang | None, pods: Sequence[Pod]) -> bool:
    """Whether this shard decides for the group and Belay places its pods."""
    if gang is None:
        labels = string_map(nested_map(raw, "metadata").get("labels"))
        return shard_for(facts, labels, []) == facts.shard
    return shard_of(facts, gang) == facts.shard and all(roles.schedules(facts, pod) for pod in pods)


def _reconcile(
    facts: Facts,
    draft: Draft,
    key: ObjectKey,
    raw: Mapping[str, Any],
    numbers: PodGroupCounts,
    pending: Pending | None,
    gang: Gang | None = None,
    rivals: Mapping[str, set[str]] | None = None,
) -> bool:
    """Patch the group's status where it differs; returns whether it did.

    Args:
        rivals: waiting jobs by queue, where the group may give up its turn for them; else None.
    """
    old = nested_map(raw, "status")
    least = nested_map(raw, "spec").get("minMember")
    needed = least if isinstance(least, int) and not isinstance(least, bool) else 1
    before = str(old.get("phase") or "")
    new: dict[str, Any] = {k: v for k, v in old.items() if k not in ("running", "succeeded", "failed")}
    new["phase"] = phase(before, numbers, needed, pending)
    marks: dict[str, str | None] = {}
    if rivals is not None:
        annotations = string_map(nested_map(raw, "metadata").get("annotations"))
        new["phase"], marks = dequeue.turn(annotations, new["phase"], gang, rivals, facts.now_ms)
    new |= {k: n for k, n in (("running", numbers.running), ("succeeded", numbers.succeeded),
                              ("failed", numbers.failed)) if n}  # fmt: skip
    conditions = _conditions(facts, old, numbers, needed, pending)
    if conditions:
        new["conditions"] = conditions
    if new != old:
        moved = new["phase"] != before
        placed = counted(numbers.placed, "pod")
        text = f"PodGroup {key.namespace}/{key.name} is {new['phase']}: {placed} placed, {needed} needed"
        reason = f"PodGroup{new['phase']}" if moved else "PodGroupChanged"
        _patch(draft, key, raw, reason, text, {"status": merge_patch(old, new)})
    if marks:  # a patch of its own: the status subresource takes no annotations
        text = f"PodGroup {key.namespace}/{key.name}: its time in the queue"
        _patch(draft, key, raw, "PodGroupTurn", text, {"metadata": {"annotations": marks}})
    return new != old or bool(marks)


def _patch(
    draft: Draft, key: ObjectKey, raw: Mapping[str, Any], reason: str, message: str, patch: dict[str, Any]
) -> None:
    uid = str(nested_map(raw, "metadata").get("uid") or "")
    draft.actions.append(
        PatchObject(
            reason=reason,
            message=message,
            evidence=Evidence(rule=RULE),
            patch_type=PatchType.MERGE,
            preconditions=Preconditions(uid=uid or None),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            patch=patch,
        )
    )


def _conditions(
    facts: Facts, old: Mapping[str, Any], numbers: PodGroupCounts, needed: int, pending: Pending | None
) -> list[dict[str, Any]]:
    """The group's conditions; those of other types stay."""
    before = nested_list(old, "conditions")
    others = [row for row in before if row.get("type") not in _OURS]
    ours = [row for row in before if row.get("type") in _OURS]
    if pending is not None and numbers.waiting:
        total = max(needed, numbers.placed + numbers.waiting)
        start = f"{numbers.waiting}/{total} tasks in gang unschedulable: {pending.reason}: "
        reasons = [(SHORT, start + pending.line), *rejection_conditions(pending)]
        known = [str(row.get("reason")) for row in ours if row.get("type") == UNSCHEDULABLE]
        if _keeps_reasons(known, [reason for reason, _ in reasons]) and str(ours[0].get("message")).startswith(start):
            return before
        return [*others, *(_condition(facts, UNSCHEDULABLE, reason, text[:MAX_MESSAGE]) for reason, text in reasons)]
    if numbers.placed >= needed and numbers.placed:
        if [row.get("type") for row in ours] == [SCHEDULED]:
            return before
        return [*others, _condition(facts, SCHEDULED, READY, "")]
    return before


def _keeps_reasons(known: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the conditions' reasons may stay.

    Whenever a few chips become free or are taken, jobs would otherwise flip between "too few chips in the cluster" and
    "too few on any node".
    """
    steps = {RejectedAt.ENQUEUE, RejectedAt.PREDICATE}
    return list(known) == list(new) or (len(known) == len(new) > 1 and {known[1], new[1]} == steps)


def rejection_conditions(pending: Pending) -> list[tuple[str, str]]:
    """(reason, message) of the condition that MindCluster's plugin sets for a waiting job.

    Empty where a queue refuses the job: the plugin knows no queues.
    """
    text = pending.line
    if pending.reason in _QUEUES:
        return []
    if pending.reason in _INVALID:
        return [(VALIDATE_FAILED, f"{pending.reason}: {text}" if pending.reason == NOT_SUPPORTED else text)]
    first, _, _ = text.partition("; ")
    return [(pending.rejected.value, first if pending.rejected is RejectedAt.ENQUEUE else text)]


def _condition(facts: Facts, kind: str, reason: str, message: str) -> dict[str, Any]:
    stamp = rfc3339(float(int(facts.now)))
    condition = {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": stamp}
    # Volcano's type omits an empty message (pkg/apis/scheduling/v1beta1), and kube-apiserver 1.20 refuses "" as null
    return condition if message else {key: value for key, value in condition.items() if key != "message"}
