"""Inference in super pods: blocks of one service close together, MindIE instances near the pods that their affinity
prefers.

Sources: component/ascend-for-volcano/internal/npu/ascend910/ascend910a3/superpod (mindie_job.go, infer_service.go) and
internal/npu/policy/chip8node8ra64sp/infer_service.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from belay.engine.model.cluster import Pod
from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.plan.place.families.rack950 import RACK_NODES, CandidateNode, by_rack
from belay.engine.plan.place.families.superpod import Block
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.state import PlacementState

IDLEST: Final = "idlest"

Pools = Mapping[int, Sequence[str]]


def is_service(job: SchedulerJob) -> bool:
    """Whether the job is a part of an inference service."""
    return bool(job.gang.options.inference_service_id)


def is_instance(job: SchedulerJob) -> bool:
    """Whether the job is a MindIE instance: labels ``app`` and ``jobID``."""
    return job.gang.options.app is not None and job.gang.options.service_job_id is not None


def service_domains(state: PlacementState, job: SchedulerJob, rack: bool) -> set[tuple[int, int]]:
    """(super pod, rack) of the nodes where other jobs of the same service run; rack is -1 unless ``rack`` is set."""
    wanted = job.gang.options.inference_service_id
    domains: set[tuple[int, int]] = set()
    for view in state.views.values():
        if view.report is None or view.report.super_pod_id < 0:
            continue
        gangs = {state.scope.gangs.of_pod.get(pod.key, "") for pod in view.pods} - {"", job.gang.key}
        if any(state.scope.gangs[key].options.inference_service_id == wanted for key in gangs):
            domains.add((view.report.super_pod_id, view.report.rack_id if rack else -1))
    return domains


def affine_nodes(state: PlacementState, pod: Pod, free: Pools) -> dict[int, int]:
    """Per super pod, the number of nodes (not candidates of this job) that run a job with the labels of the first
    preferred affinity.
    """
    labels = _liked_labels(pod)
    counts: dict[int, int] = {}
    if not labels:
        return counts
    candidates = {name for names in free.values() for name in names}
    for name, view in state.views.items():
        if name in candidates or view.report is None:
            continue
        gangs = {state.scope.gangs.of_pod.get(other.key, "") for other in view.pods} - {""}
        if any(labels.items() <= state.scope.gangs[key].labels.items() for key in gangs):
            super_pod = view.report.super_pod_id
            counts[super_pod] = counts.get(super_pod, 0) + 1
    return counts


def instance_blocks(
    free: Pools, ids: Sequence[int], size: int, reserve: int, liked: Mapping[int, int] | None, idlest: bool
) -> dict[int, Block] | Refusal:
    """Block by block: first super pods that keep their reserve, then those with most affine nodes, then the fullest (or
    idlest).
    """
    total = sum(len(names) // size for names in free.values())
    if total < len(ids):
        text = f"not enough virtual super-pod to schedule, required {len(ids)}, total {total}"
        return Refusal(TOPOLOGY, text)
    counts = dict(liked or {})

    def order(key: int, names: Sequence[str]) -> tuple[object, ...]:
        room = len(names)
        return (room - reserve < size, -counts.get(key, 0), -room if idlest else room, key)

    def taken(key: int) -> None:
        if liked:
            counts[key] = counts.get(key, 0) + size

    return _one_by_one(free, ids, size, order, taken)


def service_blocks(free: Pools, ids: Sequence[int], size: int, domains: set[int]) -> dict[int, Block] | Refusal:
    """Block by block: super pods of the same service first, then those with more free nodes."""
    hosts = set(domains)

    def order(key: int, names: Sequence[str]) -> tuple[object, ...]:
        return (key not in hosts, -len(names), key)

    return _one_by_one(free, ids, size, order, hosts.add)


def rack_service_blocks(
    places: Sequence[CandidateNode], ids: Sequence[int], size: int, domains: set[tuple[int, int]]
) -> dict[int, Block] | Refusal:
    """Block by block, each in one rack: the service's racks, its super pods, then others with more idle racks."""
    racks = {(nodes[0].super_pod, key): list(nodes) for key, nodes in by_rack(places).items()}
    hosts = set(domains)
    found: dict[int, Block] = {}
    for logical in ids:
        fitting = [key for key, nodes in racks.items() if len(nodes) >= size]
        if not fitting:
            return _too_few(len(ids), len(found))
        best = min(fitting, key=lambda key: _rack_order(key, racks, hosts))
        found[logical] = Block(best[0], tuple(node.name for node in racks[best][:size]))
        racks[best] = racks[best][size:]
        hosts.add(best)
    return found


def _rack_order(
    key: tuple[int, int], racks: Mapping[tuple[int, int], list[CandidateNode]], hosts: set[tuple[int, int]]
) -> tuple[object, ...]:
    room = len(racks[key])
    if key in hosts:
        return (0, -room, 0, 0, key)
    inside = [len(nodes) for other, nodes in racks.items() if other[0] == key[0]]
    group = 1 if any(host[0] == key[0] for host in hosts) else 2
    return (group, -inside.count(RACK_NODES), -room, -sum(inside), key)


def _one_by_one(
    free: Pools,
    ids: Sequence[int],
    size: int,
    order: Callable[[int, Sequence[str]], tuple[object, ...]],
    taken: Callable[[int], None],
) -> dict[int, Block] | Refusal:
    pools = {key: list(names) for key, names in free.items()}
    found: dict[int, Block] = {}
    for logical in ids:
        fitting = [key for key, names in pools.items() if len(names) >= size]
        if not fitting:
            return _too_few(len(ids), len(found))
        best = min(fitting, key=lambda key: order(key, pools[key]))
        found[logical] = Block(best, tuple(pools[best][:size]))
        del pools[best][:size]
        taken(best)
    return found


def _liked_labels(pod: Pod) -> dict[str, str]:
    """``matchLabels`` of the first preferred pod affinity term."""
    part: Any = pod.affinity.get("podAffinity")
    preferred = part.get("preferredDuringSchedulingIgnoredDuringExecution") if isinstance(part, Mapping) else None
    term = preferred[0].get("podAffinityTerm") if isinstance(preferred, list) and preferred else None
    selector = term.get("labelSelector") if isinstance(term, Mapping) else None
    labels = selector.get("matchLabels") if isinstance(selector, Mapping) else None
    return {str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {}


def _too_few(need: int, got: int) -> Refusal:
    return Refusal(TOPOLOGY, f"infer service schedule failed, required {need} sp-block, got {got}")
