"""Processes end when they are asked to, also while nothing answers them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belay import IMPORT_ROOT
from tests.e2e.test_up import MARK, marked
from tests.loop_world import Cluster, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NOWHERE = """\
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
"""


def begin(folder: Path, verb: str, *options: str, **more: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(IMPORT_ROOT), "BELAY_DATA": str(folder), MARK: str(folder)} | more
    with (folder / f"{verb}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "belay.engine.cli", verb, *options], env=environment, stdout=log, stderr=log
        )


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal by now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def talking_to(address: str) -> list[str]:
    """Commands of processes that name the address."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            found += [command] if address in command else []
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_processes_that_reach_nothing_end_when_asked(tmp_path: Path, number: int) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NOWHERE)
    nothing = {"BELAY_REDIS_URL": "redis://127.0.0.1:9/0", "KUBECONFIG": str(kubeconfig), "BELAY_GRPC_LISTEN": "off"}
    running = {
        "worker": begin(tmp_path, "worker", **nothing),
        "controller": begin(tmp_path, "controller", **nothing),
        "server": begin(tmp_path, "server", "--listen", "127.0.0.1:0", **nothing),
    }
    try:
        for verb, process in running.items():
            until(lambda: catches(process.pid, signal.SIGTERM), 60, what=f"the start of {verb}")  # noqa: B023
        until(lambda: "Cannot connect" in (tmp_path / "worker.log").read_text(), 60, what="the worker's first try")
        for process in running.values():
            process.send_signal(number)
        for verb, process in running.items():
            assert process.wait(60) in {0, -number}, f"{verb}: {(tmp_path / f'{verb}.log').read_text()[-1000:]}"
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert marked(tmp_path) == {}


def test_a_worker_under_nohup_survives_its_terminal(tmp_path: Path, redis_url: str, cluster: Cluster) -> None:  # noqa: F811
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = begin(tmp_path, "worker", BELAY_REDIS_URL=redis_url, KUBECONFIG=cluster.kubeconfig)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        until(lambda: " ready." in (tmp_path / "worker.log").read_text(), 60, what="the worker")
        process.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_controller_ends_while_its_repository_does_not_answer(
    tmp_path: Path,
    redis_url: str,  # noqa: F811
    cluster: Cluster,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        address = f"https://127.0.0.1:{silent.getsockname()[1]}/state.git"
        more = {"BELAY_REDIS_URL": redis_url, "KUBECONFIG": cluster.kubeconfig, "BELAY_SOURCE_URL": address}
        process = begin(tmp_path, "controller", **more)
        try:
            connection, _ = silent.accept()
            with connection:
                assert any("ls-remote" in command for command in talking_to(address))
                process.terminate()
                assert process.wait(60) == 0
                until(lambda: not talking_to(address), what="the end of git")
        finally:
            process.kill()
            process.wait()
