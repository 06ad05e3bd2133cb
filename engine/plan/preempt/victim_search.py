"""The what-ifs of one search for victims: their effort, and answers about single nodes known from earlier searches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.plan.preempt.search import Exhausted
from belay.engine.plan.preempt.victim_sets import VictimSet

if TYPE_CHECKING:
    from belay.engine.plan.preempt.what_if import WhatIf


class VictimSearch:
    """The what-ifs of one search: one gang, the pods to make room for, and the effort that it may spend."""

    def __init__(
        self,
        what_if: WhatIf,
        gang: Gang,
        pods: Sequence[Pod],
        budget: int,
        known: dict[tuple[object, ...], bool],
        *,
        gated: bool,
    ) -> None:
        """Prepare a search.

        Args:
            budget: the effort, in pods released and pods tried.
            known: answers about single nodes from earlier searches of the pass.
            gated: whether only nodes count where evictions may help by MindCluster's rule.
        """
        self._what_if, self._gang, self._pods, self._budget, self._gated = what_if, gang, pods, budget, gated
        self._sample = max(pods, key=lambda pod: pod.count)
        self._request_class, self._known = what_if.request_class(gang, [self._sample]), known
        self._helps: dict[str, bool] = {}

    def fits(self, gone: Sequence[VictimSet]) -> bool:
        pods = [pod for victims in gone for pod in victims.pods]
        self._spend(2 * len(pods) + len(self._pods))
        return bool(self._what_if.place(self._gang, self._pods, pods))

    def fits_node(self, node: str, gone: Sequence[VictimSet]) -> bool:
        if not self.may_help(node):
            return False
        pods = [pod for victims in gone for pod in victims.pods if pod.node == node]
        question = (self._request_class, node, self._what_if.state(node), *[pod.key for pod in pods])
        answer = self._known.get(question)
        if answer is None:
            self._spend(2 * len(pods) + 1)
            answer = self._known[question] = self._what_if.fits_node(self._gang, self._sample, node, pods)
        return answer

    def may_help(self, node: str) -> bool:
        """Whether evictions on this node may help."""
        return node in self.helpful_nodes((node,))

    def helpful_nodes(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes on which evictions may help."""
        if not self._gated:
            return set(nodes)
        fresh = [node for node in nodes if node not in self._helps]
        found = self._what_if.helpful_nodes(self._gang, self._sample, fresh) if fresh else ()
        self._helps.update((node, node in found) for node in fresh)
        return {node for node in nodes if self._helps[node]}

    def nodes_short_of_others(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes on which resources other than chips are short."""
        return self._what_if.nodes_short_of_others(self._gang, self._sample, nodes)

    def _spend(self, amount: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise Exhausted
