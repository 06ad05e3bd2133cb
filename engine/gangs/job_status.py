"""``.status`` of jobs: conditions that keep their times, and the smallest patch to a new status.

Conditions follow github.com/kubeflow/common/pkg/util/status.go, which MindCluster's operator uses: the newest
condition is last, Running and Restarting exclude each other, a terminal condition turns Running to False, and nothing
follows a terminal condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.model.phases import VolcanoJobPhase
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_list

CREATED: Final = "Created"
RUNNING: Final = "Running"
RESTARTING: Final = "Restarting"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
SUSPENDED: Final = "Suspended"
TERMINAL_CONDITIONS: Final = frozenset({SUCCEEDED, FAILED})
#: Terminal phases of a Volcano Job, with the terminal condition that they stand for.
_VOLCANO_ENDS: Final[dict[str, str]] = {
    VolcanoJobPhase.COMPLETED.value: SUCCEEDED,
    VolcanoJobPhase.FAILED.value: FAILED,
    VolcanoJobPhase.ABORTED.value: FAILED,
    VolcanoJobPhase.TERMINATED.value: FAILED,
}


class JobCondition(NamedTuple):
    """A condition that holds now; with ``status`` False one that no longer does."""

    type: str
    reason: str
    message: str
    status: str = "True"

    @property
    def content(self) -> dict[str, str]:
        """What it says, without its times."""
        return {"type": self.type, "status": self.status, "reason": self.reason, "message": self.message}


def with_condition(conditions: Iterable[Any], new: JobCondition, now: float) -> list[dict[str, Any]]:
    """The conditions once ``new`` holds; equal to the old ones when it held already."""
    old = [dict(entry) for entry in conditions if isinstance(entry, dict)]
    if finished(old):
        return old
    current = next((entry for entry in old if entry.get("type") == new.type), None)
    if current is not None and _same(current, new):
        return old
    stamp = rfc3339(float(int(now)))
    since = stamp
    if current is not None and current.get("status") == new.status:
        since = str(current.get("lastTransitionTime") or stamp)
    entry = {
        **new.content,
        "lastUpdateTime": stamp,
        "lastTransitionTime": since,
    }
    return [*_others(old, new.type, stamp), entry]


def finished(conditions: Iterable[Any]) -> str:
    """``Succeeded`` or ``Failed`` when the job has ended, else empty."""
    return next((str(c["type"]) for c in conditions if _holds(c) and str(c["type"]) in TERMINAL_CONDITIONS), "")


def ended(raw: Mapping[str, Any] | None) -> str:
    """``Succeeded`` or ``Failed`` when a job object of any kind has ended, else empty.

    AscendJobs and Jobs have a condition for it (a Job's is ``Complete``), Volcano Jobs a phase.
    """
    status = (raw or {}).get("status")
    if not isinstance(status, Mapping):
        return ""
    state, conditions = status.get("state"), status.get("conditions")
    phase = str(state.get("phase") or "") if isinstance(state, Mapping) else ""
    if phase in _VOLCANO_ENDS:
        return _VOLCANO_ENDS[phase]
    rows = conditions if isinstance(conditions, list) else []
    if any(_holds(row) and row.get("type") == "Complete" for row in rows):
        return SUCCEEDED
    return finished(rows)


def is_suspended(raw: Mapping[str, Any] | None) -> bool:
    """Whether a job object says that it is suspended: AscendJobs and Jobs of Kubernetes have a condition for it."""
    conditions = nested_list(raw or {}, "status", "conditions")
    return any(_holds(row) and row.get("type") == SUSPENDED for row in conditions)


def standing(raw: Mapping[str, Any] | None) -> str:
    """``Succeeded``, ``Failed`` or ``Suspended`` where a job object says so of itself, else empty."""
    return ended(raw) or (SUSPENDED if is_suspended(raw) else "")


def end_message(raw: Mapping[str, Any] | None) -> str:
    """What a job object that has ended or is suspended says of that, else empty."""
    status = (raw or {}).get("status")
    if not standing(raw) or not isinstance(status, Mapping):
        return ""
    state, conditions = status.get("state"), status.get("conditions")
    said = [row for row in conditions if _holds(row)] if isinstance(conditions, list) else []
    rows = [row for row in said if str(row.get("type")) in (*TERMINAL_CONDITIONS, "Complete", SUSPENDED)]
    rows += [state] if isinstance(state, Mapping) else []
    return next((str(row["message"]) for row in rows if row.get("message")), "")


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) from ``old`` to ``new``; lists are replaced whole, empty when equal."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if key in old and before == value:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[key] = merge_patch(before, value)
        else:
            patch[key] = value
    return patch


def go_duration(seconds: float) -> str:
    """A duration as Go's metav1.Duration writes it: ``1h2m3s``, whole seconds."""
    left = max(0, int(seconds))
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"


def _same(current: Mapping[str, Any], new: JobCondition) -> bool:
    """Whether a condition already is as it shall be, its message included."""
    return {**current, **new.content} == current


def _others(old: Sequence[dict[str, Any]], kind: str, stamp: str) -> list[dict[str, Any]]:
    out = []
    for entry in old:
        if entry.get("type") == kind or {entry.get("type"), kind} == {RUNNING, RESTARTING}:
            continue
        if (
            kind in (*TERMINAL_CONDITIONS, SUSPENDED)
            and entry.get("type") == RUNNING
            and entry.get("status") != "False"
        ):
            entry = {**entry, "status": "False", "lastUpdateTime": stamp, "lastTransitionTime": stamp}
        out.append(entry)
    return out


def _holds(condition: Any) -> bool:
    return isinstance(condition, dict) and condition.get("status") == "True" and "type" in condition
