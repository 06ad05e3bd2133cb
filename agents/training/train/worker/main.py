"""The main function of a rank: forked from the warm process, it runs the script and exits with its code."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import traceback
import types
from types import CodeType

from belay.agents.training.train.home import Home
from belay.agents.training.train.protocol import Failed, Leaving
from belay.agents.training.train.worker.interruption import TrainingError
from belay.agents.training.train.worker.process import CurrentRank, become

LEAVING = 1.5
"""Seconds for exit handlers (``atexit``), after which a finished rank exits anyway."""


def run(sock: socket.socket, page: int, home: Home, code: CodeType, path: str, arguments: list[str]) -> None:
    """Run the script as ``__main__``; does not return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    member = CurrentRank(sock, page, home)
    become(member)
    member.control.start()
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    try:
        exec(code, module.__dict__)  # noqa: S102 the user's script
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if leave.code is not None and not isinstance(leave.code, int):
            sys.stderr.write(f"{leave.code}\n")
    except BaseException as error:
        traceback.print_exc()
        # what breaks a rule of the contract breaks it again
        final = isinstance(error, TrainingError)
        member.control.send(Failed(f"{type(error).__name__}: {error}"[:500], final))
        _leave(member, 1, failed=True)
    _leave(member, status & 0xFF)


def _leave(member: CurrentRank, status: int, failed: bool = False) -> None:
    """End this process. A script that ``failed`` did not decide to leave: its rank may be replaced."""

    def give_up() -> None:
        if not failed:
            member.control.send(Leaving(status))
        os._exit(status)

    watchdog = threading.Timer(LEAVING, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # groups and their threads are not waited for: destructors of broken ones can block
        give_up()
