"""The common moments at which one process does its periodic work."""

from __future__ import annotations

import itertools

import pytest

from belay.agents.common import ticks
from belay.agents.common.clock import Clock, NodeClock


@pytest.mark.parametrize(
    ("now", "seconds", "moment"),
    [
        (100.0, 1.0, 101.0), (100.4, 1.0, 101.0), (100.4, 3.0, 103.0), (100.4, 5.0, 105.0), (103.0, 5.0, 105.0),
        (103.0, 60.0, 160.0), (103.0, 7.0, 110.0), (103.2, 7.0, 110.0),
        # no whole seconds: nothing to share
        (100.4, 0.25, 100.65), (100.4, 2.5, 102.9),
    ],
)  # fmt: skip
def test_work_of_whole_seconds_is_done_at_whole_seconds(now: float, seconds: float, moment: float) -> None:
    assert ticks.due(now, seconds) == pytest.approx(moment)


@pytest.mark.parametrize("seconds", [1.0, 4.0, 5.0, 10.0, 60.0])
def test_a_period_is_kept_exactly_and_never_exceeded(seconds: float) -> None:
    moment, times = 1234.567, []
    for late in (0.0, 0.002, 0.3, 0.0, 0.9, 0.001):
        moment = ticks.due(moment + late, seconds)
        times.append(moment)
    gaps = {round(later - earlier, 6) for earlier, later in itertools.pairwise(times)}
    assert gaps == {seconds} and times[0] <= 1234.567 + seconds


def test_what_is_due_of_several_periods_is_due_together() -> None:
    due = {seconds: ticks.due(1234.567, seconds) for seconds in (5.0, 10.0, 60.0)}
    assert all(moment % 5 == 0 for moment in due.values())
    assert ticks.due(1234.567, 1.0) % 1 == 0


def test_agents_that_share_a_process_are_kept_apart() -> None:
    class Now(Clock):
        def monotonic(self) -> float:
            return 1234.567

    class AlonesNow(NodeClock):
        def monotonic(self) -> float:
            return 1234.567

    assert Now().due(5.0, 0.9) == pytest.approx(1239.067)
    assert AlonesNow().due(5.0, 0.9) == 1235.0
