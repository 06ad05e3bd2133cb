"""The process of ``belay train``: it starts the node agent, and restarts it when it is killed or stopped, while the
ranks train on. It does nothing else, so that little can end it.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from belay import IMPORT_ROOT
from belay.agents.training.train.agent.warm_processes import STOPPED, state
from belay.agents.training.train.notices import say

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
RETURN_SOCKET = "BELAY_TRAIN_DOOR"
"""Variable of an agent: name of the abstract Unix socket at which ranks connect to a new agent."""
RESTARTS = "BELAY_TRAIN_RESTARTS"
"""Variable of an agent: how many agents ran before it."""
WORKED = "BELAY_TRAIN_WORKED"
"""Variable of an agent: descriptor to which it writes how far its ranks are."""
WORKED_ON, ALL_FINISHED = b"+", b"."
"""What it writes: its ranks have finished a step; all ranks of the job have finished, and leave."""
LEAVING = "BELAY_TRAIN_LEAVING"
"""Variable of an agent: 1 when its predecessor knew that all ranks have finished."""
HURRIED = 5
"""Number of consecutive agents under which no rank finished a step and that live less than ten seconds, after which the
job ends."""


def supervise(command: Sequence[str]) -> int:
    """Run agents until one ends regularly; its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return_socket = f"belay-train-{os.getuid()}-{secrets.token_hex(8)}"
    paths = [str(IMPORT_ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, RETURN_SOCKET: return_socket, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    agent: subprocess.Popen[bytes] | None = None
    asked = 0

    def pass_on(number: int, _: Any) -> None:
        nonlocal asked
        asked = number
        if agent is not None:
            os.kill(agent.pid, number)

    # a closed terminal ends the job, unless it was started under nohup
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    for number in (signal.SIGTERM, signal.SIGINT, *hang_up):
        signal.signal(number, pass_on)
    hurried = restarts = 0
    worked, works = os.pipe()
    os.set_blocking(worked, False)
    while True:
        began = time.monotonic()
        agent = subprocess.Popen(
            list(command),
            env={**env, RESTARTS: str(restarts), WORKED: str(works)},
            pass_fds=[works],
            process_group=0,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        code = _ended(agent.pid)
        if code >= 0 or asked:
            _reap(2.0)
            return code if code >= 0 else 128 + asked
        told = _read(worked)
        if ALL_FINISHED in told:
            env[LEAVING] = "1"
        hurried = hurried + 1 if time.monotonic() - began < 10 and not told else 0
        restarts += 1
        if hurried >= HURRIED:
            why = f"the node agent was killed {hurried} times in a row"
            say(f"{why}, each within ten seconds and before a step was finished: the job ends")
            return 1
        say(f"the node agent was killed by {signal.Signals(-code).name}; another one takes over its ranks")


def _read(descriptor: int) -> bytes:
    """What was written to a pipe, which is empty then."""
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def _ended(agent: int) -> int:
    """Wait for the agent and reap other children that end meanwhile: its exit code, or minus the signal. A child that
    is stopped (SIGSTOP) for long is ended: an agent that carries out nothing, or a rank that outlived its agent."""
    while True:
        ended, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            _end_stopped(ended, STOPPED)
        elif ended == agent:
            return os.waitstatus_to_exitcode(status)


def _end_stopped(pid: int, seconds: float) -> None:
    """End a child that stays stopped for ``seconds``. One that has left this session is not the job's (a daemon that a
    script started)."""
    end = time.monotonic() + seconds
    while state(pid) == "T":
        if os.getsid(pid) != os.getsid(0):
            return
        if time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def _reap(seconds: float) -> None:
    """Reap children for up to ``seconds``, so that no zombie of the job is left, and end stopped ones."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.005)
        elif os.WIFSTOPPED(status):
            _end_stopped(pid, 0)
