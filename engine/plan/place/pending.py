"""Why a gang was not placed: nodes counted by reason, what is the matter on the nearest node, MindCluster's sentence,
and the cheapest way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.pending_reasons import (
    ENQUEUE_FAILED,
    FRAGMENTED,
    IN_FLIGHT,
    INVALID_REQUEST,
    NODE_UNSTABLE,
    RECOVERY_RESERVED,
    SHORTAGE,
    TOPOLOGY,
    RejectedAt,
    reason_in_words,
)
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place import obstacles
from belay.engine.plan.place.causes import Told
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes.table import MISSING
from belay.engine.plan.place.ways_out import WayOut, many, some_names, tentative_pods, way_out

MAX_TEXTS: Final = 3
NOT_TOGETHER: Final = "too few of the nodes that fit lie together as the job's rule asks"

#: The first of these that any node gave is the gang's reason: it comes from the node that is closest to fitting.
STAGES: Final = (RECOVERY_RESERVED, IN_FLIGHT, TOPOLOGY, FRAGMENTED, SHORTAGE, NODE_UNSTABLE, INVALID_REQUEST)

#: Reasons of nodes that were never meant for the pod.
INELIGIBLE: Final = frozenset(
    {MISSING, "NodeSelectorMismatch", "NodeAffinityMismatch", "TaintNotTolerated", "NodeUnschedulable"}
)


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

    if whole and whole.cause is not None:
        told = whole.cause.told()
        return PendingExplanation(
            nodes, reason, told.state, text, told.unblock, remedy=told.remedy, rejected=RejectedAt.ORDER
        )

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
            f"the nearest node, {near[0]}, has {first.free.bit_count()} free of the {many(pod.count, 'chip')} of a pod"
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
    chips, where = sum(held.values()), f"on {many(len(held), 'node')}, for example {first}"
    text = (
        f"{found.text.rstrip('.')}; {many(chips, 'chip')} {where}, stay claimed for pods that have gone while their "
        "bindings may still be under way"
    )
    return found._replace(text=text, unblock=f"wait half a minute: {many(chips, 'chip')} {where}, are free by then")


def refused(refusal: Refusal, way: WayOut | None = None) -> PendingExplanation:
    """The explanation of a job that is refused before any node is considered; ``way`` is a way out that is known."""
    at = RejectedAt.ENQUEUE if refusal.reason == ENQUEUE_FAILED else RejectedAt.PREDICATE
    if refusal.cause is not None:
        told = refusal.cause.told()
    else:
        words = reason_in_words(refusal.reason)
        text = way.text if way is not None and way.text else f"{words.way_out}: {refusal.message}"
        told = Told(f"the job {words.state}", text, way.remedy if way is not None else None)
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
        if refusal.idle is not None:
            really = refusal.idle._replace(idle=refusal.idle.idle + chips)
            text = f"{really.text}, {chips} of them for other pods of the job"
        else:
            text = f"{refusal.message}, beside {many(len(tentative), 'other pod')} of the job"
        adjusted[name] = refusal._replace(message=text)
    return adjusted


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
    parts = [f"{len(names)} {text} ({some_names(names)})" for text, names in ranked[:MAX_TEXTS]]
    more = sum(len(names) for _, names in ranked[MAX_TEXTS:])
    if more:
        parts.append(f"{more} for other reasons")
    head = (
        f"{alone}/{total} nodes fit a single pod, but not the job's rule" if alone else f"0/{total} nodes are available"
    )
    return head + (": " + "; ".join(parts) if parts else "")
