"""The history's database shared by servers (a real PostgreSQL), and its paths over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner

from belay.engine.cli import history as verbs
from belay.engine.cli import main
from belay.engine.cli.history_report import _amount
from belay.engine.errors import InputError
from belay.engine.model.times import rfc3339
from belay.engine.serve.records.routes import HistoryRoutes
from belay.engine.serve.records.service import HistoryService, history_url
from belay.engine.settings import Settings
from tests.history_world import HistoryWorld
from tests.postgres_server import postgres

LLM = "default/AscendJob/llm"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.mark.real_time
def test_servers_share_a_postgresql_and_one_writes(database: str) -> None:
    world = HistoryWorld(database, servers=2)
    first, second = world.servers
    world.commit("a" * 40, "Ann <ann@example.org>", "Start llm")
    world.submit(LLM, user="ann")
    world.look()
    assert (first.state.writes, second.state.writes) == (True, False)
    world.passes(60)
    world.place(LLM, "node-1")
    world.fault("node-1", 3)
    world.look(second, first)
    assert (first.state.writes, second.state.writes) == (False, True)

    world.passes(3600)
    world.finish(LLM)
    second.leave()
    world.look(first)
    assert first.state.writes and not first.state.problem
    said = world.texts()
    assert len(said) == len(set(said)) == 5
    assert world.texts(subject="user", name="ann@example.org") == ["aaaaaaaaaaaa accepted: Start llm"]
    (used,) = world.ask("usage")["usage"]
    assert (used["user"], used["chipHours"]) == ("ann", 8.0)
    assert world.ask("verify")["broken"] == ""
    first.leave()


@pytest.mark.real_time
def test_what_postgresql_answers_is_said_in_its_words(database: str) -> None:
    wrong = re.sub(r":[^:@]+@", ":wrong@", database)
    said = CliRunner().invoke(main, ["history", "--database", wrong]).output
    assert 'password authentication failed for user "belay"' in said and "{" not in said and "wrong" not in said


def test_a_password_comes_from_its_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the/tests\n")
    url = "postgresql://belay@db.example.org:5432/history"
    settings = Settings(history_url=url, history_password_file=str(file), data=str(tmp_path), identity="a")
    assert history_url(settings) == "postgresql://belay:of%20the%2Ftests@db.example.org:5432/history"
    world = HistoryWorld("postgresql://belay:secret@127.0.0.1:1/none")
    world.look()
    problem = world.servers[0].state.problem
    assert problem and "secret" not in problem and "127.0.0.1" in problem
    with pytest.raises(InputError):
        HistoryService(Settings(history_url="oracle://x", data=str(tmp_path), identity="a"))


def test_the_paths_answer_and_say_what_is_wrong_with_a_question(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.submit(LLM)
    world.place(LLM, "node-1")
    world.look()
    world.passes(60)

    async def asked() -> list[tuple[int, Any]]:
        routes = HistoryRoutes(world.url, world.servers[0], wall=lambda: world.now)
        app = web.Application()
        routes.add_to(app)
        found = []
        async with TestClient(TestServer(app)) as client:
            for path in ("records?subject=job&name=llm", "records?subject=job", "usage?by=queue", "verify", "report"):
                async with client.get(f"/api/v1/{path}") as response:
                    found.append((response.status, msgspec.json.decode(await response.read())))
        routes.close()
        return found

    records, wrong, usage, whole, report = asyncio.run(asked())
    assert records[0] == 200 and records[1]["records"][0]["kind"] == "placed"
    assert wrong[0] == 400 and wrong[1]["error"] == "a subject needs its name", "the hint stands beside it"
    assert usage[1]["usage"][0]["queue"] == "default"
    assert whole[1]["broken"] == "" and report[1]["total"]["jobs"] == 1


def test_the_command_line_reads_a_database_and_prints_csv_that_no_spreadsheet_runs(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.submit(LLM, user="=cmd()")
    world.place(LLM, "node-1")
    world.commit("a" * 40, "ann", "Start")
    world.look()

    def belay(*words: str) -> str:
        result = CliRunner().invoke(main, [*words, "--database", world.url])
        assert result.exit_code == 0, result.output
        return result.output

    assert "placed: 1 pod with 8 chips on node-1" in belay("history", "--since", "20000h")
    assert "'=cmd()" in belay("usage", "--since", "20000h")
    assert "8 chips" not in belay("history", "--since", "20000h", "--audit")
    assert belay("history", "--verify").startswith("whole: 2 records")
    assert belay("history", "--verify", "-o", "wide").startswith("whole: 2 records\nhead: ")
    assert "goodput 100.0%" in belay("report", "--since", "20000h")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400), ("7d", 7 * 86400), ("2026-11-01", None), ("2026-11-01T00:00:00Z", None),
        # as the table shows it
        ("2026-11-01 19:21:17", None), ("19:21:17", None),
    ],
)  # fmt: skip
def test_times_of_the_past_are_read(text: str, seconds: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs.time, "time", lambda: 1_800_000_000.0)
    found = verbs.moment(text, "--since")
    assert found is not None and (seconds is None or found == 1_800_000_000.0 - seconds)


def test_a_time_of_day_is_the_last_one() -> None:
    now = verbs.time.time()
    found = verbs.moment("22:00", "--since")
    assert found is not None and now - 86_400 - 3_600 <= found <= now
    with pytest.raises(InputError):
        verbs.moment("tomorrow", "--since")


@pytest.mark.parametrize(
    ("word", "day"), [("today", 28), ("yesterday", 27), ("Friday", 27), ("saturday", 21), ("sunday", 22)]
)
def test_a_day_that_a_person_names_is_the_last_one(word: str, day: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # a Saturday
    monkeypatch.setattr(verbs.time, "time", lambda: verbs.time.mktime((2026, 11, 28, 15, 30, 0, 0, 0, -1)))
    assert verbs.moment(word, "--since") == verbs.time.mktime((2026, 11, day, 0, 0, 0, 0, 0, -1))


def test_what_was_never_recorded_is_named(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.look()

    def said(*words: str) -> str:
        return CliRunner().invoke(main, ["history", *words, "--database", world.url]).stderr

    assert said("job", "train/llm", "--since", "7d") == "nothing is recorded of job train/llm since 7d\n"
    assert "that happened in the last 24h (--since 7d looks further)" in said()


def test_an_end_alone_asks_for_the_day_before_it(tmp_path: Path) -> None:
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.commit("a" * 40, "ann", "Start")
    world.look()
    after = rfc3339(world.now + 3600)

    def said(*words: str) -> str:
        return CliRunner().invoke(main, [*words, "--database", world.url]).output

    assert "accepted: Start" in said("history", "--until", after)
    assert said("report", "--until", after).splitlines()[0].endswith(f" to {after}")
    assert "in the 24h until 2020-01-01" in said("history", "--until", "2020-01-01")
    assert "the time ends before it begins" in said("history", "--since", "3h", "--until", "5h")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:////nowhere/history.db", "--database: /nowhere/history.db does not exist"),
        ("history.db", "--database: is not the URL of a database"),
        ("postgresql://ann@127.0.0.1:1/x", "postgresql://ann@127.0.0.1:1/x: Can't create a connection to host"),
    ],
)
def test_a_database_that_is_not_there_is_named_as_it_was_given(url: str, says: str) -> None:
    result = CliRunner().invoke(main, ["history", "--verify", "--database", url])
    assert result.exit_code == 2
    assert says in result.output and "sqlalche" not in result.output


@pytest.mark.parametrize(("hours", "shown"), [(0.0, "0.0"), (0.004, "<0.01"), (0.03, "0.03"), (12.34, "12.3")])
def test_lost_time_is_never_shown_as_none(hours: float, shown: str) -> None:
    assert _amount(hours) == shown


def test_a_wait_is_one_line_and_its_whole_reason_is_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    world = HistoryWorld(f"sqlite:///{tmp_path / 'history.db'}")
    world.submit(LLM)
    world.jobs[LLM]["pending"] = {"reason": "NoRoom", "message": "too few chips; 0/3 nodes are available: 3 NPU short"}
    world.submit_again(LLM, user="ann", queue="default")
    world.look()

    def belay(*words: str) -> str:
        return CliRunner().invoke(main, ["history", "--since", "20000h", *words, "--database", world.url]).stdout

    assert "waits for 8 chips: NoRoom: too few chips; …" in belay() and "0/3 nodes" not in belay()
    assert "too few chips; 0/3 nodes are available: 3 NPU short" in belay("-o", "wide")
    assert "3 NPU short" in belay("-o", "csv")
