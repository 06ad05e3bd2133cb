"""Child processes that end with this process, are restarted when they end, and are stopped in order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from belay.engine.errors import bounded

_PR_SET_PDEATHSIG: Final = 1
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_HEALTHY_S: Final = 60.0
"""Seconds after which a child's next restart pause is short again."""
MAX_LOG_BYTES: Final = 32 * 1024 * 1024
"""A child's log is emptied beyond this size."""

_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; call it between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class ChildProcess:
    """One child process. Start it from a thread that lives as long as the child should: the kernel ends both
    together."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._started = 0.0
        self.due = 0.0

    @property
    def pid(self) -> int:
        """Its process id, 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; negative for a signal, None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it in its own session, so that Ctrl-C reaches only this process, which stops children in order."""
        parent = os.getpid()
        self._started, self.due = time.monotonic(), 0.0
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(parent),
            )

    def plan_restart(self) -> float:
        """Set the restart time of an ended child, after a growing, jittered pause. Returns the pause in seconds."""
        if time.monotonic() - self._started > _HEALTHY_S:
            self._failures = 0
        ceiling = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        pause = random.uniform(0.1, ceiling)
        self.due = time.monotonic() + pause
        return pause

    def terminate(self) -> None:
        """Send the child SIGTERM."""
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """Kill it and everything it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, seconds: float) -> None:
        """Ask it to end, and kill it after that many seconds. Safe to call twice."""
        self.terminate()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def log_end(self, limit: int = 400) -> str:
        """The end of its log, on one line."""
        return bounded(" ".join(self._tail().split())[-limit:], limit)

    def _tail(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 4096))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def last_line(self, limit: int = 160) -> str:
        """The last line of its log, cut."""
        text = self._tail()
        return bounded(text.rsplit("\n", 1)[-1], limit) if text else ""

    def keep_log_small(self) -> None:
        """Empty a log that is too large; the child continues to append to it."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self.log, 0)


class ChildProcesses:
    """Children in the order in which they depend on each other."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.children: list[ChildProcess] = []
        self._say = say

    def start(self, child: ChildProcess) -> ChildProcess:
        """Start a child and add it to those that are watched."""
        self.children.append(child)
        child.start()
        return child

    def restart_ended(self) -> None:
        """Check every child once: report those that ended, and restart them after their pause."""
        for child in self.children:
            child.keep_log_small()
            if child.running:
                continue
            if not child.due:
                pause = child.plan_restart()
                ending = _ending(child.exit_code)
                words = f": {child.last_line()}" if (child.exit_code or 0) > 0 else ""
                self._say(f"{child.name} ended ({ending}){words}; starting it again in {pause:.1f} s; log: {child.log}")
            elif time.monotonic() >= child.due:
                child.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop all but the first together, then the first, on which the others depend; kill those that are slow."""
        ends = time.monotonic() + seconds
        rest, foundation = self.children[:0:-1], self.children[:1]
        for child in rest:
            child.terminate()
        for child in (*rest, *foundation):
            child.stop(max(0.5, ends - time.monotonic()))

    def kill(self) -> None:
        """Kill every child and what it started (SIGKILL)."""
        for child in reversed(self.children):
            child.kill()


def _ending(code: int | None) -> str:
    if code is None:
        return "running"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
