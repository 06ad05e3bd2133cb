"""Hot switch: a backup pod is created before the pod on a sub-healthy chip is deleted.

The scheduler sets annotation ``needOperatorOpe``: ``create`` asks for a backup of this pod, ``delete`` for its removal.
Source: component/ascend-operator/pkg/controllers/v1/pod.go (handleHotSwitch, createHotSwitchPod).
"""

from __future__ import annotations

import hashlib
from typing import Any

from belay.engine.gangs.job_status import finished
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import BACKUP_NEW_POD, BACKUP_SOURCE_POD, IN_HOT_SWITCH_FLOW, NEED_OPERATOR, POD_TYPE
from belay.engine.model.pod_options import operator_request
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.jobs import ascendjob
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject


def expand(context: ExpansionContext, job: JobObject) -> None:
    """Create and remove pods as the annotations of an AscendJob's pods ask."""
    if finished(job.conditions):
        return
    for pod in context.pods_of(job):
        asked = operator_request(pod)
        if asked == "create":
            _create_backup(context, job, pod)
        elif asked == "delete":
            context.remove_pod(job, pod, ActionReason.HOT_SWITCH, f"{job.key}: pod {pod.name} has been switched away")


def _create_backup(context: ExpansionContext, job: JobObject, pod: Pod) -> None:
    name = f"{pod.name}-hot-{hashlib.sha256(pod.uid.encode()).hexdigest()[:4]}"
    if f"{pod.namespace}/{name}" not in context.facts.observed.pods:
        body = ascendjob.backup_pod(context, job, pod, name)
        if body is None:
            return
        annotations: dict[str, Any] = body["metadata"]["annotations"]
        annotations |= {IN_HOT_SWITCH_FLOW: "true", POD_TYPE: "backup", BACKUP_SOURCE_POD: pod.name}
        context.create_pod(
            job, body, ActionReason.HOT_SWITCH, f"{job.key}: pod {pod.name} gets a backup before it is deleted"
        )
    patch = {"metadata": {"annotations": {NEED_OPERATOR: None, BACKUP_NEW_POD: name}}}
    key = ObjectKey("v1", "Pod", pod.namespace, pod.name)
    context.patch(
        job, key, patch, ActionReason.HOT_SWITCH, f"{job.key}: {name} is the backup of pod {pod.name}", uid=pod.uid
    )
