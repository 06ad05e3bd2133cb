"""The retries that Volcano's plugin left to jobs, as it records them."""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import Gang

#: Where Volcano's plugin keeps how many retries jobs have left.
RETRIES_KEY: Final = ObjectKey("v1", "ConfigMap", "volcano-system", "vcjob-fault-npu-cm")


def recorded_retries(observed: Observed, gang: Gang, uid: str) -> int:
    """What Volcano left of a job's retries in its own ConfigMap, for a job that it served before; -1 without a record.

    Source: component/ascend-for-volcano/internal/rescheduling (RemainRetryTimes, read again on a restart).
    """
    raw = observed.objects.get(RETRIES_KEY)
    text = ((raw or {}).get("data") or {}).get("remain-retry-times")
    if not isinstance(text, str) or not text or not uid:
        return -1
    try:
        rows = msgspec.json.decode(text, type=dict[str, _Remaining])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return -1  # an unreadable record limits nothing; the memory still does
    names = (f"{gang.namespace}/{gang.pod_group}", f"{gang.namespace}/{gang.name}-{uid}")
    row = next((rows[name] for name in names if name in rows), None)
    return row.Times if row is not None and row.UUID in ("", uid) else -1


class _Remaining(msgspec.Struct):
    UUID: str = ""
    Times: int = -1
