"""The queues: which exist, what each may have, has and deserves; follows what is placed in the pass.

Sources: Volcano's Queue (scheduling.volcano.sh/v1beta1), its capacity and proportion plugins and its webhook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.model.quantities import amount
from engine.plan.memo import Memo
from engine.plan.owners import annotations_of, labels_of, part
from engine.plan.queue.share import Claim, divide, share
from engine.plan.scope import Scope

QUEUE_APIS: Final = ("scheduling.volcano.sh/v1beta1", "scheduling.incubator.k8s.io/v1alpha1")
DEFAULT_QUEUE: Final = "default"
ROOT_QUEUE: Final = "root"
OPEN: Final = "Open"
PREEMPTABLE_KEY: Final = "volcano.sh/preemptable"
MAX_WEIGHT: Final = 1_000_000

Amounts = dict[str, int]

#: What a gang's pods have and want, while they are what they are.
_SUMS: Final[Memo[tuple[Amounts, Amounts]]] = Memo(32768)


@dataclass(slots=True)
class Line:
    """A queue: amounts per resource, cpu in milli-cores.

    ``capability`` is the most its jobs may request, ``used`` what they do; ``deserved`` an explicit share,
    ``guarantee`` what no other queue may take. ``reclaimable``: other queues may take back what it has beyond its
    share; ``preemptable``: its own jobs of higher priority may evict others. ``declared``: the settings say so, not
    the cluster.
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


class Shares:
    """What every queue has, wants and deserves; only made where several queues compete."""

    def __init__(self, scope: Scope, lines: Mapping[str, Line]) -> None:
        self.total = _total(scope)
        self.allocated: dict[str, Amounts] = {}
        requests: dict[str, Amounts] = {}
        for gang in scope.gangs.values():
            has, wants = sums_of(scope, gang)
            add(self.allocated.setdefault(gang.queue, {}), has)
            add(requests.setdefault(gang.queue, {}), wants)
        claims = []
        for name in sorted(requests):
            line = lines.get(name, Line(name))
            claims.append(Claim(name, line.weight, requests[name], line.capability, line.guarantee, line.deserved))
        self.deserved = divide(self.total, claims)
        self._known: dict[str, float] = {}

    def of(self, queue: str) -> float:
        """The queue's share: what it has of what it deserves."""
        found = self._known.get(queue)
        if found is None:
            found = self._known[queue] = share(self.allocated.get(queue, {}), self.deserved.get(queue, {}))
        return found

    def move(self, queue: str, pods: Iterable[Pod], sign: int) -> None:
        """Counts pods in (+1) or out (-1)."""
        self._known.pop(queue, None)
        row = self.allocated.setdefault(queue, {})
        for pod in pods:
            add(row, pod.requests, sign)


class Quota:
    """The queues and how much of each is used; follows what is placed in the pass."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.lines = lines_of(scope)
        self._parents = {line.parent for line in self.lines.values() if line.parent}
        self._shares: Shares | None = None
        self._limits = _limits(scope, self.lines)
        if not self._limits:
            return
        for key, gang_key in scope.gang_of.items():
            pod = scope.observed.pods[key]
            if pod.node and not pod.finished:
                self._count(scope.gangs[gang_key].queue, (pod,), 1)

    @property
    def shares(self) -> Shares:
        """The division of the cluster, made when it is first asked for."""
        if self._shares is None:
            self._shares = Shares(self._scope, self.lines)
        return self._shares

    def refusal(self, queue: str) -> tuple[str, str, str | None] | None:
        """(reason, message, way out) why a queue takes no jobs at all; None when it does."""
        line = self.lines.get(queue)
        if line is None:
            if not self.lines or queue == DEFAULT_QUEUE:
                return None
            text = f"check queue<{queue}> failed, maybe it is not create"
            return ("QueueNotFound", text, f"create queue {queue} or name another one")
        if line.broken:
            return ("QueueNotOpen", line.broken, f"correct queue {queue}")
        if queue == ROOT_QUEUE or queue in self._parents:
            text = f"queue {queue} is no leaf queue, jobs cannot be put there"
            return ("QueueNotOpen", text, "name a leaf queue")
        if line.state != OPEN:
            return ("QueueNotOpen", f"queue {queue} is in state {line.state}, not Open", f"open queue {queue}")
        return None

    def shortage(self, queue: str, pods: Iterable[Pod]) -> tuple[str, str] | None:
        """(message, way out) when the pods' requests exceed what the queue has left; None when they fit."""
        if not self._limits:
            return None
        wanted: Amounts = {}
        for pod in pods:
            add(wanted, pod.requests)
        for name in self._chain(queue):
            used = self.lines[name].used if name in self.lines else {}
            for resource, most in sorted(self._limits.get(name, {}).items()):
                if wanted.get(resource, 0) and used.get(resource, 0) + wanted[resource] > most:
                    missing = used.get(resource, 0) + wanted[resource] - most
                    own = self.lines[name].capability.get(resource)
                    capped = own is not None and own <= most
                    limit = f"capability {most}" if capped else f"{most} that the guarantees of other queues leave"
                    wider = (
                        f"raise the capability of queue {name}" if capped else "lower the guarantees of other queues"
                    )
                    return (
                        f"queue {name} has insufficient quota: {resource} used {used.get(resource, 0)} + requested "
                        f"{wanted[resource]} > {limit}",
                        f"{wider} by {missing} {resource} or wait for its jobs to end",
                    )
        return None

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

    def take(self, queue: str, pods: Sequence[Pod]) -> None:
        """Counts placed pods."""
        self._move(queue, pods, 1)

    def give(self, queue: str, pods: Sequence[Pod]) -> None:
        """Undoes ``take``; also counts out pods that a what-if takes away."""
        self._move(queue, pods, -1)

    def _move(self, queue: str, pods: Sequence[Pod], sign: int) -> None:
        if self._limits:
            self._count(queue, pods, sign)
        if self._shares is not None:
            # what terminates was never counted in a share
            self._shares.move(queue, [pod for pod in pods if pod.deleting is None], sign)

    def _count(self, queue: str, pods: Iterable[Pod], sign: int) -> None:
        rows = [self.lines[name].used for name in self._chain(queue) if name in self._limits]
        for pod in pods if rows else ():
            for row in rows:
                add(row, pod.requests, sign)

    def _chain(self, queue: str) -> list[str]:
        """The queue and its parents, as far as they are known; a circle ends where it closes."""
        found: list[str] = []
        while queue in self.lines and queue not in found:
            found.append(queue)
            queue = self.lines[queue].parent
        return found


def sums_of(scope: Scope, gang: Gang) -> tuple[Amounts, Amounts]:
    """(has, has and wants): what a gang's placed pods that stay request, and what all its live pods do."""
    pods = [scope.observed.pods[key] for key in gang.pods]

    def compute() -> tuple[Amounts, Amounts]:
        has: Amounts = {}
        wants: Amounts = {}
        for pod in pods:
            if pod.deleting is None and not pod.finished:
                add(wants, pod.requests)
                if pod.node:
                    add(has, pod.requests)
        return has, wants

    return _SUMS.of(gang.key, pods, compute)


def add(total: Amounts, requests: Mapping[str, int], sign: int = 1) -> None:
    """Adds amounts, or takes them away."""
    for resource, count in requests.items():
        total[resource] = total.get(resource, 0) + sign * count


def lines_of(scope: Scope) -> dict[str, Line]:
    """Queues of the cluster, and those that the settings declare over them."""
    lines: dict[str, Line] = {}
    for key, raw in scope.observed.objects.items():
        if key.kind == "Queue" and key.api_version in QUEUE_APIS:
            lines[key.name] = _of_object(key.name, raw)
    for queue in scope.desired.settings.queues:
        line = lines[queue.name] = Line(
            queue.name,
            weight=queue.weight,
            priority=queue.priority,
            parent="" if queue.parent == ROOT_QUEUE else queue.parent or "",
            reclaimable=queue.reclaimable,
            preemptable=queue.preemptable,
            declared=True,
        )
        for name in ("capability", "deserved", "guarantee"):
            _read(line, name, getattr(queue, name))
    return lines


def _of_object(name: str, raw: Mapping[str, Any]) -> Line:
    spec, status = part(raw, "spec"), part(raw, "status")
    line = Line(name, state=str(status.get("state") or spec.get("state") or OPEN), parent=str(spec.get("parent") or ""))
    priority, weight = spec.get("priority"), spec.get("weight")
    line.priority = priority if isinstance(priority, int) else 0
    line.weight = min(weight, MAX_WEIGHT) if isinstance(weight, int) and weight > 0 else 1
    # Volcano itself takes an absent field for true; nothing is evicted here that nobody has allowed
    line.reclaimable = spec.get("reclaimable") is True
    stated = annotations_of(raw).get(PREEMPTABLE_KEY) or labels_of(raw).get(PREEMPTABLE_KEY)
    line.preemptable = spec.get("preemptable") is True or stated == "true"
    if line.parent == ROOT_QUEUE:
        line.parent = ""
    _read(line, "capability", part(spec, "capability"))
    _read(line, "deserved", part(spec, "deserved"))
    _read(line, "guarantee", part(part(spec, "guarantee"), "resource"))
    return line


def _read(line: Line, name: str, amounts: Mapping[str, Any]) -> None:
    """Amounts of a queue; one that is no quantity closes the queue and says why."""
    row: Amounts = getattr(line, name)
    for resource, value in sorted(amounts.items()):
        try:
            row[str(resource)] = amount(str(resource), value)
        except ValueError as error:
            line.broken = f"queue {line.name} has an unreadable {name} for {resource}: {error}"


def _limits(scope: Scope, lines: Mapping[str, Line]) -> dict[str, Amounts]:
    """The hard cap of every queue: its capability, and what the other queues' guarantees leave of the cluster."""
    limits = {name: dict(line.capability) for name, line in lines.items() if line.capability}
    kept: Amounts = {}
    for line in lines.values():
        add(kept, line.guarantee)
    if not kept:
        return limits
    total = _total(scope)
    for name, line in lines.items():
        row = limits.setdefault(name, {})
        for resource, amount_kept in kept.items():
            own = total.get(resource, 0) - amount_kept + line.guarantee.get(resource, 0)
            row[resource] = max(0, min(row.get(resource, own), own))
    return limits


def _total(scope: Scope) -> Amounts:
    """What the shard's nodes offer."""
    total: Amounts = {}
    for view in scope.nodes.values():
        add(total, view.node.allocatable)
    return total
