"""Jobs as recovery services name them: by the uid of their owner, with their pods, ranks, chips and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from engine.model.attribution import HEALTHY, FaultRank, Place, fault_ranks, health
from engine.model.cluster import Observed, Pod
from engine.model.jobs import Gang
from engine.plan.gangs import declared_rank
from engine.plan.groups import group
from engine.plan.memo import Memo
from engine.plan.owners import POD_GROUP_APIS, controller_of
from engine.status.jobs import quiet
from engine.wire.podannotations import chip_ids

Hit = tuple[str, tuple[FaultRank, ...]]
BACKUP: Final = "backup"
SOURCE: Final = "backupSourcePodName"


class JobView(msgspec.Struct, frozen=True):
    """One job. ``pods`` are its live pods in rank order, backups of a hot switch apart in ``backups``.

    ``group`` is the name of its PodGroup, empty where the cluster has none; ``labels`` and ``annotations`` are the
    PodGroup's, then the owner's, then those of its pods. ``up`` is how many pods run and stay, ``chips_per_pod`` the
    chips of one pod (0 for a job without any).
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
        """Pods by their ranks; of two with one rank the one that stays. Not to be changed."""
        return self.ranked


#: Views by job, while its gang and pods stay what they are.
_VIEWS: Final[Memo[JobView]] = Memo(16384)
#: What hits a job, while nothing changes on the nodes that have something against them.
_HITS: Final[Memo[Hit]] = Memo(16384)


def views(observed: Observed) -> dict[str, JobView]:
    """Every job of a snapshot by its id: those with pods, and those that so far have a PodGroup only."""
    gangs, _ = group(observed)
    found = {}
    for gang in gangs.values():
        if gang.uid and gang.kind != "Pod":
            pods = tuple(observed.pods[key] for key in gang.pods)
            found[gang.uid] = _VIEWS.of(gang.uid, (gang, pods), partial(_of_gang, gang, pods))
    for key, raw in observed.objects.items():
        if key.kind != "PodGroup" or key.api_version not in POD_GROUP_APIS:
            continue
        owner = controller_of(raw)
        uid = str(owner.get("uid") or "")
        if uid and uid not in found:
            found[uid] = _of_group(uid, key.namespace, key.name, owner, raw)
    return found


def places(view: JobView, observed: Observed) -> tuple[Place, ...]:
    """Where the job's pods run, with their physical chips in the order of their processes."""
    return _placed(tuple(view.by_rank().items()), observed)


def _placed(pods: Sequence[tuple[int, Pod]], observed: Observed) -> tuple[Place, ...]:
    found = []
    for rank, pod in sorted(pods, key=lambda pair: pair[0]):
        if pod.holds_chips and pod.chips:
            report = observed.reports.get(pod.node)
            prefix = report.prefix if report is not None else pod.chips[0].rpartition("-")[0] + "-"
            found.append(Place(pod, rank, chip_ids(pod.chips, prefix)))
    return tuple(found)


def impact(view: JobView, observed: Observed) -> Hit:
    """How healthy the job is and which faults hit which ranks: the attribution that the planner's status shows too.

    Only pods with something against them are looked at, and only anew when that changed: a job of thousands of nodes
    costs no more than a small one.
    """
    loud = {node for node in {pod.node for pod in view.pods if pod.node} if not quiet(node, observed)}
    pods = tuple(
        (rank, pod) for rank, pod in view.by_rank().items() if pod.node in loud or pod.labels.get("fault-type")
    )
    if not pods and not any(pod.labels.get("fault-type") for pod in view.pods):
        return HEALTHY, ()
    nodes = sorted({pod.node for _, pod in pods})
    told = [(observed.nodes.get(n), observed.reports.get(n), observed.node_reports.get(n)) for n in nodes]
    return _HITS.of(view.id, (pods, told), partial(_impact, pods, observed))


def _impact(pods: Sequence[tuple[int, Pod]], observed: Observed) -> Hit:
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
    # a backup whose source has gone has taken its place
    spare = {
        pod.uid for pod in pods if pod.annotations.get("podType") == BACKUP and pod.annotations.get(SOURCE) in names
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


__all__ = ["Hit", "JobView", "impact", "places", "ranks_of", "views"]
