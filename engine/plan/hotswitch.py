"""Hot switch: a backup pod is made before the pod on a sub-healthy chip goes.

The scheduler asks by annotation ``needOperatorOpe``: ``create`` for a backup of this pod, ``delete`` for its end.
Source: component/ascend-operator/pkg/controllers/v1/pod.go (handleHotSwitch, createHotSwitchPod).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from engine.model.cluster import Pod
from engine.model.diagnostics import ObjectKey
from engine.plan import ascendjob
from engine.plan.jobstatus import finished
from engine.plan.lifecycle import Bench, Job

ASKED: Final = "needOperatorOpe"
POD_TYPE: Final = "podType"
SOURCE: Final = "backupSourcePodName"
BACKUP: Final = "backupNewPodName"
IN_FLOW: Final = "inHotSwitchFlow"


def expand(bench: Bench, job: Job) -> None:
    """Answers what the pods of an AscendJob ask for."""
    if finished(job.conditions):
        return
    for pod in bench.pods_of(job):
        asked = pod.annotations.get(ASKED)
        if asked == "create":
            _back_up(bench, job, pod)
        elif asked == "delete":
            bench.remove(job, pod, "HotSwitch", f"{job.key}: pod {pod.name} has been switched away")


def _back_up(bench: Bench, job: Job, pod: Pod) -> None:
    name = f"{pod.name}-hot-{hashlib.sha256(pod.uid.encode()).hexdigest()[:4]}"
    if f"{pod.namespace}/{name}" not in bench.scope.observed.pods:
        body = ascendjob.backup(bench, job, pod, name)
        if body is None:
            return
        notes: dict[str, Any] = body["metadata"]["annotations"]
        notes |= {IN_FLOW: "true", POD_TYPE: "backup", SOURCE: pod.name}
        bench.create_pod(job, body, "HotSwitch", f"{job.key}: pod {pod.name} gets a backup before it goes")
    patch = {"metadata": {"annotations": {ASKED: None, BACKUP: name}}}
    key = ObjectKey("v1", "Pod", pod.namespace, pod.name)
    bench.patch(job, key, patch, "HotSwitch", f"{job.key}: {name} is the backup of pod {pod.name}", uid=pod.uid)
