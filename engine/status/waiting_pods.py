"""What pods and jobs that wait say: condition ``PodScheduled=False`` and Events ``FailedScheduling``.

Reason ``Unschedulable``, the Event's reason and type are those of kube-scheduler and Volcano, so `kubectl describe`,
alerts and autoscalers understand them. The text is the answer of `belay explain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Pending, Plan
from belay.engine.model.times import rfc3339
from belay.engine.wire.names import REPORTING_COMPONENT
from belay.engine.wire.objects import POD_SCHEDULED, UNSCHEDULABLE
from belay.engine.wire.reserved import SYSTEM_NAMESPACES

#: Reason of Events on waiting pods (kube-scheduler, Volcano) and on their jobs (Volcano, on PodGroups).
FAILED_SCHEDULING: Final = "FailedScheduling"
SCHEDULING: Final = "Scheduling"
"""Action of these Events, as kube-scheduler names it."""
#: Longest text; Kubernetes allows 1 KiB in an Event's message.
MAX_TEXT: Final = 1000
_OWNERS: Final = (
    "mindxdl.gitee.com/v1",
    "batch.volcano.sh/v1alpha1",
    "batch/v1",
    "apps/v1",
    "scheduling.volcano.sh/v1beta1",
)


class Waiting(NamedTuple):
    """A pod, or the job of a gang, that waits. ``pod`` is None for a job; ``subject`` is what its Event is about."""

    uid: str
    subject: dict[str, str]
    reason: str
    text: str
    pod: Pod | None
    created: float

    @property
    def event_reason(self) -> str:
        """The Event's reason."""
        return UNSCHEDULABLE if self.pod is None else FAILED_SCHEDULING

    @property
    def event_name(self) -> str:
        """The Event's name: one per object and reason why it waits, so that repetitions are counted in it."""
        digest = hashlib.sha256(f"{self.uid}|{self.reason}".encode()).hexdigest()[:16]
        return f"{self.subject['name'][:200]}.{digest}"


def waiting(plan: Plan, observed: Observed, schedulers: Collection[str]) -> list[Waiting]:
    """Every pod that this pass found no place for, and the jobs of their gangs, oldest first.

    ``schedulers`` are the scheduler names of Belay. Pods with scheduling gates are left out: the API server itself says
    so in the same condition.
    """
    found: list[Waiting] = []
    for entry in plan.pending:
        text, ours = text_of(entry), 0
        for name in entry.pods:
            pod = observed.pods.get(f"{entry.namespace}/{name}")
            if pod is None or pod.node or pod.finished or pod.deleting is not None or pod.gates:
                continue
            if pod.scheduler in schedulers and pod.namespace not in SYSTEM_NAMESPACES:
                ours += 1
                subject = _subject("v1", "Pod", pod.namespace, pod.name, pod.uid)
                found.append(Waiting(pod.uid, subject, entry.reason, text, pod, pod.created))
        if entry.kind != "Pod" and (ours or not entry.pods):
            found.extend(_job(entry, text, observed))
    return sorted(found, key=lambda one: (one.created, one.subject["namespace"], one.subject["name"]))


def text_of(entry: Pending) -> str:
    """Why it waits and the way out, in one text."""
    head = entry.message if entry.message.startswith(entry.reason) else f"{entry.reason}: {entry.message}"
    text = f"{head}. Way out: {entry.unblock}" if entry.unblock else head
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def condition_patch(one: Waiting, now: float) -> dict[str, Any]:
    """The strategic merge patch of a pod's status; it does not apply to another pod or version of it."""
    assert one.pod is not None
    row = {
        "type": POD_SCHEDULED, "status": "False", "reason": UNSCHEDULABLE, "message": one.text, "lastProbeTime": None,
    }  # fmt: skip
    if not one.pod.unscheduled:
        row["lastTransitionTime"] = rfc3339(float(int(now)))
    return {
        "metadata": {"uid": one.pod.uid, "resourceVersion": one.pod.resource_version},
        "status": {"conditions": [row]},
    }


def event(one: Waiting, now: float) -> dict[str, Any]:
    """The first Event (core/v1) about a waiting object."""
    moment = rfc3339(float(int(now)))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": one.event_name, "namespace": one.subject["namespace"]},
        "type": "Warning",
        "reason": one.event_reason,
        "action": SCHEDULING,
        "message": one.text,
        "involvedObject": one.subject,
        "source": {"component": "belay"},
        "reportingComponent": REPORTING_COMPONENT,
        "reportingInstance": "belay",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def repeated(one: Waiting, count: int, now: float) -> dict[str, Any]:
    """The merge patch that counts a repetition in an Event that exists."""
    return {"count": count, "message": one.text, "lastTimestamp": rfc3339(float(int(now)))}


def _job(entry: Pending, text: str, observed: Observed) -> list[Waiting]:
    """The job object of a gang, where the cluster has one."""
    for api in _OWNERS:
        key = ObjectKey(api, entry.kind, entry.namespace, entry.name)
        metadata = (observed.objects.get(key) or {}).get("metadata")
        if isinstance(metadata, dict) and metadata.get("uid"):
            uid = str(metadata["uid"])
            subject = _subject(api, entry.kind, entry.namespace, entry.name, uid)
            return [Waiting(uid, subject, entry.reason, text, None, 0.0)]
    return []


def _subject(api: str, kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    return {"apiVersion": api, "kind": kind, "namespace": namespace, "name": name, "uid": uid}
