"""Counters and histograms that survive workers: integers in Redis, each process adds to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from belay.engine.metrics.catalogue import BY_NAME
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.costs import cost
from belay.engine.model.history import Recovery
from belay.engine.model.plan import Plan

MICRO: Final = 1_000_000
#: Labels of a counter that no label value may break: the separators of its key.
_ESCAPES: Final = str.maketrans({"|": "_", "=": "_"})
INFINITE: Final = "+Inf"


def counter_name(name: str, **labels: str) -> str:
    """The key of a counter."""
    return "|".join([name, *(f"{key}={value.translate(_ESCAPES)}" for key, value in sorted(labels.items()))])


def timed(name: str, seconds: float, **labels: str) -> Counter[str]:
    """What one observation adds to the counters of a histogram; negative times count as zero."""
    seconds = max(0.0, seconds)
    bounds = [*(str(float(bound)) for bound in BY_NAME[f"belay_{name}"].buckets if seconds <= bound), INFINITE]
    found = Counter({counter_name(f"{name}_bucket", le=bound, **labels): 1 for bound in bounds})
    found[counter_name(f"{name}_sum", **labels)] = round(seconds * MICRO)
    return found


def recovery_counts(plan: Plan, before: Observed) -> Counter[str]:
    """What the recoveries add that ended in this pass: the time of each stage, and the chip-seconds lost."""
    found: Counter[str] = Counter()
    for _job, one in ended_recoveries(plan, before):
        found += _recovery(one)
    return found


def ended_recoveries(plan: Plan, before: Observed) -> Iterator[tuple[str, Recovery]]:
    """Job and recovery, of those that ended in this pass."""
    for key, memory in plan.history.jobs.items():
        earlier = before.history.jobs.get(key)
        if memory is earlier or not memory.recoveries:
            continue
        ended = {one.at for one in earlier.recoveries if one.back} if earlier is not None else set()
        for one in memory.recoveries:
            if one.back and one.at not in ended:
                yield key, one


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


__all__ = ["MICRO", "counter_name", "timed", "recovery_counts", "wait_counts"]
