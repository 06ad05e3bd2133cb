"""Gangs under a rule whose resource claims (DRA) are allocated: each pod has its node already, by the same rule.

The pass that allocated the claims chose the nodes of the whole gang together. Choosing again could come to other
blocks, so the nodes are kept, and only what the rule demands of them is checked once more: a block is in one super
pod, a part of it in one rack; under switch affinity the memory has what each node gets, and other jobs find the
switches taken. Where a check fails or a node does not fit any more, the claims are taken back and nodes are chosen
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from belay.engine.gangs.forming import in_rank_order
from belay.engine.model.cluster import Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.quantities import whole_number
from belay.engine.plan.place import switch_config
from belay.engine.plan.place.families.rack950 import RackBlocks
from belay.engine.plan.place.gangs.slots import RankSlot, running_pods
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.state import Assignment, PlacementState


def place(
    state: PlacementState, job: SchedulerJob, waiting: Sequence[Pod], ranks: Mapping[str, int], memory: JobMemory | None
) -> list[Assignment] | None:
    """Assign all waiting pods to the nodes of their claims, and return the assignments, which are in the state already.

    None where a claim names no node, or a node does not fit any more; the state is unchanged then.
    """
    slots = _slots(state, job, waiting, ranks, memory)
    if slots is None:
        return None
    placed: list[Assignment] = []
    for pod in waiting:
        slot = slots[pod.key]
        table = state.table(job, pod)
        if slot.node not in table.scores or state.affinity_refusal(pod, slot.node) is not None:
            state.unassign(placed)
            return None
        item = Assignment(pod, slot.node, table.chips(slot.node), slot.logical, slot.super_pod)
        state.assign(item)
        if job.topology == switch_config.RULE and memory is not None:
            state.pod_annotations[pod.key] = memory.switches[slot.node]
        placed.append(item)
    return placed or None


def _slots(
    state: PlacementState, job: SchedulerJob, waiting: Sequence[Pod], ranks: Mapping[str, int], memory: JobMemory | None
) -> dict[str, RankSlot] | None:
    claims = state.scope.facts.claims
    nodes: dict[str, str] = {}
    for pod in waiting:
        node = claims.node_of(pod)
        if not node or node not in state.views or pod.key not in ranks:
            return None
        nodes[pod.key] = node
    if job.topology == switch_config.RULE:
        known = memory.switches if memory is not None else {}
        return {key: RankSlot(node) for key, node in nodes.items()} if known.keys() >= set(nodes.values()) else None
    if job.topology == "multilevel":
        return {key: RankSlot(node) for key, node in nodes.items()}
    cut = job.blocks
    if cut is None:
        return None
    logical = _blocks(job, waiting, nodes, ranks, memory)
    if logical is None:
        return None
    everyone = [*waiting, *(pod for pod in running_pods(job, {pod.key for pod in waiting}) if pod.key in ranks)]
    places: dict[object, set[object]] = {}
    out: dict[str, RankSlot] = {}
    for pod in in_rank_order(everyone):
        view = state.views.get(nodes.get(pod.key, pod.node))
        report = view.report if view is not None else None
        if report is None:
            return None
        block = logical.get(pod.key, ranks[pod.key] // cut.size)
        places.setdefault(("block", block), set()).add(report.super_pod_id)
        if isinstance(cut, RackBlocks) and not cut.soft:
            places.setdefault(("part", ranks[pod.key] // cut.part), set()).add((report.super_pod_id, report.rack_id))
        if pod.key in nodes:
            out[pod.key] = RankSlot(nodes[pod.key], block, report.super_pod_id)
    return out if all(len(found) == 1 for found in places.values()) else None


def _blocks(
    job: SchedulerJob,
    waiting: Sequence[Pod],
    nodes: Mapping[str, str],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
) -> dict[str, int] | None:
    """The block of each pod: as remembered, else by its rank; None for soft blocks that are not remembered."""
    remembered: dict[str, int] = {}
    for key, names in (memory.super_pods if memory is not None else {}).items():
        if (block := whole_number(key)) is not None:
            remembered |= dict.fromkeys(names, block)
    if all(node in remembered for node in nodes.values()):
        return {key: remembered[node] for key, node in nodes.items()}
    cut = job.blocks
    return {pod.key: ranks[pod.key] // cut.size for pod in waiting} if cut is not None and not cut.soft else None


__all__ = ["place"]
