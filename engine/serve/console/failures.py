"""Errors that nothing foresaw: each is logged where it is caught and counted here, for `belay_console_failures_total`.

A console that people keep open must outlive a bug in one document or one answer; that it was one must not be lost.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily

from belay.engine.metrics.catalogue import BY_NAME

Place = Literal["document", "answer", "request"]
_METRIC: Final = "belay_console_failures"
_counted: Counter[str] = Counter(dict.fromkeys(("document", "answer", "request"), 0))


def count(place: Place) -> None:
    """Count one: ``document`` could not be made, an ``answer`` not be found, or a ``request`` not be handled."""
    _counted[place] += 1


def counted(place: Place) -> int:
    """How many of this process."""
    return _counted[place]


def metric() -> CounterMetricFamily:
    """The counter as Prometheus takes it."""
    family = CounterMetricFamily(_METRIC, BY_NAME[_METRIC].text, labels=list(BY_NAME[_METRIC].labels))
    for place, number in sorted(_counted.items()):
        family.add_metric([place], number)
    return family
