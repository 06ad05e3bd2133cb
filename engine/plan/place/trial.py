"""What-ifs: would a job fit if these pods were gone? The same placement code on the same bench, undone afterwards.

Releasing pods and seating a gang touch a few nodes only, so a what-if costs what changes, not what there is. ``hold``
leaves the tentative seats in place, so that what becomes free for one job is not given to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from engine.model.cluster import Pod, mask_of
from engine.model.jobs import Gang
from engine.plan.place.bench import Bench, Seated, Wishes
from engine.plan.place.job import WHOLE_CHIP, Job
from engine.plan.place.pending import FIRST_STAGE
from engine.plan.place.sharing import Dynamic
from engine.plan.place.table import Table
from engine.plan.place.verdict import INSUFFICIENT, SHORTAGE_PREFIX, TOO_MANY_PODS, UNSCHEDULABLE_TOPOLOGY, Refusal
from engine.plan.queue.lines import Quota
from engine.plan.queue.search import Exhausted
from engine.plan.scope import NodeView, Scope
from engine.plan.views import chip_ids

#: Pods released and seats tried in one pass, all what-ifs together.
EFFORT: Final = 12_000
#: Candidates that a search merely looks at for what one of these costs.
LOOKS: Final = 32
#: Owners whose pods run until somebody scales them down.
SERVICE_KINDS: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet"})
#: Refusals that no end of work cures.
_STANDING: Final = FIRST_STAGE | {"NodeRefused", "ReservedForGang", "PoolSuspended", "NodeNotReady"}


class Attempt(Protocol):
    """One gang's placement as a what-if needs it."""

    gang: Gang

    @property
    def job(self) -> Job | None:
        """The job behind the gang, None when no handler places it."""

    def attempt(self, pods: Sequence[Pod]) -> list[Seated]:
        """Seats for all of these pods, left on the bench; empty when they do not fit together."""


class Trials:
    """The what-ifs of one pass, within a common effort."""

    def __init__(self, scope: Scope, bench: Bench, quota: Quota, make: Callable[[Gang], Attempt]) -> None:
        self._scope, self._bench, self._quota, self._make = scope, bench, quota, make
        self._attempts: dict[str, Attempt] = {}
        self._kept: dict[str, int] = {}
        #: Pods of which only a rest is on the bench since others hold seats in their place, as they were, by UID.
        self._whole: dict[str, Pod] = {}
        self.effort = EFFORT
        #: Whether a what-if was refused because the pass's effort is used up.
        self.spent = False

    def kept(self, node: str) -> int:
        """The chips of a node that ``hold`` has kept in this pass."""
        return self._kept.get(node, 0)

    def job(self, gang: Gang) -> Job | None:
        """The job behind a gang."""
        return self._of(gang).job

    def place(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Seated]:
        """Where the pods would go once ``gone`` are gone; empty when they do not fit. Nothing is changed.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(2 * len(gone) + len(pods))
        released = self._release(gone, gang)
        placed = self._seat(gang, pods)
        self._bench.take_back(placed)
        self._restore(released)
        return placed

    @contextmanager
    def without(self, gang: Gang, pods: Sequence[Pod]) -> Iterator[None]:
        """What-ifs in a world in which these have gone already.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(2 * len(pods))
        released = self._release(pods, gang)
        try:
            yield
        finally:
            self._restore(released)

    def opens(self, gang: Gang, pod: Pod, node: str, gone: Sequence[Pod]) -> bool:
        """Whether the pod fits on the node once those of ``gone`` that are there have gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        job = self.job(gang)
        if job is None:
            return False
        there = [one for one in gone if one.node == node]
        self._spend(2 * len(there) + 1)
        released = self._release(there, gang)
        fits = node in self._bench.table(job, pod).scores and self._bench.allowed(pod, node) is None
        self._restore(released)
        return fits

    def look(self, candidates: int) -> None:
        """Pays for going through so many candidates.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(candidates // LOOKS)

    def helped(self, gang: Gang, pod: Pod, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes on which evictions may help the pod, by upstream's rule: its refusal is one of chips, or
        of what Kubernetes counts where chips are no obstacle or can be freed too.

        Source: component/ascend-for-volcano (NodePredicate): only these messages are "Unschedulable", the others
        "UnschedulableAndUnresolvable"; Volcano's actions preempt and reclaim compare every resource of the pod with
        what victims free (pkg/scheduler/actions/preempt, util.ValidateVictims).
        """
        job, views = self.job(gang), self._bench.views
        if job is None:
            return set()
        table, helps = self._bench.table(job, pod), _helps if job.resource else _may_ever
        return {node for node in nodes if node in views and helps(table, pod, views[node])}

    def crowded(self, gang: Gang, pod: Pod, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes that have too little for the pod of what Kubernetes counts beside chips, so that the end
        of any pod there may help, also of one without chips.
        """
        job = self.job(gang)
        if job is None:
            return set()
        refusals = self._bench.table(job, pod).refusals
        return {node for node in nodes if (refusal := refusals.get(node)) is not None and _crowded(refusal)}

    def kind(self, gang: Gang, pods: Sequence[Pod]) -> tuple[object, ...]:
        """Equal for gangs that ask for the same in the same places, so that what does not help one helps none of them.

        Whom other pods attract or keep away is alike to nobody.
        """
        job = self.job(gang)
        if job is None or any(map(self._bench.neighbours.concerns, pods)):
            return (gang.key,)
        asked = (id(self._bench.table(job, pod)) for pod in pods)
        return (gang.queue, gang.priority, gang.priority_class, tuple(asked))

    def may_ever(self, gang: Gang, pod: Pod, node: str) -> bool:
        """Whether the node could take the pod at all, were it empty: nothing that stands for the whole pass is against
        it.
        """
        job, view = self.job(gang), self._bench.views.get(node)
        return job is not None and view is not None and _may_ever(self._bench.table(job, pod), pod, view)

    def state(self, node: str) -> tuple[object, ...]:
        """What there is on a node now; while it is the same, so are what-ifs about the node alone."""
        view = self._bench.views.get(node)
        return () if view is None else (view.used, len(view.pods), *sorted(view.requested.items()))

    def drain(self, gang: Gang, pods: Sequence[Pod], nodes: Sequence[str]) -> list[Seated]:
        """Where the pods would go once all other jobs on these nodes have ended; services never do. Costs no effort,
        so that it must be asked for rarely.
        """
        own = set(gang.pods)
        others = ((pod, name) for name in nodes for pod in self._bench.views[name].pods if pod.key not in own)
        gone = [(pod, name) for pod, name in others if pod.count and pod.owner_kind not in SERVICE_KINDS]
        released = self._release(gone)
        placed = self._seat(gang, pods)
        self._bench.take_back(placed)
        self._restore(released)
        return placed

    def moves(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod], movers: Sequence[Pod]) -> bool:
        """Whether the pods fit once ``gone`` have gone, and ``movers`` among these find another place beside them.

        vNPUs that are given on the way count as made. Nothing is changed.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """
        self._spend(2 * len(gone) + len(pods) + len(movers))
        self._bench.parts.rehearse(True)
        released = self._release(gone, gang)
        placed = self._seat(gang, pods)
        again: list[Seated] = []
        for pod in movers if placed else ():
            again += self._elsewhere(pod)
        self._bench.take_back(again)
        self._bench.take_back(placed)
        self._restore(released)
        self._bench.parts.rehearse(False)
        return bool(placed) and len(again) == len(movers)

    def _elsewhere(self, pod: Pod) -> list[Seated]:
        """Where a running pod would go if it were made anew now."""
        owner = self._scope.gangs.get(self._scope.gang_of.get(pod.key, ""))
        job = self.job(owner) if owner is not None else None
        if job is None:
            return []
        self._bench.quiet = True
        try:
            return self._bench.seat(job, [pod], Wishes())[0]
        finally:
            self._bench.quiet = False

    def hold(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Seated]:
        """Seats for the pods in place of ``gone``, kept for the rest of the pass; empty when they do not fit.

        Until they are really gone, what they hold beyond the new seats stays taken.
        """
        released = self._release(gone, gang)
        placed = self._seat(gang, pods)
        if not placed:
            self._restore(released)
            return placed
        left: dict[str, dict[str, int]] = {}
        for item in placed:
            self._kept[item.node] = self.kept(item.node) | item.chips
            row = left.setdefault(item.node, {})
            for name, amount in item.pod.requests.items():
                row[name] = row.get(name, 0) + amount
        for item in released:
            rest = _less(item.pod.requests, left.get(item.node, {}))
            whole = self._whole.setdefault(item.pod.uid, item.pod)
            self._bench.put(item._replace(pod=msgspec.structs.replace(item.pod, requests=rest)))
            self._quota.take(self._queue(whole), [whole])
        self._quota.take(gang.queue, [item.pod for item in placed])
        return placed

    def _seat(self, gang: Gang, pods: Sequence[Pod]) -> list[Seated]:
        self._bench.quiet = True
        try:
            return self._of(gang).attempt(pods)
        finally:
            self._bench.quiet = False

    def _release(self, pods: Sequence[Pod | tuple[Pod, str]], gang: Gang | None = None) -> list[Seated]:
        """Takes pods off the bench: running ones, and with their node those that this pass has placed.

        Those with parts of chips go only for a ``gang`` that wants parts too.
        """
        job = self.job(gang) if gang is not None else None
        parts = job is not None and isinstance(job.shared, Dynamic)
        found: list[Seated] = []
        for pod, node in ((pod, pod.node) if isinstance(pod, Pod) else pod for pod in pods):
            view = self._bench.views.get(node)
            there = next((one for one in view.pods if one.uid == pod.uid), None) if view is not None else None
            if view is None or there is None:
                continue
            mask = _freed(view, there) if parts else _whole_chips(view, there)
            if mask is None:
                continue
            if gang is not None:
                mask &= ~self.kept(node)  # whoever leaves frees nothing that is promised already
            found.append(Seated(there, view.node.name, mask))
            self._bench.take_back(found[-1:])
            whole = self._whole.get(pod.uid, pod)
            self._quota.give(self._queue(whole), [whole])
        return found

    def _restore(self, released: Sequence[Seated]) -> None:
        for item in reversed(released):
            self._bench.put(item)
            whole = self._whole.get(item.pod.uid, item.pod)
            self._quota.take(self._queue(whole), [whole])

    def _queue(self, pod: Pod) -> str:
        gang = self._scope.gangs.get(self._scope.gang_of.get(pod.key, ""))
        return gang.queue if gang is not None else ""

    def _of(self, gang: Gang) -> Attempt:
        found = self._attempts.get(gang.key)
        if found is None:
            found = self._attempts[gang.key] = self._make(gang)
        return found

    def _spend(self, amount: int) -> None:
        if self.effort < amount:
            self.spent = True
            raise Exhausted
        self.effort -= amount


def preempts(job: Job) -> bool:
    """Whether jobs of this kind evict others at all: whole chips on single nodes do, and jobs without chips; super
    pods, trees, switch affinity, soft sharing and vNPUs never ask for victims (component/ascend-for-volcano, handlers'
    preempt functions).
    """
    if not job.resource:
        return True
    policy = job.shape.annotations.get("huawei.com/schedule_policy", "")
    plain = not job.topology and job.family is not None and policy != "chip1-softShareDev"
    return plain and job.resource in WHOLE_CHIP and job.shape.labels.get("tor-affinity", "null") == "null"


def _may_ever(table: Table, _pod: Pod, view: NodeView) -> bool:
    """Whether nothing that stands for the whole pass is against the node."""
    name = view.node.name
    refusal = table.refusals.get(name)
    return name in table.scores or (refusal is not None and refusal.reason not in _STANDING)


def _helps(table: Table, pod: Pod, view: NodeView) -> bool:
    """Whether the end of others on the node may give the pod its chips."""
    name, counted = view.node.name, view.node.allocatable.get(pod.resource, 0)
    if counted < pod.count:
        return False
    if name in table.scores:
        return True
    refusal = table.refusals.get(name)
    if refusal is None or refusal.reason == "NodeRefused":
        return False
    if counted - view.requested.get(pod.resource, 0) < pod.count and view.closed is None:
        return True
    if _crowded(refusal):  # the handler was not asked yet
        found = table.of_chips(name)
        if not isinstance(found, Refusal):
            return True
        refusal = found
    return SHORTAGE_PREFIX in refusal.message or UNSCHEDULABLE_TOPOLOGY in refusal.message


def _crowded(refusal: Refusal) -> bool:
    """Whether other resources than chips are short, by what Kubernetes counts."""
    return refusal.reason.startswith(INSUFFICIENT) or refusal.reason == TOO_MANY_PODS


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
    """The chips on which nobody is left without the pod."""
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
