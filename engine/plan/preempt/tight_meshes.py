"""Which chips of a board with meshes of four are taken for a pod of up to three.

Among victims of equal cost go those in the mesh that fits the pod best, so that a mesh which evictions could free as a
whole is left to larger pods. Source: component/ascend-for-volcano/internal/npu/policy/chip4nodex (preemption).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from belay.engine.model.cluster import Pod
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.families.mesh4 import MESH, Mesh4
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.preempt.victim_sets import VictimSet
from belay.engine.plan.views import chip_ids

#: Place of the location in the key of a victim set.
_LOCATION = 4


def tightest_first(
    job: SchedulerJob, pods: Sequence[Pod], victim_sets: Sequence[VictimSet], views: Mapping[str, NodeView]
) -> list[VictimSet]:
    """The victim sets with keys by which, at equal cost, the mesh comes first that fits the largest pod best."""
    wanted = max(pod.count for pod in pods)
    if not isinstance(job.family, Mesh4) or not 0 < wanted < MESH:
        return list(victim_sets)

    room = _room_by_mesh(victim_sets, views)
    return [_ranked(victims, wanted, room) for victims in victim_sets]


def _room_by_mesh(victim_sets: Sequence[VictimSet], views: Mapping[str, NodeView]) -> dict[tuple[str, int], int]:
    """How many chips each mesh has free once all these victims have gone."""
    freed: dict[str, int] = {}
    for victims in victim_sets:
        for pod in victims.pods:
            mask = sum(1 << chip for chip in chip_ids(pod))
            freed[pod.node] = freed.get(pod.node, 0) | mask

    found: dict[tuple[str, int], int] = {}
    for node, mask in freed.items():
        chips = mask | (views[node].free if node in views else 0)
        for mesh in range(chips.bit_length() // MESH + 1):
            found[node, mesh] = (chips >> mesh * MESH & (1 << MESH) - 1).bit_count()
    return found


def _ranked(victims: VictimSet, wanted: int, room: Mapping[tuple[str, int], int]) -> VictimSet:
    node, chip, name = victims.key[_LOCATION]
    chips_of_mesh = room.get((node, chip // MESH), 0)
    # a mesh that can never hold the pod helps nothing
    rank = chips_of_mesh if chips_of_mesh >= wanted else MESH + 1
    key = (*victims.key[:_LOCATION], (node, rank, chip, name), *victims.key[_LOCATION + 1 :])
    return victims._replace(key=key)
