"""What-ifs: would a job fit if these pods were gone? The same placement code on the same state, undone afterwards.

Releasing pods and placing a gang touch a few nodes only, so a what-if costs what changes, not what exists. ``hold``
leaves the tentative assignments in place, so that what becomes free for one job is not given to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.pending_reasons import NODE_REFUSED, lacks_room
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import WHOLE_CHIP, SchedulerJob
from belay.engine.plan.place.nodes.table import NodeTable
from belay.engine.plan.place.part_requests import DynamicVNPU
from belay.engine.plan.place.pending import INELIGIBLE
from belay.engine.plan.place.state import Assignment, FormerPlacement, PlacementState
from belay.engine.plan.preempt.search import Exhausted
from belay.engine.plan.queue.queues import Queues
from belay.engine.plan.views import chip_ids

#: Most pods released and pods tried in one pass, all what-ifs together.
EFFORT: Final = 12_000
#: Candidates that can be scanned for one unit of effort.
SCANS_PER_EFFORT: Final = 32
#: Owners whose pods run until they are scaled down.
SERVICE_KINDS: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet"})
#: Reasons that no eviction cures.
_PERMANENT: Final = INELIGIBLE | {NODE_REFUSED, "ReservedForGang", "PoolSuspended", "NodeNotReady"}


class GangAttempt(Protocol):
    """The placement of one gang as a what-if needs it."""

    gang: Gang

    @property
    def job(self) -> SchedulerJob | None:
        """The job behind the gang, None when it can never be placed."""

    def attempt(self, pods: Sequence[Pod]) -> list[Assignment]:
        """Assignments of all these pods, left in the state; empty when they do not fit together."""


class WhatIf:
    """The what-ifs of one pass, within a common effort."""

    def __init__(
        self, gangs: PassGangs, state: PlacementState, queues: Queues, make: Callable[[Gang], GangAttempt]
    ) -> None:
        self._gangs, self._state, self._queues, self._make = gangs, state, queues, make
        self._attempts: dict[tuple[str, str], GangAttempt] = {}
        self._kept: dict[str, int] = {}
        #: Original pods, by UID, of which only a part is in the state, since ``hold`` gave the rest to others.
        self._whole: dict[str, Pod] = {}
        self.effort = EFFORT
        #: Whether a what-if was refused because the pass's effort is used up.
        self.exhausted = False

    def held_chips(self, node: str) -> int:
        """The chips of a node that ``hold`` has kept in this pass."""
        return self._kept.get(node, 0)

    def job(self, gang: Gang) -> SchedulerJob | None:
        """The job behind a gang."""
        return self._attempt_of(gang).job

    def place(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Assignment]:
        """Where the pods would go once ``gone`` are gone; empty when they do not fit. Nothing is changed.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(2 * len(gone) + len(pods))
        released = self._release(gone, gang)
        placed = self._attempt(gang, pods)
        self._state.unassign(placed)
        self._restore(released)
        return placed

    @contextmanager
    def without(self, gang: Gang, pods: Sequence[Pod]) -> Iterator[None]:
        """A context in which these pods have gone already.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(2 * len(pods))
        released = self._release(pods, gang)
        try:
            yield
        finally:
            self._restore(released)

    def fits_node(self, gang: Gang, pod: Pod, node: str, gone: Sequence[Pod]) -> bool:
        """Whether the pod fits on the node once the pods of ``gone`` on that node have gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        job = self.job(gang)
        if job is None:
            return False
        there = [one for one in gone if one.node == node]
        self._spend(2 * len(there) + 1)
        released = self._release(there, gang)
        fits = node in self._state.table(job, pod).scores and self._state.affinity_refusal(pod, node) is None
        self._restore(released)
        return fits

    def charge_scan(self, candidates: int) -> None:
        """Spend the effort of scanning so many candidates.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(candidates // SCANS_PER_EFFORT)

    def helpful_nodes(self, gang: Gang, pod: Pod, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes on which evictions may help the pod, by MindCluster's rule: the node is refused for its
        chips, or for another resource where chips are no obstacle or can be freed too.

        Source: component/ascend-for-volcano (NodePredicate): only these messages are "Unschedulable", the others
        "UnschedulableAndUnresolvable"; Volcano's actions preempt and reclaim compare every resource of the pod with
        what victims free (pkg/scheduler/actions/preempt, util.ValidateVictims).
        """
        job, views = self.job(gang), self._state.views
        if job is None:
            return set()
        table, helps = self._state.table(job, pod), _may_help if job.resource else _may_ever_fit
        return {node for node in nodes if node in views and helps(table, pod, views[node])}

    def nodes_short_of_others(self, gang: Gang, pod: Pod, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes with too little of a resource other than chips, so that evicting any pod there may help,
        also one without chips.
        """
        job = self.job(gang)
        if job is None:
            return set()
        refusals = self._state.table(job, pod).refusals
        return {node for node in nodes if (refusal := refusals.get(node)) is not None and _short_of_others(refusal)}

    def request_class(self, gang: Gang, pods: Sequence[Pod]) -> tuple[object, ...]:
        """A key that is equal for gangs that ask for the same in the same places, so that what helps none of one helps
        none of another.

        A gang with pods that affinity concerns has a key of its own.
        """
        job = self.job(gang)
        if job is None or any(map(self._state.pod_affinity.concerns, pods)):
            return (gang.key,)
        asked = (id(self._state.table(job, pod)) for pod in pods)
        return (gang.queue, gang.priority, gang.priority_class, tuple(asked))

    def may_ever_fit(self, gang: Gang, pod: Pod, node: str) -> bool:
        """Whether the node, if it were empty, could take the pod: no refusal for the whole pass applies."""
        job, view = self.job(gang), self._state.views.get(node)
        return job is not None and view is not None and _may_ever_fit(self._state.table(job, pod), pod, view)

    def state(self, node: str) -> tuple[object, ...]:
        """What is on a node now; while it is equal, so are what-ifs about the node alone."""
        view = self._state.views.get(node)
        return () if view is None else (view.used, len(view.pods), *sorted(view.requested.items()))

    def drain(self, gang: Gang, pods: Sequence[Pod], nodes: Sequence[str]) -> list[Assignment]:
        """Where the pods would go once all other jobs on these nodes have ended; services never end. Costs no effort,
        so callers must use it rarely.
        """
        own = set(gang.pods)
        others = ((pod, name) for name in nodes for pod in self._state.views[name].pods if pod.key not in own)
        gone = [(pod, name) for pod, name in others if pod.count and pod.owner_kind not in SERVICE_KINDS]
        released = self._release(gone)
        placed = self._attempt(gang, pods)
        self._state.unassign(placed)
        self._restore(released)
        return placed

    def fits_with_moves(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod], movers: Sequence[Pod]) -> bool:
        """Whether the pods fit once ``gone`` have gone, and ``movers`` among these find another place beside them.

        vNPUs assigned on the way count as made. Nothing is changed.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(2 * len(gone) + len(pods) + len(movers))
        self._state.parts.assume_made(True)
        released = self._release(gone, gang)
        placed = self._attempt(gang, pods)
        again: list[Assignment] = []
        for pod in movers if placed else ():
            again += self._place_elsewhere(pod)
        self._state.unassign(again)
        self._state.unassign(placed)
        self._restore(released)
        self._state.parts.assume_made(False)
        return bool(placed) and len(again) == len(movers)

    def _place_elsewhere(self, pod: Pod) -> list[Assignment]:
        """The assignment that a replacement of a running pod would get now."""
        owner = self._gangs.get(self._gangs.of_pod.get(pod.key, ""))
        job = self.job(owner) if owner is not None else None
        if job is None:
            return []
        self._state.dry_run = True
        try:
            return self._state.place(job, [pod], FormerPlacement())[0]
        finally:
            self._state.dry_run = False

    def hold(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Assignment]:
        """Assignments of the pods in place of ``gone``, kept for the rest of the pass; empty when they do not fit.

        Until the pods are really gone, what they hold beyond the new assignments stays taken.
        """
        released = self._release(gone, gang)
        placed = self._attempt(gang, pods)
        if not placed:
            self._restore(released)
            return placed
        left: dict[str, dict[str, int]] = {}
        for item in placed:
            self._kept[item.node] = self.held_chips(item.node) | item.chips
            row = left.setdefault(item.node, {})
            for name, amount in item.pod.requests.items():
                row[name] = row.get(name, 0) + amount
        for item in released:
            rest = _less(item.pod.requests, left.get(item.node, {}))
            whole = self._whole.setdefault(item.pod.uid, item.pod)
            self._state.assign(item._replace(pod=msgspec.structs.replace(item.pod, requests=rest)))
            self._queues.add(self._queue(whole), [whole])
        self._queues.add(gang.queue, [item.pod for item in placed])
        return placed

    def _attempt(self, gang: Gang, pods: Sequence[Pod]) -> list[Assignment]:
        self._state.dry_run = True
        try:
            return self._attempt_of(gang).attempt(pods)
        finally:
            self._state.dry_run = False

    def _release(self, pods: Sequence[Pod | tuple[Pod, str]], gang: Gang | None = None) -> list[Assignment]:
        """Take pods off the state: running ones, and, given with their node, those placed in this pass.

        Pods with parts of chips are released only for a ``gang`` that asks for parts too.
        """
        job = self.job(gang) if gang is not None else None
        parts = job is not None and isinstance(job.shared, DynamicVNPU)
        found: list[Assignment] = []
        for pod, node in ((pod, pod.node) if isinstance(pod, Pod) else pod for pod in pods):
            view = self._state.views.get(node)
            there = next((one for one in view.pods if one.uid == pod.uid), None) if view is not None else None
            if view is None or there is None:
                continue
            mask = _freed(view, there) if parts else _whole_chips(view, there)
            if mask is None:
                continue
            if gang is not None:
                mask &= ~self.held_chips(node)  # chips that are held already are not freed again
            found.append(Assignment(there, view.node.name, mask))
            self._state.unassign(found[-1:])
            whole = self._whole.get(pod.uid, pod)
            self._queues.remove(self._queue(whole), [whole])
        return found

    def _restore(self, released: Sequence[Assignment]) -> None:
        for item in reversed(released):
            self._state.assign(item)
            whole = self._whole.get(item.pod.uid, item.pod)
            self._queues.add(self._queue(whole), [whole])

    def _queue(self, pod: Pod) -> str:
        gang = self._gangs.get(self._gangs.of_pod.get(pod.key, ""))
        return gang.queue if gang is not None else ""

    def _attempt_of(self, gang: Gang) -> GangAttempt:
        key = (gang.key, gang.template)
        found = self._attempts.get(key)
        if found is None:
            found = self._attempts[key] = self._make(gang)
        return found

    def _spend(self, amount: int) -> None:
        if self.effort < amount:
            self.exhausted = True
            raise Exhausted
        self.effort -= amount


def preempts(job: SchedulerJob) -> bool:
    """Whether jobs of this kind evict others at all: whole chips on single nodes do, and jobs without chips; super
    pods, trees, switch affinity, soft sharing and vNPUs never search for victims (component/ascend-for-volcano, preempt
    functions of its handlers).
    """
    if not job.resource:
        return True
    options = job.gang.options
    plain = not job.topology and job.family is not None and options.schedule_policy != "chip1-softShareDev"
    return plain and job.resource in WHOLE_CHIP and options.switch_affinity == "null"


def _may_ever_fit(table: NodeTable, _pod: Pod, view: NodeView) -> bool:
    """Whether no refusal of the node holds for the whole pass."""
    name = view.node.name
    refusal = table.refusals.get(name)
    return name in table.scores or (refusal is not None and refusal.reason not in _PERMANENT)


def _may_help(table: NodeTable, pod: Pod, view: NodeView) -> bool:
    """Whether ending other pods on the node may give the pod its chips."""
    name, counted = view.node.name, view.node.allocatable.get(pod.resource, 0)
    if counted < pod.count:
        return False
    if name in table.scores:
        return True
    refusal = table.refusals.get(name)
    if refusal is None or refusal.reason == NODE_REFUSED:
        return False
    if counted - view.requested.get(pod.resource, 0) < pod.count and view.closed is None:
        return True
    if _short_of_others(refusal):  # the family has not been asked yet
        found = table.of_chips(name)
        if not isinstance(found, Refusal):
            return True
        refusal = found
    return refusal.evictable


def _short_of_others(refusal: Refusal) -> bool:
    """Whether a resource other than chips is short, by Kubernetes' count."""
    return lacks_room(refusal.reason)


def _whole_chips(view: NodeView, pod: Pod) -> int | None:
    """The chips that the pod holds alone; None when it has parts of chips, which others may share."""
    mask = mask_of([chip for chip, holder in view.used_by.items() if holder == pod.key])
    parts = view.soft_chips | view.dynamic_chips | view.static_chips
    if pod.count and (mask & parts or pod.resource not in WHOLE_CHIP):
        return None
    for one in view.pods:
        if one is not pod and one.chips:
            mask &= ~mask_of(list(chip_ids(one)))
    return mask & view.used


def _freed(view: NodeView, pod: Pod) -> int:
    """The chips that no other pod uses once the pod is gone."""
    mask = mask_of(list(chip_ids(pod)))
    for one in view.pods:
        if one is not pod and one.chips:
            mask &= ~mask_of(list(chip_ids(one)))
    return mask & view.used


def _less(requests: Mapping[str, int], taken: dict[str, int]) -> dict[str, int]:
    """Requests less what ``taken`` covers, which shrinks by as much."""
    rest: dict[str, int] = {}
    for name, amount in requests.items():
        covered = min(amount, taken.get(name, 0))
        if covered:
            taken[name] -= covered
        rest[name] = amount - covered
    return rest
