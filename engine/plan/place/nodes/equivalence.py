"""Pods with the same request share a table of candidates; of jobs of one bare pod, the first of each kind is read for
all.

A queue of thousands of pods from a few templates is read once per template. The result lives as long as the pass, so no
change of documents can make it stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from belay.engine.gangs.forming import pod_group_of
from belay.engine.gangs.owners import generated_group, spec_of
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.jobs import Gang
from belay.engine.plan.facts import Facts
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob, equivalent_job
from belay.engine.plan.place.nodes.volumes import ClusterVolumes
from belay.engine.plan.place.part_requests import DynamicVNPU, SoftShare, dvpp_of, level_of
from belay.engine.plan.recover.outcome import RecoveryOutcome

#: Most models kept per resource and chip count; further templates are read pod by pod.
_MOST: Final = 8


class EquivalentJobs:
    """The first job of each kind in this pass, by the request of its one pod."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], list[tuple[Gang, Pod, Mapping[str, Any], SchedulerJob]]] = {}

    def job(self, gang: Gang, observed: Observed, read: Callable[[], SchedulerJob | Refusal]) -> SchedulerJob | Refusal:
        """The result of ``read`` for the gang; ``read`` is called only where no earlier gang was equivalent."""
        if gang.kind != "Pod" or len(gang.pods) != 1:
            return read()
        pod = observed.pods[gang.pods[0]]
        if not _simple(pod) or gang.pod_group not in ("", generated_group(pod)):
            return read()
        group = spec_of(pod_group_of(observed, gang)) if gang.pod_group else {}
        models = self._known.setdefault((pod.resource, pod.count), [])
        for other, its, its_group, job in models:
            if group == its_group and _alike(gang, pod, other, its):
                return equivalent_job(job, gang, pod)
        found = read()
        if isinstance(found, SchedulerJob) and not found.topology and found.shared is None and len(models) < _MOST:
            models.append((gang, pod, group, found))
        return found


def _alike(gang: Gang, pod: Pod, other: Gang, its: Pod) -> bool:
    """Whether the two gangs have one family, request and candidates."""
    return gang.labels == other.labels and gang.annotations == other.annotations and _ask_alike(pod, its)


def _ask_alike(pod: Pod, other: Pod) -> bool:
    """Whether two pods ask for the same of a node; False where equality alone cannot show it."""
    return (
        pod.resource == other.resource
        and pod.count == other.count
        and pod.requests == other.requests
        and pod.node_selector == other.node_selector
        and pod.tolerations == other.tolerations
        and pod.host_ports == other.host_ports
        and _simple(pod)
        and _simple(other)
    )


def _simple(pod: Pod) -> bool:
    """Whether equal fields mean the same request: affinity may hold 1 or true, which are equal; volumes bind pods to
    nodes.
    """
    return not (pod.affinity or pod.claims or pod.resource_claims)


class TableKeys:
    """The key of the table that a pod shares with all pods of the same request."""

    def __init__(self, facts: Facts, recovery: RecoveryOutcome, volumes: ClusterVolumes) -> None:
        self._facts, self._recovery, self._volumes = facts, recovery, volumes
        self._job: SchedulerJob | None = None
        self._known: dict[str, bytes] = {}
        self._rules: tuple[object, ...] = ()
        self._last: Pod | None = None
        #: Keys of pods whose job has a model, by the model's gang.
        self._models: dict[str, bytes] = {}

    def of(self, job: SchedulerJob, pod: Pod) -> bytes:
        """The pod's table key; it includes the nodes that the gang avoids."""
        model, gang = job.model, job.gang.key
        if model is None or self._recovery.penalty.get(gang) or self._recovery.refused.get(gang):
            return self._own(job, pod)
        found = self._models.get(model.gang.key)
        if found is None:
            found = self._models[model.gang.key] = self._own(job, pod)
        return found

    def _own(self, job: SchedulerJob, pod: Pod) -> bytes:
        if job is not self._job:
            self._job, self._known, self._last = job, {}, None
            self._rules = _rules(self._recovery, job)
        name = pod.key
        found = self._known.get(name)
        if found is None:
            last = self._last
            if last is not None and _ask_alike(pod, last) and not isinstance(job.shared, DynamicVNPU):
                found = self._known[name] = self._known[last.key]
                return found
            request = (pod.resource, pod.count, pod.requests, pod.node_selector, pod.affinity, pod.tolerations)
            claims = self._facts.claims.signature(pod)
            whole = (self._rules, request, pod.host_ports, self._volumes.rules(pod), _cut(job, pod), claims)
            found = self._known[name] = msgspec.json.encode(whole, order="deterministic")
            self._last = pod
        return found


def _rules(recovery: RecoveryOutcome, job: SchedulerJob) -> tuple[object, ...]:
    """What a job's rules add to the requests of its pods."""
    gang = job.gang.key
    own = (recovery.penalty.get(gang) or {}, recovery.refused.get(gang) or {})
    shared = (repr(job.shared), job.gang.key if isinstance(job.shared, SoftShare) else "")
    return (_words(job.family), job.topology, job.strict, job.distributed, job.gang.options.distributed, own, shared)


@lru_cache(maxsize=256)
def _words(family: object) -> str:
    return repr(family)


def _cut(job: SchedulerJob, pod: Pod) -> tuple[str, ...]:
    """Labels that choose among the templates of vNPUs cut on demand."""
    return (level_of(pod), dvpp_of(pod)) if isinstance(job.shared, DynamicVNPU) else ()
