"""Lines of a job's history: one reader for what passes write."""

from __future__ import annotations

import pytest

from belay.engine.model.history import TIMELINE
from belay.engine.model.history_lines import HistoryLine, LineKind, bounded, read_line, with_line

GANG = "train/Job/urgent"

#: Lines as histories hold them.
STORED = (
    ("cutting failed: a-0 on node-3", HistoryLine(LineKind.CUTTING_FAILED, "a-0 on node-3")),
    ("elastic-scheduling: 3 of 4 pods", HistoryLine(LineKind.OTHER, "elastic-scheduling: 3 of 4 pods")),
    ("eviction decided: NodeFault", HistoryLine(LineKind.DECIDED, "NodeFault")),
    ("eviction refused: it waits for others", HistoryLine(LineKind.REFUSED, "it waits for others")),
    ("gangincomplete for train/Job/urgent", HistoryLine(LineKind.DISPLACED, reason="GangIncomplete", gang=GANG)),
    ("moved: Maintenance: the node is emptied", HistoryLine(LineKind.MOVED, "Maintenance: the node is emptied")),
    ("moved for train/Job/urgent", HistoryLine(LineKind.DISPLACED, reason="Moved", gang=GANG)),
    ("preempted for train/Job/urgent", HistoryLine(LineKind.DISPLACED, reason="Preempted", gang=GANG)),
    ("reclaimed for train/Job/urgent", HistoryLine(LineKind.DISPLACED, reason="Reclaimed", gang=GANG)),
    ("rescheduled: NodeFault: time for change", HistoryLine(LineKind.RESCHEDULED, "NodeFault: time for change")),
)


@pytest.mark.parametrize(("text", "line"), STORED)
def test_a_stored_line_is_read_and_written_as_it_is(text: str, line: HistoryLine) -> None:
    assert read_line(text) == line
    assert line.text == text


def test_the_reason_of_an_eviction_outlives_newer_lines() -> None:
    lines = with_line((), 1_000, f"reclaimed for {GANG}")
    for at in range(2_000, 42_000, 1_000):
        lines = with_line(lines, at, "elastic-scheduling: 3 of 4 pods")
    assert len(lines) == TIMELINE
    assert [read_line(text).reason for _, text in lines if read_line(text).gang == GANG] == ["Reclaimed"]
    assert lines[-1][0] == 41_000


def test_lines_on_evictions_that_are_over_go_first_of_all() -> None:
    old = ((1_000, f"moved for {GANG}"), *((2_000 + at, "rescheduled: NodeFault") for at in range(TIMELINE - 1)))
    lines = with_line(old, 10_000_000, "rescheduled: ChipFault")
    assert len(lines) == TIMELINE and all(read_line(text).kind is LineKind.RESCHEDULED for _, text in lines)


def test_a_history_of_evictions_alone_is_bounded_too() -> None:
    lines = bounded([(at, f"preempted for train/Job/j{at}") for at in range(2 * TIMELINE)])
    assert [at for at, _ in lines] == list(range(TIMELINE, 2 * TIMELINE))
