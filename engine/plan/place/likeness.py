"""Pods that ask alike: they share a table of candidates, and of bare ones the first is read for all.

A queue of thousands of pods from a few templates is read once a template. What is remembered lives as long as the pass,
so that nobody has to ask whether documents have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.place import volumes
from engine.plan.place.job import Job, named_alike
from engine.plan.place.sharing import Dynamic, Soft, dvpp_of, level_of
from engine.plan.place.verdict import Refusal
from engine.plan.scope import Scope

#: Templates that are remembered of one resource and count; others are read pod by pod.
_MOST: Final = 8


class Likeness:
    """The first job of each kind in this pass, by what its one pod asks for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], list[tuple[Gang, Pod, Job]]] = {}

    def job(self, gang: Gang, pods: Mapping[str, Pod], read: Callable[[], Job | Refusal]) -> Job | Refusal:
        """What ``read`` would give for the gang; it is only called where no gang before was like this one."""
        if gang.kind != "Pod" or gang.pod_group or len(gang.pods) != 1:
            return read()
        pod = pods[gang.pods[0]]
        if not _simple(pod):
            return read()
        models = self._known.setdefault((pod.resource, pod.count), [])
        for other, its, job in models:
            if _alike(gang, pod, other, its):
                return named_alike(job, gang, pod)
        found = read()
        if isinstance(found, Job) and not found.topology and found.shared is None and len(models) < _MOST:
            models.append((gang, pod, found))
        return found


def _alike(gang: Gang, pod: Pod, other: Gang, its: Pod) -> bool:
    """Whether the two have one handler, shape and candidates."""
    return gang.labels == other.labels and gang.annotations == other.annotations and _ask_alike(pod, its)


def _ask_alike(pod: Pod, other: Pod) -> bool:
    """Whether two pods want the same of a node; False where that would take a closer look."""
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
    """Affinity may hold 1 or true, which are equal and not the same; volumes bind pods to nodes of their own."""
    return not (pod.affinity or pod.claims)


class Keys:
    """What a pod asks for, as the key of the table that it shares with all who ask for the same."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._job: Job | None = None
        self._known: dict[str, bytes] = {}
        self._rules: tuple[object, ...] = ()
        self._last: Pod | None = None
        #: Keys of pods that their jobs' models stand for, by the model's gang.
        self._models: dict[str, bytes] = {}

    def of(self, job: Job, pod: Pod) -> bytes:
        """What makes two pods alike; the nodes that their gangs avoid are part of it."""
        model, gang = job.model, job.gang.key
        if model is None or self._scope.penalty.get(gang) or self._scope.refused.get(gang):
            return self._own(job, pod)
        found = self._models.get(model.gang.key)
        if found is None:
            found = self._models[model.gang.key] = self._own(job, pod)
        return found

    def _own(self, job: Job, pod: Pod) -> bytes:
        if job is not self._job:
            self._job, self._known, self._last = job, {}, None
            self._rules = _rules(self._scope, job)
        name = pod.key
        found = self._known.get(name)
        if found is None:
            last = self._last
            if last is not None and _ask_alike(pod, last) and not isinstance(job.shared, Dynamic):
                found = self._known[name] = self._known[last.key]
                return found
            wishes = (pod.resource, pod.count, pod.requests, pod.node_selector, pod.affinity, pod.tolerations)
            bound = volumes.required(pod, self._scope.observed) if pod.claims else ()
            whole = (self._rules, wishes, pod.host_ports, bound, _cut(job, pod))
            found = self._known[name] = msgspec.json.encode(whole, order="deterministic")
            self._last = pod
        return found


def _rules(scope: Scope, job: Job) -> tuple[object, ...]:
    """What a job's rules add to its pods' wishes."""
    gang = job.gang.key
    own = (scope.penalty.get(gang) or {}, scope.refused.get(gang) or {})
    labels = job.shape.labels.get("distributed", "")
    shared = (repr(job.shared), job.gang.key if isinstance(job.shared, Soft) else "")
    return (_words(job.family), job.topology, job.strict, job.distributed, labels, own, shared)


@lru_cache(maxsize=256)
def _words(family: object) -> str:
    return repr(family)


def _cut(job: Job, pod: Pod) -> tuple[str, ...]:
    """Labels that choose among the templates of vNPUs cut on demand."""
    return (level_of(pod), dvpp_of(pod)) if isinstance(job.shared, Dynamic) else ()
