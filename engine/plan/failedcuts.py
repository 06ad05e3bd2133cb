"""Pods whose vNPU could not be cut are taken away, so that their job makes them anew and they get another place.

Source: component/ascend-for-volcano/internal/npu/vnpu/vnpu.go: kubelet refuses them with UnexpectedAdmissionError (the
device plugin says NoNPUResource or NPUSegmentFailed), and nothing else would ever end them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.model.actions import DeleteObject, Evidence
from engine.model.cluster import Pod
from engine.plan import roles
from engine.plan.judge import DEFAULT_ATTEMPTS
from engine.plan.record import TIMELINE
from engine.plan.safety import EXPANSION
from engine.plan.scope import Scope
from engine.plan.victims import memory_of
from engine.wire.parts import NPU_CORE

REFUSED: Final = "UnexpectedAdmissionError"
REASON: Final = "SegmentFailed"
STORY: Final = "cutting failed"


def run(scope: Scope) -> None:
    """Emits DeleteObject for pods with AI cores that kubelet refused, within the attempts of their jobs."""
    refused = [pod for pod in scope.observed.pods.values() if pod.reason == REFUSED and _never_started(pod)]
    if not refused or not roles.plays(scope, "schedule"):
        return
    for pod in refused:
        gang = scope.gangs.get(scope.gang_of.get(pod.key, ""))
        if gang is None or not roles.schedules(scope, pod):
            continue
        memory = memory_of(scope, gang)
        most, window = DEFAULT_ATTEMPTS
        recent = [text for at, text in memory.timeline if at > scope.now_ms - window and text.startswith(STORY)]
        if len(recent) >= min(most * max(1, gang.replicas), TIMELINE - 1):
            continue
        line = (scope.now_ms, f"{STORY}: {pod.name} on {pod.node}")
        timeline = (*memory.timeline, line)[-TIMELINE:]
        scope.memory.jobs[gang.key] = msgspec.structs.replace(memory, uid=gang.uid, timeline=timeline)
        scope.actions.append(
            DeleteObject(
                reason=REASON,
                message=f"the vNPU of pod {pod.key} could not be cut on node {pod.node}: it is made anew",
                evidence=Evidence(rule=EXPANSION, revision=scope.desired.revision),
                preconditions={"uid": pod.uid},
                api_version="v1",
                object_kind="Pod",
                namespace=pod.namespace,
                name=pod.name,
            )
        )


def _never_started(pod: Pod) -> bool:
    return pod.phase == "Failed" and pod.resource == NPU_CORE and bool(pod.owner_kind) and pod.deleting is None
