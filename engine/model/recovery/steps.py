"""Step retries: the retries that a job reported after a fault, and how long they hide the fault from the planner.

The training processes report such a fault themselves (`ReportProcessFault`, kinds 0 and 2) and later how the retry went
(`ReportRecoverStatus`); both moments are kept as annotations of the PodGroup, so that the planner, which reads the
hardware's reports only, learns of them. Source: component/clusterd/pkg/application/faultmanager/cmprocess/retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from belay.engine.model.labels import STEP_RETRIED, STEP_RETRY
from belay.engine.model.quantities import whole_number
from belay.engine.model.recovery.conversation import FaultyRank

#: Maximum time from the raising of the fault to the report (ms) …
REPORT_MS: Final = 10_000
#: … and from the report to the success of the retry.
COMPLETE_MS: Final = 30_000
_MAX_REPORTS: Final = 64
_MAX_RUNS: Final = 2_000
_MAX_TEXT: Final = 128 * 1024
_MAX_RANK: Final = 1_000_000

Reports = tuple[tuple[int, str], ...]
"""Times of reports (ms) with the ranks that were new in them, as runs: ``((1790000000000, "0-7,9"), …)``."""


class StepRetries(msgspec.Struct, frozen=True):
    """Reported retries: runs of ranks (first, last, when reported), and when the retry succeeded (0: not yet)."""

    runs: tuple[tuple[int, int, int], ...]
    completed: int = 0

    def reported(self, rank: int) -> int:
        """When the job reported the rank (ms); 0 when it did not."""
        return next((at for first, last, at in self.runs if first <= rank <= last), 0)

    def hides(self, rank: int, raised_ms: int, now_ms: int) -> bool:
        """Whether a fault of a rank stays hidden: reported in time, and the retry is under way or succeeded.

        A success before the fault was raised does not count.
        """
        at = self.reported(rank)
        if not at or at - raised_ms > REPORT_MS:
            return False
        return now_ms <= at + COMPLETE_MS or max(at, raised_ms) <= self.completed <= at + COMPLETE_MS

    def retries(self, rank: int, raised_ms: int, now_ms: int) -> bool:
        """Whether a fault of a rank may still be retried: the report is recent, or came soon after the fault."""
        at = self.reported(rank)
        return bool(at) and (now_ms - at <= REPORT_MS or abs(at - raised_ms) <= REPORT_MS)


def more(known: Reports, ranks: Iterable[FaultyRank], now_ms: int) -> Reports:
    """The reports with one that came now; known ranks keep their time, ranks beyond the limits are dropped."""
    before = _runs(known)
    received = sorted({number for rank in ranks if rank.retryable and (number := _number(rank.rank)) is not None})
    runs: list[list[int]] = []
    for number in received:
        if any(first <= number <= last for first, last, _ in before):
            continue
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    fits = runs[: max(0, _MAX_RUNS - len(before))]
    if not fits or len(known) >= _MAX_REPORTS:
        return known
    return (*known, (now_ms, ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in fits)))


def text(reports: Reports) -> str:
    """The annotation ``belay.dev/step-retry``: ``<ms>:<runs>;<ms>:<runs>``."""
    return ";".join(f"{at}:{runs}" for at, runs in reports)


def read(annotations: Mapping[str, str]) -> StepRetries | None:
    """The retries in a job's annotations; None when there are none, or they cannot be read."""
    given = annotations.get(STEP_RETRY, "")
    if not given or len(given) > _MAX_TEXT:
        return None
    pairs = [item.partition(":") for item in given.split(";")[:_MAX_REPORTS]]
    runs = _runs(tuple((_moment(at), ranks) for at, _, ranks in pairs))
    return StepRetries(runs, _moment(annotations.get(STEP_RETRIED, ""))) if runs else None


def _runs(reports: Reports) -> tuple[tuple[int, int, int], ...]:
    found = [(run, at) for at, ranks in reports if at for item in ranks.split(",") if (run := _run(item)) is not None]
    return tuple((*run, at) for run, at in found[:_MAX_RUNS])


def _run(text: str) -> tuple[int, int] | None:
    first, dash, last = text.strip().partition("-")
    low, high = _number(first), _number(last if dash else first)
    return (low, high) if low is not None and high is not None and low <= high else None


def _number(text: str) -> int | None:
    number = whole_number(text, digits=7)
    return number if number is not None and number <= _MAX_RANK else None


def _moment(text: str) -> int:
    return whole_number(text, digits=14) or 0


__all__ = ["COMPLETE_MS", "REPORT_MS", "Reports", "StepRetries", "more", "read", "text"]
