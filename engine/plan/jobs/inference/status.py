"""``.status`` of InferServiceSets, InferServices and InstanceSets, with the infer operator's reasons.

Source: component/infer-operator/pkg/controller/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.gangs.job_status import merge_patch
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_list
from belay.engine.plan.jobs.inference.labels import VALIDATE_ERROR
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject

NOT_READY: Final = "ReplicasNotReady"
MAX_MESSAGE: Final = 1000


def report(
    context: ExpansionContext,
    one: JobObject,
    ready: int,
    count: int,
    *,
    reason: str,
    message: str,
    what: str,
    note: str = "",
    more: Mapping[str, Any] | None = None,
) -> None:
    """Keep the numbers of children and condition ``Ready``.

    Args:
        reason, message: of the condition while all are ready.
        what: the children, in the message while some are not.
        note: what else is going on, after the message.
        more: further fields; None removes one.
    """
    good = ready >= count
    text = message if good else f"{ready} of {count} {what} are ready"
    row = {"type": "Ready", "status": "True" if good else "False", "reason": reason if good else NOT_READY,
           "message": f"{text}; {note}"[:MAX_MESSAGE] if note else text}  # fmt: skip
    new = {**one.status, "replicas": count, "readyReplicas": ready, **(more or {})}
    _write(context, one, {key: value for key, value in new.items() if value is not None}, row)


def refuse(context: ExpansionContext, one: JobObject, where: str, message: str) -> None:
    """Say what is wrong with an object, as a finding, in its condition and thereby as an Event."""
    context.warn(one, where, f"{VALIDATE_ERROR}: {message}", PassCode.INVALID_SERVICE)
    text = f"{where}: {message}"[:MAX_MESSAGE]
    _write(
        context, one, dict(one.status), {"type": "Ready", "status": "False", "reason": VALIDATE_ERROR, "message": text}
    )


def is_ready(raw: Mapping[str, Any]) -> bool:
    """Whether condition ``Ready`` is true."""
    return any(
        row.get("type") == "Ready" and row.get("status") == "True" for row in nested_list(raw, "status", "conditions")
    )


def _write(context: ExpansionContext, one: JobObject, new: dict[str, Any], row: dict[str, Any]) -> None:
    before = next((c for c in one.conditions if c.get("type") == "Ready"), {})
    stamp = rfc3339(float(int(context.facts.now)))
    known = before.get("status") == row["status"] and before.get("lastTransitionTime")
    row["lastTransitionTime"] = str(known or stamp)
    generation = one.metadata.get("generation")
    if isinstance(generation, int):
        new["observedGeneration"] = generation
    new["conditions"] = [row]
    if new != one.status:
        context.patch_status(one, merge_patch(one.status, new), row["reason"], f"{one.key}: {row['message']}")
