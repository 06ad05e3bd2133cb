"""The annotations of a pod with a part of a chip, derived from those of a pod with whole chips."""

from __future__ import annotations

from collections.abc import Mapping

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.labels import ASCEND_REAL, DISTRIBUTED_JOB, NPU_CORE, PREDICATE_TIME, RANK_INDEX, SHARE_ID
from belay.engine.model.quantities import whole_number
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.part_requests import DynamicVNPU, SoftShare
from belay.engine.plan.place.parts.shares import ChipParts
from belay.engine.plan.place.state import Assignment
from belay.engine.wire.parts import cores_text, share_annotations

_KEPT = (DISTRIBUTED_JOB, PREDICATE_TIME, RANK_INDEX)


def amended(
    job: SchedulerJob, item: Assignment, view: NodeView, annotations: dict[str, str], parts: ChipParts
) -> dict[str, str]:
    """The annotations of an assignment: unchanged for whole chips, with the template or share for parts.

    A pod with AI cores gets no device name: the device plugin writes it once it has cut the vNPU.
    """
    match job.shared:
        case None:
            return annotations
        case DynamicVNPU():
            cores = {NPU_CORE: cores_text(ids_of(item.chips), template_of(item) or "")}
            return dict(sorted(({key: annotations[key] for key in _KEPT if key in annotations} | cores).items()))
        case SoftShare(cores, memory, policy):
            number = _number(item, view, annotations, parts) if ASCEND_REAL in annotations else None
            return dict(sorted({**annotations, **share_annotations(cores, memory, policy, number)}.items()))


def template_of(item: Assignment) -> str | None:
    """The template of an assignment to a vNPU, None for all others."""
    return item.part if isinstance(item.part, str) and item.part else None


def _number(item: Assignment, view: NodeView, annotations: Mapping[str, str], parts: ChipParts) -> int:
    """A share number that no other pod with the same device has."""
    texts = [
        pod.annotations[SHARE_ID]
        for pod in view.pods
        if SHARE_ID in pod.annotations and pod.annotations.get(ASCEND_REAL) == annotations[ASCEND_REAL]
    ]
    known = [number for number in map(whole_number, texts) if number is not None]
    return parts.share_number(view, ids_of(item.chips)[0], known)
