"""The launcher's side of `warm_start`: restarted ranks are forked from a process that has imported PyTorch.

Only the launcher imports this file (it imports torch). torchrun itself starts a rank the first time; the warm process
starts some seconds later, so that it does not slow this down. When it is not ready or cannot start, when the entrypoint
is not a Python script, or with torch_npu, whose import must not be forked, torchrun starts ranks again too.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Final

from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

log = logging.getLogger(__name__)

FORK_SECONDS: Final = 2.0
WORD_SECONDS: Final = 10.0
"""How long the warm process may take to report the end of a process; a loaded machine needs more than a moment."""
PR_SET_CHILD_SUBREAPER: Final = 36
MAX_DEATHS: Final = 3
INTERPRETER_FLAGS: Final = frozenset({"-u"})


def script_of(entrypoint: Any, args: tuple[Any, ...]) -> list[str] | None:
    """The arguments after the interpreter and -u: a script, or -m and a module, with arguments; None for anything
    else."""
    if not isinstance(entrypoint, str) or os.path.realpath(entrypoint) != os.path.realpath(sys.executable):
        return None
    argv = [str(arg) for arg in args]
    while argv and argv[0] in INTERPRETER_FLAGS:
        argv = argv[1:]
    return argv if argv and (argv[0] == "-m" or not argv[0].startswith("-")) else None


class WarmStart:
    """The warm process of a launcher."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._deaths = 0
        self._pids: list[int] = []
        self._ended: dict[int, int] = {}
        self._gone_at: dict[int, float] = {}

    def prepare(self) -> None:
        """Start the process if there is none, without waiting."""
        if self._line is not None or self._deaths >= MAX_DEATHS:
            return
        if os.environ.get("TASKD_WARM_START") == "off" or importlib.util.find_spec("torch_npu") is not None:
            self._deaths = MAX_DEATHS
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "belay.agents.training.compat.taskd.warm_start", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0
            )
        except OSError as error:
            log.warning("no warm process: %s", error)
            self._deaths = MAX_DEATHS
            ours.close()
            return
        finally:
            theirs.close()
        self._line, self._ready = ours, False
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            log.warning("exit codes of ranks are unknown once the warm process is lost (prctl: %d)", ctypes.get_errno())

    def receive(self, seconds: float = 0.0) -> None:
        """Receive messages of the process, waiting up to ``seconds`` for the first one."""
        while self._line is not None and select.select([self._line], [], [], seconds)[0]:
            seconds = 0.0
            try:
                data = self._line.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                return self._lost()
            found = json.loads(data)
            match found["t"]:
                case "ready":
                    self._ready = True
                case "forked":
                    self._pids.append(found["pid"])
                case "ended":
                    self._ended[found["pid"]] = found["status"]
                case "unable":
                    log.warning("no warm process: %s", found["text"])
                    self._deaths = MAX_DEATHS

    def _lost(self) -> None:
        self._deaths += 1
        self.close()

    def ready(self) -> bool:
        """Whether the process can fork now."""
        self.receive()
        return self._ready and self._line is not None

    def outcome(self, pid: int) -> int | None:
        """The exit code of a process that the warm process forked; None while it runs or its code is not known yet.

        The warm process is its parent and reports the code soon after the end. Where the warm process is lost, its
        children have become children of the launcher (`PR_SET_CHILD_SUBREAPER`).
        """
        self.receive()
        if pid not in self._ended and not _exists(pid):
            late = time.monotonic() - self._gone_at.setdefault(pid, time.monotonic()) >= WORD_SECONDS
            if self._line is None or late:
                self._ended[pid] = _collected(pid)
        return self._ended.get(pid)

    def start(self, env: dict[str, str], argv: list[str], stdout: str, stderr: str) -> int | None:
        """Fork a rank; its pid, or None when the process is not ready or does not answer."""
        self.receive()
        if self._line is None or not self._ready:
            return None
        request = {
            "env": {**os.environ, **env}, "argv": argv, "cwd": os.getcwd(), "stdout": stdout, "stderr": stderr,
        }  # fmt: skip
        self._pids.clear()
        try:
            self._line.send(json.dumps(request).encode())
        except OSError as error:
            log.warning("the warm process does not take a rank: %s", error)
            self._lost()
            return None
        last = time.monotonic() + FORK_SECONDS
        while not self._pids and self._line is not None and (left := last - time.monotonic()) > 0:
            self.receive(left)
        if not self._pids:
            log.warning("the warm process did not fork within %.0f s", FORK_SECONDS)
            self._lost()
            return None
        return self._pids.pop()

    def close(self) -> None:
        """End the warm process; its forks go on."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class WarmContext:
    """A rank that the warm process forked, as torch's PContext of one process: pids, wait, close."""

    def __init__(self, warm: WarmStart, pid: int, logs: Any) -> None:
        self._warm, self._pid, self._logs = warm, pid, logs

    def pids(self) -> dict[int, int]:
        """The process of the rank."""
        return {0: self._pid}

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """The result, or None while the rank runs; never blocks."""
        code = self._warm.outcome(self._pid)
        if code is None:
            return None
        result = RunProcsResult(stdouts=self._logs.stdouts, stderrs=self._logs.stderrs)
        if code:
            result.failures[0] = ProcessFailure(
                local_rank=0, pid=self._pid, exitcode=code, error_file=self._logs.error_files[0]
            )
        else:
            result.return_values[0] = None
        return result

    def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        """End the rank: send the signal, wait up to ``timeout`` seconds, send SIGKILL."""
        for number, seconds in ((death_sig or signal.SIGKILL, timeout), (signal.SIGKILL, 5)):
            if self._over():
                return
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:
                return
            last = time.monotonic() + seconds
            while time.monotonic() < last and not self._over():
                time.sleep(0.005)

    def _over(self) -> bool:
        return self._warm.outcome(self._pid) is not None


def _collected(pid: int) -> int:
    """The exit code of an orphan; -SIGKILL where it cannot be known."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else -signal.SIGKILL
    except ChildProcessError:
        return -signal.SIGKILL


def _exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
