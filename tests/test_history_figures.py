"""What the history adds up to: usage for chargeback, and the report of a week."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from belay.engine.errors import InputError
from belay.engine.model.history import JobMemory, Recovery
from belay.engine.model.times import rfc3339
from belay.engine.serve.records.reading import StatusReading
from belay.engine.serve.records.report import size_class
from belay.engine.status.recoveries import recovery_body
from tests.history_world import BEGIN, HistoryWorld

LLM = "default/AscendJob/llm"
OTHER = "team/AscendJob/other"
HOUR = 3600.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> HistoryWorld:
    """Two jobs of two people: one waits for ten minutes, loses its chips to a fault twice, and stands still now."""
    made = HistoryWorld(f"sqlite:///{tmp_path_factory.mktemp('history') / 'history.db'}")
    made.submit(LLM, user="ann", queue="research")
    made.submit(OTHER, user="bob")
    made.look()
    made.passes(600)
    made.place(LLM, "node-1")
    made.place(OTHER, "node-2", 4)
    made.fault("node-1", 3)
    made.look()
    made.passes(HOUR)
    _falls(made)
    made.passes(90)
    made.place(LLM, "node-1")
    made.recovery(LLM, back=90, redone=10)
    made.fault("node-1", 3)
    made.look()
    made.passes(HOUR)
    made.fault("node-1", 3)
    made.hold("node-1", 3, "Isolation/fan at desired/isolations.yaml:3")
    _falls(made)
    made.passes(HOUR / 2)
    made.look()
    return made


def _falls(made: HistoryWorld) -> None:
    made.evict(LLM)
    made.recovery(LLM, seen=made.now - 5)
    made.look()


def rows(world: HistoryWorld, by: str, **values: str) -> dict[str, dict[str, Any]]:
    answer = world.ask("usage", by=by, since=rfc3339(BEGIN), **values)
    return {row[by]: row for row in answer["usage"]}


def test_usage_is_chip_hours_by_whom_they_belong_to(world: HistoryWorld) -> None:
    found = rows(world, "user")
    assert found["ann"]["chipHours"] == 16.0
    assert found["bob"]["chipHours"] == pytest.approx(4 * (2.5 + 90 / HOUR), abs=1e-3)
    assert rows(world, "queue")["research"]["chipHours"] == 16.0
    assert rows(world, "namespace")["team"]["jobs"] == 1


def test_a_window_counts_its_part_only(world: HistoryWorld) -> None:
    first = rows(world, "user", until=rfc3339(BEGIN + 600 + HOUR / 2))
    assert (first["ann"]["chipHours"], first["bob"]["chipHours"]) == (4.0, 2.0)


def test_goodput_counts_the_downtime_that_runs_now(world: HistoryWorld) -> None:
    found = rows(world, "user")["ann"]
    lost = (8 * (90 + 10) + 8 * HOUR / 2) / HOUR
    assert found["lostChipHours"] == pytest.approx(lost, abs=1e-3)
    # the chips that it stood still without, while its pods were being moved, are part of the whole
    assert found["goodput"] == pytest.approx(1 - lost / (16 + 8 * 90 / HOUR + 8 * 0.5), abs=1e-3)
    assert rows(world, "user")["bob"]["goodput"] == 1.0


@pytest.mark.parametrize("seen_before", (True, False), ids=("seen while it ran", "first seen without pods"))
def test_lost_hours_stay_with_whom_they_belonged_to(seen_before: bool) -> None:
    made = HistoryWorld("sqlite://")
    server = made.servers[0]
    made.submit(LLM, user="ann", queue="research")
    made.place(LLM, "node-1")
    made.look()
    made.passes(HOUR)
    made.loses_pods(LLM)
    if not seen_before:
        made.look()
    made.recovery(LLM)
    made.look()
    made.passes(90)
    made.submit_again(LLM, user="ann", queue="research")
    made.place(LLM, "node-2")
    made.recovery(LLM, back=90)
    made.look()
    made.passes(60)
    made.loses_pods(LLM)
    made.look()
    made.submit_again(LLM, user="bob", queue="other")
    made.look()

    assert server.store is not None
    with server.store.reading() as connection:
        found = connection.execute(text("select person, queue, pool, cost from spans where kind = 'recovery'")).all()
    server.leave()
    assert [tuple(row) for row in found] == [("ann", "research", "training", 8 * 90)]


def test_the_report_says_what_was_lost_to_what_and_how_long_it_took(world: HistoryWorld) -> None:
    body = world.ask("report", since=rfc3339(BEGIN))
    assert body["recoveries"] == {"ended": 1, "underWay": 1, "mttr": 90.0, "mtti": 5.0, "p50": 90.0, "p90": 90.0}
    (cause,) = body["lostByCause"]
    assert (cause["cause"], cause["recoveries"]) == ("CardUnhealthy 80C98001", 2)
    (wait,) = body["waits"]
    assert (wait["chips"], wait["waits"], wait["stillWaiting"], wait["longest"]) == ("2-8", 4, 1, HOUR / 2)
    (offender,) = body["repeatOffenders"]
    assert (offender["node"], offender["chip"], offender["faults"]) == ("node-1", 3, 2)
    assert body["outOfService"] == [{"by": "manual", "chipHours": 0.5, "nodeHours": 0.0}]
    assert body["total"]["jobs"] == 2


def test_chips_held_without_running_are_listed_with_who_holds_them(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.submit(LLM, user="ann")
    world.place(LLM, "node-1")
    world.starts(LLM)
    world.look()
    world.passes(1800)
    world.look()
    (row,) = world.ask("report")["idleHeld"]
    assert row == {
        "job": LLM, "user": "ann", "chips": 8, "state": "Starting", "seconds": 1800.0, "chipHours": 4.0, "lasts": True
    }  # fmt: skip


def test_a_job_that_trains_on_without_its_hit_part_loses_that_part_only() -> None:
    memory = JobMemory(recoveries=(Recovery(at=1_000, level="shrink", reason="CardUnhealthy", chips=64, hit=8),))
    status = msgspec.json.encode({"phase": "Running", **recovery_body(memory)}).decode()
    (job,) = StatusReading().read({"belay-job-a": {"job": LLM, "status.json": status}}).jobs.values()
    assert [one.chips for one in job.recoveries] == [8]


@pytest.mark.parametrize(
    ("chips", "name"), [(1, "1"), (2, "2-8"), (8, "2-8"), (9, "9-16"), (1024, "257-1024"), (5000, "1025+")]
)
def test_sizes_have_classes(chips: int, name: str) -> None:
    assert size_class(chips) == name


def test_a_time_that_ends_before_it_begins_is_refused(world: HistoryWorld) -> None:
    for word in ("usage", "report"):
        with pytest.raises(InputError):
            world.ask(word, since=rfc3339(BEGIN + 10), until=rfc3339(BEGIN))
    with pytest.raises(InputError):
        world.ask("usage", by="colour")
