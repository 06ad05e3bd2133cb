"""Collected values by metric name, kept until they are too old."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from belay.agents.exporter.groups import Group
from belay.agents.exporter.table import BY_NAME

NODE: Final = -1
"""Stands for the node where a chip's physical id is expected."""

FAILED: Final = 2_147_483_647
"""The driver's marker of a failed collection; shown as -1."""

UNREAD: Final = (-1, 4_294_967_295)


class Value(NamedTuple):
    """One value; ``extra`` are the labels beyond those of the card, in the order of the label set.

    Telegraf appends ``suffix`` to the field's name and sends ``text`` where there is one.
    """

    metric: str
    value: float
    extra: tuple[str, ...] = ()
    suffix: str = ""
    text: str = ""


class Sample(NamedTuple):
    """The values of one group on one chip, read at ``time_ms`` and shown until ``until`` (monotonic seconds)."""

    time_ms: int
    until: float
    values: tuple[Value, ...]


def checked(values: list[Value]) -> tuple[Value, ...]:
    """Values as they are shown: the failed marker is -1, values that checked sources could not read are left out. So
    are values that are not numbers: the driver and its tools report some values as floating point, where that can
    happen.
    """
    found = []
    for value in values:
        if not math.isfinite(value.value):
            continue
        if value.value == FAILED:
            value = value._replace(value=-1)
        elif value.value in UNREAD and BY_NAME[value.metric].checked:
            continue
        found.append(value)
    return tuple(found)


class Cache:
    """Samples by group and chip. ``changes`` counts every change of a group."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[int, Sample]] = {}
        self.changes: dict[str, int] = {}

    def put(self, group: Group, chip: int, values: list[Value], time_ms: int, now: float) -> None:
        """Keep a reading of a group on a chip until it is too old."""
        self._samples.setdefault(group.name, {})[chip] = Sample(time_ms, now + group.lifetime, checked(values))
        self.changes[group.name] = self.changes.get(group.name, 0) + 1

    def of(self, group: str, now: float) -> dict[int, Sample]:
        """The samples of a group that are not too old, by chip."""
        return {chip: sample for chip, sample in self._samples.get(group, {}).items() if now < sample.until}

    def oldest(self, group: str, now: float) -> float:
        """When the next sample of a group becomes too old."""
        return min((s.until for s in self._samples.get(group, {}).values() if now < s.until), default=float("inf"))

    def groups(self) -> Iterator[str]:
        """Groups that have samples."""
        return iter(self._samples)

    def clear(self) -> None:
        """Drop all samples, because the groups were reconfigured."""
        for group in self._samples:
            self.changes[group] = self.changes.get(group, 0) + 1
        self._samples.clear()

    def keep(self, chips: set[int]) -> None:
        """Drop chips that are no longer present."""
        for group, samples in self._samples.items():
            for chip in [chip for chip in samples if chip != NODE and chip not in chips]:
                del samples[chip]
                self.changes[group] = self.changes.get(group, 0) + 1
