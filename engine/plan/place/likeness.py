"""Bare pods that ask alike: what placement found of the first holds for the others.

A queue of thousands of pods from a few templates is read once a template. What is remembered lives as long as the pass,
so that nobody has to ask whether documents have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.place.job import Job, named_alike
from engine.plan.place.verdict import Refusal

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
        # affinity may hold 1 or true, which are equal and not the same; volumes bind pods to nodes of their own
        if pod.affinity or pod.claims:
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
    """Whether nothing but names tells the two apart, as far as placement looks."""
    return (
        gang.labels == other.labels
        and gang.annotations == other.annotations
        and pod.requests == its.requests
        and pod.node_selector == its.node_selector
        and pod.tolerations == its.tolerations
        and pod.host_ports == its.host_ports
    )
