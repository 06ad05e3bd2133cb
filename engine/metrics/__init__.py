"""Metrics of the engine: a summary per pass and counters in Redis, which `belay server` renders for Prometheus."""

from __future__ import annotations

from belay.engine.metrics.catalogue import BY_NAME, METRICS, Described
from belay.engine.metrics.counters import counter_name, recovery_counts, timed, wait_counts
from belay.engine.metrics.passes import PassSummary

__all__ = ["BY_NAME", "METRICS", "Described", "PassSummary", "counter_name", "recovery_counts", "timed", "wait_counts"]
