"""One pass step by step: tests run the steps they need, and read what these decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import clock_skew, explain, grouping, placement, views
from belay.engine.plan.draft import Draft, Memory
from belay.engine.plan.facts import Facts
from belay.engine.plan.health import reset, states
from belay.engine.plan.jobs import expand
from belay.engine.plan.queue import enqueue
from belay.engine.plan.recover import evictions
from belay.engine.plan.safety import deferral
from belay.engine.plan.scope import Scope
from belay.engine.plan.sync import objects


class _Field:
    """A field of the pass's facts or draft as one of the pass itself."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, steps: Any, _owner: type) -> Any:
        return getattr(getattr(steps, self._part), self._name)

    def __set__(self, steps: Any, value: Any) -> None:
        if self._part == "facts":
            steps.facts = replace(steps.facts, **{self._name: value})
        else:
            setattr(steps.draft, self._name, value)


class Steps(Scope):
    """The state of one pass; ``run`` takes the names of steps, in their order."""

    def __init__(
        self, desired: Desired, observed: Observed, now: float, shard: str = "main", cache: PlanCache | None = None
    ) -> None:
        facts = Facts(desired, observed, now, shard, cache=cache if cache is not None else PlanCache())
        super().__init__(facts, Draft(Memory.of(observed.history)))

    def run(self, *names: str) -> Steps:
        """Run these steps; returns itself."""
        for name in names:
            getattr(self, f"_{name}")()
        return self

    def document(self) -> Plan:
        """The plan of the steps run so far."""
        return explain.document(self)

    def _clock_skew(self) -> None:
        clock_skew.run(self.facts, self.draft)

    def _views(self) -> None:
        views.run(self)

    def _grouping(self) -> None:
        grouping.run(self)

    def _sync(self) -> None:
        objects.run(self)

    def _health(self) -> None:
        states.run(self)

    def _recover(self) -> None:
        evictions.run(self)

    def _expand(self) -> None:
        expand.run(self)

    def _queue(self) -> None:
        enqueue.run(self)

    def _placement(self) -> None:
        placement.run(self)

    def _reset(self) -> None:
        reset.run(self)

    def _safety(self) -> None:
        deferral.run(self)

    def _explain(self) -> None:
        explain.run(self)

    desired = _Field("facts")
    cache = _Field("facts")
    now = _Field("facts")
    observed = _Field("facts")
    memory = _Field("draft")
    actions = _Field("draft")
    deferred = _Field("draft")
    pending = _Field("draft")
    diagnostics = _Field("draft")
    evicting = _Field("draft")
    reschedules = _Field("draft")
    displaced = _Field("draft")
