"""Records of one rank's profiling → windows of steps: where the time of each step went.

The records are markers, a start and an end with one ``Id``; the native library (MSPTI) writes them for the host and for
the device, torch's hooks for the host only. Where a step has times of the device, those count.
Sources: component/ascend-faultdiag-online/pkg/algo_src/slownode/parse (flags, domains, names of markers, JSON in
``Name`` of collectives); component/taskd/taskd/go/framework_backend/worker/monitor/profiling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

from belay.engine.model.step_times import WINDOW_STEPS, GroupTime, StepWindow

STARTS: Final = 2 | 16
ENDS: Final = 4 | 32
DEVICE: Final = 16 | 32
COMMUNICATION: Final = "communication"
DATA: Final = "dataloader"
CHECKPOINT: Final = "save_checkpoint"
MAX_OPEN: Final = 8192
"""Markers that have begun and not ended; the oldest are dropped."""
MAX_SPANS: Final = 100_000
"""Spans kept until their step has ended."""
LEAST_STEPS: Final = 20
"""Steps that a window must hold, as MindCluster waits for (``MinStepCount``)."""
KEPT: Final = 4
"""Windows of a rank that are reported."""
_STEP: Final = re.compile(r"step\D{0,8}(\d{1,15})", re.IGNORECASE)
_UNNAMED: Final = "group"

Groups = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name of a communicator → kind and ranks of its group (`parallel_group.json`)."""


class Marker(msgspec.Struct, rename="pascal"):
    """One record; fields that are not needed are skipped."""

    flag: int
    timestamp: int
    id: int
    name: str = ""
    domain: str = ""
    source_kind: int = 0


class _Collective(msgspec.Struct, rename="camel"):
    group_name: str = ""


class _Span(NamedTuple):
    begin: int
    end: int
    what: str
    group: str
    device: bool


class _Step(NamedTuple):
    step: int
    work: int
    data: int
    groups: dict[str, int]


class RankSteps:
    """One rank. ``windows`` are its newest complete windows, oldest first."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.windows: tuple[StepWindow, ...] = ()
        self._open: dict[tuple[int, bool], Marker] = {}
        self._spans: list[_Span] = []
        self._ended: list[tuple[int, int, int]] = []
        self._device = False
        self._number = -1
        self._rows: list[_Step] = []

    def take(self, lines: Iterable[bytes], groups: Groups) -> int:
        """Read records in the order of the files; how many could not be read."""
        bad = 0
        for line in lines:
            try:
                marker = _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                bad += 1
                continue
            self._mark(marker, groups)
        return bad

    def _mark(self, marker: Marker, groups: Groups) -> None:
        device = bool(marker.flag & DEVICE)
        key = (marker.id, device)
        if marker.flag & STARTS:
            self._open[key] = marker
            if len(self._open) > MAX_OPEN:
                del self._open[next(iter(self._open))]
        elif marker.flag & ENDS:
            begun = self._open.pop(key, None)
            if begun is not None and begun.timestamp <= marker.timestamp:
                self._span(begun, marker.timestamp, device, groups)

    def _span(self, begun: Marker, end: int, device: bool, groups: Groups) -> None:
        if begun.domain == COMMUNICATION:
            name = ""
            if begun.name.startswith("{"):
                try:
                    name = _COLLECTIVE.decode(begun.name).group_name
                except msgspec.DecodeError:
                    name = ""
            self._keep(_Span(begun.timestamp, end, COMMUNICATION, name, device))
        elif begun.name in (DATA, CHECKPOINT):
            self._keep(_Span(begun.timestamp, end, begun.name, "", device))
        elif (found := _STEP.search(begun.name)) is not None:
            if device and not self._device:
                self._device, self._ended = True, []
            if device == self._device:
                self._ended.append((int(found[1]), begun.timestamp, end))
                # records of one step may be written after its end: one step later all of them are there
                while len(self._ended) > 1:
                    self._close(*self._ended.pop(0), groups)

    def _keep(self, span: _Span) -> None:
        if len(self._spans) < MAX_SPANS:
            self._spans.append(span)

    def _close(self, number: int, begin: int, end: int, groups: Groups) -> None:
        inside = [one for one in self._spans if begin <= (one.begin + one.end) // 2 < end]
        self._spans = [one for one in self._spans if (one.begin + one.end) // 2 >= end]
        device = any(one.device and one.what == COMMUNICATION for one in inside)
        chosen = [one for one in inside if one.what != COMMUNICATION or one.device == device]
        times: dict[str, int] = {}
        for one in chosen:
            if one.group in groups:
                times[one.group] = times.get(one.group, 0) + one.end - one.begin
        data = sum(one.end - one.begin for one in chosen if one.what == DATA)
        busy = _covered(chosen, begin, end)
        window = number // WINDOW_STEPS
        if window != self._number:
            self._finish(groups)
            self._number = window
        if len(self._rows) < WINDOW_STEPS:
            self._rows.append(_Step(end - begin, end - begin - busy, data, times))

    def _finish(self, groups: Groups) -> None:
        rows, self._rows = self._rows, []
        if len(rows) < LEAST_STEPS:
            return
        names = sorted({name for row in rows for name in row.groups})
        found = StepWindow(
            self.rank,
            self._number,
            len(rows),
            median_low(row.step for row in rows) // 1000,
            median_low(row.work for row in rows) // 1000,
            median_low(row.data for row in rows) // 1000,
            tuple(
                GroupTime(*groups[name], median_low(row.groups.get(name, 0) for row in rows) // 1000)
                for name in names
                if name in groups
            ),
        )
        earlier = tuple(one for one in self.windows if one.number < found.number)
        self.windows = (*earlier, found)[-KEPT:]


def kind_of(name: str) -> str:
    """The kind of a group by its name: numbers at the end only count groups of one kind."""
    return re.sub(r"[_-]?\d+\Z", "", name)[:32] or _UNNAMED


def _covered(spans: Iterable[_Span], begin: int, end: int) -> int:
    """Nanoseconds between ``begin`` and ``end`` that at least one span covers."""
    covered, reached = 0, begin
    for one in sorted(spans):
        first, last = max(one.begin, reached), min(one.end, end)
        if last > first:
            covered += last - first
            reached = last
    return covered


_DECODER: Final = msgspec.json.Decoder(Marker)
_COLLECTIVE: Final = msgspec.json.Decoder(_Collective)
