"""Deletes pods whose vNPU could not be created, so that their job re-creates them and they are placed again.

Source: component/ascend-for-volcano/internal/npu/vnpu/vnpu.go: kubelet refuses them with UnexpectedAdmissionError (the
device plugin reports NoNPUResource or NPUSegmentFailed), and no other component deletes them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.actions import (
    DeleteObject,
    Evidence,
    Preconditions,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.history import TIMELINE
from belay.engine.model.history_lines import HistoryLine, LineKind, read_line, with_line
from belay.engine.model.labels import NPU_CORE
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.restart_scope import memory_of
from belay.engine.plan.rules.fault_rules import DEFAULT_ATTEMPTS

REFUSED: Final = "UnexpectedAdmissionError"
REASON: Final = ActionReason.SEGMENT_FAILED


def hold_failed(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Plan the deletion of pods with AI cores that kubelet refused, within the attempts of their jobs."""
    refused = [pod for pod in facts.observed.pods.values() if pod.reason == REFUSED and _never_started(pod)]
    if not refused or not roles.plays(facts, "schedule"):
        return
    for pod in refused:
        gang = gangs.get(gangs.of_pod.get(pod.key, ""))
        if gang is None or not roles.schedules(facts, pod):
            continue
        memory = memory_of(draft, gang)
        most, window = DEFAULT_ATTEMPTS
        recent = [text for at, text in memory.timeline if at > facts.now_ms - window]
        failed = sum(read_line(text).kind is LineKind.CUTTING_FAILED for text in recent)
        if failed >= min(most * max(1, gang.replicas), TIMELINE - 1):
            continue
        line = HistoryLine(LineKind.CUTTING_FAILED, f"{pod.name} on {pod.node}")
        timeline = with_line(memory.timeline, facts.now_ms, line.text)
        draft.memory.jobs[gang.key] = msgspec.structs.replace(memory, uid=gang.uid, timeline=timeline)
        draft.actions.append(
            DeleteObject(
                reason=REASON,
                message=f"the vNPU of pod {pod.key} could not be created on node {pod.node}: its job re-creates it",
                evidence=Evidence(rule=RuleKind.EXPANSION.value, revision=facts.desired.revision),
                preconditions=Preconditions(uid=pod.uid),
                api_version="v1",
                object_kind="Pod",
                namespace=pod.namespace,
                name=pod.name,
            )
        )


def _never_started(pod: Pod) -> bool:
    return pod.phase == "Failed" and pod.resource == NPU_CORE and bool(pod.owner_kind) and pod.deleting is None
