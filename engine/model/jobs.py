"""Jobs for the planner: one gang per owner of any kind."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import msgspec

from belay.engine.model.job_options import JobOptions, read_options

#: Kinds whose pods serve independently: each pod is a unit, and only hit pods are evicted.
INDEPENDENT_KINDS: Final = frozenset({"Deployment", "ReplicaSet", "Pod"})


class Gang(msgspec.Struct, frozen=True, dict=True):
    """Pods that start together or not at all.

    ``kind``/``namespace``/``name``/``uid`` name the owner (AscendJob, Volcano Job, Deployment,
    StatefulSet, Job, a PodGroup when pods have only that, else the Pod itself). ``labels`` and
    ``annotations`` are merged: PodGroup wins, then the owner, then its first pod. ``min_available``
    pods must start together; ``replicas`` is how many the owner wants; ``task_min`` the minimum per
    task (``volcano.sh/task-spec``). ``pods`` are the keys of the live pods, ordered by rank, then name.
    ``declared`` is how many pods with chips its object declares, 0 where that decides nothing; ``settles``: it is
    not known how many pods there will be, so they wait until for so many seconds no more came (0: it is known).
    """

    key: str
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    queue: str
    priority: int
    priority_class: str
    created: float
    min_available: int
    replicas: int
    task_min: dict[str, int]
    pods: tuple[str, ...]
    pod_group: str = ""
    rollout: tuple[Gang, ...] = ()
    template: str = ""
    wanted: int = 0
    declared: int = 0
    settles: float = 0.0

    @cached_property
    def options(self) -> JobOptions:
        """What the job says by labels and annotations."""
        return read_options(self.labels, self.annotations)

    @property
    def fault_scheduling(self) -> str:
        """The job's switch for rescheduling."""
        return self.options.fault_scheduling
