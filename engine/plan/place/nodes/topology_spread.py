"""Topology spread constraints: how unevenly the pods of a selector may be spread over domains.

Semantics of kube-scheduler's PodTopologySpread filter: ``DoNotSchedule`` keeps a pod off, ``ScheduleAnyway`` is only a
preference among nodes of equal score. Terminating pods do not count. Domains are those of nodes that the pod's own node
affinity allows (``nodeAffinityPolicy: Honor``), and whose taints it tolerates where ``nodeTaintsPolicy`` is ``Honor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from belay.engine.model import taints
from belay.engine.model.cluster import Pod
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes import fit, selectors

#: Weight of one pod fewer in a domain, beside the weights of preferred affinity (at most 100 each).
WEIGHT: Final = 100
SKEWED: Final = Refusal("TopologySpreadConflict", "node(s) didn't match pod topology spread constraints")
UNLABELLED: Final = Refusal(
    "TopologySpreadConflict", "node(s) didn't match pod topology spread constraints (missing required label)"
)


@dataclass(slots=True)
class DomainCount:
    """Pods that a selector selects, per domain of a topology key, on the nodes that take part; none by an empty one."""

    selector: Mapping[str, Any] | None
    namespace: str
    nodes: dict[str, str]
    domains: dict[str, int] = field(default_factory=dict)
    least: int | None = None

    @property
    def open(self) -> bool:
        """Whether the selector is empty: it selects every pod, and kube-scheduler counts none for it."""
        return self.selector is not None and not any(self.selector.values())

    def selects(self, pod: Pod) -> bool:
        """Whether the pod is counted."""
        return pod.namespace == self.namespace and pod.deleting is None and selectors.selects(self.selector, pod.labels)

    def add(self, pod: Pod, name: str, sign: int) -> None:
        """Count a pod in (+1) or out (-1) of a node."""
        domain = self.nodes.get(name)
        if domain is not None and not self.open and self.selects(pod):
            self.domains[domain] += sign
            self.least = None

    def minimum(self, least_domains: int) -> int:
        """The fewest pods of any domain; 0 while there are fewer domains than wanted."""
        if len(self.domains) < least_domains:
            return 0
        if self.least is None:
            self.least = min(self.domains.values(), default=0)
        return self.least


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """One constraint of a pod; ``own`` is 1 where the pod counts itself."""

    count: DomainCount
    skew: int
    least_domains: int
    own: int


class TopologySpread:
    """The constraints of the pods of a pass; follows every assignment and its undoing."""

    def __init__(self, views: Mapping[str, NodeView]) -> None:
        self._views = views
        self._counts: dict[bytes, DomainCount] = {}
        self._rules: dict[str, tuple[SpreadConstraint, ...]] = {}
        self._preferences: dict[str, tuple[SpreadConstraint, ...]] = {}

    def refusal(self, pod: Pod, view: NodeView) -> Refusal | None:
        """Why the pod would exceed the skew of one of its constraints."""
        for rule in self._required_of(pod):
            domain = rule.count.nodes.get(view.node.name)
            if domain is None:
                return UNLABELLED
            if rule.count.domains[domain] + rule.own - rule.count.minimum(rule.least_domains) > rule.skew:
                return SKEWED
        return None

    def preference(self, pod: Pod, view: NodeView) -> int:
        """How well the node suits the pod's ``ScheduleAnyway`` constraints: less with every pod of its domain, least
        without a domain.
        """
        total = 0
        for rule in self._preferred_of(pod):
            domain = rule.count.nodes.get(view.node.name)
            domains = rule.count.domains
            total -= WEIGHT * (domains[domain] if domain is not None else max(domains.values(), default=0) + 1)
        return total

    def count(self, pod: Pod, view: NodeView, sign: int) -> None:
        """Count a pod in (+1) or out (-1) of a node."""
        for count in self._counts.values():
            count.add(pod, view.node.name, sign)

    def _required_of(self, pod: Pod) -> tuple[SpreadConstraint, ...]:
        found = self._rules.get(pod.key)
        if found is None:
            found = self._rules[pod.key] = self._constraints(pod, required(pod))
        return found

    def _preferred_of(self, pod: Pod) -> tuple[SpreadConstraint, ...]:
        found = self._preferences.get(pod.key)
        if found is None:
            found = self._preferences[pod.key] = self._constraints(pod, preferred(pod))
        return found

    def _constraints(self, pod: Pod, rows: tuple[Mapping[str, Any], ...]) -> tuple[SpreadConstraint, ...]:
        keys = tuple(str(row.get("topologyKey", "")) for row in rows)
        return tuple(self._rule(pod, row, keys) for row in rows)

    def _rule(self, pod: Pod, row: Mapping[str, Any], keys: tuple[str, ...]) -> SpreadConstraint:
        selector = _selector(pod, row)
        policies = (row.get("nodeAffinityPolicy") or "Honor", row.get("nodeTaintsPolicy") or "Ignore")
        own = (pod.namespace, pod.node_selector, pod.affinity.get("nodeAffinity"), pod.tolerations)
        topology = str(row.get("topologyKey", ""))
        key = msgspec.json.encode((selector, topology, keys, policies, own), order="deterministic")
        count = self._counts.get(key)
        if count is None:
            nodes = {
                name: view.node.labels[topology]
                for name, view in self._views.items()
                if all(label in view.node.labels for label in keys) and _takes_part(pod, view, policies)
            }
            count = self._counts[key] = DomainCount(selector, pod.namespace, nodes, dict.fromkeys(nodes.values(), 0))
            for name in nodes:
                for other in self._views[name].pods:
                    count.add(other, name, 1)
        return SpreadConstraint(count, row.get("maxSkew") or 1, row.get("minDomains") or 1, count.selects(pod))


def required(pod: Pod) -> tuple[Mapping[str, Any], ...]:
    """The pod's constraints that must hold."""
    return tuple(row for row in pod.spread if (row.get("whenUnsatisfiable") or "DoNotSchedule") == "DoNotSchedule")


def preferred(pod: Pod) -> tuple[Mapping[str, Any], ...]:
    """The pod's constraints that are preferences."""
    return tuple(row for row in pod.spread if row.get("whenUnsatisfiable") == "ScheduleAnyway")


def _selector(pod: Pod, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The label selector with the pod's own values for ``matchLabelKeys``."""
    selector: Mapping[str, Any] | None = row.get("labelSelector")
    same = {str(key): pod.labels[key] for key in row.get("matchLabelKeys") or () if key in pod.labels}
    if selector is None or not same:
        return selector
    return {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **same}}


def _takes_part(pod: Pod, view: NodeView, policies: tuple[str, str]) -> bool:
    affinity, honored = policies
    if affinity == "Honor" and fit.unselected(pod, view.node) is not None:
        return False
    # the taint of a cordon counts here as any other, though fit judges the cordon by its field
    return honored != "Honor" or not any(taints.keeps_off(pod, taint) for taint in view.node.taints)
