"""The queues: which exist, what each may use, uses and deserves; follows the assignments of the pass.

Sources: Volcano's Queue (scheduling.volcano.sh/v1beta1), its capacity and proportion plugins and its webhook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from belay.engine.gangs.kueue import is_kueues
from belay.engine.gangs.owners import annotations_of, labels_of
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import VOLCANO_PREEMPTABLE
from belay.engine.model.pending_reasons import QUEUE_CLOSED, QUEUE_EXHAUSTED, QUEUE_MISSING
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.quantities import amount
from belay.engine.model.remedies import Remedy, Step
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.queue.share import QueueDemand, divide, share

if TYPE_CHECKING:
    from belay.engine.documents import Desired

QUEUE_APIS: Final = ("scheduling.volcano.sh/v1beta1", "scheduling.incubator.k8s.io/v1alpha1")
DEFAULT_QUEUE: Final = "default"
ROOT_QUEUE: Final = "root"
OPEN: Final = "Open"
MAX_WEIGHT: Final = 1_000_000

Amounts = dict[str, int]

#: What a gang's pods have and ask for, while they are unchanged.
_SUMS: Final = CacheKey("requests of gangs", Memo[tuple[Amounts, Amounts]], limit=32768)


@dataclass(slots=True)
class QueueState:
    """A queue: amounts per resource, CPU in milli-cores.

    ``capability``: the most its jobs may request; ``used``: what they request now; ``deserved``: an explicit share;
    ``guarantee``: what no other queue may take. ``reclaimable``: other queues may take back what exceeds its share;
    ``preemptable``: its own jobs of higher priority may evict others. ``declared``: by the settings, not by the
    cluster. ``broken``: why it takes no jobs.
    """

    name: str
    state: str = OPEN
    weight: int = 1
    priority: int = 0
    parent: str = ""
    capability: Amounts = field(default_factory=dict)
    deserved: Amounts = field(default_factory=dict)
    guarantee: Amounts = field(default_factory=dict)
    reclaimable: bool = False
    preemptable: bool = False
    declared: bool = False
    used: Amounts = field(default_factory=dict)
    broken: str = ""


class QueueRefusal(NamedTuple):
    """Why a queue does not take pods: reason, message, the way out in words and as values."""

    reason: str
    message: str
    unblock: str
    remedy: Remedy | None


class QueueShares:
    """What every queue has, asks for and deserves; computed only where several queues compete."""

    def __init__(self, facts: Facts, nodes: PassNodes, gangs: PassGangs, queues: Mapping[str, QueueState]) -> None:
        self.total = _total(nodes)
        self.allocated: dict[str, Amounts] = {}
        requests: dict[str, Amounts] = {}
        for gang in gangs.values():
            has, wants = sums_of(facts, gang)
            if is_kueues(gang.queue):
                # what Kueue has given away is not divided among Belay's queues
                add(self.total, has, -1)
                continue
            add(self.allocated.setdefault(gang.queue, {}), has)
            add(requests.setdefault(gang.queue, {}), wants)
        claims = []
        for name in sorted(requests):
            queue_state = queues.get(name, QueueState(name))
            claims.append(
                QueueDemand(
                    name,
                    queue_state.weight,
                    requests[name],
                    queue_state.capability,
                    queue_state.guarantee,
                    queue_state.deserved,
                )
            )
        self.deserved = divide(self.total, claims)
        self._known: dict[str, float] = {}

    def of(self, queue: str) -> float:
        """The queue's share: what it has, divided by what it deserves."""
        found = self._known.get(queue)
        if found is None:
            found = self._known[queue] = share(self.allocated.get(queue, {}), self.deserved.get(queue, {}))
        return found

    def count(self, queue: str, pods: Iterable[Pod], sign: int) -> None:
        """Count pods in (+1) or out (-1)."""
        self._known.pop(queue, None)
        row = self.allocated.setdefault(queue, {})
        for pod in pods:
            add(row, pod.requests, sign)


class Queues:
    """The queues and how much of each is used; follows the assignments of the pass."""

    def __init__(self, facts: Facts, nodes: PassNodes, gangs: PassGangs) -> None:
        self._facts, self._nodes, self._gangs = facts, nodes, gangs
        self.by_name = queues_of(facts.desired, facts.observed)
        self._parents = {queue_state.parent for queue_state in self.by_name.values() if queue_state.parent}
        self._shares: QueueShares | None = None
        self._limits = _limits(nodes, self.by_name)
        if not self._limits:
            return
        for key, gang_key in gangs.of_pod.items():
            pod = facts.observed.pods[key]
            if pod.node and not pod.finished:
                self._count(gangs[gang_key].queue, (pod,), 1)

    @property
    def shares(self) -> QueueShares:
        """The division of the cluster, computed on first use."""
        if self._shares is None:
            self._shares = QueueShares(self._facts, self._nodes, self._gangs, self.by_name)
        return self._shares

    def refusal(self, queue: str) -> QueueRefusal | None:
        """Why a queue takes no jobs at all; None when it does."""
        queue_state = self.by_name.get(queue)
        if queue_state is None:
            if is_kueues(queue):
                return None  # it has decided already
            if not self.by_name or queue == DEFAULT_QUEUE:
                return None
            text = f"check queue<{queue}> failed, maybe it is not create"
            change = f"create queue {queue} or name another one"
            return QueueRefusal(QUEUE_MISSING, text, change, Remedy(Step.CREATE_QUEUE, name=queue))

        if queue_state.broken:
            return QueueRefusal(QUEUE_CLOSED, queue_state.broken, f"correct queue {queue}", self._another_queue())
        if queue == ROOT_QUEUE or queue in self._parents:
            text = f"queue {queue} is not a leaf queue, jobs cannot be put there"
            return QueueRefusal(QUEUE_CLOSED, text, "name a leaf queue", self._another_queue())
        if queue_state.state != OPEN:
            text = f"queue {queue} is in state {queue_state.state}, not Open"
            return QueueRefusal(QUEUE_CLOSED, text, f"open queue {queue}", Remedy(Step.OPEN_QUEUE, name=queue))
        return None

    def _another_queue(self) -> Remedy | None:
        """The first queue that takes jobs, as the one to name."""
        for name in sorted(self.by_name):
            known = self.by_name[name]
            if name != ROOT_QUEUE and name not in self._parents and known.state == OPEN and not known.broken:
                return Remedy(Step.SET_QUEUE, name=name)
        return None

    def shortage(self, queue: str, pods: Iterable[Pod]) -> QueueRefusal | None:
        """Why the pods' requests exceed what the queue has left; None when they fit."""
        if not self._limits:
            return None
        wanted: Amounts = {}
        for pod in pods:
            add(wanted, pod.requests)
        for name in self._with_parents(queue):
            used = self.by_name[name].used if name in self.by_name else {}
            for resource, most in sorted(self._limits.get(name, {}).items()):
                asked, taken = wanted.get(resource, 0), used.get(resource, 0)
                if asked and taken + asked > most:
                    return self._exceeded(name, resource, taken, asked, most)
        return None

    def _exceeded(self, name: str, resource: str, taken: int, asked: int, most: int) -> QueueRefusal:
        """The refusal of a request beyond a limit of a queue: its own capability, or what guarantees leave it."""
        missing = taken + asked - most
        own = self.by_name[name].capability.get(resource)
        if own is not None and own <= most:
            limit, wider, step = f"capability {most}", f"raise the capability of queue {name}", Step.RAISE_QUEUE
        else:
            limit = f"{most} that the guarantees of other queues leave"
            wider, step = "lower the guarantees of other queues", Step.LOWER_GUARANTEES

        return QueueRefusal(
            QUEUE_EXHAUSTED,
            f"queue {name} has insufficient quota: {resource} used {taken} + requested {asked} > {limit}",
            f"{wider} by {missing} {resource} or wait for its jobs to end",
            Remedy(step, name=name, count=missing, values={resource: ""}),
        )

    def used(self, queue: str) -> Mapping[str, int]:
        """What the running pods of the queue's jobs request now, those of queues below it included."""
        if queue in self._limits:
            return self.by_name[queue].used

        amounts: Amounts = {}
        for key, gang_key in self._gangs.of_pod.items():
            pod = self._facts.observed.pods[key]
            if pod.node and not pod.finished and queue in self._with_parents(self._gangs[gang_key].queue):
                add(amounts, pod.requests)
        return amounts

    def room(self, queue: str, pods: Sequence[Pod]) -> int:
        """How many of the pods, in this order, the queue still has room for."""
        if not self._limits or self.shortage(queue, pods) is None:
            return len(pods)
        low, high = 0, len(pods) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.shortage(queue, pods[:middle]) is None:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, queue: str, pods: Sequence[Pod]) -> None:
        """Count placed pods."""
        self._count_pods(queue, pods, 1)

    def remove(self, queue: str, pods: Sequence[Pod]) -> None:
        """Undo ``add``; also for pods that a what-if takes away."""
        self._count_pods(queue, pods, -1)

    def _count_pods(self, queue: str, pods: Sequence[Pod], sign: int) -> None:
        if self._limits:
            self._count(queue, pods, sign)
        if self._shares is not None:
            # terminating pods were never counted in a share
            self._shares.count(queue, [pod for pod in pods if pod.deleting is None], sign)

    def _count(self, queue: str, pods: Iterable[Pod], sign: int) -> None:
        rows = [self.by_name[name].used for name in self._with_parents(queue) if name in self._limits]
        for pod in pods if rows else ():
            for row in rows:
                add(row, pod.requests, sign)

    def _with_parents(self, queue: str) -> list[str]:
        """The queue and its known parents; a cycle ends where it closes."""
        found: list[str] = []
        while queue in self.by_name and queue not in found:
            found.append(queue)
            queue = self.by_name[queue].parent
        return found


def sums_of(facts: Facts, gang: Gang) -> tuple[Amounts, Amounts]:
    """(has, has and asks for): requests of a gang's bound pods that stay, and of all its live pods."""
    pods = [facts.observed.pods[key] for key in gang.pods]

    def compute() -> tuple[Amounts, Amounts]:
        has: Amounts = {}
        wants: Amounts = {}
        for pod in pods:
            if pod.deleting is None and not pod.finished:
                add(wants, pod.requests)
                if pod.node:
                    add(has, pod.requests)
        return has, wants

    return facts.cache[_SUMS].of(gang.key, pods, compute)


def add(total: Amounts, requests: Mapping[str, int], sign: int = 1) -> None:
    """Add amounts (sign +1) or subtract them (sign -1)."""
    for resource, count in requests.items():
        total[resource] = total.get(resource, 0) + sign * count


def queues_of(desired: Desired, observed: Observed) -> dict[str, QueueState]:
    """Queues of the cluster, overridden by those that the settings declare."""
    queues: dict[str, QueueState] = {}
    for key, raw in observed.objects.items():
        if key.kind == "Queue" and key.api_version in QUEUE_APIS:
            queues[key.name] = read_queue(key.name, raw)
    for queue in desired.settings.queues:
        queue_state = queues[queue.name] = QueueState(
            queue.name,
            weight=queue.weight,
            priority=queue.priority,
            parent="" if queue.parent == ROOT_QUEUE else queue.parent or "",
            reclaimable=queue.reclaimable,
            preemptable=queue.preemptable,
            declared=True,
        )
        for name in ("capability", "deserved", "guarantee"):
            _read(queue_state, name, getattr(queue, name))
    return queues


def read_queue(name: str, raw: Mapping[str, Any]) -> QueueState:
    """A queue as a Queue object says it."""
    spec, status = nested_map(raw, "spec"), nested_map(raw, "status")
    queue_state = QueueState(
        name, state=str(status.get("state") or spec.get("state") or OPEN), parent=str(spec.get("parent") or "")
    )
    priority, weight = spec.get("priority"), spec.get("weight")
    queue_state.priority = priority if isinstance(priority, int) else 0
    queue_state.weight = min(weight, MAX_WEIGHT) if isinstance(weight, int) and weight > 0 else 1
    # Volcano itself takes an absent field for true; Belay evicts only where a queue states that it may
    queue_state.reclaimable = spec.get("reclaimable") is True
    stated = annotations_of(raw).get(VOLCANO_PREEMPTABLE) or labels_of(raw).get(VOLCANO_PREEMPTABLE)
    queue_state.preemptable = spec.get("preemptable") is True or stated == "true"
    if queue_state.parent == ROOT_QUEUE:
        queue_state.parent = ""
    _read(queue_state, "capability", nested_map(spec, "capability"))
    _read(queue_state, "deserved", nested_map(spec, "deserved"))
    _read(queue_state, "guarantee", nested_map(spec, "guarantee", "resource"))
    return queue_state


def _read(queue_state: QueueState, name: str, amounts: Mapping[str, Any]) -> None:
    """Read the amounts of a queue; an amount that is not a quantity closes the queue and states why."""
    row: Amounts = getattr(queue_state, name)
    for resource, value in sorted(amounts.items()):
        try:
            row[str(resource)] = amount(str(resource), value)
        except ValueError as error:
            queue_state.broken = f"queue {queue_state.name} has an unreadable {name} for {resource}: {error}"


def _limits(nodes: PassNodes, queues: Mapping[str, QueueState]) -> dict[str, Amounts]:
    """The hard cap of every queue: its capability, and what the guarantees of other queues leave of the cluster."""
    limits = {name: dict(queue_state.capability) for name, queue_state in queues.items() if queue_state.capability}
    kept: Amounts = {}
    for queue_state in queues.values():
        add(kept, queue_state.guarantee)
    if not kept:
        return limits
    total = _total(nodes)
    for name, queue_state in queues.items():
        row = limits.setdefault(name, {})
        for resource, amount_kept in kept.items():
            own = total.get(resource, 0) - amount_kept + queue_state.guarantee.get(resource, 0)
            row[resource] = max(0, min(row.get(resource, own), own))
    return limits


def _total(nodes: PassNodes) -> Amounts:
    """The allocatable resources of the shard's nodes."""
    total: Amounts = {}
    for view in nodes.values():
        add(total, view.node.allocatable)
    return total
