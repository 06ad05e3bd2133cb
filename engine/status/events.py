"""Kubernetes Events for what happens once: derived from actions that succeeded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from engine.model import actions as act
from engine.model.actions import AnyAction, kind_of
from engine.model.times import rfc3339

#: At most so many events of one pass; the rest is in the status ConfigMaps anyway.
MAX_EVENTS: Final = 100
_WARNING: Final = (act.EvictPod, act.IsolateChip, act.IsolateNode, act.ResetChips)
_TOLD: Final = (*_WARNING, act.BindPod, act.ReleaseChip, act.ReleaseNode, act.PartitionChip, act.DeleteObject)


def events(done: Sequence[AnyAction], now: float) -> list[dict[str, Any]]:
    """Events (core/v1) for actions that were carried out, bounded per pass; names are stable per action and time."""
    return [_event(action, now) for action in done if isinstance(action, _TOLD) or _of_node(action)][:MAX_EVENTS]


def _of_node(action: AnyAction) -> bool:
    """A change of a Node itself, such as the request to reboot it."""
    return isinstance(action, act.PatchObject) and action.object_kind == "Node"


def _event(action: AnyAction, now: float) -> dict[str, Any]:
    api_version, kind, namespace, name = _subject(action)
    subject = {"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name} | _uid(action)
    where = namespace or "default"
    moment = rfc3339(float(int(now)))
    digest = hashlib.sha256(f"{kind_of(action)}|{namespace}|{name}|{action.message}|{now}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[:200]}.{digest}", "namespace": where},
        "type": "Warning" if isinstance(action, _WARNING) or action.reason == "ResetsFailed" else "Normal",
        "reason": action.reason[:128],
        "action": kind_of(action),
        "message": action.message[:1000],
        "involvedObject": subject,
        "source": {"component": "belay"},
        "reportingComponent": "belay.dev/engine",
        "reportingInstance": "belay",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def _subject(action: AnyAction) -> tuple[str, str, str, str]:
    if isinstance(action, act.BindPod | act.EvictPod):
        return "v1", "Pod", action.namespace, action.pod
    if isinstance(action, act.DeleteObject):
        return action.api_version, action.object_kind, action.namespace, action.name
    if _of_node(action):
        return "v1", "Node", "", getattr(action, "name", "")
    return "v1", "Node", "", getattr(action, "node", "")


def _uid(action: AnyAction) -> dict[str, str]:
    """What `kubectl describe` finds the event by: the object's uid, and of a node its name, as kubelet writes it."""
    subject = _subject(action)
    if subject[1] == "Node":
        return {"uid": subject[3]}
    uid = action.preconditions.get("uid")
    return {"uid": str(uid)} if uid else {}
