"""The pods that PodDisruptionBudgets protect: the API server refuses to evict them, so they cannot make room.

If it refused one pod of a gang, the others would be evicted for nothing. Sources: Kubernetes' eviction subresource
(pkg/registry/core/pod/storage/eviction.go); Volcano's plugin pdb (pkg/scheduler/plugins/pdb).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.unstructured import nested_map

KIND: Final = "PodDisruptionBudget"
#: Where a server serves both, the same budget is in both; the newer one counts.
APIS: Final = ("policy/v1", "policy/v1beta1")


class DisruptionBudget(NamedTuple):
    """One budget: the pods it selects, and how many of them may be evicted now. ``selector`` None selects none."""

    namespace: str
    selector: Mapping[str, Any] | None
    allowed: int
    name: str = ""


class DisruptionBudgets:
    """The budgets of a snapshot; ``evicting``: keys of the pods evicted in this pass."""

    def __init__(self, observed: Observed, evicting: Collection[str]) -> None:
        self._pods, self._evicting = observed.pods, evicting
        found: dict[tuple[str, str], tuple[int, DisruptionBudget]] = {}
        for key, raw in observed.objects.items():
            if key.kind == KIND and key.api_version in APIS:
                place = APIS.index(key.api_version)
                known = found.get((key.namespace, key.name))
                if known is None or place < known[0]:
                    budget = _budget(key.namespace, raw, beta=place > 0)._replace(name=key.name)
                    found[key.namespace, key.name] = place, budget
        self._budgets = [row for _, row in found.values()]

    def allow(self, pods: Iterable[Pod]) -> bool:
        """Whether all of these may be evicted, beside the pods evicted already."""
        if not self._budgets:
            return True
        asked = [
            pod for pod in pods if pod.phase == "Running" and pod.deleting is None and pod.key not in self._evicting
        ]
        spent = [self._pods[key] for key in self._evicting if key in self._pods] if asked else []
        covered = [self._selecting(pod) for pod in asked]
        if any(len(row) > 1 for row in covered):
            return False  # the API server does not evict a pod that two budgets select
        for index in {row[0] for row in covered if row}:
            taken = sum(1 for row in covered if row == [index]) + sum(
                1 for pod in spent if index in self._selecting(pod)
            )
            if taken > self._budgets[index].allowed:
                return False
        return True

    def of(self, pod: Pod) -> tuple[DisruptionBudget, ...]:
        """The budgets that select the pod, by name."""
        return tuple(sorted((self._budgets[index] for index in self._selecting(pod)), key=lambda one: one.name))

    def _selecting(self, pod: Pod) -> list[int]:
        from belay.engine.plan.place.nodes.selectors import selects

        rows = enumerate(self._budgets)
        return [i for i, one in rows if one.namespace == pod.namespace and selects(one.selector, pod.labels)]


def _budget(namespace: str, raw: Mapping[str, Any], *, beta: bool) -> DisruptionBudget:
    """A budget without a status allows no eviction; in v1beta1 an empty selector selects nothing."""
    spec, left = nested_map(raw, "spec"), nested_map(raw, "status").get("disruptionsAllowed")
    selector: Mapping[str, Any] | None = spec["selector"] if isinstance(spec.get("selector"), dict) else None
    if selector is not None:
        rows = selector.get("matchExpressions")
        expressions = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        selector = {"matchLabels": nested_map(selector, "matchLabels"), "matchExpressions": expressions}
        if beta and not selector["matchLabels"] and not expressions:
            selector = None
    return DisruptionBudget(namespace, selector, left if isinstance(left, int) and not isinstance(left, bool) else 0)
