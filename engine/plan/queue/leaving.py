"""Room that comes by itself: terminating pods, and those that this pass tells to go. It is counted before anybody is
evicted for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.model.cluster import Pod, mask_of
from engine.model.jobs import Gang
from engine.plan.scope import Scope
from engine.plan.views import chip_ids

if TYPE_CHECKING:
    from engine.plan.place.trial import Trials

#: A terminating pod is counted on until so many seconds after its grace: kubelet cannot end it then.
OVERDUE: Final = 120.0


class Leaving:
    """The leaving pods of one pass whose room nobody has taken over yet."""

    def __init__(self, scope: Scope, trials: Trials) -> None:
        self._scope, self._trials = scope, trials
        self._found: list[Pod] | None = None

    @property
    def pods(self) -> Sequence[Pod]:
        """All of them."""
        if self._found is None:
            scope = self._scope
            self._found = [
                pod
                for pod in scope.observed.pods.values()
                if pod.deleting is not None and pod.holds_chips and scope.now < pod.deleting + OVERDUE
            ]
            told = (scope.observed.pods[key] for key in sorted(scope.evicting))
            self._found += [pod for pod in told if pod.deleting is None]
        return self._found

    def helping(self, gang: Gang, resource: str, pods: Sequence[Pod]) -> list[Pod]:
        """Those whose end may help these: they hold what is short, where these could go."""
        sample = max(pods, key=lambda pod: pod.count)
        helped = self._trials.helped(gang, sample, {pod.node for pod in self.pods})
        crowded = self._trials.crowded(gang, sample, helped)
        return [pod for pod in self.pods if pod.node in helped and (pod.resource == resource or pod.node in crowded)]

    def keep(self, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod]) -> list[Pod] | None:
        """Keeps seats in place of ``gone``, and returns who of these are on the nodes of the seats; None when there
        are none. What the seats do not take of their chips is for others.
        """
        known = {pod.uid for pod in gone}
        others = [pod for pod in self.pods if pod.uid not in known]
        nodes = {seat.node for seat in self._trials.hold(gang, pods, gone)}
        if not nodes:
            return None
        self._found = [*others, *(pod for pod in gone if _spares(pod, self._trials.kept(pod.node)))]
        return [pod for pod in gone if pod.node in nodes]


def _spares(pod: Pod, taken: int) -> bool:
    """Whether a pod has more chips than others have taken over; of its other resources that is not known, and an
    eviction for these makes room for one only.
    """
    return bool(mask_of(list(chip_ids(pod))) & ~taken) if pod.chips else pod.deleting is not None
