"""Which jobs may evict which: none, unless a queue, a priority class or the scheduler's configuration allows it.

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

from belay.engine.gangs.owners import annotations_of, labels_of
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import VOLCANO_PREEMPTABLE, VOLCANO_RECLAIMABLE
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.preempt.victim_sets import VictimSet
from belay.engine.plan.queue.queues import QueueState
from belay.engine.wire import schedulerconf

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


class PriorityClass(NamedTuple):
    """A PriorityClass: its ``preemptionPolicy``, and whether its jobs may be preempted (None: not stated)."""

    policy: str = ""
    preemptable: bool | None = None


class PreemptionRules:
    """The eviction rules of one pass."""

    def __init__(self, facts: Facts, gangs: PassGangs, queues: Mapping[str, QueueState]) -> None:
        self._gangs, self._queues = gangs, queues
        self._conf = schedulerconf.of(facts.observed.objects)
        self._classes = {
            key.name: _class(raw) for key, raw in facts.observed.objects.items() if key.kind == "PriorityClass"
        }

    @cached_property
    def any_allowed(self) -> bool:
        """Whether any rule of this cluster allows an eviction; cheap, to return early."""
        if self._conf.runs(PREEMPT) or any(queue.preemptable or queue.reclaimable for queue in self._queues.values()):
            return True
        if any(row.preemptable or row.policy == NEVER for row in self._classes.values()):
            return True
        return any(gang.options.states_preemption for gang in self._gangs.values())

    def may_preempt(self, gang: Gang) -> bool:
        """Whether the job's class lets it evict others at all."""
        return self._class_of(gang).policy != NEVER

    def preemption_rule(self, gang: Gang, victims: VictimSet) -> str | None:
        """The rule by which ``victims`` may go for ``gang`` of the same queue; None when there is none."""
        victim = victims.gang
        if victim.queue != gang.queue or victim.priority >= gang.priority or not self.may_preempt(gang):
            return None
        own = _stated(victims, VOLCANO_PREEMPTABLE)
        if own is False:
            return None
        queue, theirs = self._queues.get(victim.queue), self._class_of(victim)
        if own:
            return f"{VOLCANO_PREEMPTABLE}=true"
        if queue is not None and queue.preemptable:
            return f"queue {queue.name} preemptable"
        if theirs.preemptable:
            return f"PriorityClass {victim.priority_class} preemptable"
        pair = self._class_of(gang).policy == LOWER and theirs.policy == NEVER
        if pair and not self._conf.excludes(PREEMPT):
            return f"PriorityClass {gang.priority_class} preempts {victim.priority_class}"
        if self._conf.runs(PREEMPT) and (not victims.ends_job or PREEMPT in self._conf.breaks_gangs):
            return "volcano-scheduler.conf action preempt"
        return None

    def reclaim_rule(self, gang: Gang, victims: VictimSet) -> str | None:
        """The rule by which ``victims`` may go for ``gang`` of another queue, shares aside; None when there is none."""
        victim, queue = victims.gang, self._queues.get(victims.gang.queue)
        if queue is None or victim.queue == gang.queue or not queue.reclaimable:
            return None
        if _stated(victims, VOLCANO_PREEMPTABLE) is False or _stated(victims, VOLCANO_RECLAIMABLE) is False:
            return None
        if not queue.declared and (
            self._conf.excludes(RECLAIM) or (self._conf.runs(RECLAIM) and victims.ends_job and self._protected)
        ):
            return None
        return f"queue {queue.name} reclaimable"

    @property
    def _protected(self) -> bool:
        return RECLAIM not in self._conf.breaks_gangs

    def _class_of(self, gang: Gang) -> PriorityClass:
        return self._classes.get(gang.priority_class, PriorityClass())


def _class(raw: Mapping[str, Any]) -> PriorityClass:
    stated = annotations_of(raw).get(VOLCANO_PREEMPTABLE) or labels_of(raw).get(VOLCANO_PREEMPTABLE)
    return PriorityClass(str(raw.get("preemptionPolicy") or ""), {"true": True, "false": False}.get(str(stated)))


def _stated(victims: VictimSet, key: str) -> bool | None:
    """What the pods or their job state; one "false" protects all."""
    rows = [victims.gang.annotations, victims.gang.labels]
    rows += [row for pod in victims.pods for row in (pod.annotations, pod.labels)]
    said = {row[key].lower() for row in rows if key in row}
    return None if not said else said == {"true"}
