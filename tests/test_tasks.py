"""Real Celery worker processes on a real Redis: killed, doubled and flushed, they still place every pod once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from belay.engine.controller.messages import broker_url, configuration
from belay.engine.controller.queues import RECONCILE, send
from belay.engine.controller.triggers import Triggers
from belay.engine.controller.worker import Worker
from belay.engine.errors import InputError
from belay.engine.kube.lease import shard_lease
from belay.engine.settings import Settings, from_environment, to_environment
from belay.engine.store import PassStore, ProcessLiveness, connect
from tests.loop_world import Cluster, cluster, until
from tests.redis_server import redis_process, redis_url, start_redis  # noqa: F401

__all__ = ["cluster"]

#: A process takes half a minute to start on a machine with fifteen times as much work as it has cores.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PATIENCE = 240.0


class Processes:
    """`belay controller` and `belay worker` as processes of their own."""

    def __init__(self, cluster: Cluster, address: str, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(
            redis_url=address,
            kubeconfig=cluster.kubeconfig,
            data=str(folder / "data"),
            resync=0.5,
            lease=2.0,
            claim=3.0,
            expiry=5.0,
            patience=1.0,
            visibility=5.0,
        )
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, identity: str = "") -> subprocess.Popen[bytes]:
        module = {"controller": "belay.engine.controller.controller", "worker": "belay.engine.controller.tasks"}[role]
        name = identity or role
        variables = {**os.environ, **to_environment(self.settings), "BELAY_IDENTITY": name, "PYTHONUNBUFFERED": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"]
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL the whole group, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill(process)


@pytest.fixture
def processes(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Processes]:  # noqa: F811
    made = Processes(cluster, redis_url, tmp_path)
    yield made
    made.close()


def each_chip_once(cluster: Cluster, chips: int) -> None:
    held = cluster.chips()
    assert [pods for pods in held.values() if len(pods) > 1] == [] and len(held) == chips


def test_two_processes_place_pods_and_end_cleanly(cluster: Cluster, processes: Processes) -> None:
    # no process dies here, so nothing has to expire soon: on a busy machine everything would
    processes.settings = Settings(
        redis_url=processes.settings.redis_url, kubeconfig=cluster.kubeconfig, data=processes.settings.data
    )
    controller, worker = processes.start("controller"), processes.start("worker")
    cluster.add_node("node-1")
    cluster.add_pod("train", 8)
    until(lambda: cluster.bound() == {"train"}, PATIENCE, "the binding")
    each_chip_once(cluster, 8)
    passes = PassStore(connect(processes.settings.redis_url))
    counted = "actions|kind=BindPod|result=done"  # after the binding, which may be seen before
    until(lambda: passes.counters().get(counted) == 1, PATIENCE, "the counted binding")
    for process in (controller, worker):
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_worker_killed_at_any_point_loses_and_doubles_nothing(
    cluster: Cluster, processes: Processes, seed: int
) -> None:
    chance = random.Random(seed)
    processes.start("controller")
    for number in range(4):
        cluster.add_node(f"node-{number}")
    worker = processes.start("worker")
    until(lambda: "main" in PassStore(connect(processes.settings.redis_url)).summaries(), PATIENCE, "the first pass")
    for number in range(16):
        cluster.add_pod(f"two-{number:02}", 2)
        if number % 5 == 4:
            time.sleep(chance.uniform(0.0, 0.25))
            processes.kill(worker)
            worker = processes.start("worker")
    until(lambda: len(cluster.bound()) == 16, PATIENCE, "every pod on its chips")
    each_chip_once(cluster, 32)


def test_another_worker_takes_over_from_a_dead_one(cluster: Cluster, processes: Processes) -> None:
    processes.start("controller")
    cluster.add_node("node-1")
    first = processes.start("worker", "worker-1")
    cluster.add_pod("one", 1)
    until(lambda: cluster.bound() == {"one"}, PATIENCE)
    processes.start("worker", "worker-2")
    processes.kill(first)
    cluster.add_pod("two", 1)
    until(lambda: cluster.bound() == {"one", "two"}, PATIENCE, "the second pod, by the second worker")
    each_chip_once(cluster, 2)


def test_a_second_controller_need_not_wait_for_the_lease_of_a_dead_one(cluster: Cluster, processes: Processes) -> None:
    processes.settings = msgspec.structs.replace(processes.settings, lease=3000.0)
    first = processes.start("controller", "controller-1")
    processes.start("worker")
    cluster.add_node("node-1")
    cluster.add_pod("one", 1)
    until(lambda: cluster.bound() == {"one"}, PATIENCE)
    processes.start("controller", "controller-2")
    client = connect(processes.settings.redis_url)
    until(lambda: client.exists("belay:life:controller:controller-2") == 1, PATIENCE, "the second controller")
    processes.kill(first)
    cluster.add_pod("two", 1)
    until(lambda: cluster.bound() == {"one", "two"}, PATIENCE, "the second pod, seen by the second controller")


def test_what_a_worker_held_when_it_died_and_stayed_away_is_free_soon(cluster: Cluster, processes: Processes) -> None:
    processes.settings = msgspec.structs.replace(processes.settings, lease=3000.0, claim=3000.0, expiry=30.0)
    client = connect(processes.settings.redis_url)
    triggers = Triggers(client)
    triggers.mark("main")
    assert triggers.claim("main", "worker-9", 3000.0)
    claims = "belay:{triggers}:busy"
    assert triggers.owners_in(client.hvals(claims)) == {"worker-9"}
    ProcessLiveness(client, "worker", "worker-9", 600.0).beat()  # Redis keeps it for twice that time
    assert cluster.run(shard_lease(cluster.kube, "main", "worker-9", duration=3000.0).acquire()) == 1
    processes.start("controller")
    processes.start("worker", "worker-1")
    cluster.add_node("node-1")
    cluster.add_pod("one", 1)
    until(lambda: cluster.bound() == {"one"}, PATIENCE, "the pod, by a worker that waited for nothing to expire")
    assert "worker-9" not in triggers.owners_in(client.hvals(claims))


def test_a_killed_controller_and_a_killed_redis_are_only_an_interruption(
    cluster: Cluster, processes: Processes, tmp_path: Path
) -> None:
    with start_redis(tmp_path / "own") as first:
        processes.settings = msgspec.structs.replace(processes.settings, redis_url=first.url)
        controller = processes.start("controller")
        processes.start("worker")
        cluster.add_node("node-1")
        cluster.add_pod("one", 2)
        until(lambda: cluster.bound() == {"one"}, PATIENCE)
        processes.kill(controller)
        cluster.add_pod("two", 2)
        processes.start("controller")
        until(lambda: cluster.bound() == {"one", "two"}, PATIENCE, "the pod that came while no watch ran")
        first.kill()
    cluster.add_pod("three", 2)
    with start_redis(tmp_path / "own"):
        until(lambda: len(cluster.bound()) == 3, PATIENCE, "the pod that came while Redis was away")
        each_chip_once(cluster, 6)
        processes.close()


def test_flushes_full_memory_and_doubled_messages_while_real_workers_run(
    cluster: Cluster,
    processes: Processes,
    redis_url: str,  # noqa: F811
) -> None:
    processes.start("controller")
    processes.start("worker")
    for number in range(2):
        cluster.add_node(f"node-{number}")
    for number in range(7):
        cluster.add_pod(f"two-{number}", 2)
        for _ in range(3):
            send(connect(redis_url), RECONCILE, "main")
        if number in {2, 5}:
            connect(redis_url).flushall()
        time.sleep(0.1)
    until(lambda: len(cluster.bound()) == 7, PATIENCE, "every pod on its chips")

    # a Redis that is full is waited for: Celery would end the worker, and log a traceback each time
    log = processes.folder / "worker.log"
    connect(redis_url).config_set("maxmemory", 1)
    until(lambda: "OutOfMemoryError" in log.read_text(), PATIENCE, "the worker meets a Redis that is full")
    cluster.add_pod("two-7", 2)
    connect(redis_url).config_set("maxmemory", 0)
    until(lambda: len(cluster.bound()) == 8, PATIENCE, "every pod on its chips")
    each_chip_once(cluster, 16)
    assert '"traceback"' not in log.read_text() and "restarts in place" not in log.read_text()


def test_a_worker_that_ends_leaves_no_message_that_waits(cluster: Cluster, redis_url: str) -> None:  # noqa: F811
    sent: list[str] = []
    settings = Settings(redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="ends")
    worker = Worker(settings, lambda task, text: sent.append(text))

    async def wait_long() -> asyncio.Task[None]:
        waiting = worker._soon["main"] = asyncio.create_task(worker._send_soon(3600.0))
        await asyncio.sleep(0)
        return waiting

    waiting = worker._run(wait_long(), 30.0)
    worker.close()
    assert waiting.cancelled() and sent == []


def test_settings_come_from_the_environment_and_go_there() -> None:
    settings = Settings(identity="x", redis_url="unix:///r", source_suspend=True, batch=7, lease=2.5)
    assert from_environment(to_environment(settings)) == settings
    assert from_environment({"BELAY_BATCH": "5"}, batch=None, shard="a").batch == 5
    for variable, value in (("BELAY_BATCH", "many"), ("BELAY_LEASE", "0"), ("BELAY_SOURCE_VERIFY", "perhaps")):
        with pytest.raises(InputError, match=variable):
            from_environment({variable: value})


def test_celery_is_configured_for_at_least_once() -> None:
    assert broker_url("unix:///run/redis.sock") == "redis+socket:///run/redis.sock"
    found = configuration(Settings(identity="x"))
    assert found["task_acks_late"] and found["task_reject_on_worker_lost"] and found["worker_prefetch_multiplier"] == 1
    assert found["accept_content"] == ["json"] and found["task_ignore_result"]
