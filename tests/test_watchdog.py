"""A worker that stopped working is noticed and starts again in place; one that has nothing to do is left alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.controller import watchdog
from belay.engine.controller.queues import ACT, MOST_WAITING, RECONCILE, send, waiting
from belay.engine.controller.watchdog import (
    MAX_RESTARTS,
    RESTART_WINDOW,
    RESTARTS,
    ProgressSample,
    StallDetector,
    Watchdog,
    earlier,
    restart_in_place,
)
from belay.engine.errors import InputError
from belay.engine.model.hot_loop import HotLoopDetector
from belay.engine.settings import from_environment
from belay.engine.store import StoreUnavailable, connect
from tests.loop_world import Cluster, until
from tests.ports import free_port
from tests.redis_server import redis_process, redis_url, start_redis  # noqa: F401
from tests.test_tasks import Processes, cluster, each_chip_once  # noqa: F401

pytestmark = pytest.mark.real_time


def samples(count: int, **given: Any) -> list[ProgressSample]:
    """One sample a second of a worker with two slots; ``beat`` follows the clock unless given."""
    rows = []
    for now in range(count):
        row = {"now": 100.0 + now, "waiting": 0, "taken": 0, "running": frozenset(), "slots": 2, "beat": 100.0 + now}
        row.update({name: value(now) if callable(value) else value for name, value in given.items()})
        rows.append(ProgressSample(**row))
    return rows


def said(rows: list[ProgressSample]) -> list[str]:
    detector = StallDetector(stall=10.0, longest=30.0)
    return [words for row in rows if (words := detector.check(row))]


@pytest.mark.parametrize(
    ("what", "rows"),
    [
        ("nothing to do", samples(60)),
        ("work is waiting and being taken", samples(60, waiting=5, taken=lambda now: now // 8)),
        ("every slot is busy, not for too long", samples(29, waiting=5, running=frozenset("ab"))),
        (
            "tasks change",
            samples(90, waiting=5, running=lambda now: frozenset((f"a{now // 20}", "b")), slots=3, taken=int),
        ),
        ("Redis is away: no worker could do anything", samples(600, waiting=None, beat=0.0)),
        ("Redis came back a moment ago", [*samples(60, waiting=None, beat=0.0), *samples(10, waiting=3, beat=0.0)]),
        ("one long task beside a free slot", samples(90, running=frozenset("a"))),
    ],
)
def test_a_worker_that_does_what_it_can_is_left_alone(what: str, rows: list[ProgressSample]) -> None:
    assert said(rows) == [], what


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (samples(13, beat=100.0), "the consumer has been silent for 11 s although Redis answers"),
        (samples(13, beat=100.0, running=frozenset("a")), "the consumer has been silent"),
        (samples(13, waiting=4), "4 messages wait and none was taken for"),
        (samples(13, waiting=4, running=frozenset("a")), "4 messages wait and none was taken for"),
        (samples(33, running=frozenset("ab")), "all 2 slots have been at one task for more than 30 s"),
    ],
)
def test_a_stuck_worker_is_detected_with_a_reason(rows: list[ProgressSample], words: str) -> None:
    found = said(rows)
    assert found and found[0].startswith(words)


def test_what_fails_to_answer_counts_as_redis_being_away() -> None:
    def away() -> int:
        raise StoreUnavailable("gone")

    now = [0.0]
    monitor = Watchdog(StallDetector(10.0, 30.0), 2, away, lambda reason: None, clock=lambda: now[0])
    for _ in range(100):
        now[0] += 1.0
        assert monitor.check() == ""
    assert monitor.alive and not monitor.ready


def test_probes_distinguish_a_dead_process_from_a_waiting_one() -> None:
    now = [0.0]
    monitor = Watchdog(StallDetector(10.0, 30.0), 2, lambda: 0, lambda reason: None, clock=lambda: now[0])
    monitor.beat()
    monitor.check()
    port = free_port()
    watchdog.threading.Thread(target=watchdog._serve, args=(monitor, port), daemon=True).start()

    def get(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, what="the port")
    assert (get("/healthz"), get("/readyz"), get("/secrets")) == (200, 200, 404)
    now[0] += 9.0
    monitor.check()
    now[0] += 2.0
    assert (get("/healthz"), get("/readyz")) == (200, 503), "the consumer has been silent, the process lives"
    now[0] += 20.0
    assert get("/healthz") == 503, "no pass ran for long"


def test_restarts_are_counted_over_the_restart_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Ended(Exception):
        pass

    def execute(path: str, arguments: list[str], variables: dict[str, str]) -> None:
        done.append((path, arguments, variables))

    def leave(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "execve", execute)
    monkeypatch.setattr(os, "_exit", leave)
    variables: dict[str, str] = {"KEPT": "yes"}
    for number in range(MAX_RESTARTS):
        restart_in_place("stuck", variables, 1000.0 + number)
        path, arguments, variables = done[-1]
        assert path == arguments[0] == sys.executable and arguments[1:] == sys.orig_argv[1:]
        assert variables["KEPT"] == "yes" and len(variables[RESTARTS].split(",")) == number + 1
    with pytest.raises(Ended, match=str(watchdog.GAVE_UP)):
        restart_in_place("stuck", variables, 1010.0)
    restart_in_place("stuck", variables, 1010.0 + RESTART_WINDOW)
    assert len(done) == MAX_RESTARTS + 1, "old restarts are forgotten"
    assert earlier("x,,7,-3,9e9, 1", 8.0) == [7.0]


def test_queues_without_workers_stay_small(redis_url: str) -> None:  # noqa: F811
    client = connect(redis_url)
    client.flushall()
    for _ in range(MOST_WAITING[ACT]):
        send(client, ACT, "batch")
    with pytest.raises(StoreUnavailable, match="200 messages wait in queue act and no worker takes them"):
        send(client, ACT, "batch")
    send(client, RECONCILE, "main")
    assert waiting(client) == MOST_WAITING[ACT] + 1
    client.flushall()


def test_a_process_that_uses_a_core_without_a_task_is_reported() -> None:
    hot = HotLoopDetector(window=60.0, share=0.5)
    said = [hot.check(float(second), 0.93 * second, idle=True) for second in range(130)]
    assert [text for text in said if text] == ["the process used 93% of a core for 60 s without a task"] * 2


def test_work_and_quiet_are_no_hot_loop() -> None:
    hot = HotLoopDetector(window=60.0, share=0.5)
    assert not any(hot.check(float(second), 0.02 * second, idle=True) for second in range(200))
    spent = 10.0
    for second in range(200, 600):
        working = second % 3 == 0
        spent += 1.0 if working else 0.02
        assert not hot.check(float(second), spent, idle=not working)


def test_a_hot_loop_between_tasks_is_reported() -> None:
    hot = HotLoopDetector(window=60.0, share=0.5)
    said = [hot.check(float(second), 0.93 * second, idle=second % 10 != 0) for second in range(100)]
    assert [text for text in said if text] == ["the process used 93% of a core for 60 s without a task"]


HOT = """
import threading
from belay.engine import hot_loops
def spin():
    while True:
        pass
threading.Thread(target=spin, name="spinner", daemon=True).start()
thread, place = hot_loops.hottest()
print(thread, "|", place)
"""


def test_the_place_of_a_hot_loop_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", HOT], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    thread, _, place = done.stdout.partition(" | ")
    assert thread == "spinner" and " spin < " in place, done.stdout


def test_settings_of_the_watchdog_are_checked() -> None:
    for variable, value in (("BELAY_STALL", "0"), ("BELAY_HEALTH_PORT", "70000"), ("BELAY_HEALTH_PORT", "-1")):
        with pytest.raises(InputError, match=variable):
            from_environment({variable: value})


DEAF = """
import sys, threading, time
from celery.worker.consumer.consumer import Consumer
from celery import bootsteps
from belay.engine.controller import tasks, watchdog
import os
class Trouble(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer.tasks:Tasks",)
    def start(self, parent):
        if watchdog.RESTARTS in os.environ:
            return
        if {kind!r} == "deaf":
            parent.timer.call_after(0.2, parent.task_consumer.cancel)  # alive, connected, and consumes nothing
        elif {kind!r} == "hangs":
            parent.timer.call_after(0.2, time.sleep, (3600.0,))  # the loop stands still
        else:
            def fail(): raise AttributeError("'NoneType' object has no attribute 'hostname'")
            parent.hub.call_soon(fail) if {kind!r} == "later" else fail()
tasks.app.steps["consumer"].add(Trouble)
sys.exit(tasks.main())
"""


@pytest.fixture
def processes(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Processes]:  # noqa: F811
    made = Processes(cluster, redis_url, tmp_path)
    yield made
    made.close()


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["deaf", "hangs", "dies"])
def test_a_worker_in_trouble_starts_again_in_place_and_works(
    cluster: Cluster,  # noqa: F811
    processes: Processes,
    tmp_path: Path,
    kind: str,
) -> None:
    from belay.engine.settings import to_environment

    variables = {**os.environ, **to_environment(processes.settings), "BELAY_IDENTITY": "worker", "BELAY_STALL": "2"}
    variables.pop(RESTARTS, None)
    log = tmp_path / "worker.log"
    with log.open("ab") as output:
        worker = subprocess.Popen(
            [sys.executable, "-c", DEAF.format(kind=kind)], env=variables, stdout=output, stderr=output
        )
    try:
        processes.start("controller")
        cluster.add_node("node-1")
        cluster.add_pod("train", 8)
        until(lambda: cluster.bound() == {"train"}, what="the binding, by the worker's first or second life")
        each_chip_once(cluster, 8)
        assert worker.poll() is None, "it is the same process"
        # the first life may have bound the pod before its trouble began
        until(lambda: len(_restarts(log)) == 1, what="the restart")
        (restart,) = _restarts(log)
        assert restart["restarts"] == 1 and restart["reason"]
        cluster.add_node("node-2")
        cluster.add_pod("more", 8)
        until(lambda: cluster.bound() == {"train", "more"}, what="a binding by the worker's second life")
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()


def _restarts(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return [line for line in lines if line["message"] == "worker restarts in place"]
