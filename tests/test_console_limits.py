"""How long the console seeks an answer, and what ends with a viewer who leaves or may no longer look."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from belay.engine.cli.console_answers import answer as answered
from belay.engine.cli.console_moments import Moments
from belay.engine.serve.console import answers as answers_module
from belay.engine.serve.console import failures, questions, routes
from belay.engine.serve.console.answers import Answers, Unanswered, kill_whole, room
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.document import Builder, StateDocument
from belay.engine.serve.console.follower import StatusFollower
from belay.engine.serve.console.history import PastMoments
from belay.engine.serve.console.questions import AskedCluster, Questions
from belay.engine.serve.console.replies import PackedBodies
from belay.engine.serve.console.routes import Console, guarded
from belay.engine.serve.console.viewers import AccessRules, Viewers, rules
from belay.engine.serve.slow_connections import SlowConnections
from tests.bench.clusters import NOW, cluster
from tests.test_console_document import published
from tests.test_console_viewers import ReviewingApi, World, bearer

CHILD = """
import json, os, struct, subprocess, sys
pipe = sys.stdin.buffer
while head := pipe.read(4):
    asked = json.loads(pipe.read(struct.unpack(">I", head)[0]))
    open(sys.argv[1].replace("pids", "asked"), "w").write(json.dumps(asked))
    if asked.get("horizon") == 60:
        helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open(sys.argv[1], "w").write(f"{os.getpid()} {helper.pid}\\n")
        helper.wait()
    for part in (json.dumps({"status": int(sys.argv[2])}).encode(), b'{"frames": []}'):
        sys.stdout.buffer.write(struct.pack(">I", len(part)) + part)
    sys.stdout.buffer.flush()
"""


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def until(condition: Any) -> None:
    """Wait, without a limit of its own, until it holds: the test's limit is enough."""
    while not condition():
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def served(console: Console) -> AsyncIterator[str]:
    """The console on a port of loopback, as `belay server` serves it."""

    @web.middleware
    async def looking(request: web.Request, handler: Any) -> web.StreamResponse:
        return await console.admitted(request, handler)

    app = web.Application(middlewares=[guarded, looking])
    console.add_to(app)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def child(folder: Path, status: int = 200) -> list[str]:
    (folder / "child.py").write_text(CHILD)
    return [sys.executable, str(folder / "child.py"), str(folder / "pids"), str(status)]


def asking(answers: Answers) -> Console:
    asked = AskedCluster(source={"kind": "live"})
    return Console(
        ChangeStream(), Viewers(AccessRules(), None),
        questions=Questions(ChangeStream(), PastMoments(), asked, answers),
    )  # fmt: skip


def test_a_what_if_that_is_stopped_ends_its_child_whole_and_the_next_one_is_answered(tmp_path: Path) -> None:
    async def work() -> None:
        answers = Answers(child(tmp_path), children=1)
        async with served(asking(answers)) as base, aiohttp.ClientSession() as http:
            body = {"changes": [{"do": "cordon", "node": "a"}]}
            url = f"{base}/api/v1/what-if"
            first = asyncio.create_task(http.post(url, json={**body, "horizon": 60}))
            pids = tmp_path / "pids"
            await until(lambda: pids.is_file() and pids.read_text().endswith("\n"))
            first.cancel()
            async with http.post(url, json={**body, "horizon": 30}) as reply:
                assert reply.status == 200, await reply.text()
            await until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))
        await answers.close()

    run(work())


def test_of_one_viewer_two_what_ifs_are_not_answered_at_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr(questions, "FREED_SECONDS", 0.01)
        answers = Answers(child(tmp_path), children=2)
        async with served(asking(answers)) as base, aiohttp.ClientSession() as http:
            body = {"changes": [{"do": "cordon", "node": "a"}], "horizon": 60}
            first = asyncio.create_task(http.post(f"{base}/api/v1/what-if", json=body))
            await until((tmp_path / "pids").is_file)
            async with http.post(f"{base}/api/v1/what-if", json=body) as reply:
                assert (reply.status, reply.headers["Retry-After"]) == (429, "5")
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first
        await answers.close()

    run(work())


def test_a_killed_process_takes_with_it_what_made_itself_a_session() -> None:
    async def work() -> None:
        code = (
            "import subprocess, sys\n"
            'inner = \'import subprocess; p = subprocess.Popen(["sleep", "9"]); print(p.pid, flush=True); p.wait()\'\n'
            "p = subprocess.Popen([sys.executable, '-c', inner], start_new_session=True)\n"
            "print(p.pid, flush=True); p.wait()\n"
        )
        top = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        assert top.stdout is not None
        pids = [int(await top.stdout.readline()) for _ in range(2)]
        kill_whole(top.pid)
        await top.wait()
        await until(lambda: not any(map(is_alive, pids)))

    run(work())


def test_the_server_goes_on_while_what_a_child_started_is_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on, parents = threading.Event(), answers_module._parents

    def slow(proc: Path) -> list[tuple[int, int]]:
        assert went_on.wait(60.0)
        return parents(proc)

    async def work() -> None:
        monkeypatch.setattr(answers_module, "_parents", slow)
        answers = Answers(child(tmp_path), children=1)
        pids = tmp_path / "pids"
        asked = asyncio.create_task(answers.ask({"horizon": 60}, 60.0))
        await until(lambda: pids.is_file() and pids.read_text().endswith("\n"))
        asked.cancel()
        await asyncio.wait([asked])
        went_on.set()  # by the loop: had it sought itself, it would stand
        await answers.close()
        await until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))

    run(work())


def test_a_child_knows_when_its_answer_is_due_the_wait_for_others_included(tmp_path: Path) -> None:
    async def work() -> None:
        answers = Answers(child(tmp_path), children=1)
        first = asyncio.create_task(answers.ask({"horizon": 60}, 60.0))
        await until((tmp_path / "pids").is_file)
        put = time.monotonic()
        second = asyncio.create_task(answers.ask({}, 1000.0))
        await until(lambda: answers._waiting == 1)
        latest = time.monotonic()
        first.cancel()
        await second
        due = json.loads((tmp_path / "asked").read_text())["ends"]
        assert put + 1000.0 - 0.001 <= due <= latest + 1000.0 + 0.001
        await answers.close()

    run(work())


def test_an_answer_longer_than_a_slow_connection_may_take_is_delivered_whole() -> None:
    clock = [0.0]

    class Connection:
        transport: Any = None
        _request_count, _current_request = 1, object()

    seeking = Connection()
    sweeper = SlowConnections(answer=60.0, clock=lambda: clock[0])
    sweeper.streaming = {seeking}
    for second in range(int(questions.ANSWER_SECONDS)):
        clock[0] = float(second)
        assert sweeper.close_overdue([seeking]) == 0
    # it is found: now it is written, within the usual time
    sweeper.streaming = ()
    clock[0] += 59.0
    assert sweeper.close_overdue([seeking]) == 0
    clock[0] += 2.0
    assert sweeper.close_overdue([seeking]) == 1


def test_a_question_that_takes_too_long_ends_with_a_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        answers = Answers(child(tmp_path), children=1)
        console = asking(answers)
        async with served(console) as base, aiohttp.ClientSession() as http:
            async with http.get(f"{base}/api/v1/viewer") as reply:
                limits = (await reply.json())["limits"]
            assert limits["answerSeconds"] >= max(
                questions.DOCUMENT_SECONDS, questions.EXPLAIN_SECONDS, questions.PLAN_SECONDS, limits["whatIfSeconds"]
            )
            monkeypatch.setattr(questions, "ANSWER_SECONDS", 0.2)
            body = {"changes": [{"do": "cordon", "node": "a"}], "horizon": 60}
            async with http.post(f"{base}/api/v1/what-if", json=body) as reply:
                assert reply.status == 504 and "no answer within" in (await reply.json())["error"]
            assert not console.streaming
        await answers.close()

    run(work())


def test_the_wait_for_other_questions_counts(tmp_path: Path) -> None:
    async def work() -> None:
        answers = Answers(child(tmp_path), children=1)
        first = asyncio.create_task(answers.ask({"horizon": 60}, 60.0))
        await until((tmp_path / "pids").is_file)
        with pytest.raises(Unanswered, match="other questions took") as caught:
            await answers.ask({}, 0.05)
        assert caught.value.status == 504
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await answers.close()

    run(work())


@pytest.mark.parametrize(
    ("limit", "children", "each"),
    [
        ("max", 2, 6 << 30),
        ("", 2, 6 << 30),
        (str(512 << 20), 1, 512 << 20),
        (str(1 << 30), 1, 512 << 20),
        (str(2 << 30), 2, 724 << 20),
        (str(8 << 30), 2, ((8 << 30) - (600 << 20)) // 2),
    ],
)
def test_as_many_children_as_the_memory_of_the_container_has_room_for(
    tmp_path: Path, limit: str, children: int, each: int
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    assert room(tmp_path / "memory.max") == (children, each)
    assert room(tmp_path / "none") == (2, 6 << 30)


class Watched:
    """A console off loopback, one viewer on its stream, and a clock of its own."""

    def __init__(self) -> None:
        self.api, self.now, self.waits = ReviewingApi(), 0.0, 0
        kube: Any = self.api
        self.viewers = Viewers(rules(free=False), kube, lambda: self.now)
        self.console = Console(ChangeStream(), self.viewers, clock=lambda: self.now)
        document = Builder().build(published(cluster(1, 0)), time=NOW)
        self.console.changes.publish(document)
        self.turns: asyncio.Queue[None] = asyncio.Queue()
        self.console._pause = self._pause  # type: ignore[method-assign,assignment]

    async def _pause(self, seconds: float) -> None:
        self.waits += 1
        await self.turns.get()
        self.now += seconds


async def shown_to(watched: Watched, revoke: Any, turns: int, *, ends: bool) -> None:
    """Fails unless the stream goes on after so many checks, or where it ``ends`` has ended by then."""
    async with (
        served(watched.console) as base,
        aiohttp.ClientSession() as http,
        http.get(f"{base}/api/v1/changes", headers=bearer("good")) as stream,
    ):
        assert stream.status == 200
        await stream.content.readuntil(b"event: hello")
        revoke()
        for _ in range(turns):
            watched.turns.put_nowait(None)
        if ends:
            # without a limit of its own: the test's limit is enough
            with contextlib.suppress(aiohttp.ClientError):
                await stream.content.read(-1)
            await until(lambda: not watched.console.changes.viewers)
        else:
            # the wait for the check after the last one has begun
            await until(lambda: watched.waits > turns or not watched.console.changes.viewers)
            assert watched.console.changes.viewers == 1


@pytest.mark.parametrize("how", ["token", "right"])
def test_a_stream_ends_within_a_minute_when_its_viewer_may_no_longer_look(how: str) -> None:
    watched = Watched()
    revoke = watched.api.users.clear if how == "token" else watched.api.readers.clear
    assert routes.RECHECK_SECONDS + routes.FRESH_SECONDS <= 60.0
    asyncio.run(shown_to(watched, revoke, 1, ends=True))
    assert watched.now <= 60.0


def test_a_stream_goes_on_for_who_may_look_and_each_check_is_a_new_one() -> None:
    watched = Watched()
    asyncio.run(shown_to(watched, lambda: None, 5, ends=False))
    assert watched.api.asked.count("TokenReview") == 6


def test_a_stream_that_cannot_be_checked_ends_after_a_while() -> None:
    def away(watched: Watched) -> Any:
        return lambda: setattr(watched.api, "away", True)

    few, many = Watched(), Watched()
    asyncio.run(shown_to(few, away(few), 2, ends=False))
    asyncio.run(shown_to(many, away(many), 1 + int(routes.UNCHECKED_SECONDS / routes.RETRY_SECONDS), ends=True))


def test_a_verdict_that_must_be_fresh_is_asked_for() -> None:
    world = World()
    world.admit(bearer("good"))
    world.now = 30.0
    world.api.readers.clear()
    assert world.admit(bearer("good")) == "ann"  # the verdict of before counts for a minute
    with pytest.raises(Exception, match="may not read"):
        asyncio.run(world.viewers.admit(bearer("good"), "console.example", "10.9.9.9", fresh=20.0))
    assert world.refused(bearer("good")) == 403


def test_a_large_body_is_compressed_once_and_what_is_kept_is_bounded() -> None:
    async def work() -> None:
        body = os.urandom(70_000)
        packed = PackedBodies(most=150_000)
        first, second = await asyncio.gather(packed.pack(body), packed.pack(bytes(body)))
        assert first is second and gzip.decompress(first) == body
        assert await packed.pack(b"", b"x") is not first
        assert await packed.pack(body) is first
        for number in range(3):
            await packed.pack(os.urandom(70_000), b"%d" % number)
        assert len(packed._kept) == 2 and packed._bytes <= 150_000
        assert await packed.pack(body) is not first

    run(work())


def test_one_caller_who_leaves_does_not_take_the_others_answer_away() -> None:
    async def work() -> None:
        packed, body = PackedBodies(), os.urandom(4_000_000)
        leaving, staying = asyncio.create_task(packed.pack(body, b"k")), asyncio.create_task(packed.pack(body, b"k"))
        await until(lambda: bool(packed._running))
        leaving.cancel()
        assert gzip.decompress(await staying) == body

    run(work())


def test_an_error_that_nothing_foresaw_is_answered_reported_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(source: object) -> None:
        raise ZeroDivisionError("token=hunter2hunter2")

    moments = Moments()
    monkeypatch.setattr(moments, "read", broken)
    head, body = answered(msgspec.json.encode({"ask": "document"}), moments)
    said = capsys.readouterr().err
    assert (head.status, body) == (500, b"") and "ZeroDivisionError" in head.error
    assert (
        "ZeroDivisionError" in said and "broken (test_console_limits.py:" in said and "hunter2" not in said + head.error
    )

    async def work() -> None:
        answers = Answers(child(tmp_path, status=500), children=1)
        before = failures.counted("answer")
        with pytest.raises(Unanswered):
            await answers.ask({}, 60.0)
        assert failures.counted("answer") == before + 1
        await answers.close()

    run(work())


def test_a_document_that_cannot_be_made_is_said_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kube: Any = None
        changes = ChangeStream()
        shown: list[StateDocument] = []
        follower = StatusFollower(kube, changes, published=lambda one, data, at: shown.append(one))
        before = failures.counted("document")
        with monkeypatch.context() as patch:
            patch.setattr(follower._builder, "build", lambda *_, **__: 1 // 0)
            follower._publish_guarded()
        assert failures.counted("document") == before + 1 and "ZeroDivisionError" in follower._broken
        follower._publish_guarded()
        assert not follower._broken and shown

    run(work())


def test_a_request_that_cannot_be_handled_is_answered_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        console = Console(ChangeStream(), Viewers(AccessRules(), None))
        monkeypatch.setattr(console, "abilities", lambda: 1 // 0)
        before = failures.counted("request")
        async with served(console) as base, aiohttp.ClientSession() as http:
            async with http.get(f"{base}/api/v1/viewer") as reply:
                assert reply.status == 500 and json.loads(await reply.text())["error"] == "internal error"
            async with http.get(f"{base}/api/v1/state") as reply:
                assert reply.status == 503
        assert failures.counted("request") == before + 1
        (sample,) = [one for one in failures.metric().samples if one.labels == {"place": "request"}]
        assert sample.name == "belay_console_failures_total" and sample.value == before + 1

    run(work())
