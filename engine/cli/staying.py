"""Why pods stay on hardware that is faulty or drained: their scheduler or their labels leave them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from belay.engine.model.attribution import HARMLESS, FaultRank
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import FAULT_SCHEDULING
from belay.engine.model.levels import SUB_HEALTH
from belay.engine.model.plan import Plan
from belay.engine.model.states import OUT_OF_SERVICE

#: The way out for a job that asks not to be moved.
ADD_LABEL: Final = "add fault-scheduling: grace to the labels of the job, of a Deployment to those of its pod template"
_MAX_NODES: Final = 8


def why(
    gang: Gang | None, pods: Sequence[Pod], ranks: Sequence[FaultRank], plan: Plan, schedulers: Sequence[str],
    subject: str = "its pods on {nodes} stay",
) -> str:  # fmt: skip
    """Why pods of a job that hardware hits stay there; empty if none does, or where they are moved.

    A pod that names no chips may hold any of its node's. ``subject`` is how the answer begins.
    """
    holding = [pod for pod in pods if pod.holds_chips]
    faulty = _on_faulty_hardware(holding, ranks, plan)
    drained = {held.node for held in plan.holds if not held.chip}
    affected = [pod for pod in holding if pod in faulty or pod.node in drained]

    foreign = [pod for pod in affected if pod.scheduler not in schedulers]
    if foreign:
        return _foreign(foreign, schedulers)

    hit = [pod for pod in affected if pod.owner_kind]
    if gang is None or not hit or unlabelled(gang) == "":
        return ""
    return f"{subject.format(nodes=_nodes(hit))}: the job {unlabelled(gang)}, so it is not moved: {ADD_LABEL}"


def _on_faulty_hardware(holding: Sequence[Pod], ranks: Sequence[FaultRank], plan: Plan) -> list[Pod]:
    """Pods whose chips are faulty, and those that name none on a node with a faulty chip that is out of service."""
    grave = {rank.pod for rank in ranks if rank.level not in HARMLESS and rank.level != SUB_HEALTH}
    sick = {chip.node for chip in plan.chips if chip.state in OUT_OF_SERVICE and chip.level not in HARMLESS}
    return [pod for pod in holding if pod.key in grave or (pod.count and not pod.chips and pod.node in sick)]


def unlabelled(gang: Gang) -> str:
    """What of a job's labels keeps it from being moved; empty if they let it go."""
    if gang.fault_scheduling != "off":
        return ""
    value = gang.labels.get(FAULT_SCHEDULING)
    return "has no label fault-scheduling" if value is None else f"has the label fault-scheduling: {value}"


def _foreign(pods: Sequence[Pod], ours: Sequence[str]) -> str:
    names = sorted({pod.scheduler for pod in pods})
    return (
        f"pods on faulty or drained hardware of {_nodes(pods)} have schedulerName {', '.join(names)} "
        f"(default-scheduler where none is set); Belay moves only pods of {', '.join(ours)} "
        "(SchedulingSettings.spec.schedulerNames): set one of these in the pod template, or have their own scheduler "
        "move them"
    )


def _nodes(pods: Sequence[Pod]) -> str:
    nodes = sorted({pod.node for pod in pods})
    return ", ".join(nodes[:_MAX_NODES]) + (f" and {len(nodes) - _MAX_NODES} more" if len(nodes) > _MAX_NODES else "")
