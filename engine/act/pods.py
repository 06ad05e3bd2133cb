"""Pods: create, bind to node and chips, evict."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from belay.engine.act.edge import Edge, Refused
from belay.engine.act.pod_watch import WatchedPod
from belay.engine.kube import BIND_SECONDS, POD, Conflict, KubeError, NotFound, Object, Unavailable
from belay.engine.log import get
from belay.engine.model.actions import BindPod, CreatePod, EvictPod
from belay.engine.wire.podannotations import chosen_devices

_log = get("act")


async def create_pod(edge: Edge, action: CreatePod) -> bool:
    """Create a pod for the owner that the plan saw. An existing pod of that name and owner counts as created."""
    owner_uid = action.preconditions.owner_uid or ""
    if owner_uid and owner_uid not in _owners(action.object):
        raise Refused(f"the pod does not name owner {owner_uid}")
    try:
        edge.wrote(await edge.kube.create(POD, action.object))
    except Conflict as error:
        if not error.already_exists:
            raise
        live = await edge.kube.get(POD, action.pod, action.namespace)
        if live is None or (owner_uid and owner_uid not in _owners(live)):
            raise Refused(f"pod {action.namespace}/{action.pod} belongs to another owner") from error
        return False
    except NotFound as error:
        raise Refused(f"namespace {action.namespace} does not exist") from error
    return True


async def bind_pod(edge: Edge, action: BindPod) -> bool:
    """Bind a pod with its chips' annotations in one write.

    The UID travels in the Binding: API servers since 1.23 refuse another pod of the name, older ones bind it. So the
    UID is checked at most ``BIND_SECONDS`` before, too, and the bound pod after. A pod of another UID that an older
    server gave our chips is deleted at once; the planned pod never is, whatever a device plugin has written since.

    What is not answered by then may still be carried out: the ledger keeps the chips as long (``claims``). Both states
    are read, or come from the pods' watch where one is open (``pod_watch``), except events that are late.
    """
    uid = action.preconditions.uid or ""
    watch = edge.pods if edge.pods is not None and edge.follows and edge.pods.alive else None
    seen = watch.seen(action.namespace, action.pod) if watch else None
    if watch is None or (seen is not None and seen.node):
        live = await edge.kube.get(POD, action.pod, action.namespace)
        _bindable(action, uid, live)
        assert live is not None
        if _is_bound_as_planned(live, action):
            return False
        if live["spec"].get("nodeName"):
            raise Refused(f"pod {action.namespace}/{action.pod} is already bound to {live['spec']['nodeName']}")
    else:
        _still_bindable(action, uid, seen)

    expected = watch.expect(action.namespace, action.pod) if watch else None
    lost: Conflict | None = None
    try:
        try:
            async with asyncio.timeout(BIND_SECONDS), edge.gate:
                await edge.kube.bind(action.namespace, action.pod, uid, action.node, action.annotations)
        except Conflict as error:  # another writer was first, or our own answer was lost: reading shows which
            lost = error
        except NotFound as error:
            raise Refused(f"pod {action.namespace}/{action.pod} is gone") from error
        except TimeoutError as error:
            name = f"pod {action.namespace}/{action.pod}"
            raise Unavailable(f"binding of {name}: no answer within {BIND_SECONDS} s", reason="NoAnswer") from error
        after: Object | None = None
        if watch is not None and expected is not None and lost is None:
            with contextlib.suppress(TimeoutError):
                after = await watch.wait_for(action.namespace, action.pod, expected)
    finally:
        if watch is not None and expected is not None:
            watch.cancel(action.namespace, action.pod, expected)

    if after is None:
        after = await edge.kube.get(POD, action.pod, action.namespace)
    if after is None:
        raise Refused(f"pod {action.namespace}/{action.pod} went while it was bound")
    if _uid(after) == uid and _is_bound_as_planned(after, action):
        edge.wrote(after)
        return True
    if lost is None and _uid(after) != uid and _is_bound_as_planned(after, action):
        await _delete_wrong_pod(edge, action, after)
        raise Refused(f"pod {action.namespace}/{action.pod} was recreated during the binding; the new pod is deleted")
    raise Refused(_refusal(action, uid, after, lost))


async def evict_pod(edge: Edge, action: EvictPod) -> bool:
    """Evict a pod. ``force`` deletes it regardless of PodDisruptionBudgets, with the action's grace period."""
    uid = action.preconditions.uid or ""
    live = await edge.kube.get(POD, action.pod, action.namespace)
    if live is None:
        return False
    if uid and _uid(live) != uid:
        raise Refused(f"pod {action.namespace}/{action.pod} was recreated")
    if live["metadata"].get("deletionTimestamp") and not action.force:
        return False
    grace = action.grace_period_seconds
    try:
        if action.force:
            await edge.kube.delete(POD, action.pod, action.namespace, grace=grace, uid=uid or None)
        else:
            await edge.kube.evict(action.namespace, action.pod, grace, uid=uid or None)
    except NotFound:
        return False
    after = await edge.kube.get(POD, action.pod, action.namespace)
    if after is not None and _uid(after) == _uid(live):
        edge.wrote(after)
    else:
        edge.removed("v1", "Pod", action.namespace, action.pod, _uid(live))
    return True


async def pods_on(edge: Edge, node: str) -> list[Object]:
    """Live pods bound to a node, read now."""
    listing = await edge.kube.list(POD, fields=f"spec.nodeName={node}")
    return [pod for pod in listing.items if (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}]


async def _delete_wrong_pod(edge: Edge, action: BindPod, pod: Object) -> None:
    """Delete a pod that holds the chips of the pod whose name it has, and say so where people look."""
    what = "deleted: it got the binding of an earlier pod of its name, with chips that were not chosen for it"
    _log.warning("wrong pod bound", pod=f"{action.namespace}/{action.pod}", uid=_uid(pod), node=action.node)
    try:
        await edge.kube.delete(POD, action.pod, action.namespace, uid=_uid(pod))
    except (Conflict, NotFound):
        return  # gone already, as intended

    edge.removed("v1", "Pod", action.namespace, action.pod, _uid(pod))
    with contextlib.suppress(KubeError):  # the deletion stands, and the log has it
        await edge.kube.event(pod, "WrongPodBound", what, now=edge.now(), kind="Warning", component="belay")


def _refusal(action: BindPod, uid: str, after: Object, lost: Conflict | None) -> str:
    """What became of the pod instead of the binding."""
    name = f"pod {action.namespace}/{action.pod}"
    node = str(after["spec"].get("nodeName") or "")
    if _uid(after) != uid:
        return f"{name}: another pod of this name is there by now (UID {_uid(after)}, planned {uid}); it is left alone"
    if after["metadata"].get("deletionTimestamp"):
        return f"{name} is being deleted"
    if node == action.node:
        return f"{name} is bound to {node}, but its annotations name other chips than planned"
    if node:
        return f"{name} is already bound to {node}: another scheduler was first"
    return f"{name} is not bound: {lost}" if lost is not None else f"{name} lost its node right after the binding"


def _bindable(action: BindPod, uid: str, live: Object | None) -> None:
    name = f"pod {action.namespace}/{action.pod}"
    if live is None:
        raise Refused(f"{name} is gone")
    if not uid or _uid(live) != uid:
        raise Refused(f"{name} was recreated")
    if live["metadata"].get("deletionTimestamp"):
        raise Refused(f"{name} is being deleted")


def _still_bindable(action: BindPod, uid: str, seen: WatchedPod | None) -> None:
    """Check the same by the watch's newest event; without one nothing has changed."""
    name = f"pod {action.namespace}/{action.pod}"
    if not uid or (seen is not None and seen.uid != uid):
        raise Refused(f"{name} was recreated")
    if seen is not None and seen.gone:
        raise Refused(f"{name} is gone")
    if seen is not None and seen.deleting:
        raise Refused(f"{name} is being deleted")


def _is_bound_as_planned(pod: Object, action: BindPod) -> bool:
    """Whether a pod is on the planned node with the planned chips.

    Nothing else counts: device plugins overwrite other annotations of the Binding as soon as kubelet asks them for
    devices, which may be before the pod is read here (``predicate-time``, the configuration).
    """
    annotations: dict[str, Any] = pod["metadata"].get("annotations") or {}
    planned = chosen_devices(action.annotations)
    same = all(annotations.get(key) == value for key, value in planned.items())
    return pod["spec"].get("nodeName") == action.node and same


def _owners(obj: Object) -> set[str]:
    return {str(owner.get("uid")) for owner in (obj.get("metadata") or {}).get("ownerReferences") or []}


def _uid(obj: Object) -> str:
    return str(obj["metadata"].get("uid") or "")
