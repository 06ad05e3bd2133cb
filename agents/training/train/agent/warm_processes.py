"""The warm process of a node and its standby, as the node agent sees them: started, watched, replaced when lost, and
taken over from an agent that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from belay.agents.training.train.notices import say

STOPPED = 0.4
"""Seconds in the state stopped (SIGSTOP) after which a process counts as lost."""
LOOK = 0.3
"""Seconds between looks at whether they are stopped; ranks are at work beside them."""
RETURNING = 1.0
"""Seconds for which a new agent waits for the warm process of its predecessor before it starts one."""
DEATHS = 5
"""Times that a warm process may end in a row before it is ready."""


@dataclass
class WarmProcess:
    """A process that forks ranks. ``child``: it is one of this agent's own."""

    sock: socket.socket
    pid: int = 0
    pidfd: int = -1
    child: subprocess.Popen[bytes] | None = None
    ready: bool = False
    stopped_at: float | None = None

    def named(self, pid: int) -> None:
        """Its process is known now."""
        if self.pidfd < 0:
            with contextlib.suppress(OSError):
                self.pid, self.pidfd = pid, os.pidfd_open(pid)

    def kill(self) -> None:
        """End it, if it is there."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> int | None:
        """End it; its exit code where it is a child."""
        with contextlib.suppress(OSError):
            self.sock.send(b'{"end": true}')
        self.sock.close()
        self.kill()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return self.child.wait() if self.child is not None else None


@dataclass(frozen=True)
class WarmMessage:
    """A message of a warm process, with descriptors; ``{"t": "lost"}`` when one was lost and what it was asked for will
    not come."""

    message: dict[str, Any]
    descriptors: list[int]


class WarmProcesses:
    """One warm process, and a fork of it that replaces it at once: it shares its pages, so it costs almost nothing."""

    def __init__(self, command: list[str], env: dict[str, str], start_at: float) -> None:
        """``command`` without the descriptor, which is its next argument; ``start_at``: when to start one if none of a
        former agent has come until then."""
        self._module, self._rest, self._env = command[:3], command[3:], env
        self._first: WarmProcess | None = None
        self._standby: WarmProcess | None = None
        self._start_at = start_at
        self._looked_at = 0.0
        self._deaths = 0

    @property
    def ready(self) -> bool:
        """Whether ranks can be forked now."""
        return self._first is not None and self._first.ready

    def descriptors(self) -> list[int]:
        """What to poll."""
        return [one.sock.fileno() for one in (self._first, self._standby) if one is not None]

    def fork(self, slot: int, descriptors: list[int]) -> bool:
        """Ask for a rank; False when that is not possible now."""
        if self._first is None or not self._first.ready:
            return False
        try:
            socket.send_fds(self._first.sock, [json.dumps({"slot": slot}).encode()], descriptors)
        except OSError:
            # full, or lost, which reading shows
            return False
        return True

    def keep_standby(self) -> None:
        """Fork the standby where there is none."""
        if self._standby is not None or not self.ready:
            return
        assert self._first is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._first.sock, [b'{"standby": true}'], [theirs.fileno()])
        except OSError:
            ours.close()
        else:
            ours.setblocking(False)
            # what is asked of it before it says so, it finds in its socket
            self._standby = WarmProcess(ours, ready=True)
        theirs.close()

    def adopt(self, pid: int, descriptor: int) -> bool:
        """Take over the warm process of a former agent; False when it is not needed."""
        if self._standby is not None:
            return False
        came = WarmProcess(socket.socket(fileno=os.dup(descriptor)), ready=True)
        came.sock.setblocking(False)
        came.named(pid)
        if self._first is not None and self._first.ready:
            self._standby = came
        else:
            # one that is still importing becomes the standby
            self._first, self._standby = came, self._first
        return True

    def watch(self, now: float) -> None:
        """Start one when it is time, and end those that are stopped (SIGSTOP); called periodically."""
        if self._first is None and now >= self._start_at:
            self._start()
        if now - self._looked_at < LOOK:
            return
        self._looked_at = now
        for one in (self._first, self._standby):
            if one is None or not one.pid:
                continue
            if state(one.pid) != "T":
                one.stopped_at = None
            elif one.stopped_at is None:
                one.stopped_at = now
            elif now - one.stopped_at >= STOPPED:
                # its connection reports its end
                one.kill()

    def handle(self, ready: set[int]) -> list[WarmMessage]:
        """What has come, by the descriptors that are ready."""
        messages: list[WarmMessage] = []
        for one in (self._standby, self._first):
            if one is not None and one.sock.fileno() in ready:
                messages += self._receive(one)
        return messages

    def close(self) -> None:
        """End both."""
        for one in (self._first, self._standby):
            if one is not None:
                one.close()
        self._first = self._standby = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = [*self._module, str(theirs.fileno()), *self._rest]
        child = subprocess.Popen(
            command, env=self._env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0
        )
        theirs.close()
        self._first = WarmProcess(ours, child=child)
        self._first.named(child.pid)

    def _receive(self, one: WarmProcess) -> list[WarmMessage]:
        messages: list[WarmMessage] = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(one.sock, 1 << 16, 4)
            except BlockingIOError:
                return messages
            except OSError:
                data, descriptors = b"", []
            if not data:
                return messages + self._lost(one)
            message: dict[str, Any] = json.loads(data)
            if message["t"] == "warm":
                one.named(int(message["pid"]))
                one.ready, self._deaths = True, 0
            messages.append(WarmMessage(message, descriptors))
            if message["t"] == "unable":
                # the first one's reason ends the job; without a standby it goes on
                return messages if one is self._first else self._lost(one)

    def _lost(self, one: WarmProcess) -> list[WarmMessage]:
        code = one.close()
        if one is self._standby:
            self._standby = None
            return []
        self._first, self._standby = self._standby, None
        self._deaths += 1
        messages = [WarmMessage({"t": "lost"}, [])]
        if self._first is not None:
            return messages
        if self._deaths > DEATHS:
            text = f"{self._module[0]} ended with {code} while importing, {self._deaths} times"
            return [*messages, WarmMessage({"t": "unable", "text": text}, [])]
        say("the warm process was lost; a new one is started")
        self._start()
        return messages


def state(pid: int) -> str:
    """The state of a process, as a letter of /proc; "T": it is stopped. Empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b") ")[2][0])
    except (OSError, IndexError):
        return ""
