"""Who may be evicted for whom: nobody, unless a queue, a priority class or the scheduler's configuration says so.

Within a queue (preemption): only for a job of higher priority whose class is not ``preemptionPolicy: Never``, and only
where one of these allows it: annotation or label ``volcano.sh/preemptable: "true"`` of the pods, the job or its
priority class; ``preemptable`` of the queue; action ``preempt`` in ``volcano-scheduler.conf``; a pair of priority
classes as in tidal scheduling, ``PreemptLowerPriority`` over ``Never``. Across queues (reclaim): only from queues that
are ``reclaimable``. ``"false"`` on a pod or job protects it from both. Sources: Volcano's actions preempt and reclaim;
docs/zh/scheduling/04_usage/10_tidal_scheduling of MindCluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.owners import annotations_of, labels_of
from engine.plan.queue.lines import PREEMPTABLE_KEY, Line
from engine.plan.queue.units import Unit
from engine.plan.scope import Scope
from engine.wire import schedulerconf

RECLAIMABLE_KEY: Final = "volcano.sh/reclaimable"
PREEMPT: Final = "preempt"
RECLAIM: Final = "reclaim"
NEVER: Final = "Never"
LOWER: Final = "PreemptLowerPriority"


#: Pods that keep the cluster itself alive are never evicted for others (Volcano's plugin conformance).
SYSTEM_NAMESPACE: Final = "kube-system"
SYSTEM_CLASSES: Final = frozenset({"system-cluster-critical", "system-node-critical"})


def critical(pod: Pod) -> bool:
    """Whether the cluster itself needs the pod."""
    return pod.namespace == SYSTEM_NAMESPACE or pod.priority_class in SYSTEM_CLASSES


class Class(NamedTuple):
    """What a PriorityClass says: its ``preemptionPolicy``, and whether its jobs may be preempted (None: nothing)."""

    policy: str = ""
    preemptable: bool | None = None


class Consent:
    """Answers for one pass."""

    def __init__(self, scope: Scope, lines: Mapping[str, Line]) -> None:
        self._scope, self._lines = scope, lines
        self._conf = schedulerconf.of(scope.observed.objects)
        self._classes = {
            key.name: _class(raw) for key, raw in scope.observed.objects.items() if key.kind == "PriorityClass"
        }

    @cached_property
    def anywhere(self) -> bool:
        """Whether anything at all in this cluster allows an eviction; cheap, to leave early."""
        if self._conf.runs(PREEMPT) or any(line.preemptable or line.reclaimable for line in self._lines.values()):
            return True
        if any(row.preemptable or row.policy == NEVER for row in self._classes.values()):
            return True
        return any(PREEMPTABLE_KEY in g.annotations or PREEMPTABLE_KEY in g.labels for g in self._scope.gangs.values())

    def preempts(self, gang: Gang) -> bool:
        """Whether the job's class lets it evict others at all."""
        return self._class_of(gang).policy != NEVER

    def preempted(self, gang: Gang, unit: Unit) -> str | None:
        """The rule by which ``unit`` may go for ``gang`` of the same queue; None when there is none."""
        victim = unit.gang
        if victim.queue != gang.queue or victim.priority >= gang.priority or not self.preempts(gang):
            return None
        own = _stated(unit, PREEMPTABLE_KEY)
        if own is False:
            return None
        line, theirs = self._lines.get(victim.queue), self._class_of(victim)
        if own:
            return f"{PREEMPTABLE_KEY}=true"
        if line is not None and line.preemptable:
            return f"queue {line.name} preemptable"
        if theirs.preemptable:
            return f"PriorityClass {victim.priority_class} preemptable"
        pair = self._class_of(gang).policy == LOWER and theirs.policy == NEVER
        if pair and not self._conf.excludes(PREEMPT):
            return f"PriorityClass {gang.priority_class} preempts {victim.priority_class}"
        if self._conf.runs(PREEMPT) and (not unit.ends or PREEMPT in self._conf.breaks_gangs):
            return "volcano-scheduler.conf action preempt"
        return None

    def reclaimed(self, gang: Gang, unit: Unit) -> str | None:
        """The rule by which ``unit`` may go for ``gang`` of another queue; shares are asked elsewhere."""
        victim, line = unit.gang, self._lines.get(unit.gang.queue)
        if line is None or victim.queue == gang.queue or not line.reclaimable:
            return None
        if _stated(unit, PREEMPTABLE_KEY) is False or _stated(unit, RECLAIMABLE_KEY) is False:
            return None
        if not line.declared and (
            self._conf.excludes(RECLAIM) or (self._conf.runs(RECLAIM) and unit.ends and self._protected)
        ):
            return None
        return f"queue {line.name} reclaimable"

    @property
    def _protected(self) -> bool:
        return RECLAIM not in self._conf.breaks_gangs

    def _class_of(self, gang: Gang) -> Class:
        return self._classes.get(gang.priority_class, Class())


def _class(raw: Mapping[str, Any]) -> Class:
    stated = annotations_of(raw).get(PREEMPTABLE_KEY) or labels_of(raw).get(PREEMPTABLE_KEY)
    return Class(str(raw.get("preemptionPolicy") or ""), {"true": True, "false": False}.get(str(stated)))


def _stated(unit: Unit, key: str) -> bool | None:
    """What the pods or their job say themselves; one "false" protects all."""
    rows = [unit.gang.annotations, unit.gang.labels]
    rows += [row for pod in unit.pods for row in (pod.annotations, pod.labels)]
    said = {row[key].lower() for row in rows if key in row}
    return None if not said else said == {"true"}
