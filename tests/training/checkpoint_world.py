"""A writing process of a test's own, and what tests of checkpoints ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from belay.agents.training.checkpoint import client, settings, wire
from belay.agents.training.checkpoint.errors import CheckpointError


def pid_of(work: Path) -> int | None:
    """The writing process of ``work``."""
    try:
        return int((work / wire.PIDFILE).read_text())
    except (OSError, ValueError):
        return None


def kill(work: Path) -> None:
    """Kill the writing process and wait until it has gone."""
    pid = pid_of(work)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether the process runs."""
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def until(true: Callable[[], object], wait_s: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@contextmanager
def writing(work: Path, **chosen: object) -> Iterator[client.WriterClient]:
    """A client whose writing process ends with the test."""
    one = client.WriterClient(work, settings.WriterSettings(**{"capacity_gb": 1, **chosen}))  # type: ignore[arg-type]
    try:
        yield one
    finally:
        with suppress(CheckpointError, OSError):
            one.connect(start=False)
            one.ask({"do": "stop"})
        pid = pid_of(work)
        if pid is not None and alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of ``size`` (a tmpfs) mounted at ``place``; needs root."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Disk:
    """A disk of `torn_disk.py`, mounted at ``place``; ``do`` gives it a command."""

    def __init__(self, place: Path, size: int) -> None:
        place.mkdir()
        self.place = place
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.training.torn_disk", str(place), str(size)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def do(self, what: str, **more: int) -> dict[str, int]:
        """Carry out one command; what it says."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, int]:
        assert self._server.stdout is not None and self._server.stderr is not None
        line = self._server.stdout.readline()
        assert line, self._server.stderr.read()[-500:]
        return dict(json.loads(line))

    def end(self) -> None:
        """Unmount; requests that wait fail."""
        self._server.communicate(timeout=30)


@contextmanager
def torn_disk(place: Path, size: int) -> Iterator[Disk]:
    """A disk that tears what was not synced; the caller has asked :func:`lacks_fuse`."""
    one = Disk(place, size)
    try:
        yield one
    finally:
        one.end()


def lacks_fuse() -> str:
    """Why no disk of ours can be mounted here; empty where it can."""
    if os.geteuid():
        return "mounting a disk of ours needs root"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be used: {error.strerror}"
    # a container may have the device and yet not the right to mount
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "mounting is not permitted in this container"
