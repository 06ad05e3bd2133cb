"""Metrics as Prometheus reads them: what a pass left in Redis, and the counters of all processes.

Only what answers scrapes imports this: the client library is no part of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from belay.engine.metrics.catalogue import BY_NAME, Described
from belay.engine.metrics.counters import INFINITE, MICRO
from belay.engine.metrics.passes import PassSummary

#: The counts of a summary that are shown by shard and one label.
_COUNTED: Final = ("nodes", "chips", "pending", "deferred", "diagnostics", "shadow", "lemons", "refused")

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
        yield from _families(counters)


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


def _families(counters: Mapping[str, int]) -> Iterator[Metric]:
    """The counters and histograms in the order of the catalogue; names that it does not have are left out."""
    rows: dict[str, dict[tuple[str, ...], dict[str, int]]] = {}
    for key, number in counters.items():
        name, *pairs = key.split("|")
        labels = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        metric, part = _metric(name)
        if metric is None:
            continue
        values = tuple(labels.get(label, "") for label in metric.labels)
        rows.setdefault(metric.name, {}).setdefault(values, {})[labels.get("le", part)] = number
    for metric in BY_NAME.values():
        if metric.name in rows:
            yield _family(metric, rows[metric.name])


def _metric(name: str) -> tuple[Described | None, str]:
    for suffix, part in (("_bucket", "bucket"), ("_sum", "sum"), ("", "value")):
        found = BY_NAME.get(f"belay_{name.removesuffix(suffix)}")
        if found is not None and name.endswith(suffix) and (found.type == "histogram") == bool(suffix):
            return found, part
    return None, ""


def _family(metric: Described, rows: Mapping[tuple[str, ...], Mapping[str, int]]) -> Metric:
    if metric.type == "counter":
        counter = CounterMetricFamily(metric.name, metric.text, labels=list(metric.labels))
        for values, parts in sorted(rows.items()):
            counter.add_metric(list(values), parts.get("value", 0))
        return counter
    histogram = HistogramMetricFamily(metric.name, metric.text, labels=list(metric.labels))
    for values, parts in sorted(rows.items()):
        # a scrape between two writes, or a flushed Redis, must not show buckets that shrink
        buckets, below = [], 0
        for bound in (*(str(float(bound)) for bound in metric.buckets), INFINITE):
            below = max(below, parts.get(bound, 0))
            buckets.append((bound, below))
        histogram.add_metric(list(values), buckets, parts.get("sum", 0) / MICRO)
    return histogram


__all__ = ["BelayCollector", "Numbers", "gauge"]
