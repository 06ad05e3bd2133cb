"""Who deserves to run, and in which order: queues, priorities, complete gangs.

Order: the queue's priority, the job's priority, jobs that run at most their minimum ("fragile") before others, fewer
dequeues first, then age and key. Sources: component/ascend-for-volcano/plugin/factory.go (JobOrder), Volcano's
priority, gang and proportion plugins. Queues may use everything up to their capability; nothing is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.model.actions import DeleteObject
from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.model.plan import Pending
from engine.model.quantities import amount
from engine.plan import roles
from engine.plan.gangs import MIN_AVAILABLE_KEY, counts_as_started, parse_min_available, pod_group_of, shard_of
from engine.plan.owners import annotations_of, part
from engine.plan.scope import Scope

QUEUE_APIS: Final = ("scheduling.volcano.sh/v1beta1", "scheduling.incubator.k8s.io/v1alpha1")
DEFAULT_QUEUE: Final = "default"
ROOT_QUEUE: Final = "root"
OPEN: Final = "Open"
MAX_MESSAGE: Final = 1024
DEQUEUES_KEY: Final = "huawei.com/schedule_dequeue_frequency"


@dataclass(slots=True)
class Line:
    """A queue: ``capability`` are the most its jobs may request (cpu in milli-cores), ``used`` what they do."""

    name: str
    state: str = OPEN
    priority: int = 0
    parent: str = ""
    capability: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    broken: str = ""


class Quota:
    """The queues and how much of each is used; follows what is placed in the pass."""

    def __init__(self, scope: Scope) -> None:
        self.lines = _lines(scope)
        self._parents = {line.parent for line in self.lines.values() if line.parent}
        if not any(line.capability for line in self.lines.values()):
            return
        for key, gang_key in scope.gang_of.items():
            pod = scope.observed.pods[key]
            line = self.lines.get(scope.gangs[gang_key].queue)
            if line is not None and line.capability and pod.node and not pod.finished:
                _add(line.used, pod.requests)

    def refusal(self, queue: str) -> tuple[str, str, str | None] | None:
        """(reason, message, way out) why a queue takes no jobs at all; None when it does."""
        line = self.lines.get(queue)
        if line is None:
            if not self.lines or queue == DEFAULT_QUEUE:
                return None
            text = f"check queue<{queue}> failed, maybe it is not create"
            return ("QueueNotFound", text, f"create queue {queue} or name another one")
        if line.broken:
            return ("QueueNotOpen", line.broken, f"correct the capability of queue {queue}")
        if queue == ROOT_QUEUE or queue in self._parents:
            text = f"queue {queue} is no leaf queue, jobs cannot be put there"
            return ("QueueNotOpen", text, "name a leaf queue")
        if line.state != OPEN:
            return ("QueueNotOpen", f"queue {queue} is in state {line.state}, not Open", f"open queue {queue}")
        return None

    def shortage(self, queue: str, pods: Iterable[Pod]) -> tuple[str, str] | None:
        """(message, way out) when the pods' requests exceed what the queue has left; None when they fit."""
        line = self.lines.get(queue)
        if line is None or not line.capability:
            return None
        wanted: dict[str, int] = {}
        for pod in pods:
            _add(wanted, pod.requests)
        for resource, most in sorted(line.capability.items()):
            if line.used.get(resource, 0) + wanted.get(resource, 0) > most and wanted.get(resource, 0):
                missing = line.used.get(resource, 0) + wanted[resource] - most
                return (
                    f"queue {queue} has insufficient quota: {resource} used {line.used.get(resource, 0)} + requested "
                    f"{wanted[resource]} > capability {most}",
                    f"raise the capability of queue {queue} by {missing} {resource} or wait for its jobs to end",
                )
        return None

    def take(self, queue: str, pods: Iterable[Pod]) -> None:
        """Counts placed pods."""
        line = self.lines.get(queue)
        if line is not None and line.capability:
            for pod in pods:
                _add(line.used, pod.requests)


def run(scope: Scope) -> None:
    """Fills ``scope.queue`` with the gangs that may be placed, in order; the others become pending with a reason."""
    if not roles.plays(scope, "schedule") or scope.observed.ledger_broken:
        return
    quota, roster = Quota(scope), Roster(scope)
    entries: list[tuple[tuple[object, ...], str]] = []
    for gang in scope.gangs.values():
        waiting = roster.waiting(gang)
        if not waiting or shard_of(scope, gang) != scope.shard:
            continue
        held = _held_back(gang, waiting, quota, roster)
        if held is not None:
            scope.pending.append(held)
            continue
        entries.append((_rank(scope, gang, quota), gang.key))
    scope.queue = [key for _, key in sorted(entries)]


class Roster:
    """Which pods of a gang this pass may place, and which already count towards its minimum."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._names = frozenset(scope.desired.settings.scheduler_names)
        deleted = (a for a in scope.actions if isinstance(a, DeleteObject) and a.object_kind == "Pod")
        self._leaving = scope.evicting | {f"{action.namespace}/{action.name}" for action in deleted}
        self._succeeded: dict[str, list[Pod]] = {}
        for key, gang_key in scope.gang_of.items():
            pod = scope.observed.pods[key]
            if pod.phase == "Succeeded":
                self._succeeded.setdefault(gang_key, []).append(pod)

    def waiting(self, gang: Gang) -> list[Pod]:
        """Pods that are ours, unbound, staying and not gated, in rank order."""
        pods = self._scope.observed.pods
        return [
            pod
            for pod in map(pods.__getitem__, gang.pods)
            if not pod.node
            and pod.deleting is None
            and not pod.gates
            and pod.scheduler in self._names
            and pod.key not in self._leaving
        ]

    def started(self, gang: Gang) -> list[Pod]:
        """Pods that are bound and stay, and those that have succeeded."""
        pods = map(self._scope.observed.pods.__getitem__, gang.pods)
        bound = [pod for pod in pods if counts_as_started(pod) and pod.key not in self._leaving]
        return bound + self._succeeded.get(gang.key, [])


def pending_entry(
    gang: Gang, pods: Iterable[Pod], reason: str, message: str, *, nodes: Mapping[str, int], unblock: str | None
) -> Pending:
    """One entry of ``pending`` for a gang; messages are bounded."""
    return Pending(
        kind=gang.kind,
        namespace=gang.namespace,
        name=gang.name,
        pods=tuple(sorted(pod.name for pod in pods)),
        reason=reason,
        message=message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
        nodes=dict(sorted(nodes.items())),
        unblock=unblock,
    )


def _held_back(gang: Gang, waiting: list[Pod], quota: Quota, roster: Roster) -> Pending | None:
    closed = quota.refusal(gang.queue)
    if closed is not None:
        reason, message, unblock = closed
        return pending_entry(gang, waiting, reason, message, nodes={}, unblock=unblock)
    stated = gang.annotations.get(MIN_AVAILABLE_KEY)
    if stated is not None and parse_min_available(gang.annotations) is None:
        return pending_entry(
            gang,
            waiting,
            "InvalidRequest",
            f"InvalidArgument: job {gang.name} task minAvailable {stated} is invalid",
            nodes={},
            unblock=f"write a whole number into annotation {MIN_AVAILABLE_KEY}",
        )
    created = len(waiting) + len(roster.started(gang))
    if created < gang.min_available:
        if gang.kind in ("Deployment", "ReplicaSet"):
            message = f"job {gang.name} task num {created} less than replicas {gang.min_available}"
        else:
            message = f"the pods of job is not enough, req: {gang.min_available}, actual: {created}"
        return pending_entry(
            gang,
            waiting,
            "GangIncomplete",
            f"NotEnoughPod: {message}",
            nodes={},
            unblock=f"{gang.min_available - created} more pods of this job must be created (or the old ones be gone)",
        )
    return None


def _rank(scope: Scope, gang: Gang, quota: Quota) -> tuple[object, ...]:
    line = quota.lines.get(gang.queue)
    running = sum(1 for key in gang.pods if scope.observed.pods[key].node)
    text = annotations_of(pod_group_of(scope.observed, gang)).get(DEQUEUES_KEY, "")
    dequeues = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    return (
        -(line.priority if line else 0),
        -gang.priority,
        running > gang.min_available,
        dequeues,
        gang.created,
        gang.key,
    )


def _lines(scope: Scope) -> dict[str, Line]:
    """Queues of the cluster, and those that the settings declare over them."""
    lines: dict[str, Line] = {}
    for key, raw in scope.observed.objects.items():
        if key.kind == "Queue" and key.api_version in QUEUE_APIS:
            lines[key.name] = _of_object(key.name, raw)
    for queue in scope.desired.settings.queues:
        lines[queue.name] = Line(
            queue.name, priority=queue.priority, parent=queue.parent or "", capability=dict(queue.capability)
        )
    return lines


def _of_object(name: str, raw: Mapping[str, Any]) -> Line:
    spec, status = part(raw, "spec"), part(raw, "status")
    line = Line(name, state=str(status.get("state") or spec.get("state") or OPEN), parent=str(spec.get("parent") or ""))
    priority = spec.get("priority")
    line.priority = priority if isinstance(priority, int) else 0
    if line.parent == ROOT_QUEUE:
        line.parent = ""
    for resource, value in sorted(part(spec, "capability").items()):
        try:
            line.capability[str(resource)] = amount(str(resource), value)
        except ValueError as error:
            line.broken = f"queue {name} has an unreadable capability for {resource}: {error}"
    return line


def _add(total: dict[str, int], requests: Mapping[str, int]) -> None:
    for resource, count in requests.items():
        total[resource] = total.get(resource, 0) + count
