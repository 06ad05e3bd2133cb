"""Summaries of process recovery on a PodGroup become recoveries of the job: once, with estimate and cost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.cli.explanation import explain
from belay.engine.model.cluster import Observed
from belay.engine.model.history import History, JobMemory, Recovery
from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.recovery.conversation import StepRecord
from belay.engine.model.recovery.summary import RecoverySummary
from belay.engine.plan import plan
from belay.engine.status import memory_bodies
from tests.test_plan_costing import PROCESS, decided, gang, world
from tests.worlds import NOW, desired

BEGUN = int((NOW - 60) * 1000)
KEY = "train/AscendJob/j"


def one(level: str = "retry", begun: int = BEGUN, seconds: int = 12, **more: Any) -> RecoverySummary:
    steps = (
        StepRecord(begun, "faultOccur", "NotifyWaitFaultFlushingState"),
        StepRecord(begun + 1000, "notifyFinish", "NotifyStopTrainState"),
        StepRecord(begun + seconds * 1000, "recoverSuccess", "INIT"),
    )
    more = {"good": True, "pods": (1,), "codes": ("80E01801",), "steps": steps} | more
    return RecoverySummary(begun=begun, ended=begun + seconds * 1000, level=level, **more)


def told(*rows: RecoverySummary, age: float | None = 600, memory: JobMemory | None = None, **more: Any) -> Observed:
    notes = {PROCESS_RECOVERIES: msgspec.json.encode(rows).decode()}
    pods = gang(labels=PROCESS, strategies="retry,recover-in-place,recover", age=age, annotations=notes)
    return world(pods, history=History(jobs={KEY: memory}) if memory is not None else History(), **more)


def test_a_step_retry_is_a_recovery_with_estimate_alternatives_and_cost() -> None:
    made = decided(told(one()))
    memory = made.history.jobs[KEY]
    (row,) = memory.recoveries
    assert (row.level, row.reason, row.codes, row.chips, row.hit) == ("retry", "StepRetried", ("80E01801",), 16, 8)
    assert (row.at, row.back) == (BEGUN, BEGUN + 12_000)
    assert row.estimates[0][0] == "retry"
    assert {level for level, _, _ in row.estimates} >= {"retry", "in-place", "process", "job", "wait"}
    assert memory.spent == {"80E01801": (1, 16 * 12)}
    assert not made.actions


def test_a_summary_is_entered_once() -> None:
    seen = told(one())
    first = decided(seen)
    for later in (1.0, 3600.0):
        again = plan(desired(), msgspec.structs.replace(seen, history=first.history), NOW + later)
        assert again.history.jobs[KEY].recoveries == first.history.jobs[KEY].recoveries
        assert again.history.jobs[KEY].spent == first.history.jobs[KEY].spent


def test_a_job_without_reported_times_has_a_cost_but_no_estimate() -> None:
    (row,) = decided(told(one("in-place"), age=None)).history.jobs[KEY].recoveries
    assert (row.level, row.reason, row.estimates) == ("in-place", "ProcessesRestarted", ())


def test_the_next_retry_is_expected_to_take_as_long_as_the_last() -> None:
    first = decided(told(one(begun=BEGUN - 500_000, seconds=40)))
    (_, row) = decided(told(one(), memory=first.history.jobs[KEY])).history.jobs[KEY].recoveries
    assert {level: seconds for level, seconds, _ in row.estimates}["retry"] == 40
    assert first.history.jobs[KEY].recoveries[0].estimates[0][1] == 25, "15 before it was measured, and a step of 10"


def test_a_recovery_gets_the_steps_of_its_conversation() -> None:
    """The planner's own recovery (its evictions) ends when the processes said that training went on."""
    open_one = Recovery(at=BEGUN + 2000, level="process", reason="CardUnhealthy", codes=("80C98001",), chips=16, hit=8)
    seen = told(one("process", seconds=30), memory=JobMemory(recoveries=(open_one,)))
    memory = decided(seen).history.jobs[KEY]
    (row,) = memory.recoveries
    assert (row.level, row.at, row.back) == ("process", BEGUN, BEGUN + 30_000)
    assert row.codes == ("80C98001", "80E01801") and len(row.steps) == 3
    assert memory.spent == {"80C98001": (1, 16 * 30 // 2), "80E01801": (1, 16 * 30 // 2)}


def test_a_failed_conversation_belongs_to_the_recovery_that_follows() -> None:
    lost = one("rescheduled", good=False, codes=())
    assert KEY not in decided(told(lost)).history.jobs, "nothing was recovered yet"
    later = Recovery(at=BEGUN + 20_000, level="job", reason="PodFailed", chips=16, hit=16)
    (row,) = decided(told(lost, memory=JobMemory(recoveries=(later,)))).history.jobs[KEY].recoveries
    assert (row.level, row.at, len(row.steps)) == ("job", BEGUN, 3)


def test_a_clock_that_is_ahead_enters_nothing_yet() -> None:
    seen = told(one(begun=int((NOW + 30) * 1000)))
    assert not decided(seen).history.jobs.get(KEY, JobMemory()).recoveries
    assert len(plan(desired(), seen, NOW + 60).history.jobs[KEY].recoveries) == 1


@pytest.mark.parametrize("text", ["", "{}", "[", '[{"begun":1,"ended":0,"level":"retry","good":true}]', '["x"]'])
def test_an_invalid_annotation_of_a_pod_group_is_no_recovery(text: str) -> None:
    pods = gang(labels=PROCESS, strategies="retry", annotations={PROCESS_RECOVERIES: text})
    assert not decided(world(pods)).history.jobs.get(KEY, JobMemory()).recoveries


def test_the_memory_of_conversations_is_bounded() -> None:
    memory = JobMemory()
    for index in range(30):
        seen = told(one(begun=BEGUN - (30 - index) * 100_000), memory=memory)
        memory = decided(seen).history.jobs[KEY]
    assert len(memory.recoveries) == 10
    assert sum(bool(row.steps) for row in memory.recoveries) == 4 and memory.recoveries[-1].steps
    assert memory.spent == {"80E01801": (30, 30 * 16 * 12)}


def test_explain_and_status_show_the_conversation() -> None:
    seen = told(one())
    made = decided(seen)
    body = explain("job", "j", made, seen)
    (row,) = body["recoveries"]
    assert row["estimate"]["seconds"] == 25 and row["actual"] == {"seconds": 12, "chipSeconds": 192}
    assert row["lost"] == {"chipSeconds": 192, "chips": 16, "hitChips": 8, "redoneSeconds": 0}
    assert [(step["after"], step["event"], step["state"], step["code"]) for step in row["steps"]] == [
        (0.0, "faultOccur", "NotifyWaitFaultFlushingState", 0), (1.0, "notifyFinish", "NotifyStopTrainState", 0),
        (12.0, "recoverSuccess", "INIT", 0),
    ]  # fmt: skip
    story = "\n".join(body["story"])
    assert "retry recovery" in story and "instead of" in story and "+12.0 s recoverSuccess → INIT" in story
    assert body["lost"] == {"80E01801": {"times": 1, "chipSeconds": 192}}
    bodies = memory_bodies(made, seen)
    assert any("recoverSuccess" in str(value) for value in bodies), "the job's ConfigMap has it too"
