"""Cost of recoveries: estimates, joint choices compared with all possible ones, and the sources of times."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.engine.model import costs
from belay.engine.model.costs import (
    ESCALATION,
    NEEDS_ROOM,
    Estimate,
    MeasuredTimes,
    RecoveryLevel,
    RecoveryOptions,
    choose,
    estimate,
    measured,
    narrowed,
    ranked,
)
from belay.engine.model.labels import CHECKPOINT_TIME, LOAD_SECONDS, RECOVERY_LEVEL, STEP_SECONDS
from belay.engine.serve.grpc.recovery.job_facts import configured_of

KNOWN = MeasuredTimes(checkpoint=600, load=100, start=50, step=5, scale=40, pod_start=20, wait=3600)
NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("level", "seconds", "cost", "room"),
    [
        (RecoveryLevel.IN_PLACE, 55, 16 * 55, 0),
        (RecoveryLevel.STANDBY, 55, 16 * 55, 8),
        (RecoveryLevel.PROCESS, 75, 16 * 75, 8),
        (RecoveryLevel.SHRINK, 45, 16 * 85 + 8 * 3600, 0),
        (RecoveryLevel.POD, 770, 16 * 770, 8),
        (RecoveryLevel.JOB, 770, 16 * 770, 8),
        (RecoveryLevel.WAIT, 4370, 16 * 4370, 0),
    ],
)
def test_estimates(level: RecoveryLevel, seconds: float, cost: float, room: int) -> None:
    assert estimate(level, KNOWN, chips=16, hit=8) == Estimate(level, seconds, cost, room)


def test_equal_costs_follow_the_escalation() -> None:
    found = ranked([RecoveryLevel.JOB, RecoveryLevel.POD, RecoveryLevel.WAIT], KNOWN, chips=16, hit=8)
    assert [one.level for one in found] == [RecoveryLevel.POD, RecoveryLevel.JOB, RecoveryLevel.WAIT]


def test_an_old_checkpoint_makes_shrinking_cheaper_than_restarting() -> None:
    levels = (RecoveryLevel.SHRINK, RecoveryLevel.JOB)
    fresh = MeasuredTimes(checkpoint=60, wait=3600)
    old = MeasuredTimes(checkpoint=7200, wait=3600)
    assert ranked(levels, fresh, chips=64, hit=8)[0].level is RecoveryLevel.JOB
    assert ranked(levels, old, chips=64, hit=8)[0].level is RecoveryLevel.SHRINK


@pytest.mark.parametrize(
    ("notes", "wanted"),
    [
        ([], None),
        ([{LOAD_SECONDS: "9"}], None),
        ([{CHECKPOINT_TIME: "soon"}], None),
        ([{CHECKPOINT_TIME: "-5"}], None),
        ([{CHECKPOINT_TIME: "nan"}], None),
        ([{CHECKPOINT_TIME: str(NOW + 3600)}], None),
        ([{CHECKPOINT_TIME: str(NOW - 90)}], MeasuredTimes(checkpoint=90)),
        ([{CHECKPOINT_TIME: str(NOW + 30)}], MeasuredTimes(checkpoint=0)),
        (
            [{CHECKPOINT_TIME: str(NOW - 90), LOAD_SECONDS: "7"},
             {CHECKPOINT_TIME: str(NOW - 30), LOAD_SECONDS: "8", STEP_SECONDS: "1e99"}],
            MeasuredTimes(checkpoint=30, load=8),
        ),
    ],
)  # fmt: skip
def test_times_are_read_from_annotations(notes: list[dict[str, str]], wanted: MeasuredTimes | None) -> None:
    assert measured(notes, NOW, [], costs.REPAIR_WAIT) == wanted


def test_pods_that_were_slow_before_are_slow_again() -> None:
    found = measured([{CHECKPOINT_TIME: str(NOW - 1)}], NOW, [44.0], costs.RESET_WAIT)
    assert found == MeasuredTimes(checkpoint=1, pod_start=44.0, wait=costs.RESET_WAIT)


def option(
    job: str, *rows: tuple[RecoveryLevel, float, int], priority: int = 0, resource: str = "npu"
) -> RecoveryOptions:
    return RecoveryOptions(
        job, resource, priority, tuple(Estimate(level, 1.0, cost, room) for level, cost, room in rows)
    )


def test_the_spare_goes_where_its_lack_costs_most() -> None:
    a = option("a", (RecoveryLevel.POD, 10, 8), (RecoveryLevel.SHRINK, 12, 0))
    b = option("b", (RecoveryLevel.POD, 10, 8), (RecoveryLevel.WAIT, 90, 0))
    found = choose([a, b], {"npu": 8})
    assert {job: one.level for job, one in found.items()} == {"a": RecoveryLevel.SHRINK, "b": RecoveryLevel.POD}
    both = choose([a, b], {"npu": 16})
    assert {one.level for one in both.values()} == {RecoveryLevel.POD}


def test_priority_goes_before_cost() -> None:
    low = option("a", (RecoveryLevel.POD, 10, 8), (RecoveryLevel.WAIT, 9000, 0))
    high = option("b", (RecoveryLevel.POD, 10, 8), (RecoveryLevel.WAIT, 20, 0), priority=5)
    found = choose([low, high], {"npu": 8})
    assert {job: one.level for job, one in found.items()} == {"a": RecoveryLevel.WAIT, "b": RecoveryLevel.POD}


def test_rooms_of_different_chips_are_their_own() -> None:
    a = option("a", (RecoveryLevel.POD, 10, 8), (RecoveryLevel.WAIT, 90, 0), resource="x")
    b = option("b", (RecoveryLevel.POD, 10, 8), (RecoveryLevel.WAIT, 90, 0), resource="y")
    found = choose([a, b], {"x": 8})
    assert {job: one.level for job, one in found.items()} == {"a": RecoveryLevel.POD, "b": RecoveryLevel.WAIT}


ESTIMATES = st.lists(
    st.tuples(st.sampled_from(ESCALATION), st.integers(0, 60), st.sampled_from([0, 0, 2, 4, 8])), max_size=3
)


@given(st.lists(ESTIMATES, max_size=5), st.integers(0, 20))
def test_no_other_choice_is_cheaper(rows: list[list[Any]], room: int) -> None:
    options = [option(f"j{i}", *found) for i, found in enumerate(rows)]
    found = choose(options, {"npu": room})
    assert sum(one.room for one in found.values()) <= room
    best = min(
        (sum(one is None for one in picks), sum(one.cost for one in picks if one))
        for picks in itertools.product(*([*o.estimates, None] for o in options))
        if sum(one.room for one in picks if one) <= room
    )
    assert (len(options) - len(found), sum(one.cost for one in found.values())) == best
    assert choose(list(reversed(options)), {"npu": room}) == found, "the order of the jobs must not matter"


@given(st.lists(ESTIMATES, max_size=4), st.integers(0, 20))
def test_more_room_never_costs_more(rows: list[list[Any]], room: int) -> None:
    options = [option(f"j{i}", *found, (RecoveryLevel.WAIT, 100, 0)) for i, found in enumerate(rows)]
    less, more = (sum(one.cost for one in choose(options, {"npu": r}).values()) for r in (room, room + 8))
    assert more <= less


def test_many_jobs_are_weighed_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MAX_STATES", 16)
    options = [
        option(f"j{i:03}", (RecoveryLevel.POD, i % 17, 1 + i % 7), (RecoveryLevel.WAIT, 99, 0)) for i in range(120)
    ]
    found = choose(options, {"npu": 200})
    assert len(found) == 120
    assert sum(one.room for one in found.values()) <= 200


@pytest.mark.parametrize("level", ESCALATION)
def test_room_is_needed_exactly_where_pods_move(level: RecoveryLevel) -> None:
    assert bool(estimate(level, KNOWN, chips=16, hit=8).room) == (level in NEEDS_ROOM)


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("", ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")),
        ("in-place", ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")),
        ("process", ("retry", "recover", "elastic-training", "dump", "exit")),
        ("shrink", ("retry", "elastic-training", "dump", "exit")),
        ("pod", ("retry", "dump", "exit")),
        ("job", ("retry", "dump", "exit")),
    ],
)
def test_a_choice_narrows_the_strategies_of_process_recovery(choice: str, left: tuple[str, ...]) -> None:
    assert narrowed(("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit"), choice) == left


def test_process_recovery_keeps_to_the_choice() -> None:
    notes = {"recover-strategy": "recover,recover-in-place,dump", RECOVERY_LEVEL: "process"}
    assert configured_of(notes) == ("recover", "dump", "exit")
    del notes[RECOVERY_LEVEL]
    assert configured_of(notes) == ("recover-in-place", "recover", "dump", "exit")
