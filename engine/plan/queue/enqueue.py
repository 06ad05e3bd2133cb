"""Queue the complete gangs that may be placed, in their order; give the others a pending reason.

``queues`` holds what each queue may use and deserves (``share`` divides the cluster), ``order`` decides whose turn it
is, ``waiting_pods`` which pods wait. ``belay.engine.plan.preempt`` decides what happens when there is no room. A queue
may use everything up to its capability while no other queue needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from belay.engine.gangs.forming import parse_min_available
from belay.engine.gangs.kueue import QUEUE_LABEL
from belay.engine.gangs.owners import GROUP_NAME_KEYS, find_pod_group, stated_group
from belay.engine.gangs.together import SETTLE_SECONDS
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import KUEUE_PREFIX, SCHEDULE_MIN_AVAILABLE
from belay.engine.model.native_groups import find_native_group
from belay.engine.model.pending_reasons import GATED, POD_GROUP_MISSING
from belay.engine.model.plan import Pending
from belay.engine.model.plan_cache import CacheKey, NoOps
from belay.engine.model.remedies import Remedy, Step
from belay.engine.model.wording import counted
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs, shard_of
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.queue import quotas
from belay.engine.plan.queue.missing_pods import gate_names, incomplete
from belay.engine.plan.queue.order import JobRank, in_order, rank, turns
from belay.engine.plan.queue.queues import QueueRefusal, Queues
from belay.engine.plan.queue.waiting_pods import WaitingPods, pending_entry

#: Gangs of which every pod has a node, while their pods are unchanged.
_PLACED: Final = CacheKey("placed gangs", NoOps, limit=32768)

__all__ = ["Queues", "WaitingPods", "pending_entry", "refused_by_queue", "enqueue_gangs", "turns"]


def enqueue_gangs(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs) -> list[str]:
    """The keys of the gangs that may be placed, in order; the others become pending with a reason."""
    if not roles.plays(facts, "schedule") or facts.observed.ledger_broken:
        return []

    queues, waiting_pods = Queues(facts, nodes, gangs), WaitingPods(facts, draft, gangs)
    placed = facts.cache[_PLACED]
    draft.diagnostics += quotas.findings(facts.desired, queues)
    entries: list[tuple[int, JobRank]] = []
    for gang in gangs.values():
        members = (gangs.members[gang.key],)
        if placed.holds(gang.key, members):
            continue
        waiting = waiting_pods.waiting(gang)
        if not waiting and (gated := waiting_pods.gated(gang)) and shard_of(facts, gang) == facts.shard:
            draft.pending.append(_gated(gang, gated))
            continue
        if not waiting and all(pod.node or pod.finished for pod in gangs.members[gang.key]):
            placed.add(gang.key, members)
        if not waiting or shard_of(facts, gang) != facts.shard:
            continue
        started = waiting_pods.beside(gang, waiting)
        held = _without_group(facts, gang, waiting) or _held_back(gang, waiting, started, queues)
        held = held or incomplete(gang, waiting, started, waiting_pods.gated(gang), facts.observed.workloads, facts.now)
        held = held or _unsettled(gang, waiting, facts.now)
        if held is not None:
            draft.pending.append(held)
            continue
        queue_state = queues.by_name.get(gang.queue)
        entries.append((-(queue_state.priority if queue_state else 0), rank(facts, gang, queues)))
    return in_order(entries)


def _without_group(facts: Facts, gang: Gang, waiting: list[Pod]) -> Pending | None:
    """The pending entry of a gang whose pods name a PodGroup that does not exist, or no longer does; else None.

    Until the group says how many pods start together, placing any of them could tear the gang.
    """
    stated = sorted({stated_group(pod) for pod in waiting} - {""})
    missing = [name for name in stated if not find_pod_group(facts.observed.objects, gang.namespace, name)]
    native = sorted({pod.scheduling_group for pod in waiting} - {""})
    lacking = [name for name in native if not find_native_group(facts.observed.objects, gang.namespace, name)[1]]
    if not missing and not lacking:
        return None

    field = f"annotation {GROUP_NAME_KEYS[0]}" if missing else "spec.schedulingGroup"
    missing = missing or lacking
    names = ", ".join(missing)
    groups = "PodGroup" if len(missing) == 1 else "PodGroups"
    return pending_entry(
        gang,
        waiting,
        POD_GROUP_MISSING,
        f"{groups} {names} named by the pods cannot be found: they wait until it says how many start together",
        nodes={},
        unblock=f"create {groups} {names} in namespace {gang.namespace}, or make the pods without {field}",
        remedy=Remedy(Step.CREATE_GROUP, name=missing[0]),
    )


def refused_by_queue(gang: Gang, pods: Sequence[Pod], refusal: QueueRefusal) -> Pending:
    """The pending entry of pods that their queue does not take."""
    return pending_entry(
        gang, pods, refusal.reason, refusal.message, nodes={}, unblock=refusal.unblock, remedy=refusal.remedy
    )


def _held_back(gang: Gang, waiting: list[Pod], started: list[Pod], queues: Queues) -> Pending | None:
    """The pending entry of a gang that may not be placed yet, else None."""
    closed = queues.refusal(gang.queue)
    if closed is not None:
        return refused_by_queue(gang, waiting, closed)
    stated = gang.options.min_available
    if stated is not None and parse_min_available(gang.annotations) is None:
        return pending_entry(
            gang,
            waiting,
            "InvalidRequest",
            f"InvalidArgument: job {gang.name} task minAvailable {stated} is invalid",
            nodes={},
            unblock=f"write a whole number into annotation {SCHEDULE_MIN_AVAILABLE}",
            remedy=Remedy(Step.SET_POLICY, values={SCHEDULE_MIN_AVAILABLE: str(len(waiting) + len(started))}),
        )
    return None


def _gated(gang: Gang, gated: Sequence[Pod]) -> Pending:
    """The pending entry of a gang that is there, of which no pod may be scheduled yet."""
    names = gate_names(gated)
    text = f"{counted(len(gated), 'pod')} {'is' if len(gated) == 1 else 'are'} held by scheduling gates: {names}"
    queue = next(filter(None, (pod.labels.get(QUEUE_LABEL) for pod in gated)), "")
    unblock = "nothing to do in Belay: it places the pods once their gates are removed"
    if queue and any(name.startswith(KUEUE_PREFIX) for pod in gated for name in pod.gates):
        unblock = (
            f"Kueue admits it in its LocalQueue {queue}: `kubectl get workloads.kueue.x-k8s.io -n {gang.namespace}`"
        )
    return pending_entry(gang, gated, GATED, text, nodes={}, unblock=unblock, remedy=Remedy(Step.WAIT))


def _unsettled(gang: Gang, waiting: list[Pod], now: float) -> Pending | None:
    """The pending entry of a gang of which it is not known how many pods it has, while more may come; else None."""
    newest = max(pod.created for pod in waiting)
    if not gang.settles or now - newest >= gang.settles:
        return None

    of, there = f"{gang.kind} {gang.namespace}/{gang.name}", len(waiting)
    wait = f"{counted(there, 'pod')} {'waits' if there == 1 else 'wait'} until no more come for {gang.settles:g} s"
    if gang.settles > SETTLE_SECONDS:
        text = f"{of} says how many pods it has, but was not seen yet: {wait}"
        unblock = (
            f"nothing to do if the cluster serves {gang.kind} as of late; else see that belay-engine may list "
            f"it and that {gang.namespace}/{gang.name} exists"
        )
    else:
        text = f"{of} does not say how many pods it has: {wait}"
        unblock = f"nothing to do; a WorkloadKind for {gang.kind} (docs/workloads.md) says the number at once"
    return pending_entry(gang, waiting, "GangIncomplete", f"NotEnoughPod: {text}", nodes={}, unblock=unblock)
