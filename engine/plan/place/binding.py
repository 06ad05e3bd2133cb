"""What a pod with a part of a chip is told in its Binding, from what a pod with whole chips would be told."""

from __future__ import annotations

from collections.abc import Mapping

from engine.model.cluster import ids_of
from engine.plan.place.bench import Seated
from engine.plan.place.job import Job
from engine.plan.place.parts import Parts
from engine.plan.place.sharing import Dynamic, Soft
from engine.plan.scope import NodeView
from engine.wire.parts import NPU_CORE, SHARE_ID, cores_text, share_annotations
from engine.wire.podannotations import ASCEND_REAL, DISTRIBUTED_JOB, PREDICATE_TIME, RANK_INDEX

_KEPT = (DISTRIBUTED_JOB, PREDICATE_TIME, RANK_INDEX)


def amended(job: Job, item: Seated, view: NodeView, annotations: dict[str, str], parts: Parts) -> dict[str, str]:
    """The annotations of a seat: those of whole chips as they are, those of parts with their template or share.

    A pod with AI cores names its device itself once the device plugin has cut it, so nothing is written of that.
    """
    match job.shared:
        case None:
            return annotations
        case Dynamic():
            cores = {NPU_CORE: cores_text(ids_of(item.chips), template_of(item) or "")}
            return dict(sorted(({key: annotations[key] for key in _KEPT if key in annotations} | cores).items()))
        case Soft(cores, memory, policy):
            number = _number(item, view, annotations, parts) if ASCEND_REAL in annotations else None
            return dict(sorted({**annotations, **share_annotations(cores, memory, policy, number)}.items()))


def template_of(item: Seated) -> str | None:
    """The template of a seat on a vNPU, None for all others."""
    return item.part if isinstance(item.part, str) and item.part else None


def _number(item: Seated, view: NodeView, annotations: Mapping[str, str], parts: Parts) -> int:
    """A number for the sharer that nobody with the same device has."""
    texts = [
        pod.annotations[SHARE_ID]
        for pod in view.pods
        if SHARE_ID in pod.annotations and pod.annotations.get(ASCEND_REAL) == annotations[ASCEND_REAL]
    ]
    known = [int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) <= 9]
    return parts.share_number(view, ids_of(item.chips)[0], known)
