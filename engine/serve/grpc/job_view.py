"""Jobs by the uid of their owner, as the recovery services name them, with pods, ranks, chips and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.gangs.grouping import group
from belay.engine.gangs.owners import POD_GROUP_APIS, controller_of
from belay.engine.model.attribution import HEALTHY, FaultRank, PodPlacement, fault_ranks, health, quiet
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import BACKUP_SOURCE_POD, FAULT_TYPE, POD_TYPE
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.wire.podannotations import chip_ids

JobFaults = tuple[str, tuple[FaultRank, ...]]
BACKUP: Final = "backup"


class JobView(msgspec.Struct, frozen=True):
    """One job. ``pods`` are its live pods in rank order, without the ``backups`` of a hot switch.

    ``group`` is the name of its PodGroup, empty if the cluster has none; ``labels`` and ``annotations`` are the
    PodGroup's, then the owner's, then those of its pods. ``up`` is how many pods run and are not being deleted,
    ``chips_per_pod`` the chips of one pod (0 for a job without chips).
    """

    id: str
    kind: str
    namespace: str
    name: str
    group: str
    labels: dict[str, str]
    annotations: dict[str, str]
    replicas: int
    min_available: int
    pods: tuple[Pod, ...] = ()
    backups: tuple[Pod, ...] = ()
    ranked: dict[int, Pod] = {}
    up: int = 0
    chips_per_pod: int = 0

    @property
    def running(self) -> bool:
        """Whether as many pods run as the job needs."""
        return self.up >= max(1, self.min_available) and self.up >= min(len(self.pods), self.replicas)

    def by_rank(self) -> dict[int, Pod]:
        """Pods by rank; of two with the same rank, the one that is not being deleted. Read-only."""
        return self.ranked


#: Views by job, valid while its gang and pods stay the same.
_VIEWS: Final = CacheKey("views of jobs", Memo[JobView], limit=16384)
#: Faults by job, valid while its nodes with faults stay the same.
_HITS: Final = CacheKey("what hits jobs", Memo[JobFaults], limit=16384)


def views(observed: Observed, cache: PlanCache) -> dict[str, JobView]:
    """Every job of a snapshot by id: jobs with pods, and jobs that have only a PodGroup so far."""
    gangs, _ = group(observed, cache)
    found, known = {}, cache[_VIEWS]
    declared: dict[str, Gang] = {}
    for gang in gangs.values():
        if gang.uid and gang.kind != "Pod":
            other = declared.get(gang.uid)
            declared[gang.uid] = gang if other is None else _rightful(gang, other, observed)
    for uid, gang in declared.items():
        pods = tuple(observed.pods[key] for key in gang.pods)
        found[uid] = known.of(uid, (gang, pods), partial(_of_gang, gang, pods))
    for key, raw in observed.objects.items():
        if key.kind != "PodGroup" or key.api_version not in POD_GROUP_APIS:
            continue
        owner = controller_of(raw)
        uid = str(owner.get("uid") or "")
        if uid and uid not in found:
            found[uid] = _of_group(uid, key.namespace, key.name, owner, raw)
    return found


def places(view: JobView, observed: Observed) -> tuple[PodPlacement, ...]:
    """Where the job's pods run, with their physical chips in the order of their processes."""
    return _placed(tuple(view.by_rank().items()), observed)


def _placed(pods: Sequence[tuple[int, Pod]], observed: Observed) -> tuple[PodPlacement, ...]:
    found = []
    for rank, pod in sorted(pods, key=lambda pair: pair[0]):
        if pod.holds_chips and pod.chips:
            report = observed.reports.get(pod.node)
            prefix = report.prefix if report is not None else pod.chips[0].rpartition("-")[0] + "-"
            found.append(PodPlacement(pod, rank, chip_ids(pod.chips, prefix)))
    return tuple(found)


def impact(view: JobView, observed: Observed, cache: PlanCache) -> JobFaults:
    """How healthy the job is and which faults hit which ranks, by the attribution that `belay-job-*` shows too.

    Only pods with a fault are examined, and only when it changed, so a job of thousands of nodes costs no more than a
    small one.
    """
    loud = {node for node in {pod.node for pod in view.pods if pod.node} if not quiet(node, observed)}
    pods = tuple((rank, pod) for rank, pod in view.by_rank().items() if pod.node in loud or pod.labels.get(FAULT_TYPE))
    if not pods and not any(pod.labels.get(FAULT_TYPE) for pod in view.pods):
        return HEALTHY, ()
    nodes = sorted({pod.node for _, pod in pods})
    inputs = [(observed.nodes.get(n), observed.reports.get(n), observed.node_reports.get(n)) for n in nodes]
    return cache[_HITS].of(view.id, (pods, inputs), partial(_impact, pods, observed))


def _impact(pods: Sequence[tuple[int, Pod]], observed: Observed) -> JobFaults:
    here = _placed(pods, observed)
    ranks = fault_ranks(here, observed.nodes, observed.reports, observed.node_reports)
    return health(here, ranks), ranks


def ranks_of(view: JobView, observed: Observed, node: str) -> dict[str, int]:
    """The global rank of each of the job's chips on a node, by physical id as text."""
    found = {}
    for place in places(view, observed):
        if place.pod.node == node:
            for position, chip in enumerate(place.chips):
                found[str(chip)] = place.rank * len(place.chips) + position
    return found


def _rightful(one: Gang, other: Gang, observed: Observed) -> Gang:
    """Which of two gangs with one uid is the job: anybody may name any uid as the owner of a pod in another namespace.
    The one whose owner is observed with this uid, else the one with the older pods.
    """

    def rank(gang: Gang) -> tuple[bool, float, str]:
        raw = observed.objects.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name)) or {}
        real = (raw.get("metadata") or {}).get("uid") == gang.uid
        return (not real, min((observed.pods[key].created for key in gang.pods), default=0.0), gang.namespace)

    return min(one, other, key=rank)


def _ranked(pods: Sequence[Pod]) -> dict[int, Pod]:
    found: dict[int, Pod] = {}
    for position, pod in enumerate(pods):
        declared = declared_rank(pod)
        rank = position if declared is None else declared
        if rank not in found or found[rank].deleting is not None:
            found[rank] = pod
    return found


def _of_gang(gang: Gang, pods: tuple[Pod, ...]) -> JobView:
    names = {pod.name for pod in pods}
    # a backup pod whose source is gone has replaced it
    spare = {
        pod.uid
        for pod in pods
        if pod.annotations.get(POD_TYPE) == BACKUP and pod.annotations.get(BACKUP_SOURCE_POD) in names
    }
    own = tuple(pod for pod in pods if pod.uid not in spare)
    return JobView(
        id=gang.uid,
        kind=gang.kind,
        namespace=gang.namespace,
        name=gang.name,
        group=gang.pod_group,
        labels=gang.labels,
        annotations=gang.annotations,
        replicas=gang.replicas,
        min_available=gang.min_available,
        pods=own,
        backups=tuple(pod for pod in pods if pod.uid in spare),
        ranked=_ranked(own),
        up=sum(pod.phase == "Running" and pod.deleting is None for pod in own),
        chips_per_pod=max((len(pod.chips) or pod.count for pod in own), default=0),
    )


def _of_group(uid: str, namespace: str, name: str, owner: Mapping[str, Any], raw: Mapping[str, Any]) -> JobView:
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    members = spec.get("minMember")
    least = members if isinstance(members, int) and not isinstance(members, bool) else 1
    return JobView(
        id=uid,
        kind=str(owner.get("kind") or ""),
        namespace=namespace,
        name=str(owner.get("name") or ""),
        group=name,
        labels={str(k): str(v) for k, v in (metadata.get("labels") or {}).items()},
        annotations={str(k): str(v) for k, v in (metadata.get("annotations") or {}).items()},
        replicas=least,
        min_available=least,
    )


__all__ = ["JobFaults", "JobView", "impact", "places", "ranks_of", "views"]
