"""Where a thread of this process waits: in which call, at which line, and whether outside of its process group.

A collective of gloo or NCCL waits in a futex while other threads move the bytes. A thread that is in a call of the
kernel for files, sockets, other processes or a timed sleep waits for something else, which says when it ends or may
take long: remote storage, an evaluation service. Fields: proc_pid_syscall(5); own threads may always be looked at.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

_INPUT = (
    "read",
    "recvfrom",
    "recvmsg",
    "poll",
    "select",
    "accept",
    "connect",
    "wait",
    "epoll",
    "lock",
    "write",
    "open",
)
_NUMBERS: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 17: "read", 19: "read", 20: "write", 23: "select", 35: "nanosleep",
        42: "connect", 43: "accept", 45: "recvfrom", 47: "recvmsg", 61: "wait", 72: "lock", 73: "lock", 74: "write",
        230: "clock_nanosleep", 232: "epoll", 247: "wait", 257: "open", 270: "select", 271: "poll", 281: "epoll",
        288: "accept",
    },
    "aarch64": {
        22: "epoll", 25: "lock", 32: "lock", 56: "open", 63: "read", 64: "write", 65: "read", 66: "write", 67: "read",
        72: "select", 73: "poll", 82: "write", 95: "wait", 101: "nanosleep", 115: "clock_nanosleep", 202: "accept",
        203: "connect", 207: "recvfrom", 212: "recvmsg", 242: "accept", 260: "wait",
    },
}  # fmt: skip
"""System calls in which a thread waits for something that is not its group, by machine."""
UNBOUNDED = 1e9
"""Seconds of a wait whose end is not known."""
_ABSOLUTE = 1
_LIBRARIES = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (sysconfig.get_paths()["stdlib"], Path(torch.__file__).parent, Path(__file__).resolve().parents[2])
)
_SHELLS = frozenset({"wrapper", "inner", "_fn", "_wrapped_call_impl", "_call_impl", "decorate_context"})


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@dataclass(frozen=True)
class Wait:
    """``text`` continues "rank 3 is"; ``outside``: seconds for which it may wait for something that is not its group, 0
    where it waits for its group or computes."""

    text: str
    outside: float


def of_main_thread() -> Wait:
    """Where the main thread is."""
    # the kernel's number of the main thread is that of the process; Python's is stale after a fork
    call, seconds = _kernel_call(os.getpid())
    return Wait(_place(sys._current_frames().get(threading.main_thread().ident or 0), call), seconds)


def _kernel_call(thread: int) -> tuple[str, float]:
    """The call of the kernel in which a thread is, and for how long it may be there without being wrong."""
    try:
        fields = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        name = _NUMBERS.get(platform.machine(), {}).get(int(fields[0]), "")
    except (OSError, ValueError, IndexError):
        # it runs, or this kernel does not say
        return "", 0.0
    if name in ("nanosleep", "clock_nanosleep"):
        return "sleep", _sleeps(name, [int(one, 16) for one in fields[1:5]])
    return name, UNBOUNDED if name in _INPUT else 0.0


def _sleeps(name: str, arguments: list[int]) -> float:
    """Seconds until a sleep ends; its request lies in the memory of this process."""
    clock, flags, address = (time.CLOCK_MONOTONIC, 0, arguments[0]) if name == "nanosleep" else arguments[:3]
    if not address:
        return 0.0
    until = _TimeSpec.from_address(address)
    seconds = float(until.seconds + until.nanoseconds / 1e9)
    return max(0.0, seconds - time.clock_gettime(clock)) if flags & _ABSOLUTE else seconds


def _place(frame: FrameType | None, call: str) -> str:
    """The innermost line of the script, and what it has called."""
    above: list[str] = []
    while frame is not None:
        code = frame.f_code
        if not os.path.realpath(code.co_filename).startswith(_LIBRARIES) and not code.co_filename.startswith("<"):
            called = next((name for name in reversed(above) if name not in _SHELLS), call)
            where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
            return f"in {called}, {where}" if called else f"at {where}"
        above.append(code.co_name)
        frame = frame.f_back
    return f"in {above[-1]}" if above else "at its end"
