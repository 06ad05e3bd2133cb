"""One pass step by step: tests run the steps they need, and read what these decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import clock_skew, explain, grouping, placement, views
from belay.engine.plan.draft import Draft, Memory
from belay.engine.plan.facts import Facts
from belay.engine.plan.health import reset, states
from belay.engine.plan.health.assessment import Health
from belay.engine.plan.jobs import expand
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.queue import enqueue
from belay.engine.plan.recover import evictions
from belay.engine.plan.recover.outcome import RecoveryOutcome
from belay.engine.plan.safety import deferral
from belay.engine.plan.scope import Scope
from belay.engine.plan.sync import objects


class _Field:
    """A field of the pass's facts or draft, or of an earlier result, as one of the pass itself."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, steps: Any, _owner: type) -> Any:
        return getattr(getattr(steps, self._part), self._name)

    def __set__(self, steps: Any, value: Any) -> None:
        part = getattr(steps, self._part)
        if self._part == "draft":
            setattr(part, self._name, value)
        else:
            setattr(steps, self._part, replace(part, **{self._name: value}))


class Steps:
    """The state of one pass; ``run`` takes the names of steps, in their order."""

    def __init__(
        self, desired: Desired, observed: Observed, now: float, shard: str = "main", cache: PlanCache | None = None
    ) -> None:
        self.facts = Facts(desired, observed, now, shard, cache=cache if cache is not None else PlanCache())
        self.draft = Draft(Memory.of(observed.history))
        self.nodes = PassNodes()
        self.gangs = grouping.PassGangs()
        self.undeclared: set[ObjectKey] = set()
        self.health = Health()
        self.recovery = RecoveryOutcome()
        self.queue: list[str] = []
        self.scores: dict[str, dict[str, float]] = {}
        self.admission = deferral.Admitted((), None)

    def run(self, *names: str) -> Steps:
        """Run these steps; returns itself."""
        for name in names:
            getattr(self, f"_{name}")()
        return self

    def document(self) -> Plan:
        """The plan of the steps run so far."""
        found = explain.Findings(
            self.health, self.health.chips, self.scores,
            budgets=self.admission.budgets, held_prune=self.admission.held_prune,
        )  # fmt: skip
        return explain.document(self.facts, self.draft, self.nodes, found)

    @property
    def scope(self) -> Scope:
        """What placement works on after these steps."""
        return Scope(
            self.facts, self.draft, self.nodes, self.gangs, self.queue, self.health.rules, self.recovery,
            scores=self.scores,
        )  # fmt: skip

    def _clock_skew(self) -> None:
        clock_skew.correct_times(self.facts, self.draft)

    def _views(self) -> None:
        self.nodes = views.derive_views(self.facts, self.draft)

    def _grouping(self) -> None:
        self.gangs = grouping.group_pods(self.facts)

    def _sync(self) -> None:
        self.undeclared = objects.sync_objects(self.facts, self.draft, self.gangs)

    def _health(self) -> None:
        self.health = states.assess_nodes(self.facts, self.draft, self.nodes, self.gangs)

    def _recover(self) -> None:
        self.recovery = evictions.evict_hit_pods(self.facts, self.draft, self.nodes, self.gangs, self.health)

    def _expand(self) -> None:
        expand.expand_jobs(self.facts, self.draft, self.nodes, self.gangs, self.undeclared)

    def _queue(self) -> None:
        self.queue = enqueue.enqueue_gangs(self.facts, self.draft, self.nodes, self.gangs)

    def _placement(self) -> None:
        self.scores = placement.place_gangs(self.scope)

    def _reset(self) -> None:
        reset.order_resets(self.facts, self.draft, self.nodes, self.health)

    def _safety(self) -> None:
        self.admission = deferral.defer_disruption(self.facts, self.draft, self.nodes, self.gangs)

    def _explain(self) -> None:
        plan = self.document()
        self.pending, self.diagnostics, self.scores = list(plan.pending), list(plan.diagnostics), dict(plan.scores)

    desired = _Field("facts")
    observed = _Field("facts")
    cache = _Field("facts")
    now = _Field("facts")
    memory = _Field("draft")
    actions = _Field("draft")
    deferred = _Field("draft")
    pending = _Field("draft")
    diagnostics = _Field("draft")
    evicting = _Field("draft")
    reschedules = _Field("draft")
    displaced = _Field("draft")
    chips = _Field("health")
    planes = _Field("health")
    switches = _Field("health")
    blamed = _Field("health")
    repeat_offenders = _Field("health")
    budgets = _Field("admission")
    refused = _Field("recovery")
    penalty = _Field("recovery")
    choices = _Field("recovery")
