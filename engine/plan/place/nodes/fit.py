"""Kubernetes' own predicates: selectors, affinity, taints, resources, ports, other pods.

Semantics of kube-scheduler's filters (NodeUnschedulable, NodeAffinity, TaintToleration, NodeResourcesFit, NodePorts,
InterPodAffinity). Preferences only break ties between nodes of equal score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from belay.engine.model import taints
from belay.engine.model.cluster import Node, Pod
from belay.engine.model.labels import NODE_NOT_READY
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes.selectors import NodeRule, matches


class StaticFit(NamedTuple):
    """The result of a pod's own rules for all nodes, before anything is placed: refusals, and preference weights
    (absent: 0).
    """

    refusals: dict[str, Refusal]
    preferences: dict[str, int]


def static_fit(pod: Pod, views: Mapping[str, NodeView], volumes: Sequence[NodeRule] = ()) -> StaticFit:
    """``static`` and ``preference`` for every node; nodes that are equal in all that the rules read are evaluated once.

    ``volumes``: what each of the pod's claims asks of its node.
    """
    keys, by_name = _read_labels(pod, volumes)
    known: dict[tuple[object, ...], tuple[Refusal | None, int]] = {}
    refusals: dict[str, Refusal] = {}
    preferences: dict[str, int] = {}
    for name, view in views.items():
        node = view.node
        labels = node.labels
        looks = (
            node.unschedulable, node.ready, node.taints, name if by_name else "", *[labels.get(key) for key in keys]
        )  # fmt: skip
        found = known.get(looks)
        if found is None:
            preferred = preference(pod, node) if pod.affinity or node.taints else 0
            refusal = static(pod, node)
            if refusal is None:
                refusal = next((rule.refusal for rule in volumes if not rule.allows(node)), None)
            found = known[looks] = (refusal, preferred)
        if found[0] is not None:
            refusals[name] = found[0]
        if found[1]:
            preferences[name] = found[1]
    return StaticFit(refusals, preferences)


def _read_labels(pod: Pod, volumes: Sequence[NodeRule]) -> tuple[tuple[str, ...], bool]:
    """The node labels that the rules of a pod and its volumes read, and whether they read the node's name."""
    affinity = _part(pod.affinity, "nodeAffinity")
    terms = list(_part(affinity, "requiredDuringSchedulingIgnoredDuringExecution").get("nodeSelectorTerms") or ())
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    terms += [_part(row, "preference") for row in preferred]
    terms += [term for rule in volumes for term in rule.terms]
    rows = [row for term in terms for row in term.get("matchExpressions") or ()]
    keys = {*pod.node_selector, *(str(row.get("key")) for row in rows)}
    return tuple(sorted(keys)), any(term.get("matchFields") for term in terms)


def static(pod: Pod, node: Node) -> Refusal | None:
    """A refusal that stays while pods are placed: readiness, cordon, selector, node affinity, taints."""
    if node.unschedulable and not taints.tolerates(pod, taints.UNSCHEDULABLE):
        return Refusal("NodeUnschedulable", "node(s) were unschedulable")
    refusal = unselected(pod, node) or untolerated(pod, node)
    if refusal is not None:
        return refusal
    if not node.ready and not any(taint.key.startswith(NODE_NOT_READY) for taint in node.taints):
        return Refusal("NodeNotReady", "node(s) were not ready")
    return None


def unselected(pod: Pod, node: Node) -> Refusal | None:
    """Why the pod's node selector or required node affinity leaves the node out."""
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return Refusal("NodeSelectorMismatch", "node(s) didn't match Pod's node affinity/selector")
    required = _part(_part(pod.affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any(matches(term, node) for term in required_terms(pod)):
        return Refusal("NodeAffinityMismatch", "node(s) didn't match Pod's node affinity/selector")
    return None


def required_terms(pod: Pod) -> Sequence[Mapping[str, Any]]:
    """The terms of the pod's required node affinity, one of which a node must match; empty without any."""
    required = _part(_part(pod.affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    return [term for term in required.get("nodeSelectorTerms") or () if isinstance(term, Mapping)]


def untolerated(pod: Pod, node: Node) -> Refusal | None:
    """Why a taint of the node keeps the pod off."""
    for taint in taints.untolerated(pod, node):
        return Refusal("TaintNotTolerated", f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}")
    return None


def resources(pod: Pod, view: NodeView) -> Refusal | None:
    """Why the node lacks room: pods, CPU, memory and every other resource except the NPU, which families score."""
    return room(pod, [(name, most) for name, most in pod.requests.items() if most and name != pod.resource], view)


def room(pod: Pod, needs: Sequence[tuple[str, int]], view: NodeView) -> Refusal | None:
    """The same for ``needs``: the pod's requests without the NPU and without zeros."""
    allocatable = view.node.allocatable
    if len(view.pods) >= allocatable.get("pods", 110):
        return Refusal("TooManyPods", "Too many pods", resource="pods")
    for name, wanted in needs:
        if allocatable.get(name, 0) - view.requested.get(name, 0) < wanted:
            return Refusal("Insufficient" + _camel(name), f"Insufficient {name}", resource=name)
    return ports(pod, view) if pod.host_ports else None


def ports(pod: Pod, view: NodeView) -> Refusal | None:
    """Why a host port is taken: same protocol and port, and the same or any address."""
    for address, protocol, port in pod.host_ports:
        for other in view.pods:
            for held_address, held_protocol, held_port in other.host_ports:
                same = port == held_port and protocol == held_protocol
                if same and (address == held_address or "0.0.0.0" in (address, held_address)):
                    return Refusal("PortConflict", "node(s) didn't have free ports for the requested pod ports")
    return None


def preference(pod: Pod, node: Node) -> int:
    """Sum of the weights of matching preferred node affinity, less one per untolerated PreferNoSchedule taint."""
    total = 0
    preferred = _part(pod.affinity, "nodeAffinity").get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    for row in preferred:
        term = _part(row, "preference")
        if term and matches(term, node):
            weight = row.get("weight")
            total += weight if isinstance(weight, int) else 0
    soft = (taint for taint in node.taints if taint.effect == "PreferNoSchedule")
    return total - sum(1 for taint in soft if not taints.tolerates(pod, taint))


def _part(raw: Any, name: str) -> Mapping[str, Any]:
    part = raw.get(name) if isinstance(raw, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _camel(resource: str) -> str:
    tail = resource.rpartition("/")[2]
    return "".join(piece[:1].upper() + piece[1:] for piece in tail.replace(".", "-").split("-") if piece)
