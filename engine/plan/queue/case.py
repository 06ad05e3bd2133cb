"""The what-ifs of one search for victims: what each may cost, and what is known of single nodes from earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.queue.search import Exhausted
from engine.plan.queue.units import Unit

if TYPE_CHECKING:
    from engine.plan.place.trial import Trials


class Case:
    """The what-ifs of one search: one gang, the pods to make room for, and what it may cost."""

    def __init__(
        self,
        trials: Trials,
        gang: Gang,
        pods: Sequence[Pod],
        purse: int,
        opened: dict[tuple[object, ...], bool],
        *,
        gated: bool,
    ) -> None:
        """``opened`` holds what earlier cases of the pass found out about single nodes."""
        self._trials, self._gang, self._pods, self._purse, self._gated = trials, gang, pods, purse, gated
        self._sample = max(pods, key=lambda pod: pod.count)
        self._kind, self._opened = trials.kind(gang, [self._sample]), opened
        self._helps: dict[str, bool] = {}

    def fits(self, gone: Sequence[Unit]) -> bool:
        pods = [pod for unit in gone for pod in unit.pods]
        self._spend(2 * len(pods) + len(self._pods))
        return bool(self._trials.place(self._gang, self._pods, pods))

    def opens(self, node: str, gone: Sequence[Unit]) -> bool:
        if not self.may(node):
            return False
        pods = [pod for unit in gone for pod in unit.pods if pod.node == node]
        question = (self._kind, node, self._trials.state(node), *[pod.key for pod in pods])
        answer = self._opened.get(question)
        if answer is None:
            self._spend(2 * len(pods) + 1)
            answer = self._opened[question] = self._trials.opens(self._gang, self._sample, node, pods)
        return answer

    def may(self, node: str) -> bool:
        """Whether evictions on this node may help."""
        return node in self.helped((node,))

    def helped(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes on which evictions may help."""
        if not self._gated:
            return set(nodes)
        fresh = [node for node in nodes if node not in self._helps]
        found = self._trials.helped(self._gang, self._sample, fresh) if fresh else ()
        self._helps.update((node, node in found) for node in fresh)
        return {node for node in nodes if self._helps[node]}

    def crowded(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes on which other resources than chips are short."""
        return self._trials.crowded(self._gang, self._sample, nodes)

    def _spend(self, amount: int) -> None:
        self._purse -= amount
        if self._purse < 0:
            raise Exhausted
