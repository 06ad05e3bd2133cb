"""Kubernetes Events, derived from actions that succeeded and from changes in the plan."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice, repeat
from typing import Any, Final

import msgspec

from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction, kind_of
from belay.engine.model.causes import Cause
from belay.engine.model.cluster import Observed
from belay.engine.model.history import (
    HoldKind,
    NodeMemory,
)
from belay.engine.model.labels import EVENT_CAUSE, EVENT_CHIPS, EVENT_NODE, EVENT_TRACE
from belay.engine.model.plan import REFUSING, REPEATED, Plan, ShadowChange
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.status.bodies import text as json_text
from belay.engine.wire import names
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import REPORTING_COMPONENT

#: Most Events of one pass; the status ConfigMaps hold the rest.
MAX_EVENTS: Final = 100
#: Reason and action of Events about upgrades by frequency that ended.
RELEASE: Final = "EventReleaseUpgradeFault"
#: Prefix of device names without a report.
DEFAULT_PREFIX: Final = "Ascend910-"
#: Reason of Events about what a shadow policy would change.
SHADOW: Final = "ShadowPolicy"
_MOST_CHIPS: Final = 1000
_WARNING: Final = (act.EvictPod, act.IsolateChip, act.IsolateNode, act.ResetChips)
#: Reason of Events on what the brake of repeated actions stops.
REPEATS: Final = "ActionRepeats"
#: Reason of Events on pods whose eviction a PodDisruptionBudget refuses.
REFUSED: Final = "EvictionRefused"
#: Reason of Events on objects whose deletion waits for a confirmation.
HELD: Final = "PruneHeld"
#: The component that Events name as their source.
COMPONENT: Final = "belay"
#: Reason of the Event on a bound pod, as kube-scheduler and Volcano give it.
SCHEDULED: Final = "Scheduled"
#: Conditions of a job that become Events, and those of them that are warnings.
_JOB_CONDITIONS: Final = frozenset({"Failed", "Succeeded", "Restarting"})
_BAD: Final = frozenset({"Failed", "Restarting"})
#: Kinds of inference services, and reasons of Events on them, as MindCluster's infer operator writes both
#: (component/infer-operator/pkg/controller/v1).
_INFERENCE: Final = frozenset({"InferServiceSet", "InferService", "InstanceSet"})
VALIDATE_ERROR: Final = "ValidateError"
#: Reasons of Events on objects of which the API server refuses a part, by the owner's kind and the part's: as the infer
#: operator writes them, and as the Ascend Operator writes them into the job's conditions.
NOT_CREATED: Final[dict[tuple[str, str], str]] = {
    ("InstanceSet", "Service"): "ServiceCreateError",
    ("InstanceSet", "HorizontalPodAutoscaler"): "ScalingResourceReconcileError",
    ("AscendJob", "Pod"): "PodCreateFailed",
    ("AscendJob", "PodGroup"): "SyncPodGroupFailed",
    ("AscendJob", "Service"): "SyncServiceFailed",
}
ANNOUNCED: Final = (*_WARNING, act.BindPod, act.ReleaseChip, act.ReleaseNode, act.PartitionChip, act.DeleteObject)


def events(done: Sequence[AnyAction], now: float, traces: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Events (core/v1) for actions that were carried out, bounded per pass; names are stable per action and time.

    ``traces`` are the traces of the actions, where spans are sent.
    """
    reported = (
        (action, trace)
        for action, trace in zip(done, traces or repeat(""), strict=False)
        if isinstance(action, ANNOUNCED) or _of_node(action) or _job_condition(action) is not None or _trouble(action)
    )
    return [_event(action, now, trace) for action, trace in islice(reported, MAX_EVENTS)]


def _job_condition(action: AnyAction) -> dict[str, Any] | None:
    """The condition by which an AscendJob ends or restarts, as MindCluster's operator reports it; None for others.

    A refused ``scaleout-type`` shows in the condition only, as in the operator.
    """
    if not isinstance(action, act.PatchObject) or action.object_kind != "AscendJob":
        return None
    rows = (
        (action.patch.get("status") or {}).get("conditions") if isinstance(action.patch.get("status"), dict) else None
    )
    last = rows[-1] if isinstance(rows, list) and rows and isinstance(rows[-1], dict) else {}
    if last.get("type") not in _JOB_CONDITIONS or str(last.get("message")).startswith("InvalidScaleOutConfig"):
        return None
    return last


def _trouble(action: AnyAction) -> tuple[str, str] | None:
    """Reason and message of a status that says what is wrong with an inference service; None for any other action."""
    if not isinstance(action, act.PatchObject) or action.object_kind not in _INFERENCE:
        return None
    status = action.patch.get("status")
    if not isinstance(status, dict):
        return None
    for row in status.get("conditions") or ():
        if row.get("reason") == VALIDATE_ERROR:
            return VALIDATE_ERROR, str(row.get("message"))
    scaler = status.get("scalingResourceStatus") or {}
    if scaler.get("ready") is False and not scaler.get("name"):
        return NOT_CREATED["InstanceSet", "HorizontalPodAutoscaler"], str(scaler.get("message"))
    return None


def refused_events(refused: Sequence[tuple[AnyAction, str]], now: float) -> list[dict[str, Any]]:
    """Events on AscendJobs and InstanceSets of which the API server refused a part, with its words: one per cause.

    An Event's name is derived from its subject and cause, so that a call that is repeated makes no second Event, and a
    job of a thousand pods that a quota forbids has one.
    """
    texts: dict[str, str] = {}
    bodies: dict[str, dict[str, Any]] = {}
    more: Counter[str] = Counter()
    for action, why in refused:
        part = _part(action)
        if part is None:
            continue
        kind, part_name, namespace, raw = part
        owners = raw["metadata"].get("ownerReferences") or ()
        owner = next((row for row in owners if (row.get("kind"), kind) in NOT_CREATED), None)
        if owner is None:
            continue
        subject = {name: str(owner.get(name, "")) for name in ("apiVersion", "kind", "name", "uid")}
        reason = NOT_CREATED[subject["kind"], kind]
        cause = f"{subject}|{namespace}|{reason}|{why.replace(part_name, '')}"
        name = f"{subject['name'][:200]}.{hashlib.sha256(cause.encode()).hexdigest()[:16]}"
        if name in bodies:
            more[name] += 1
            continue
        texts[name] = f"{kind} {part_name} cannot be created: {why}"
        subject["namespace"] = namespace
        metadata = {"name": name, "namespace": namespace}
        bodies[name] = _body(metadata, subject, "Warning", reason, "CreateObject", texts[name], now)
    for name, count in more.items():
        bodies[name]["message"] = f"{texts[name][:960]} (and {count} more)"
    return list(bodies.values())[:MAX_EVENTS]


def _part(action: AnyAction) -> tuple[str, str, str, dict[str, Any]] | None:
    """Kind, name, namespace and content of what the action creates; None for any other action."""
    if isinstance(action, act.CreatePod):
        return "Pod", action.pod, action.namespace, action.object
    if isinstance(action, act.CreateObject):
        return action.object_kind, action.name, action.namespace, action.object
    return None


def shadow_events(changes: Sequence[ShadowChange], now: float) -> list[dict[str, Any]]:
    """Events for what shadow policies would change, on the object concerned.

    An Event's name is derived from its content, so a change that is planned again makes no second Event.
    """
    out: dict[str, dict[str, Any]] = {}
    for change in changes:
        action, would = change.action, "would" if change.change == "new" else "would not"
        later = f" (budget {change.budget} would defer it)" if change.budget else ""
        body = _event(action, now)
        text = f"shadow FaultPolicy {change.policy} {would} {kind_of(action)}: {action.message}{later}"
        subject = body["involvedObject"]
        digest = hashlib.sha256(f"{subject}|{text}".encode()).hexdigest()[:16]
        name = f"{subject['name'][:190]}.shadow.{digest}"
        body["metadata"] = {**body["metadata"], "name": name}
        out[name] = body | {"type": "Normal", "reason": SHADOW, "message": text[:1000]}
    return list(out.values())


def held_events(plan: Plan) -> list[dict[str, Any]]:
    """An Event on every object whose deletion waits for a confirmation, once per waiting set."""
    hold = plan.held_prune
    if hold is None:
        return []
    out: list[dict[str, Any]] = []
    for deferred in plan.deferred:
        if deferred.confirm != hold.digest or len(out) == MAX_EVENTS:
            continue
        body = _event(deferred.action, plan.now)
        text = (
            f"no longer declared in Git; deleting it with {hold.size} waits for a person: a commit with the trailer "
            f"{hold.trailer}, or its document restored"
        )
        name = f"{body['involvedObject']['name'][:190]}.prune.{hold.digest[:16]}"
        metadata = {**body["metadata"], "name": name}
        out.append(body | {"metadata": metadata, "type": "Warning", "reason": HELD, "message": text[:1000]})
    return out


def repeat_events(plan: Plan) -> list[dict[str, Any]]:
    """An Event on everything that the brake of repeated actions stops, one until its window has room; and on every pod
    whose eviction a PodDisruptionBudget refuses.
    """
    out: dict[str, dict[str, Any]] = {}
    for deferred in plan.deferred:
        refused = deferred.budget.startswith(REFUSING)
        if not (refused or deferred.budget.startswith(REPEATED)) or len(out) == MAX_EVENTS:
            continue
        body = _event(deferred.action, plan.now)
        if (part := _part(deferred.action)) is not None:
            body = _about_part(body, part)
        kind = kind_of(deferred.action)
        text = (
            f"{kind} waits until {deferred.until}: done too often, so something undoes it each time "
            f"(SafetyBudget {deferred.budget.removeprefix(REPEATED)}, spec.repeats). It was to be done because: "
            f"{deferred.action.message}"
        )
        reason, until = REPEATS, deferred.until
        if refused:
            reason, until = REFUSED, ""
            text = (
                f"{deferred.budget.replace('/', ' ')} refuses the eviction, the pod still runs; Belay tries again. "
                f"It was to go because: {deferred.action.message}"
            )
        subject = body["involvedObject"]
        digest = hashlib.sha256(f"{kind}|{subject}|{deferred.budget}|{until}".encode()).hexdigest()[:16]
        name = f"{subject['name'][:190]}.repeats.{digest}"
        metadata = {**body["metadata"], "name": name}
        out[name] = body | {"metadata": metadata, "type": "Warning", "reason": reason, "message": text[:1000]}
    return list(out.values())


def _about_part(body: dict[str, Any], part: tuple[str, str, str, dict[str, Any]]) -> dict[str, Any]:
    """The Event on the owner of what is not created, else on the object itself."""
    kind, name, namespace, raw = part
    owners = raw["metadata"].get("ownerReferences") or ()
    api_version = str(raw.get("apiVersion") or "v1")
    subject: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name}
    for owner in owners[:1]:
        subject |= {key: str(owner.get(key, "")) for key in ("apiVersion", "kind", "name", "uid")}
    return body | {"involvedObject": subject, "metadata": body["metadata"] | {"namespace": namespace or "default"}}


def release_events(observed: Observed, plan: Plan) -> list[dict[str, Any]]:
    """An Event per node whose chips lost upgrades by frequency in this pass, in the device plugin's words.

    The message holds the ended upgrades in the form of ``UpgradeFaultReason``. Source:
    component/ascend-device-plugin/pkg/common/upgradefault.go.
    """
    out = []
    for node, memory in sorted(observed.history.nodes.items()):
        if not any(hold.kind == HoldKind.FREQUENCY for row in memory.chips.values() for hold in row.holds):
            continue
        if not any(row.node == node for row in plan.nodes):
            continue  # another shard's node, or a deleted one
        report, left = observed.reports.get(node), plan.history.nodes.get(node, NodeMemory()).chips
        prefix = report.prefix if report is not None else DEFAULT_PREFIX
        gone: dict[str, list[dict[str, Any]]] = {}
        for chip, row in sorted(memory.chips.items()):
            kept = {h.key for h in left[chip].holds} if chip in left else set()
            for hold in row.holds:
                if hold.kind != HoldKind.FREQUENCY or hold.key in kept or hold.rule_kind is RuleKind.HARDWARE:
                    continue
                reason = {
                    "upgrade_time": hold.since,
                    "fault_code": hold.rule.lower(),
                    "fault_level": hold.level,
                    "upgrade_type": "FaultFrequency",
                }
                gone.setdefault(f"{prefix}{chip}", []).append(reason)
        if gone:
            out.append(_release(node, go_json(gone), plan.now))
    return out[:MAX_EVENTS]


def _release(node: str, message: str, now: float) -> dict[str, Any]:
    metadata = {"name": f"{node[:190]}.{RELEASE}.{int(now * 1000)}", "namespace": names.DEVICE_NAMESPACE}
    subject = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    return _body(metadata, subject, "Normal", RELEASE, RELEASE, message, now)


def _of_node(action: AnyAction) -> bool:
    """Whether the action changes a Node, such as the request to reboot it."""
    return isinstance(action, act.PatchObject) and action.object_kind == "Node"


def _event(action: AnyAction, now: float, trace: str = "") -> dict[str, Any]:
    api_version, kind, namespace, name = _subject(action)
    subject = {"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name} | _uid(action)
    where = namespace or "default"
    condition, trouble = _job_condition(action) or {}, _trouble(action)
    if trouble is not None:
        condition = dict(zip(("reason", "message"), trouble, strict=True))
    warns = isinstance(action, _WARNING) or action.reason == "ResetsFailed" or condition.get("type") in _BAD
    warns = (warns or trouble is not None) and action.reason != ActionReason.MAINTENANCE
    digest = hashlib.sha256(f"{kind_of(action)}|{namespace}|{name}|{action.message}|{now}".encode()).hexdigest()[:16]
    reason, message = str(condition.get("reason") or action.reason), str(condition.get("message") or action.message)
    if isinstance(action, act.BindPod):
        chips = f" with {', '.join(action.chips)}" if action.chips else ""
        # in kube-scheduler's own words, which people and tools look for
        reason, message = SCHEDULED, f"Successfully assigned {namespace}/{name} to {action.node}{chips}"
    elif not condition and isinstance(cause := action.evidence.cause, Cause):
        message = f"{message}; because of {cause.text}"
    metadata: dict[str, Any] = {"name": f"{name[:200]}.{digest}", "namespace": where}
    if marks := _marks(action) | ({EVENT_TRACE: trace} if trace else {}):
        metadata["annotations"] = marks
    return _body(metadata, subject, "Warning" if warns else "Normal", reason, kind_of(action), message, now)


def _marks(action: AnyAction) -> dict[str, str]:
    """What programs read of an Event: where it was done, and its cause."""
    marks = {}
    if node := getattr(action, "node", "") or action.preconditions.node:
        marks[EVENT_NODE] = str(node)
    chips = (action.chip,) if isinstance(action, act.PartitionChip) else getattr(action, "chips", ())
    if chips:
        marks[EVENT_CHIPS] = ",".join(chips)[:_MOST_CHIPS]
    if isinstance(action.evidence.cause, Cause):
        marks[EVENT_CAUSE] = bounded_cause(action.evidence.cause)
    return marks


def bounded_cause(cause: Cause) -> str:
    """A cause as JSON of bounded size: of further causes the first few."""
    return json_text(msgspec.structs.replace(cause, also=cause.also[:4]))


def _body(
    metadata: dict[str, Any], subject: dict[str, str], kind: str, reason: str, action: str, message: str, now: float
) -> dict[str, Any]:
    moment = rfc3339(float(int(now)))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "type": kind,
        "reason": reason[:128],
        "action": action,
        "message": message[:1000],
        "involvedObject": subject,
        "source": {"component": COMPONENT},
        "reportingComponent": REPORTING_COMPONENT,
        "reportingInstance": "belay",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def _subject(action: AnyAction) -> tuple[str, str, str, str]:
    if isinstance(action, act.PatchObject) and (_job_condition(action) is not None or _trouble(action) is not None):
        return action.api_version, action.object_kind, action.namespace, action.name
    if isinstance(action, act.BindPod | act.EvictPod):
        return "v1", "Pod", action.namespace, action.pod
    if isinstance(action, act.DeleteObject):
        return action.api_version, action.object_kind, action.namespace, action.name
    if _of_node(action):
        return "v1", "Node", "", getattr(action, "name", "")
    return "v1", "Node", "", getattr(action, "node", "")


def _uid(action: AnyAction) -> dict[str, str]:
    """The uid by which `kubectl describe` finds the Event: the object's, or a node's name, as kubelet writes it."""
    subject = _subject(action)
    if subject[1] == "Node":
        return {"uid": subject[3]}
    uid = action.preconditions.uid
    return {"uid": uid} if uid else {}
