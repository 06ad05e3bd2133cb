"""Whom PodDisruptionBudgets protect: the API server refuses such evictions, so that they make no room for anybody.

A gang of which it refuses one pod would even be ended for nothing. Sources: Kubernetes' eviction subresource
(pkg/registry/core/pod/storage/eviction.go); Volcano's plugin pdb (pkg/scheduler/plugins/pdb).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from engine.model.cluster import Observed, Pod
from engine.plan.owners import part

KIND: Final = "PodDisruptionBudget"
#: Where a server serves both, the same budget is in both; the newer one counts.
APIS: Final = ("policy/v1", "policy/v1beta1")


class Shield(NamedTuple):
    """One budget: the pods it selects, and how many of them may be evicted now. ``selector`` None selects none."""

    namespace: str
    selector: Mapping[str, Any] | None
    left: int


class Shields:
    """The budgets of a snapshot; ``going`` are the pods told to go in this pass, keys."""

    def __init__(self, observed: Observed, going: Collection[str]) -> None:
        self._pods, self._going = observed.pods, going
        found: dict[tuple[str, str], tuple[int, Shield]] = {}
        for key, raw in observed.objects.items():
            if key.kind == KIND and key.api_version in APIS:
                place = APIS.index(key.api_version)
                known = found.get((key.namespace, key.name))
                if known is None or place < known[0]:
                    found[key.namespace, key.name] = place, _shield(key.namespace, raw, beta=place > 0)
        self._shields = [row for _, row in found.values()]

    def let(self, pods: Iterable[Pod]) -> bool:
        """Whether all of these may be evicted, beside those that are told to go already."""
        if not self._shields:
            return True
        asked = [pod for pod in pods if pod.phase == "Running" and pod.deleting is None and pod.key not in self._going]
        spent = [self._pods[key] for key in self._going if key in self._pods] if asked else []
        covered = [self._over(pod) for pod in asked]
        if any(len(row) > 1 for row in covered):
            return False  # the API server does not evict a pod that two budgets select
        for index in {row[0] for row in covered if row}:
            taken = sum(1 for row in covered if row == [index]) + sum(1 for pod in spent if index in self._over(pod))
            if taken > self._shields[index].left:
                return False
        return True

    def _over(self, pod: Pod) -> list[int]:
        from engine.plan.place.fit import selects

        rows = enumerate(self._shields)
        return [i for i, one in rows if one.namespace == pod.namespace and selects(one.selector, pod.labels)]


def _shield(namespace: str, raw: Mapping[str, Any], *, beta: bool) -> Shield:
    """A budget that nobody has counted yet lets nobody go; in the beta an empty selector selected nothing."""
    spec, left = part(raw, "spec"), part(raw, "status").get("disruptionsAllowed")
    selector: Mapping[str, Any] | None = spec["selector"] if isinstance(spec.get("selector"), dict) else None
    if selector is not None:
        rows = selector.get("matchExpressions")
        expressions = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        selector = {"matchLabels": part(selector, "matchLabels"), "matchExpressions": expressions}
        if beta and not selector["matchLabels"] and not expressions:
            selector = None
    return Shield(namespace, selector, left if isinstance(left, int) and not isinstance(left, bool) else 0)
