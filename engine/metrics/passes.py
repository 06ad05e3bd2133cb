"""Metrics: a short summary per pass in Redis, which `belay server` renders for Prometheus.

Workers come and go, so they expose nothing themselves. There is no gauge per chip: a collector renders the last
summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from belay.engine.metrics.catalogue import BY_NAME
from belay.engine.metrics.counters import families
from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import BudgetUse, Plan

#: The counts of a summary that are shown by shard and one label.
_COUNTED: Final = ("nodes", "chips", "pending", "deferred", "diagnostics", "shadow", "lemons", "refused")


class PassSummary(msgspec.Struct, frozen=True):
    """Counts of a shard's last pass; ``seconds`` is its duration, ``time`` its time (Unix seconds)."""

    time: float
    seconds: float
    revision: str
    nodes: dict[str, int]
    chips: dict[str, int]
    pending: dict[str, int]
    deferred: dict[str, int]
    actions: dict[str, int]
    diagnostics: dict[str, int]
    pods: int
    shadow: dict[str, int] = {}
    lemons: dict[str, int] = {}
    budgets: tuple[BudgetUse, ...] = ()
    refused: dict[str, int] = {}

    @staticmethod
    def of(plan: Plan, observed: Observed, seconds: float, before: PassSummary | None = None) -> PassSummary:
        """Counts of a plan; ``before`` is the shard's last summary, whose allowances hold while none is counted."""
        return PassSummary(
            plan.now,
            seconds,
            plan.revision,
            dict(Counter(node.state for node in plan.nodes)),
            plan.chip_states(),
            dict(Counter(pending.reason for pending in plan.pending)),
            dict(Counter(deferred.budget for deferred in plan.deferred)),
            dict(Counter(kind_of(action) for action in plan.actions)),
            dict(Counter(diagnostic.severity for diagnostic in plan.diagnostics)),
            len(observed.pods),
            dict(Counter(f"{change.policy}/{change.change}/{kind_of(change.action)}" for change in plan.shadows)),
            dict(Counter("avoided" if lemon.avoided else "remembered" for lemon in plan.repeat_offenders)),
            _with_allowances(plan.budgets, before.budgets if before is not None else ()),
            dict(Counter(str(row.cause) for row in plan.refusals)),
        )


def _with_allowances(budgets: tuple[BudgetUse, ...], before: tuple[BudgetUse, ...]) -> tuple[BudgetUse, ...]:
    known = {(row.budget, row.scope): row.allowed for row in before}
    return tuple(
        row if row.allowed is not None else msgspec.structs.replace(row, allowed=known.get((row.budget, row.scope)))
        for row in budgets
    )


Numbers = tuple[Mapping[str, PassSummary], Mapping[str, int]]
"""Summaries by shard, and counters by ``name|label=value|…`` (times in microseconds)."""


class BelayCollector(Collector):
    """Renders the numbers that ``read`` gives; an empty answer renders nothing."""

    def __init__(self, read: Callable[[], Numbers]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Metrics for one scrape."""
        summaries, counters = self._read()
        yield from _gauges(summaries)
        yield from families(counters)


def _gauges(summaries: Mapping[str, PassSummary]) -> Iterator[Metric]:
    for field in _COUNTED:
        family = gauge(f"belay_{field}")
        for shard, summary in sorted(summaries.items()):
            for value, number in sorted(getattr(summary, field).items()):
                family.add_metric([shard, value], number)
        yield family
    spent, left = gauge("belay_budget_spent"), gauge("belay_budget_left")
    for shard, summary in sorted(summaries.items()):
        for row in summary.budgets:
            spent.add_metric([shard, row.budget, row.scope, row.actions], row.spent)
            if row.allowed is not None:
                left.add_metric([shard, row.budget, row.scope, row.actions], max(0, row.allowed - row.spent))
    yield from (spent, left)
    for field in ("time", "seconds"):
        family = gauge(f"belay_last_pass_{field}")
        for shard, summary in sorted(summaries.items()):
            family.add_metric([shard], getattr(summary, field))
        yield family


def gauge(name: str) -> GaugeMetricFamily:
    """The empty family of a gauge of the catalogue."""
    return GaugeMetricFamily(name, BY_NAME[name].text, labels=list(BY_NAME[name].labels))
