"""History that stays: what the status says becomes records and spans, once, across restarts, and in bounds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from belay.engine.errors import InputError
from belay.engine.serve.records import store as database
from belay.engine.serve.records.facts import SpanKind
from belay.engine.serve.records.questions import spans_within
from belay.engine.serve.records.store import HistoryBounds, HistoryUnavailable, RecordStore
from belay.engine.serve.records.usage import Window, used
from tests.history_world import BEGIN, HistoryWorld

LLM = "default/AscendJob/llm"
DAY = 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> HistoryWorld:
    return HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")


def test_a_night_is_one_screen_from_commit_to_recovery(world: HistoryWorld) -> None:
    world.commit("a" * 40, "Ann <ann@example.org>", "Start llm")
    world.submit(LLM, user="Ann <ann@example.org>")
    world.look()
    world.passes(65)
    world.place(LLM, "node-1")
    world.look()
    world.passes(600)
    world.fault("node-1", 3)
    world.act("IsolateChip", "ChipFault", "node-1", "Ascend910-3 of node node-1: level RestartNPU by 80C98001")
    world.evict(LLM)
    world.recovery(LLM)
    world.says(LLM, "rescheduled: CardUnhealthy")
    world.look()
    world.passes(30)
    world.place(LLM, "node-2")
    world.recovery(LLM, back=30)
    world.look()

    said = world.texts()
    assert said[:3] == [
        "aaaaaaaaaaaa accepted: Start llm",
        "waits for 8 chips: NoRoom: no node has 8 free chips",
        "placed: 1 pod with 8 chips on node-1 after 1 min 5 s of waiting",
    ]
    for expected in (
        "recovered after 30 s: CardUnhealthy 80C98001; 0.07 chip-hours lost",
        "fault on chip 3: 80C98001 RestartNPU",
        "gave back: 1 pod with 8 chips on node-1 after 10 min; it is Pending",
        "recovery begins: CardUnhealthy 80C98001, 8 chips stand still",
        "rescheduled: CardUnhealthy",
        "placed: 1 pod with 8 chips on node-2 after 30 s of waiting",
    ):
        assert expected in said, "\n".join(said)
    assert any(one.startswith("IsolateChip ChipFault") for one in said)
    assert any(one.startswith("EvictPod CardUnhealthy") for one in said)


def test_a_gang_that_waits_is_one_row_whatever_its_events_say(world: HistoryWorld) -> None:
    world.submit(LLM)
    for pod in range(9):
        world.waits(LLM, f"llm-{pod}")
    world.look()
    assert world.texts() == ["waits for 8 chips: NoRoom: no node has 8 free chips"]
    assert world.ask("records", audit="1")["records"] == []


def test_a_question_about_one_thing_leaves_out_the_others(world: HistoryWorld) -> None:
    world.submit(LLM, user="Ann <ann@example.org>")
    world.submit("team/AscendJob/other", user="bob")
    world.place(LLM, "node-1")
    world.fault("node-2", 3)
    world.look()
    assert all("fault" not in one for one in world.texts(subject="job", name="default/llm"))
    assert world.texts(subject="job", name="llm") == world.texts(subject="job", name=LLM) != []
    assert world.texts(subject="user", name="ann@example.org") == world.texts(subject="user", name="Ann")
    assert world.texts(subject="node", name="node-1") == [
        "placed: 1 pod with 8 chips on node-1",
        "default/llm-0 got 8 chips",
    ]
    assert world.texts(subject="chip", name="node-2/3") == ["fault on chip 3: 80C98001 RestartNPU"]
    assert world.texts(subject="chip", name="node-1/7")[-1] == "default/llm-0 got 8 chips"
    assert world.texts(subject="pool", name="training")
    assert world.texts(subject="job", name="%") == []


def test_what_was_done_to_one_chip_is_no_history_of_the_others(world: HistoryWorld) -> None:
    world.act("IsolateChip", "ChipFault", "node-1", "Ascend910-3 of node node-1", chips="Ascend910-3")
    world.act("ResetChips", "ChipFault", "node-1", "2 chips reset", chips="Ascend910-2,Ascend910-3")
    world.look()
    reset = ["ResetChips ChipFault: 2 chips reset"]
    assert world.texts(subject="chip", name="node-1/2") == reset
    assert world.texts(subject="chip", name="node-1/3") == ["IsolateChip ChipFault: Ascend910-3 of node node-1", *reset]
    assert len(world.texts(subject="node", name="node-1")) == 2


@pytest.mark.parametrize(
    "values", [{"subject": "cluster", "name": "x"}, {"subject": "job"}, {"subject": "chip", "name": "node-1"},
               {"since": "yesterday"}, {"limit": "-1"},
               {"since": "2026-11-02T00:00:00Z", "until": "2026-11-01T00:00:00Z"}],
)  # fmt: skip
def test_a_question_that_is_none_says_so(world: HistoryWorld, values: dict[str, str]) -> None:
    world.look()
    with pytest.raises(InputError):
        world.ask("records", **values)


def test_nothing_is_stored_twice_by_a_server_that_starts_again(world: HistoryWorld) -> None:
    world.commit("a" * 40, "ann", "one")
    world.submit(LLM)
    world.place(LLM, "node-1")
    world.fault("node-1", 3)
    world.recovery(LLM)
    world.recovery(LLM, back=20)
    world.look()
    before = world.texts()
    for _ in range(3):
        world.servers[0].leave()
        world.passes(5)
        world.servers = [world.server()]
        world.look()
    assert world.texts() == before


def test_what_happened_while_no_server_ran_is_found_with_its_own_time(world: HistoryWorld) -> None:
    world.submit(LLM)
    world.place(LLM, "node-1")
    world.look()
    world.servers[0].leave()

    world.passes(600)
    world.evict(LLM)
    world.recovery(LLM)
    evicted = world.now
    world.passes(60)
    world.place(LLM, "node-2")
    world.recovery(LLM, back=60)
    world.passes(1200)
    world.servers = [world.server()]
    world.look()

    store = RecordStore(world.url)
    with store.reading() as connection:
        rows = connection.execute(text("select kind, node, begun, ended, cost from spans order by begun")).all()
    store.close()
    held = [(row.node, row.begun / 1000, row.ended / 1000) for row in rows if row.kind == SpanKind.HOLDS.value]
    assert held == [("node-1", BEGIN, evicted), ("node-2", evicted + 60, 0)]
    assert [row.cost for row in rows if row.kind == SpanKind.RECOVERY.value] == [8 * 60]


def test_two_servers_write_one_history_and_the_second_takes_over(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}", servers=2)
    first, second = world.servers
    world.submit(LLM)
    world.look()
    assert (first.state.writes, second.state.writes) == (True, False)
    before = world.texts()

    # the first one dies without a word; its writership ends, and the second one goes on where it stopped
    world.passes(31)
    world.place(LLM, "node-1")
    world.look(second)
    assert second.state.writes
    assert world.texts() == [*before, "placed: 1 pod with 8 chips on node-1 after 31 s of waiting"]

    # the first one was only asleep
    world.look(first)
    assert not first.state.writes
    world.passes(3)
    world.finish(LLM)
    world.look(first, second)
    assert world.texts()[-1] == "gave back: 1 pod with 8 chips on node-1 after 3 s; it is Finished"
    assert world.ask("verify")["broken"] == ""


def test_a_removed_or_changed_record_is_noticed(world: HistoryWorld) -> None:
    for number in range(5):
        world.passes(1)
        world.commit(f"{number}" * 40, "ann", f"commit {number}")
        world.look()
    whole = world.ask("verify")
    assert (whole["records"], whole["broken"], whole["head"]) == (5, "", 5)
    noted = f"{whole['head']}:{whole['headHash']}"

    def after(statement: str) -> str:
        with sqlite3.connect(world.url.removeprefix("sqlite:///")) as connection:
            connection.execute("create table if not exists kept as select * from records")
            connection.execute(statement)
        found = str(world.ask("verify", expected=noted)["broken"])
        with sqlite3.connect(world.url.removeprefix("sqlite:///")) as connection:
            connection.execute("delete from records")
            connection.execute("insert into records select * from kept")
        return found

    assert after("update records set author = 'bob' where number = 3") == (
        "record 3 was changed: it is not as it was written"
    )
    assert after("delete from records where number = 3") == "record 3 is missing"
    assert after("delete from records where number < 3") == (
        "records 1 to 2 are missing, and no record says that the history's bounds removed any"
    )
    assert after("delete from records where number = 1").startswith("record 1 is missing, and no record")
    assert after("delete from records where number in (2, 3)") == "records 2 to 3 are missing"
    assert after("delete from records where number = 5") == "the noted record 5 is missing or has another hash"
    assert after("select 1") == ""


def test_old_records_are_removed_and_the_chain_says_so(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}", bounds=HistoryBounds(days=2))
    world.commit("a" * 40, "ann", "old")
    world.submit(LLM)
    world.place(LLM, "node-1")
    world.look()
    world.passes(DAY)
    world.finish(LLM)
    world.look()
    head = world.ask("verify")
    world.passes(2.5 * DAY)
    world.commit("b" * 40, "ann", "new")
    world.look()
    world.look()

    said = world.texts()
    assert said[0].endswith("accepted: new") and "older than 2 days" in said[1] and len(said) == 2
    found = world.ask("verify", expected=f"{head['head']}:{head['headHash']}")
    assert (found["broken"], found["removed"]) == ("", 3)

    # the same once more, and nothing is left to say about it
    world.passes(DAY)
    world.look()
    assert len(world.texts()) == 2


def test_the_history_is_bounded_by_its_size(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}", bounds=HistoryBounds(megabytes=1))
    for number in range(30):
        world.submit(f"default/Job/{number}")
        world.says(f"default/Job/{number}", "x" * 390)
    for _ in range(60):
        world.passes(1)
        for job in world.jobs:
            world.says(job, f"{world.now} " + "y" * 380)
            del world.jobs[job]["history"][:-3]
        world.look()
    world.passes(3600)
    world.look()
    store = RecordStore(world.url)
    with store.reading() as connection:
        assert database.stored_bytes(connection) < 2**20
    store.close()
    assert world.ask("verify")["broken"] == ""


def test_a_damaged_file_is_set_aside_and_a_new_history_begins(world: HistoryWorld, tmp_path: Path) -> None:
    world.submit(LLM)
    world.look()
    world.servers[0].leave()
    file = tmp_path / "history.db"
    file.write_bytes(b"this is no database, and it is longer than a page header" * 200)
    world.look()
    assert world.servers[0].state.problem == ""
    assert world.texts() != []
    assert [one.name for one in tmp_path.iterdir() if "damaged" in one.name] == ["history.db.damaged-1"]


def test_a_full_disk_or_a_locked_file_costs_nothing_but_a_finding(world: HistoryWorld, tmp_path: Path) -> None:
    world.submit(LLM)
    world.look()
    server = world.servers[0]
    assert server.store is not None

    # SQLite itself refuses to grow the file, as on a full disk
    with server.store.engine.connect() as connection:
        pages = connection.execute(text("pragma page_count")).scalar_one()
        connection.execute(text(f"pragma max_page_count = {pages}"))
    for number in range(400):
        world.says(LLM, f"line {number} " + "x" * 300)
    world.jobs[LLM]["history"] = world.jobs[LLM]["history"][-64:]
    world.look()
    assert "full" in server.state.problem and not server.state.writes

    # room again: what the status still says is stored
    world.passes(2)
    world.look()
    assert server.state.problem == ""
    assert len([one for one in world.texts() if one.startswith("line ")]) == 64


def test_a_database_that_is_away_is_tried_again(world: HistoryWorld, tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()
    world.submit(LLM)
    world.look()
    assert world.servers[0].state.problem
    (tmp_path / "history.db").rmdir()
    world.look()
    assert world.servers[0].state.problem == "" and world.texts() != []


def test_tables_of_a_newer_version_are_left_alone(world: HistoryWorld) -> None:
    world.look()
    world.servers[0].leave()
    with create_engine(world.url).begin() as connection:
        connection.execute(text("update notes set value = '99' where key = 'version'"))
    world.submit(LLM)
    world.look()
    assert "form 99" in world.servers[0].state.problem
    with pytest.raises(HistoryUnavailable):
        RecordStore(world.url).prepare()


def test_a_url_that_is_none_is_an_error_without_its_password() -> None:
    for url in ("mysql://u:secret@host/db", "nonsense", "postgresql+nothing://u:secret@h/d"):
        with pytest.raises(InputError) as raised:
            RecordStore(url)
        assert "secret" not in str(raised.value)


def test_a_refused_commit_and_a_deletion_that_waits_name_who_ends_them(world: HistoryWorld) -> None:
    world.commit("a" * 40, "ann", "one")
    world.sync(attemptedRevision="b" * 40)
    world.sync(**{"heldPrune.json": '{"digest":"0f3a","list":[{},{}]}'})
    world.look()
    world.passes(60)
    world.commit("c" * 40, "bob", "Confirm")
    world.sync(**{"heldPrune.json": "null"})
    world.look()
    rows = world.ask("records", audit="1")["records"]
    said = [(row["kind"], row["author"], row["text"]) for row in rows]
    assert ("confirmation", "", "the deletion of 2 objects waits for a confirmation (digest 0f3a)") in said
    ended = "0f3a no longer waits for a confirmation: confirmed or undone with cccccccccccc (Confirm)"
    assert ("confirmation", "bob", ended) in said
    assert any(kind == "revision" and "refused" in words for kind, _, words in said)


_STEPS = st.lists(
    st.tuples(st.sampled_from(("place", "evict", "finish", "submit", "look", "restart")), st.integers(1, 59)),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_held_chip_seconds_are_those_of_the_world(steps: list[tuple[str, int]]) -> None:
    world = HistoryWorld("sqlite://")
    server = world.servers[0]
    count = 0
    for step, seconds in steps:
        waiting = [job for job, body in world.jobs.items() if not body["placement"] and "pending" in body]
        placed = [job for job, body in world.jobs.items() if body["placement"]]
        match step:
            case "submit":
                count += 1
                world.submit(f"default/AscendJob/job-{count}", chips=count % 8 + 1)
            case "place" if waiting:
                world.place(waiting[0], f"node-{seconds % 2 + 1}", seconds % 8 + 1)
            case "evict" if placed:
                world.evict(placed[-1])
            case "finish" if placed:
                world.finish(placed[0])
            case "restart":
                server._epoch = 0
            case _:
                pass
        world.look()
        world.passes(seconds)
    world.look()

    store = server.store
    assert store is not None
    with store.reading() as connection:
        rows = connection.execute(text("select chips, begun, ended from spans where kind = 'holds'")).all()
    now = round(world.now * 1000)
    window = Window(round(BEGIN * 1000), now, now)
    usage = used("user", spans_within(store, window), window)
    server.leave()
    kept = sum(row.chips * ((row.ended or now) - row.begun) for row in rows) / 1000
    lasting = [(chips, begun, world.now) for chips, begun in world.bound.values()]
    assert kept == sum(chips * (end - begun) for chips, begun, end in (*(one[1:] for one in world.truth), *lasting))
    assert sum(sums.chips for sums in usage.values()) == pytest.approx(kept)
