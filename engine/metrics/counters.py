"""Counters and histograms that survive workers: integers in Redis, each process adds to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from belay.engine.metrics.catalogue import BY_NAME, Described
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.costs import cost
from belay.engine.model.history import Recovery
from belay.engine.model.plan import Plan

MICRO: Final = 1_000_000
#: Labels of a counter that no label value may break: the separators of its key.
_ESCAPES: Final = str.maketrans({"|": "_", "=": "_"})
_INFINITE: Final = "+Inf"


def counter_name(name: str, **labels: str) -> str:
    """The key of a counter."""
    return "|".join([name, *(f"{key}={value.translate(_ESCAPES)}" for key, value in sorted(labels.items()))])


def timed(name: str, seconds: float, **labels: str) -> Counter[str]:
    """What one observation adds to the counters of a histogram; negative times count as zero."""
    seconds = max(0.0, seconds)
    bounds = [*(str(float(bound)) for bound in BY_NAME[f"belay_{name}"].buckets if seconds <= bound), _INFINITE]
    found = Counter({counter_name(f"{name}_bucket", le=bound, **labels): 1 for bound in bounds})
    found[counter_name(f"{name}_sum", **labels)] = round(seconds * MICRO)
    return found


def recovery_counts(plan: Plan, before: Observed) -> Counter[str]:
    """What the recoveries add that ended in this pass: the time of each stage, and the chip-seconds lost."""
    found: Counter[str] = Counter()
    for key, memory in plan.history.jobs.items():
        earlier = before.history.jobs.get(key)
        if memory is earlier or not memory.recoveries:
            continue
        ended = {one.at for one in earlier.recoveries if one.back} if earlier is not None else set()
        for one in memory.recoveries:
            if one.back and one.at not in ended:
                found += _recovery(one)
    return found


def _recovery(one: Recovery) -> Counter[str]:
    found = timed("recovery_seconds", (one.back - one.at) / 1000, cause=one.reason, stage="resumed")
    if one.placed:
        found += timed("recovery_seconds", (one.placed - one.at) / 1000, cause=one.reason, stage="scheduled")
    if one.running:
        found += timed("recovery_seconds", (one.running - one.at) / 1000, cause=one.reason, stage="running")
    found[counter_name("lost_chip_seconds", cause=one.reason)] += cost(one)
    return found


def wait_counts(plan: Plan, before: Observed) -> Counter[str]:
    """What the pods add that this pass binds: how long each waited since its creation."""
    found: Counter[str] = Counter()
    for action in plan.actions:
        if isinstance(action, BindPod) and (pod := before.pods.get(f"{action.namespace}/{action.pod}")) is not None:
            found += timed("queue_wait_seconds", plan.now - pod.created, resource=pod.resource or "none")
    return found


def families(counters: Mapping[str, int]) -> Iterator[Metric]:
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
        for bound in (*(str(float(bound)) for bound in metric.buckets), _INFINITE):
            below = max(below, parts.get(bound, 0))
            buckets.append((bound, below))
        histogram.add_metric(list(values), buckets, parts.get("sum", 0) / MICRO)
    return histogram


__all__ = ["MICRO", "counter_name", "families", "timed", "recovery_counts", "wait_counts"]
