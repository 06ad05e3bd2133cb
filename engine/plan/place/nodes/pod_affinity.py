"""Affinity and anti-affinity between pods, and their topology spread, counted per topology domain.

Counts are kept per term, so that a gang of thousands with one pod per host costs one dictionary lookup per node.
Semantics of kube-scheduler's InterPodAffinity filter, both directions of anti-affinity included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes import topology_spread
from belay.engine.plan.place.nodes.selectors import selects

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
AFFINITY: Final = Refusal("PodAffinityMismatch", "node(s) didn't match pod affinity rules")
ANTI: Final = Refusal("PodAntiAffinityConflict", "node(s) didn't match pod anti-affinity rules")
ANTI_OF_OTHERS: Final = Refusal("PodAntiAffinityConflict", "node(s) didn't satisfy existing pods anti-affinity rules")


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """One affinity term: the pods it selects (a selector, in namespaces or everywhere) and the topology key.

    ``beside`` are terms that must select a pod, too.
    """

    key: str
    selector: Mapping[str, Any] | None
    namespaces: frozenset[str] | None
    topology: str
    beside: tuple[AffinityTerm, ...] = ()

    def selects(self, pod: Pod) -> bool:
        """Whether the term selects this pod."""
        there = self.namespaces is None or pod.namespace in self.namespaces
        return there and selects(self.selector, pod.labels) and all(term.selects(pod) for term in self.beside)


class PodAffinity:
    """Pods per topology domain, as far as affinity terms refer to them; follows every assignment and its undoing."""

    def __init__(self, observed: Observed, views: Mapping[str, NodeView]) -> None:
        self._observed = observed
        self._views = views
        self._terms: dict[str, AffinityTerm] = {}
        self._selected: dict[str, dict[str, int]] = {}
        self._holders: dict[str, dict[str, int]] = {}
        self._spread = topology_spread.TopologySpread(views)
        self._preferences: dict[tuple[str, str], list[tuple[int, AffinityTerm]]] = {}
        self._of_pod: dict[str, tuple[tuple[AffinityTerm, ...], tuple[AffinityTerm, ...]]] = {}
        for view in views.values():
            for pod in view.pods:
                if pod.affinity:
                    self._hold(pod, view, 1)

    def concerns(self, pod: Pod) -> bool:
        """Whether any affinity between pods can matter to this pod."""
        wants, avoids = self._terms_of(pod)
        return bool(wants or avoids or pod.spread) or any(self._terms[key].selects(pod) for key in self._holders)

    def refusal(self, pod: Pod, view: NodeView) -> Refusal | None:
        """Why other pods keep this one off the node."""
        wants, avoids = self._terms_of(pod)
        labels = view.node.labels
        for term in avoids:
            domain = labels.get(term.topology)
            if domain is not None and self._count(term).get(domain):
                return ANTI
        for key, domains in self._holders.items():
            holder = self._terms[key]
            domain = labels.get(holder.topology)
            if domain is not None and domains.get(domain) and holder.selects(pod):
                return ANTI_OF_OTHERS
        alone = all(not any(self._count(term).values()) and term.selects(pod) for term in wants)
        for term in wants:
            domain = labels.get(term.topology)
            if domain is None or not (alone or self._count(term).get(domain)):
                return AFFINITY
        return self._spread.refusal(pod, view) if pod.spread else None

    def count(self, pod: Pod, view: NodeView, sign: int) -> None:
        """Count a pod in (+1) or out (-1) of a node."""
        for key, counts in self._selected.items():
            term = self._terms[key]
            domain = view.node.labels.get(term.topology)
            if domain is not None and term.selects(pod):
                counts[domain] = counts.get(domain, 0) + sign
        if pod.affinity:
            self._hold(pod, view, sign)
        self._spread.count(pod, view, sign)

    def preference(self, pod: Pod, view: NodeView) -> int:
        """Weights of the pod's preferred affinity that the node's domains meet, less those of preferred anti-affinity
        and of uneven spread.
        """
        total = self._spread.preference(pod, view) if pod.spread else 0
        for sign, part in ((1, "podAffinity"), (-1, "podAntiAffinity")):
            for weight, term in self._preferred(pod, part):
                domain = view.node.labels.get(term.topology)
                if domain is not None:
                    total += sign * weight * self._count(term).get(domain, 0)
        return total

    def has_preferences(self, pod: Pod) -> bool:
        """Whether the pod has preferences about other pods."""
        if pod.spread and topology_spread.preferred(pod):
            return True
        return bool(pod.affinity) and any(
            _rows(pod.affinity, part, PREFERRED) for part in ("podAffinity", "podAntiAffinity")
        )

    def _preferred(self, pod: Pod, part: str) -> list[tuple[int, AffinityTerm]]:
        known = self._preferences.get((pod.key, part))
        if known is None:
            rows = [
                row for row in _rows(pod.affinity, part, PREFERRED) if isinstance(row.get("podAffinityTerm"), Mapping)
            ]
            terms = self._parse(pod, [row["podAffinityTerm"] for row in rows])
            known = [(int(row.get("weight") or 0), term) for row, term in zip(rows, terms, strict=True)]
            self._preferences[pod.key, part] = known
        return known

    def _hold(self, pod: Pod, view: NodeView, sign: int) -> None:
        for term in self._terms_of(pod)[1]:
            domain = view.node.labels.get(term.topology)
            if domain is not None:
                counts = self._holders.setdefault(term.key, {})
                counts[domain] = counts.get(domain, 0) + sign

    def _count(self, term: AffinityTerm) -> dict[str, int]:
        counts = self._selected.get(term.key)
        if counts is None:
            counts = self._selected[term.key] = {}
            for view in self._views.values():
                domain = view.node.labels.get(term.topology)
                if domain is not None:
                    found = sum(1 for pod in view.pods if term.selects(pod))
                    if found:
                        counts[domain] = counts.get(domain, 0) + found
        return counts

    def _terms_of(self, pod: Pod) -> tuple[tuple[AffinityTerm, ...], tuple[AffinityTerm, ...]]:
        if "podAffinity" not in pod.affinity and "podAntiAffinity" not in pod.affinity:
            return (), ()
        found = self._of_pod.get(pod.key)
        if found is None:
            wants = self._together(self._parse(pod, _rows(pod.affinity, "podAffinity", REQUIRED)))
            avoids = tuple(self._parse(pod, _rows(pod.affinity, "podAntiAffinity", REQUIRED)))
            found = self._of_pod[pod.key] = (wants, avoids)
        return found

    def _together(self, terms: Iterable[AffinityTerm]) -> tuple[AffinityTerm, ...]:
        """The terms of a pod's required affinity: only a pod that all of them select counts for any of them."""
        found = tuple(terms)
        if len(found) < 2:
            return found
        every = msgspec.json.encode([term.key for term in found]).decode()
        made = (replace(term, key=f"{term.topology} {every}", beside=found) for term in found)
        return tuple(self._terms.setdefault(term.key, term) for term in made)

    def _parse(self, pod: Pod, rows: Iterable[Mapping[str, Any]]) -> Iterable[AffinityTerm]:
        for row in rows:
            spaces = self._namespaces(pod, row)
            selector = row.get("labelSelector")
            topology = str(row.get("topologyKey", ""))
            shown = None if spaces is None else sorted(spaces)
            key = msgspec.json.encode([selector, shown, topology], order="deterministic").decode()
            yield self._terms.setdefault(key, AffinityTerm(key, selector, spaces, topology))

    def _namespaces(self, pod: Pod, row: Mapping[str, Any]) -> frozenset[str] | None:
        """Namespaces of a term: listed and selected ones together, the pod's own when it names none; None for all."""
        listed, selector = row.get("namespaces") or (), row.get("namespaceSelector")
        if selector is None:
            return frozenset(listed) or frozenset({pod.namespace})
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            return None
        chosen = {str(name) for name in listed}
        for key, raw in self._observed.objects.items():
            if key == ObjectKey("v1", "Namespace", "", key.name):
                labels = (raw.get("metadata") or {}).get("labels") or {}
                if selects(selector, labels):
                    chosen.add(key.name)
        return frozenset(chosen)


def _rows(affinity: Mapping[str, Any], name: str, kind: str) -> list[Mapping[str, Any]]:
    part = affinity.get(name)
    rows = part.get(kind) if isinstance(part, Mapping) else None
    return [row for row in rows or () if isinstance(row, Mapping)]
