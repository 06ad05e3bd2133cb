"""Metrics: a short summary per pass in Redis, which `belay server` renders for Prometheus.

Workers come and go, so they expose nothing themselves. There is no gauge per chip: a collector renders the last
summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.model.actions import kind_of
from engine.model.cluster import Observed
from engine.model.plan import Plan

MICRO = 1_000_000


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

    @staticmethod
    def of(plan: Plan, observed: Observed, seconds: float) -> PassSummary:
        """Counts of a plan."""
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
        yield from _counters(counters)


def counter_name(name: str, **labels: str) -> str:
    """The key of a counter."""
    return "|".join([name, *(f"{key}={value}" for key, value in sorted(labels.items()))])


def _gauges(summaries: Mapping[str, PassSummary]) -> Iterator[Metric]:
    counted = (
        ("nodes", "state", "Nodes by state."),
        ("chips", "state", "Chips by state, all of them; unknown: no report names them."),
        ("pending", "reason", "Gangs and pods that were not placed, by reason."),
        ("deferred", "budget", "Actions that a budget keeps back, by budget."),
        ("diagnostics", "severity", "Findings by severity."),
        ("shadow", "change", "Actions that shadow policies would change, by policy/new or avoided/action."),
        ("lemons", "state", "Chips that have failed of late, by whether placement avoids them."),
    )
    for field, label, text in counted:
        family = GaugeMetricFamily(f"belay_{field}", text, labels=["shard", label])
        for shard, summary in sorted(summaries.items()):
            for value, number in sorted(getattr(summary, field).items()):
                family.add_metric([shard, value], number)
        yield family
    for field, text in (
        ("time", "When the last pass was, in unix seconds."),
        ("seconds", "How long the last pass took."),
    ):
        family = GaugeMetricFamily(f"belay_last_pass_{field}", text, labels=["shard"])
        for shard, summary in sorted(summaries.items()):
            family.add_metric([shard], getattr(summary, field))
        yield family


def _counters(counters: Mapping[str, int]) -> Iterator[Metric]:
    families: dict[str, CounterMetricFamily] = {}
    for key, number in sorted(counters.items()):
        name, *pairs = key.split("|")
        labels = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if name not in families:
            families[name] = CounterMetricFamily(f"belay_{name}", f"Counted: {name}.", labels=list(labels))
        value = number / MICRO if name.endswith("_seconds") else number
        families[name].add_metric(list(labels.values()), value)
    yield from families.values()
