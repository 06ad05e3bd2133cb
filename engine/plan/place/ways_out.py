"""The cheapest change that would let a pod start, in words and, where it is one definite step, as values."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import TOR_AFFINITY
from belay.engine.model.pending_reasons import (
    ENQUEUE_FAILED,
    FRAGMENTED,
    SHORTAGE,
    TOPOLOGY,
    lacks_room,
    reason_in_words,
)
from belay.engine.model.plan import MAX_NEAR
from belay.engine.model.quantities import text_of
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place import switch_config
from belay.engine.plan.place.families.a3 import A3
from belay.engine.plan.place.families.box16 import Box16
from belay.engine.plan.place.families.card310 import Card310
from belay.engine.plan.place.families.duo import DuoCard
from belay.engine.plan.place.families.mesh4 import Mesh4
from belay.engine.plan.place.families.ring8 import Ring8
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import WHOLE_CHIP, SchedulerJob
from belay.engine.plan.place.node_remedies import remedy_of_node
from belay.engine.plan.place.nodes import attach_limits, exclusive_claims, resource_claims, volumes

MAX_NAMES: Final = 3

_VOLUME_WAYS_OUT: Final = {
    volumes.CLAIM: "create or bind the PersistentVolumeClaims that the pod names",
    volumes.NO_VOLUME.reason: "add a PersistentVolume that suits the claim, or free the nodes that have one",
    volumes.NO_SPACE.reason: "free storage of the claim's class, or claim less",
    attach_limits.REASON: "free nodes whose driver can attach more volumes, or give the pods fewer",
    exclusive_claims.IN_USE: "end the pod that has the claim, or give the job a claim of its own",
    volumes.NOT_SELECTED: "free room on that node, or delete the claim so that another node is selected",
}


class WayOut(NamedTuple):
    """The cheapest change that would let the pod start, as a sentence (None when none is known), the nodes that it
    concerns, the nearest first, and the change as values where it is one definite step.
    """

    text: str | None
    near: Sequence[str] = ()
    remedy: Remedy | None = None


def of_refused_gang(reason: str, free: int | None) -> WayOut | None:
    """The way out of a gang that is refused before any node is considered, where it needs more than its words.

    ``free``: chips that the cluster has free.
    """
    if reason == ENQUEUE_FAILED:
        text = "wait until so many chips are free, or state fewer in spec.minResources of its PodGroup"
        return WayOut(text, remedy=Remedy(Step.STATE_LESS, count=free or 0))
    if reason == switch_config.UNKNOWN:
        text = f"import the switches as {switch_config.CONFIG}, or remove label {TOR_AFFINITY}"
        return WayOut(text, remedy=Remedy(Step.SET_LABEL, remove=(TOR_AFFINITY,)))
    return None


def way_out(
    job: SchedulerJob,
    pod: Pod,
    reason: str,
    refusals: Mapping[str, Refusal],
    views: Mapping[str, NodeView],
    lacking: int = 1,
) -> WayOut:
    """The way out of a pod whose nearest nodes gave this reason."""
    near = [name for name in sorted(refusals) if refusals[name].reason == reason and name in views]
    if reason == TOPOLOGY and job.topology and not near:
        near = [name for name in sorted(views) if views[name].resource == job.resource]
    if job.shared is not None and reason in (SHORTAGE, FRAGMENTED) and near:
        text = f"end or move work on a chip of {near[0]}: {refusals[near[0]].message}"
        return WayOut(text, near[:lacking], Remedy(Step.FREE_CHIPS, near[0], count=1))
    if reason in (SHORTAGE, TOPOLOGY) and near:
        return _chips(job, pod, reason, near, views, lacking)
    if not near:
        return _of_no_node(job, reason)
    return _on_node(pod, reason, near, refusals, views, lacking)


def _of_no_node(job: SchedulerJob, reason: str) -> WayOut:
    if reason == "WaitingForRelease":
        return WayOut("nothing to do: it ends when the job's old pods are gone", remedy=Remedy(Step.WAIT))
    text = f"add nodes that offer {job.resource}" if job.resource else "add nodes that the job may use"
    most = max((pod.count for pod in job.pods), default=0)
    return WayOut(text, remedy=Remedy(Step.ADD_NODE, count=most, values={job.resource: ""} if job.resource else {}))


def _on_node(
    pod: Pod,
    reason: str,
    near: Sequence[str],
    refusals: Mapping[str, Refusal],
    views: Mapping[str, NodeView],
    lacking: int,
) -> WayOut:
    """The way out on the first of the nodes that gave the reason."""
    first, message, cause = near[0], refusals[near[0]].message, refusals[near[0]].cause
    if cause is not None:
        told = cause.told()
        return WayOut(told.unblock, near[:lacking], told.remedy)
    remedy = remedy_of_node(refusals[first], pod, views[first])
    match reason:
        case "PodAntiAffinityConflict" | "PodAffinityMismatch" | "TopologySpreadConflict":
            text = "add nodes in other topology domains or relax the job's pod affinity or spread"
            return WayOut(text, remedy=remedy)
        case "PortConflict":
            ports = ", ".join(str(port) for port in sorted({port for _, _, port in pod.host_ports}))
            text = f"give the job other host ports than {ports}, or end the pod that has them, for example on {first}"
            return WayOut(text, near[:lacking], Remedy(Step.FREE_ROOM, first, values={"ports": ports}))
        case "VolumeNodeAffinityConflict":
            text = "free room on the nodes that the job's volumes are bound to, or use volumes that move"
            return WayOut(text, remedy=remedy)
        case attach_limits.REASON if remedy is not None and remedy.step is Step.WAIT:
            text = f"nothing: volumes of pods that have gone are still being detached from {first}"
            return WayOut(text, near[:lacking], remedy)
        case _ if reason in _VOLUME_WAYS_OUT:
            return WayOut(f"{_VOLUME_WAYS_OUT[reason]}: {message}", near[:lacking], remedy)
        case resource_claims.NOT_ALLOCATED:
            text = f"correct the claim, or let its allocator serve it: {message}"
            return WayOut(text, near[:lacking], remedy)
        case "WaitingForRelease":
            return WayOut("nothing to do: it ends when the job's old pods are gone", near[:lacking], remedy)
        case _ if lacks_room(reason):
            return _room(pod, reason, near, refusals, views, lacking)
        case "NodeReportMissing":
            how = "run belay agent (deploy/overlays/nodes) or MindCluster's device plugin there"
            return WayOut(f"let a node report its chips, for example {first}: {how}", near[:lacking], remedy)
        case "PoolSuspended":
            text = f"set spec.suspend of NodePool {views[first].pool} to false"
            return WayOut(text, near[:lacking], remedy)
        case _ if reason_in_words(reason).of_node:
            return WayOut(f"{reason_in_words(reason).way_out} ({first}: {message})", near[:lacking], remedy)
        case _:
            return WayOut(f"bring a node back, for example {first}: {message}", near[:lacking], remedy)


def _room(
    pod: Pod,
    reason: str,
    near: Sequence[str],
    refusals: Mapping[str, Refusal],
    views: Mapping[str, NodeView],
    lacking: int,
) -> WayOut:
    """Room for what Kubernetes counts beside chips, on a node that is large enough for it."""
    what = refusals[near[0]].resource
    wanted = pod.requests.get(what, 1)
    able = [name for name in near if views[name].node.allocatable.get(what, 0) >= wanted]
    if not able:
        most = max(views[name].node.allocatable.get(what, 0) for name in near)
        remedy = Remedy(Step.ASK_LESS, values={what: str(most)})
        return WayOut(
            f"ask for less {what}: no node that the job may use has more than {text_of(what, most)}", (), remedy
        )
    text = f"needs {what} on a node: end work that takes it, for example on {able[0]}"
    return WayOut(text, able[:lacking], Remedy(Step.FREE_ROOM, able[0], values={what: str(wanted)}))


def _chips(
    job: SchedulerJob, pod: Pod, reason: str, near: Sequence[str], views: Mapping[str, NodeView], lacking: int
) -> WayOut:
    """``needs 8 free chips in one ring on 2 more nodes (nearest is n1 with 4 free, the others held by train/b)``."""
    if pod.resource not in WHOLE_CHIP:
        return _parts(pod, near, views, lacking)
    most = max(views[name].base.bit_count() for name in near)
    if pod.count > most:
        text = f"ask for at most {many(most, 'chip')} a pod: no node that the job may use has more"
        return WayOut(text, (), Remedy(Step.ASK_CHIPS, count=most))
    nearest_first = heapq.nsmallest(MAX_NEAR, near, key=lambda name: _distance(pod, views[name], name))
    best = nearest_first[0]
    view = views[best]
    free = view.free.bit_count()
    own = set(job.gang.pods)
    holders = sorted({view.used_by[chip] for chip in ids_of(view.used & view.base) if chip in view.used_by} - own)
    held = f", others held by {some_names(holders)}" if holders else ""
    beside = " beside the job's other pods" if tentative_pods(view, frozenset(own)) else ""
    nearest = f"(nearest is {best} with {free} free{beside}{held})"
    remedy = _chips_remedy(job, pod, nearest_first, near, views)
    if job.topology == switch_config.RULE:
        text = (
            "needs free nodes under one switch, or under switches that no other job crosses: end work on a "
            f"neighbour of {best} {nearest}"
        )
        return WayOut(text, nearest_first[:lacking], remedy)
    if job.topology:
        text = f"needs {_blocks(job)}: end work on a neighbour of {best}, or use soft affinity {nearest}"
        return WayOut(text, nearest_first[:lacking], remedy)
    counted = ""
    if reason == SHORTAGE and free >= pod.count:
        aware = job.distributed and job.family is not None and job.family.network_aware
        broken = aware and (view.free & ~(view.network or 0)).bit_count() < pod.count
        counted = " with a healthy network" if broken else " that Kubernetes counts as free"
    wanted = f"{many(pod.count, 'free chip')}{_together(job, pod.count)}{counted}"
    whole = 2 * pod.count > view.base.bit_count()
    if lacking == 1 or whole:
        text = f"needs {wanted} on {many(lacking, 'more node')} {nearest}"
        return WayOut(text, nearest_first[:lacking], remedy)
    # several of its pods share a node
    shared = -(-lacking * pod.count // max(1, view.base.bit_count()))
    return WayOut(f"needs {wanted} for each of {lacking} more pods {nearest}", nearest_first[:shared], remedy)


def _chips_remedy(
    job: SchedulerJob, pod: Pod, nearest_first: Sequence[str], near: Sequence[str], views: Mapping[str, NodeView]
) -> Remedy:
    """End other work on the nearest node that has some; else chips that are out of service must come back there, and
    where none is, only another node helps.
    """
    own = set(job.gang.pods)

    def lacking_first(name: str) -> tuple[bool, bool, bool, int, str]:
        """A node that is wholly free needs no freeing: its neighbours do."""
        return views[name].free == views[name].base, *_distance(pod, views[name], name)

    ranked = sorted(near, key=lacking_first) if job.topology else nearest_first
    for name in ranked:
        view = views[name]
        if any(view.used_by.get(chip) not in own for chip in ids_of(view.used & view.base)):
            return Remedy(Step.FREE_CHIPS, name, count=pod.count)
        if view.base & ~view.free & ~view.used:
            return Remedy(Step.MEND, name)
    return Remedy(Step.ADD_NODE, count=pod.count, values={pod.resource: ""})


def _distance(pod: Pod, view: NodeView, name: str) -> tuple[bool, bool, int, str]:
    """Nodes that are large enough come before those that never could hold the pod, then those where the end of other
    work makes enough room (the others have chips out of service), then those with more free chips.
    """
    free, in_service = view.free.bit_count(), (view.free | view.used & view.base).bit_count()
    return view.base.bit_count() < pod.count, in_service < pod.count, -free, name


def tentative_pods(view: NodeView, own: frozenset[str]) -> frozenset[str]:
    """Keys of the job's pods that are assigned to the node only tentatively."""
    return frozenset(pod.key for pod in view.pods if not pod.node and pod.key in own)


def _parts(pod: Pod, near: Sequence[str], views: Mapping[str, NodeView], lacking: int) -> WayOut:
    """The same for resources counted by name alone, such as vNPUs that were cut beforehand."""
    left = {
        name: views[name].node.allocatable.get(pod.resource, 0) - views[name].requested.get(pod.resource, 0)
        for name in near
    }
    nearest_first = heapq.nsmallest(MAX_NEAR, near, key=lambda name: (-left[name], name))
    best = nearest_first[0]
    who = "" if lacking == 1 else f" for each of {lacking} more pods"
    text = f"needs {pod.count} free {pod.resource}{who} (nearest is {best} with {max(0, left[best])} free)"
    return WayOut(text, nearest_first[:lacking], Remedy(Step.OFFER, best, count=pod.count, values={pod.resource: ""}))


def _blocks(job: SchedulerJob) -> str:
    if job.blocks is None:
        return "whole free nodes close together"
    each = f"{many(job.blocks.size, 'whole free node')} close together"
    return each if job.blocks.need == 1 else f"{job.blocks.need} times {each}, each time in one super pod"


def _together(job: SchedulerJob, count: int) -> str:
    """How the chips of one pod must be placed, in the words of the family."""
    match job.family:
        case Ring8() if 2 <= count <= 4:
            return " in one ring"
        case Box16() if count > 1:
            return " in one ring" if count <= 8 else ", half of them in each ring"
        case A3() if count > 1:
            return " in whole modules"
        case Mesh4() if 2 <= count < 4:
            return " in one mesh"
        case Mesh4() if count % 4 == 0:
            return " in whole meshes"
        case Card310() | DuoCard() if count > 1:
            return " on one card"
        case _:
            return ""


def many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def some_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
