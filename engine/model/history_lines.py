"""Lines of a job's history (``JobMemory.timeline``): written and read in one place, and which are kept.

People read the lines in `belay explain` and in status; passes ask later what was decided. So a line that counts has a
:class:`LineKind`, its text is made here, and :func:`read_line` is its only reader. Other lines are ``OTHER``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from belay.engine.model.history import TIMELINE
from belay.engine.model.reasons import ActionReason


class LineKind(StrEnum):
    """What a line says; the values are the words that it begins with.

    ``DISPLACED``: pods were evicted for another job. ``MOVED``: they were, because people work on the node.
    ``DECIDED``: an eviction that was refused afterwards. ``CUTTING_FAILED``: a vNPU could not be created.
    """

    RESCHEDULED = "rescheduled"
    MOVED = "moved"
    DECIDED = "eviction decided"
    REFUSED = "eviction refused"
    CUTTING_FAILED = "cutting failed"
    DISPLACED = "displaced"
    OTHER = ""


class HistoryLine(NamedTuple):
    """One line: ``detail`` is what follows the words of its kind.

    ``reason`` and ``gang`` belong to ``DISPLACED`` alone: the reason of the eviction, and the key of the job for which
    the pods went.
    """

    kind: LineKind
    detail: str = ""
    reason: str = ""
    gang: str = ""

    @property
    def text(self) -> str:
        """The line for people, as the memory holds it."""
        if self.kind is LineKind.DISPLACED:
            return f"{self.reason.lower()} for {self.gang}"
        return f"{self.kind.value}: {self.detail}" if self.kind is not LineKind.OTHER else self.detail


Lines = Sequence[tuple[int, str]]
"""Time (Unix ms) and text of each line, the newest last."""

PREEMPTED: Final = "Preempted"
RECLAIMED: Final = "Reclaimed"
_DISPLACING: Final = {
    reason.lower(): reason
    for reason in (PREEMPTED, RECLAIMED, ActionReason.MOVED.value, ActionReason.GANG_INCOMPLETE.value)
}
_BY_WORD: Final = {kind.value: kind for kind in LineKind if kind not in (LineKind.DISPLACED, LineKind.OTHER)}
#: How long a line on displaced pods outlives newer ones (ms): their eviction may be under way, or their job at rest.
_STANDING_MS: Final = 3_600_000


def read_line(text: str) -> HistoryLine:
    """What a line says; a line of no kind is ``OTHER`` with its whole text as detail."""
    word, _, gang = text.partition(" for ")
    if word in _DISPLACING:
        return HistoryLine(LineKind.DISPLACED, reason=_DISPLACING[word], gang=gang)

    head, _, detail = text.partition(": ")
    kind = _BY_WORD.get(head)
    return HistoryLine(kind, detail) if kind is not None else HistoryLine(LineKind.OTHER, text)


def with_line(lines: Lines, at: int, text: str) -> tuple[tuple[int, str], ...]:
    """The lines with one more."""
    return bounded((*lines, (at, text)))


def bounded(lines: Lines) -> tuple[tuple[int, str], ...]:
    """The newest lines, as many as a history keeps.

    A line by which a later pass decides does not go for newer ones that nothing depends on.
    """
    kept = list(lines)
    while len(kept) > TIMELINE:
        newest = kept[-1][0]
        oldest = (place for place, (at, text) in enumerate(kept[:-1]) if not _stands(at, text, newest))
        del kept[next(oldest, 0)]
    return tuple(kept)


def _stands(at: int, text: str, now_ms: int) -> bool:
    return at > now_ms - _STANDING_MS and read_line(text).kind is LineKind.DISPLACED
