"""Collectors of your own: Python packages that add metrics, the counterpart of the original's plugins in Go.

A package declares the entry point group ``belay.exporter.collectors``; each entry's name is a group of
``pluginConfiguration.json``, its object a class without arguments with ``collect() -> Iterable[CustomMetric]`` and,
if it wants them, ``supported(machine) -> bool``, ``start()`` and ``stop()``
(component/npu-exporter/plugins/README.md: CollectToCache, IsSupported, PreCollect, PostCollect). They run in
threads of their own: one that hangs or fails costs its own metrics only.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.agents.common.log import Log
from belay.agents.exporter.chips import Machine
from belay.agents.exporter.table import BY_NAME
from belay.agents.exporter.textfiles import (
    LABEL_NAME,
    LONGEST_DESC,
    LONGEST_NAME,
    METRIC_NAME,
    MOST_ITEMS,
    MOST_LABELS,
    TextMetric,
)

ENTRY_POINTS: Final = "belay.exporter.collectors"
MOST: Final = 10
#: A collection that takes longer is logged and not waited for (s), as in the original.
PATIENCE: Final = 10.0
LONGEST_VALUE: Final = 1024
_log = Log("exporter")


class CustomMetric(msgspec.Struct, frozen=True):
    """One metric of a package: its name, what it means, and rows of labels and a value, all with the same labels."""

    name: str
    desc: str
    rows: tuple[tuple[Mapping[str, str], float], ...]


class CollectorError(ValueError):
    """What a collector returned breaks a rule; the text names the metric and the rule."""


class Collectors:
    """The installed collectors by group name. ``entries`` replaces those of the environment in tests."""

    def __init__(
        self, now_ms: Callable[[], int], entries: Iterable[importlib.metadata.EntryPoint] | None = None
    ) -> None:
        self._now_ms = now_ms
        self._loaded: dict[str, Any] = {}
        self._running: dict[str, asyncio.Future[Any]] = {}
        self._last: dict[str, tuple[TextMetric, ...]] = {}
        found = importlib.metadata.entry_points(group=ENTRY_POINTS) if entries is None else entries
        for entry in sorted(found, key=lambda one: one.name):
            if len(self._loaded) == MOST:
                _log.warning("only the first collectors are used", used=MOST, left_out=entry.name)
                break
            try:
                # third-party code may raise anything; the exporter's own metrics must not end with it
                self._loaded.setdefault(entry.name, entry.load()())
            except (Exception, SystemExit) as error:
                _log.error(
                    "a collector cannot be loaded", collector=entry.name, source=entry.value, error=repr(error)[:300]
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The groups that the collectors add."""
        return tuple(self._loaded)

    @property
    def metrics(self) -> tuple[TextMetric, ...]:
        """What the collectors last returned, in the order of their names; a name counts for the first that has it."""
        found: dict[str, TextMetric] = {}
        for name in self._loaded:
            for metric in self._last.get(name, ()):
                found.setdefault(metric.name, metric)
        return tuple(found.values())

    def keep(self, names: Iterable[str]) -> None:
        """Forget the metrics of collectors that are switched off."""
        chosen = set(names)
        self._last = {name: found for name, found in self._last.items() if name in chosen}

    async def collect(self, name: str, machine: Machine) -> None:
        """Run one collector once; what fails is logged and keeps its last values."""
        if name in self._running and not self._running[name].done():
            _log.warning("a collector has not ended yet, this round is left out", collector=name)
            return
        self._running[name] = running = _in_thread(name, lambda: _round(self._loaded[name], machine))
        running.add_done_callback(lambda ended: self._take(name, ended))
        done, _ = await asyncio.wait((running,), timeout=PATIENCE)
        if not done:
            _log.warning("a collector takes long", collector=name, seconds=PATIENCE)

    def _take(self, name: str, ended: asyncio.Future[Any]) -> None:
        """Keep what a round returned, also one that was not waited for."""
        if ended.cancelled():
            return
        try:
            self._last[name] = tuple(self._checked(name, ended.result()))
        except Exception as error:  # third-party code may raise anything, also from what it returned
            _log.warning("a collector failed", collector=name, error=repr(error)[:300])

    def _checked(self, collector: str, found: Any) -> Iterable[TextMetric]:
        metrics = list(found)
        if len(metrics) > MOST_ITEMS:
            raise CollectorError(f"{len(metrics)} metrics, at most {MOST_ITEMS} are taken")
        for metric in metrics:
            _check(metric)
            labels = tuple(sorted(metric.rows[0][0]))
            rows = tuple(
                (tuple(str(row[name])[:LONGEST_VALUE] for name in labels), float(value)) for row, value in metric.rows
            )
            yield TextMetric(f"collector {collector}", metric.name, metric.desc, "1.0", labels, self._now_ms(), rows)


def _round(collector: Any, machine: Machine) -> list[CustomMetric]:
    """One collection with what comes before and after it."""
    if hasattr(collector, "supported") and not collector.supported(machine):
        return []
    if hasattr(collector, "start"):
        collector.start()
    try:
        return list(collector.collect())
    finally:
        if hasattr(collector, "stop"):
            collector.stop()


def _in_thread(name: str, work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=f"collector {name}", daemon=True).start()
    return future


def _check(metric: Any) -> None:
    if not isinstance(metric, CustomMetric):
        raise CollectorError(f"{type(metric).__name__} is no CustomMetric")
    name = str(metric.name)[:LONGEST_NAME]
    labels = set(metric.rows[0][0]) if metric.rows else set()
    numbers = all(isinstance(value, int | float) and not math.isnan(value) for _, value in metric.rows)
    plain = len(labels) <= MOST_LABELS and all(LABEL_NAME.fullmatch(one) for one in labels)
    named = METRIC_NAME.fullmatch(metric.name) is not None and len(metric.name) <= LONGEST_NAME
    rules = (
        (named, f"its name is not a metric name of 1 to {LONGEST_NAME} characters"),
        (metric.name not in BY_NAME, "the exporter has a metric of this name"),
        (1 <= len(metric.desc) <= LONGEST_DESC, f"desc must have 1 to {LONGEST_DESC} characters"),
        (1 <= len(metric.rows) <= MOST_ITEMS, f"it must have 1 to {MOST_ITEMS} rows"),
        (plain, f"at most {MOST_LABELS} labels, named by letters, digits and _"),
        (all(set(row) == labels for row, _ in metric.rows), "all rows must have the same labels"),
        (numbers, "a value is not a number"),
    )
    for kept, rule in rules:
        if not kept:
            raise CollectorError(f"metric {name!r}: {rule}")
