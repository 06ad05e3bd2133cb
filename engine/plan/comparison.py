"""Recorded moments planned twice, under the declarations of their time and under others; the worlds stay as recorded.

What the other declarations would have remembered of codes (occurrences, upgrades) is carried from moment to moment,
what they would have changed in the world is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from belay.engine.documents import Desired
from belay.engine.model.actions import AnyAction
from belay.engine.model.cluster import Observed
from belay.engine.model.history import ChipMemory, History
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan.shadow import DecisionKey, decided, track, with_memory

Decisions = dict[DecisionKey, tuple[AnyAction, str]]
"""Actions that a plan takes or defers, one entry per chip, pod, node or job, with the budget that defers it."""
Tracks = Mapping[str, Mapping[int, ChipMemory]]
_NOTHING: Final = History()


class Comparison:
    """``plan`` is ``belay.engine.plan.plan``. Moments come in order of time."""

    def __init__(self, plan: Callable[..., Plan]) -> None:
        self._plan = plan
        self._caches: defaultdict[tuple[str, str], PlanCache] = defaultdict(PlanCache)
        self._tracks: dict[str, Tracks] = {}
        self._known: Tracks = {}

    def decisions(
        self, before: Desired, after: Desired, observed: Observed, now: float, shard: str
    ) -> tuple[Decisions, Decisions]:
        """What one moment leads to under both declarations."""
        # a List of a cluster without Belay holds no memory of its own
        alone = not observed.history.nodes and not observed.history.policy_revision
        seen = observed
        if alone and self._known:
            seen = with_memory(before, seen, self._known, seen.history)
        real = self._plan(before, seen, now, shard=shard, cache=self._caches[shard, "before"])
        world = with_memory(after, observed, self._tracks.get(shard, {}), real.history)
        other = self._plan(after, world, now, shard=shard, cache=self._caches[shard, "after"])
        # where the next moment has no memory of its own, all of it is carried on, else what differs from that
        self._known = track(_NOTHING, real.history) if alone else {}
        self._tracks[shard] = track(_NOTHING if alone else real.history, other.history)
        return decided(real), decided(other)


__all__ = ["Comparison", "Decisions"]
