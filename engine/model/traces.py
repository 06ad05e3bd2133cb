"""Which trace something belongs to, as ids of the W3C's Trace Context: 32 hexadecimal digits.

An id follows from the cause alone, so that processes which never speak to each other add to one trace, and people find
it without a search: the trace of a commit is its first 32 digits. The id of a trace's root span is its second half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from belay.engine.model.actions import AnyAction, BindPod, EvictPod, ResetChips
from belay.engine.model.history import JobMemory, NodeMemory, Recovery
from belay.engine.model.plan import Plan

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def of_commit(revision: str) -> str:
    """The trace of what a commit, or a work tree with uncommitted changes, led to."""
    return revision[:32] if _COMMIT.fullmatch(revision) else _derived("revision", revision)


def of_recovery(job: str, began: int) -> str:
    """The trace of a job's recovery that began at ``began`` (Unix ms)."""
    return _derived("recovery", job, str(began))


def of_fault(node: str, first: int) -> str:
    """The trace of faults on a node, the first of which was seen at ``first`` (Unix ms)."""
    return _derived("fault", node, str(first))


def of_pass(identifier: str) -> str:
    """The trace of what a pass does without a commit or a fault that asks for it."""
    return _derived("pass", identifier)


def root_of(trace: str) -> str:
    """The id of a trace's root span: 16 hexadecimal digits."""
    return trace[16:]


class TraceOrigin(StrEnum):
    """What a trace begins with."""

    COMMIT = "commit"
    FAULT = "fault"
    RECOVERY = "recovery"
    PASS = "pass"


class Trace(NamedTuple):
    """A trace, what it begins with, and when that was (Unix ms; 0: unknown)."""

    id: str
    origin: TraceOrigin
    began: int = 0


def of_actions(plan: Plan, pass_id: str, commit_of: Callable[[AnyAction], str]) -> list[Trace]:
    """The trace of each of a plan's actions: of the recovery that it serves, the commit or the fault that it is for.

    ``commit_of`` gives the commit that declares the job of an action, where one does and is known.
    """
    jobs = {
        job: Trace(of_recovery(job, one.at), TraceOrigin.RECOVERY, one.at)
        for job, one in open_recoveries(plan.history.jobs).items()
    }
    nodes: dict[str, Trace] = {}
    for job, trace in jobs.items():
        for record in plan.history.jobs[job].records[:1]:
            nodes.update((node, trace) for _fault, _pod, node, _rank in record.tasks)

    own = Trace(of_pass(pass_id), TraceOrigin.PASS)
    return [
        _of_job(action, jobs) or nodes.get(_node_of(action)) or _of_cause(action, plan, commit_of) or own
        for action in plan.actions
    ]


def open_recoveries(jobs: Mapping[str, JobMemory]) -> dict[str, Recovery]:
    """By job, the recoveries that have not ended."""
    newest = {job: memory.recoveries[-1] for job, memory in jobs.items() if memory.recoveries}
    return {job: one for job, one in newest.items() if not one.back}


def _of_job(action: AnyAction, traces: Mapping[str, Trace]) -> Trace | None:
    """The trace of the recovery that an action on a job's pods or chips serves; None if it serves none."""
    match action:
        case BindPod():
            unit = action.gang or ""
        case EvictPod():
            unit = action.budget_unit
        case ResetChips():
            unit = action.job or ""
        case _:
            return None
    # the budget unit of a part of a job is named after it
    while unit and unit not in traces:
        unit = unit.rpartition("/")[0]
    return traces.get(unit)


def _of_cause(action: AnyAction, plan: Plan, commit_of: Callable[[AnyAction], str]) -> Trace | None:
    """The trace of the commit or of the fault that an action is taken for; None if neither is known."""
    cause = action.evidence.cause
    commit = (cause.commit if cause else "") or commit_of(action)
    if commit:
        return Trace(of_commit(commit), TraceOrigin.COMMIT)
    memory = plan.history.nodes.get(_node_of(action))
    first = _first_fault(memory) if memory is not None and action.evidence.codes else 0
    return Trace(of_fault(_node_of(action), first), TraceOrigin.FAULT, first) if first else None


def _node_of(action: AnyAction) -> str:
    """The node on which an action isolates, frees, resets or cuts; empty for actions on other objects."""
    return "" if isinstance(action, BindPod | EvictPod) else str(getattr(action, "node", ""))


def _first_fault(memory: NodeMemory) -> int:
    """When the oldest of the codes that are present on a node's chips was seen (ms); 0 without any."""
    return min(
        (code.first for chip in memory.chips.values() for code in chip.codes.values() if code.present), default=0
    )


def _derived(*parts: str) -> str:
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
