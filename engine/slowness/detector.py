"""What is slow in one job, window by window: it begins after several windows in a row, and ends after as many.

A window that is judged late or twice changes nothing; the same windows always lead to the same findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from belay.engine.model.step_times import SlowFinding, SlownessSettings, StepWindow
from belay.engine.slowness.excess import Excess, Subject, excesses

KEPT_WINDOWS: Final = 4
"""Windows whose ranks are collected at the same time; older ones are judged with what was reported."""
MAX_RANKS: Final = 32_768
"""Ranks of one job that are compared; more are not looked at."""
ENDS_BELOW: Final = 0.5
"""What was found ends when its excess falls below this part of the limit: one at the limit does not come and go."""


class _Run(msgspec.Struct):
    """One subject's newest excesses, and the window in which the run began."""

    shares: list[float] = []
    since: int = 0


class SlownessDetector:
    """Judges one job. ``findings`` is what is slow now, sorted."""

    def __init__(self, settings: SlownessSettings | None = None) -> None:
        self.settings = settings or SlownessSettings()
        self.findings: tuple[SlowFinding, ...] = ()
        self._pending: dict[int, dict[int, StepWindow]] = {}
        self._judged = -1
        self._count = 0
        self._runs: dict[Subject, _Run] = {}
        self._found: dict[Subject, SlowFinding] = {}
        self._absent: dict[Subject, int] = {}

    @property
    def judged(self) -> int:
        """The newest window that was judged; -1 before the first."""
        return self._judged

    @property
    def settled(self) -> bool:
        """Whether it has judged enough windows to say that something is not slow."""
        return self._count >= self.settings.windows

    def add(self, windows: Sequence[StepWindow], node_of: Mapping[int, str], expected: int) -> bool:
        """Take windows in any order and judge those that are complete; whether one was judged.

        ``windows`` are all that is known now. A window is complete when ``expected`` ranks reported it, or when it is
        older than the newest ``KEPT_WINDOWS``. When even the newest is far below (the job was started again), a new
        history begins; findings stay until they are judged again.
        """
        if windows and max(one.number for one in windows) <= self._judged - KEPT_WINDOWS:
            self._restart()
        for one in windows:
            if one.number > self._judged and (len(self._pending.get(one.number, ())) < MAX_RANKS):
                self._pending.setdefault(one.number, {})[one.rank] = one
        judged = False
        for number in sorted(self._pending):
            ready = len(self._pending[number]) >= expected or number <= max(self._pending) - KEPT_WINDOWS
            if not ready:
                break
            self._judge(number, self._pending.pop(number), node_of)
            judged = True
        return judged

    def _restart(self) -> None:
        self._pending.clear()
        self._runs.clear()
        self._judged = -1

    def _judge(self, number: int, windows: Mapping[int, StepWindow], node_of: Mapping[int, str]) -> None:
        self._judged = number
        self._count += 1
        current = excesses(windows, node_of)
        length = self.settings.windows
        for subject in [one for one in self._runs if one not in current]:
            del self._runs[subject]  # it did not report: its run begins again
        for subject in [one for one in self._found if one not in current]:
            self._absent[subject] = self._absent.get(subject, 0) + 1
            if self._absent[subject] >= length:
                del self._found[subject], self._absent[subject]  # the rank has left the job
        for subject, excess in current.items():
            self._absent.pop(subject, None)
            limit = self._limit(excess)
            known = self._found.get(subject)
            if known is None and excess.share <= limit * ENDS_BELOW:
                self._runs.pop(subject, None)
                continue
            run = self._runs.setdefault(subject, _Run([], number))
            run.shares = [*run.shares, excess.share][-length:]
            if len(run.shares) < length:
                continue
            mean = sum(run.shares) / length
            if mean > limit or (known is not None and mean > limit * ENDS_BELOW):
                since = known.since if known is not None else run.since
                self._found[subject] = _finding(subject, excess, mean, limit, since)
            elif known is not None:
                del self._found[subject]
        self.findings = tuple(sorted(self._found.values()))

    def _limit(self, excess: Excess) -> float:
        return max(self.settings.degradation, self.settings.sigmas * excess.spread)


def _finding(subject: Subject, excess: Excess, mean: float, limit: float, since: int) -> SlowFinding:
    kind, group, ranks = subject
    return SlowFinding(
        kind,
        ranks,
        group,
        round(mean, 6),
        excess.time,
        excess.peers,
        excess.compared,
        round(limit, 6),
        since,
    )


__all__ = ["SlownessDetector"]
