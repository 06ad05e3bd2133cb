"""Why a gang was not placed: nodes counted by reason, what is the matter on the nearest node, MindCluster's sentence,
and the cheapest way out.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from engine.model.cluster import Observed, Pod, ids_of
from engine.model.pending_reasons import (
    ENQUEUE_FAILED,
    FRAGMENTED,
    INSUFFICIENT,
    INVALID_REQUEST,
    NODE_UNSTABLE,
    SHORTAGE,
    TOO_MANY_PODS,
    TOPOLOGY,
    RejectedAt,
    reason_in_words,
)
from engine.model.plan import MAX_NEAR
from engine.model.remedies import Remedy, Step
from engine.plan.node_view import NodeView
from engine.plan.place import obstacles, switch_config
from engine.plan.place.causes import Told
from engine.plan.place.families.a3 import A3
from engine.plan.place.families.box16 import Box16
from engine.plan.place.families.card310 import Card310
from engine.plan.place.families.duo import DuoCard
from engine.plan.place.families.mesh4 import Mesh4
from engine.plan.place.families.ring8 import Ring8
from engine.plan.place.handler import Refusal
from engine.plan.place.job import WHOLE_CHIP, SchedulerJob
from engine.plan.place.nodes import attach_limits, resource_claims, volumes
from engine.plan.place.nodes.table import MISSING

_IDLE: Final = re.compile(r"idle<([0-9]+)>")
MAX_TEXTS: Final = 3
NOT_TOGETHER: Final = "too few of the nodes that fit lie together as the job's rule asks"
MAX_NAMES: Final = 3

#: The first of these that any node gave is the gang's reason: it comes from the node that is closest to fitting.
STAGES: Final = (TOPOLOGY, FRAGMENTED, SHORTAGE, NODE_UNSTABLE, INVALID_REQUEST)

#: Reasons of nodes that were never meant for the pod.
INELIGIBLE: Final = frozenset(
    {MISSING, "NodeSelectorMismatch", "NodeAffinityMismatch", "TaintNotTolerated", "NodeUnschedulable"}
)


_VOLUME_WAYS_OUT: Final = {
    volumes.CLAIM: "create or bind the PersistentVolumeClaims that the pod names",
    volumes.NO_VOLUME.reason: "add a PersistentVolume that suits the claim, or free the nodes that have one",
    volumes.NO_SPACE.reason: "free storage of the claim's class, or claim less",
    attach_limits.REASON: "free nodes whose driver can attach more volumes, or give the pods fewer",
    volumes.NOT_SELECTED: "free room on that node, or delete the claim so that another node is selected",
}


class PendingExplanation(NamedTuple):
    """Why a pod found no node: nodes counted by reason, the gang's reason, the ``state`` in Belay's words,
    MindCluster's sentence, the way out, its nodes, the same as values, and where MindCluster would refuse it.
    """

    nodes: dict[str, int]
    reason: str
    state: str
    text: str
    unblock: str | None
    near: tuple[str, ...] = ()
    remedy: Remedy | None = None
    rejected: RejectedAt = RejectedAt.PREDICATE


def explain(
    job: SchedulerJob,
    pod: Pod,
    whole: Refusal | None,
    refusals: Mapping[str, Refusal],
    views: Mapping[str, NodeView],
    lacking: int = 1,
    *,
    templates: Mapping[str, str] = {},
) -> PendingExplanation:
    """The explanation of one pod.

    Args:
        whole: the refusal of the whole gang, if there is one.
        refusals: why each node is refused, by name.
        lacking: how many such pods have no node.
        templates: vNPU templates by the suffix of their resource.
    """
    refusals = counting_tentative_chips(job, refusals, views)
    nodes = counted(refusals)
    if whole and len(views) > len(refusals):  # some nodes fit, but not together
        nodes = dict(sorted({**nodes, whole.reason: nodes.get(whole.reason, 0) + len(views) - len(refusals)}.items()))
    reason = whole.reason if whole else reason_of(nodes, bool(pod.count))
    nearest = None if whole or not INELIGIBLE.issuperset(nodes) else obstacles.nearest(pod, refusals, views, templates)
    text = sentence(refusals, len(views), alone=len(views) - len(refusals) if whole else 0)
    if whole:
        message = whole.message.rstrip()
        text = f"{message} {text}" if message.endswith(",") else f"{message}; {text}"
    if nearest is not None:
        first = nearest.obstacles[0]
        reason = SHORTAGE if first.reason == MISSING else first.reason
        state = f"no node is meant for it: {nearest.state}"
        remedy = first.remedy if len(nearest.obstacles) == 1 or first.remedy.step is not Step.OFFER else None
        return PendingExplanation(nodes, reason, state, text, nearest.change, (nearest.name,)[:lacking], remedy)

    unblock, near, remedy = way_out(job, pod, reason, refusals, views, lacking)
    state = NOT_TOGETHER if whole else _state(job, pod, reason, near or sorted(refusals)[:1], views)
    rejected = RejectedAt.ORDER if whole else RejectedAt.PREDICATE
    return PendingExplanation(nodes, reason, state, text, unblock, tuple(near), remedy, rejected)


def _state(job: SchedulerJob, pod: Pod, reason: str, near: Sequence[str], views: Mapping[str, NodeView]) -> str:
    """What is the matter, in Belay's words: on the nearest node, else with the job."""
    words = reason_in_words(reason)
    if not words.of_node:
        return f"the job {words.state}"
    if not near:
        return "the cluster has no node for it"
    first = views.get(near[0])
    if reason == SHORTAGE and first is not None and job.family is not None:
        return (
            f"the nearest node, {near[0]}, has {first.free.bit_count()} free of the {_many(pod.count, 'chip')} of a pod"
        )
    return f"the nearest node, {near[0]}, {words.state}"


def naming_claims(found: PendingExplanation, observed: Observed, nodes: Collection[str]) -> PendingExplanation:
    """The explanation of a shortage with the chips on these nodes that are claimed for pods which have gone."""
    if found.reason != SHORTAGE or not observed.ledger:
        return found
    known = {pod.uid for pod in observed.pods.values()}
    gone = (claim.rpartition("/")[0] for claim, uid in observed.ledger.items() if uid not in known)
    held = Counter(name for name in gone if name in nodes)
    if not held:
        return found

    first = min(held, key=lambda name: (-held[name], name))
    chips, where = sum(held.values()), f"on {_many(len(held), 'node')}, for example {first}"
    text = (
        f"{found.text.rstrip('.')}; {_many(chips, 'chip')} {where}, stay claimed for pods that have gone while their "
        "bindings may still be under way"
    )
    return found._replace(text=text, unblock=f"wait half a minute: {_many(chips, 'chip')} {where}, are free by then")


def refused(refusal: Refusal, way: str | None = None) -> PendingExplanation:
    """The explanation of a job that is refused before any node is considered; ``way`` is a way out that is known."""
    at = RejectedAt.ENQUEUE if refusal.reason == ENQUEUE_FAILED else RejectedAt.PREDICATE
    if refusal.cause is not None:
        told = refusal.cause.told()
    else:
        words = reason_in_words(refusal.reason)
        told = Told(f"the job {words.state}", way or f"{words.way_out}: {refusal.message}")
    return PendingExplanation(
        {}, refusal.reason, told.state, refusal.message, told.unblock, remedy=told.remedy, rejected=at
    )


def counting_tentative_chips(
    job: SchedulerJob, refusals: Mapping[str, Refusal], views: Mapping[str, NodeView]
) -> Mapping[str, Refusal]:
    """The refusals with the chips that are really idle: those held tentatively by other pods of the job count as idle.

    A gang that cannot be placed gives all of its assignments back, so such a node is as free as before.
    """
    if len(job.gang.pods) < 2:
        return refusals
    own, adjusted = frozenset(job.gang.pods), dict(refusals)
    for name, refusal in refusals.items():
        view = views.get(name)
        tentative = tentative_pods(view, own) if view is not None else ()
        if view is None or not tentative:
            continue
        chips = len(set(ids_of(view.used)) & {chip for chip, pod in view.used_by.items() if pod in tentative})
        known = _IDLE.search(refusal.message)
        if known is not None:
            idle = f"idle<{int(known[1]) + chips}>"
            text = f"{_IDLE.sub(idle, refusal.message, count=1)}, {chips} of them for other pods of the job"
        else:
            text = f"{refusal.message}, beside {_many(len(tentative), 'other pod')} of the job"
        adjusted[name] = Refusal(refusal.reason, text)
    return adjusted


def tentative_pods(view: NodeView, own: frozenset[str]) -> frozenset[str]:
    """Keys of the job's pods that are assigned to the node only tentatively."""
    return frozenset(pod.key for pod in view.pods if not pod.node and pod.key in own)


def reason_of(nodes: Mapping[str, int], npu: bool) -> str:
    """The gang's reason, from the reasons of its nodes."""
    for stage in STAGES:
        if nodes.get(stage):
            return stage
    others = {reason: count for reason, count in nodes.items() if reason not in INELIGIBLE}
    others = others or {reason: count for reason, count in nodes.items() if reason != MISSING}
    if not others:
        return SHORTAGE if npu else "NoNodes"
    return min(others, key=lambda reason: (-others[reason], reason))


def counted(refusals: Mapping[str, Refusal]) -> dict[str, int]:
    """How many nodes gave each reason."""
    return dict(sorted(Counter(refusal.reason for refusal in refusals.values()).items()))


def sentence(refusals: Mapping[str, Refusal], total: int, alone: int = 0) -> str:
    """``0/5 nodes are available: 3 NPUResourceShortage: …`` with the most frequent texts and a node for each.

    ``alone`` nodes would take a pod, but not as the rule of the whole gang asks.
    """
    texts: dict[str, list[str]] = {}
    for name in sorted(refusals):
        texts.setdefault(refusals[name].message, []).append(name)
    ranked = sorted(texts.items(), key=lambda item: (-len(item[1]), item[0]))
    parts = [f"{len(names)} {text} ({_some(names)})" for text, names in ranked[:MAX_TEXTS]]
    more = sum(len(names) for _, names in ranked[MAX_TEXTS:])
    if more:
        parts.append(f"{more} for other reasons")
    head = (
        f"{alone}/{total} nodes fit a single pod, but not the job's rule" if alone else f"0/{total} nodes are available"
    )
    return head + (": " + "; ".join(parts) if parts else "")


class WayOut(NamedTuple):
    """The cheapest change that would let the pod start, as a sentence (None when none is known), the nodes that it
    concerns, the nearest first, and the change as values where it is one definite step.
    """

    text: str | None
    near: Sequence[str] = ()
    remedy: Remedy | None = None


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
        return WayOut(f"end or move work on a chip of {near[0]}: {refusals[near[0]].message}", near[:lacking])
    if reason in (SHORTAGE, TOPOLOGY) and near:
        return _chips(job, pod, reason, near, views, lacking)
    if not near:
        return _of_no_node(job, reason)
    return _on_node(pod, reason, near, refusals, views, lacking)


def _of_no_node(job: SchedulerJob, reason: str) -> WayOut:
    if reason == "WaitingForRelease":
        return WayOut("nothing to do: it ends when the job's old pods are gone")
    return WayOut(f"add nodes that offer {job.resource}" if job.resource else "add nodes that the job may use")


def _on_node(
    pod: Pod,
    reason: str,
    near: Sequence[str],
    refusals: Mapping[str, Refusal],
    views: Mapping[str, NodeView],
    lacking: int,
) -> WayOut:
    """The way out on the first of the nodes that gave the reason."""
    first, message = near[0], refusals[near[0]].message
    match reason:
        case "PodAntiAffinityConflict" | "PodAffinityMismatch" | "TopologySpreadConflict":
            return WayOut("add nodes in other topology domains or relax the job's pod affinity or spread")
        case "PortConflict":
            ports = ", ".join(str(port) for port in sorted({port for _, _, port in pod.host_ports}))
            text = f"give the job other host ports than {ports}, or end the pod that has them, for example on {first}"
            return WayOut(text, near[:lacking], Remedy(Step.FREE_ROOM, first, values={"ports": ports}))
        case "VolumeNodeAffinityConflict":
            return WayOut("free room on the nodes that the job's volumes are bound to, or use volumes that move")
        case _ if reason in _VOLUME_WAYS_OUT:
            return WayOut(f"{_VOLUME_WAYS_OUT[reason]}: {message}", near[:lacking])
        case resource_claims.NOT_ALLOCATED:
            return WayOut(f"correct the claim, or let its allocator serve it: {message}", near[:lacking])
        case "WaitingForRelease":
            return WayOut("nothing to do: it ends when the job's old pods are gone", near[:lacking])
        case _ if reason.startswith(INSUFFICIENT) or reason == TOO_MANY_PODS:
            return _room(pod, reason, near, refusals, views, lacking)
        case "NodeReportMissing":
            how = "run belay agent (deploy/overlays/nodes) or MindCluster's device plugin there"
            return WayOut(f"let a node report its chips, for example {first}: {how}", near[:lacking])
        case "PoolSuspended":
            text = f"set spec.suspend of NodePool {views[first].pool} to false"
            return WayOut(text, near[:lacking])
        case _ if reason_in_words(reason).of_node:
            return WayOut(f"{reason_in_words(reason).way_out} ({first}: {message})", near[:lacking])
        case _:
            return WayOut(f"bring a node back, for example {first}: {message}", near[:lacking])


def _room(
    pod: Pod,
    reason: str,
    near: Sequence[str],
    refusals: Mapping[str, Refusal],
    views: Mapping[str, NodeView],
    lacking: int,
) -> WayOut:
    """Room for what Kubernetes counts beside chips, on a node that is large enough for it."""
    what = "pods" if reason == TOO_MANY_PODS else refusals[near[0]].message.removeprefix("Insufficient ")
    wanted = pod.requests.get(what, 1)
    able = [name for name in near if views[name].node.allocatable.get(what, 0) >= wanted]
    if not able:
        most = max(views[name].node.allocatable.get(what, 0) for name in near)
        remedy = Remedy(Step.ASK_LESS, values={what: str(most)})
        return WayOut(f"ask for less {what}: no node that the job may use has so much", (), remedy)
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
        text = f"ask for at most {_many(most, 'chip')} a pod: no node that the job may use has more"
        return WayOut(text, (), Remedy(Step.ASK_CHIPS, count=most))
    nearest_first = heapq.nsmallest(MAX_NEAR, near, key=lambda name: _distance(pod, views[name], name))
    best = nearest_first[0]
    view = views[best]
    free = view.free.bit_count()
    own = set(job.gang.pods)
    holders = sorted({view.used_by[chip] for chip in ids_of(view.used & view.base) if chip in view.used_by} - own)
    held = f", others held by {_some(holders)}" if holders else ""
    beside = " beside the job's other pods" if tentative_pods(view, frozenset(own)) else ""
    nearest = f"(nearest is {best} with {free} free{beside}{held})"
    remedy = Remedy(Step.FREE_CHIPS, best, pod.count)
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
    wanted = f"{_many(pod.count, 'free chip')}{_together(job, pod.count)}{counted}"
    whole = 2 * pod.count > view.base.bit_count()
    if lacking == 1 or whole:
        text = f"needs {wanted} on {_many(lacking, 'more node')} {nearest}"
        return WayOut(text, nearest_first[:lacking], remedy)
    # several of its pods share a node
    shared = -(-lacking * pod.count // max(1, view.base.bit_count()))
    return WayOut(f"needs {wanted} for each of {lacking} more pods {nearest}", nearest_first[:shared], remedy)


def _distance(pod: Pod, view: NodeView, name: str) -> tuple[bool, int, str]:
    """Nodes that are large enough come before those that never could hold the pod, then those with more free chips."""
    return view.base.bit_count() < pod.count, -view.free.bit_count(), name


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
    return WayOut(text, nearest_first[:lacking], Remedy(Step.OFFER, best, pod.count, {pod.resource: ""}))


def _blocks(job: SchedulerJob) -> str:
    if job.blocks is None:
        return "whole free nodes close together"
    each = f"{_many(job.blocks.size, 'whole free node')} close together"
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


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
