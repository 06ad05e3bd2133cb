"""The rank processes of one node: forked from the warm process, watched by pidfd, ended one by one.

The owner of the event loop polls ``descriptors()`` and calls ``handle``, which returns events.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from belay.agents.training.train.agent.warm_processes import RETURNING, STOPPED, WarmProcesses, state
from belay.agents.training.train.frames import Connection, FrameError, Message
from belay.agents.training.train.home import AGENT_GONE, TAKEN, Home
from belay.agents.training.train.notices import say
from belay.agents.training.train.page import Page
from belay.agents.training.train.protocol import Failed, Leaving

CLOSING = 2.0
"""Seconds to wait for killed processes at the end."""


@dataclass
class RankProcess:
    """The process of a rank, or a spare (``rank`` is None), which has run the script up to the first use of its
    rank."""

    slot: int
    line: Connection
    page: Page
    pid: int = 0
    pidfd: int = -1
    rank: int | None = None
    incarnation: int = 0
    leaving: int | None = None
    failed: str = ""
    status: int | None = None
    done: int = -1
    """Steps that it had finished when it ended, read from its page."""
    ending: str = ""
    stopped_at: float | None = None
    watched: int = -1
    """Steps that it had finished when it was last looked at: one that finishes steps is not stopped."""
    silent: bool = False
    """It has closed its connection; usually it ends next."""
    silent_at: float | None = None


@dataclass(frozen=True)
class RankMessage:
    """A message of a rank."""

    process: RankProcess
    message: Message
    payload: bytes


@dataclass(frozen=True)
class ProcessLost:
    """A process has ended; ``why`` continues "rank 3 …"."""

    process: RankProcess
    why: str


@dataclass(frozen=True)
class StartFailed:
    """Ranks cannot be started; ``text`` is the reason."""

    text: str


Event = RankMessage | ProcessLost | StartFailed


class Ranks:
    """Starts, stops and messages single ranks."""

    def __init__(
        self, python: str, script: list[str], env: dict[str, str], spares: int, home: Home, returning: bool
    ) -> None:
        """``script`` with its arguments; ``returning``: processes of a former agent may come (`adopt`)."""
        command = [python, "-m", "belay.agents.training.train.agent.warm", home.name, str(home.supervisor), *script]
        self.spares = spares
        self.processes: dict[int, RankProcess] = {}
        self._slots = itertools.count(1)
        self._forks: deque[tuple[RankProcess, list[int]]] = deque()
        self._unexplained: dict[int, bool] = {}
        now = time.monotonic()
        self._warm = WarmProcesses(command, env, now + RETURNING if returning else now)
        self._warm.watch(now)

    def of(self, rank: int) -> RankProcess | None:
        """The current process of a rank."""
        return next((one for one in self.processes.values() if one.rank == rank and not one.ending), None)

    def start(self, rank: int, incarnation: int, assignment: Message) -> RankProcess:
        """Assign a waiting spare, or a new fork, to ``rank``."""
        spare = next((one for one in self.processes.values() if one.rank is None and one.pid and not one.ending), None)
        process = spare or self._fork()
        process.rank, process.incarnation = rank, incarnation
        self.send(process, assignment)
        return process

    def stop(self, process: RankProcess, why: str, number: int = signal.SIGKILL) -> None:
        """Signal a process; its ``ProcessLost`` follows."""
        if number == signal.SIGKILL:
            process.ending = process.ending or why
        if process.pid:
            try:
                signal.pidfd_send_signal(process.pidfd, number)
            except ProcessLookupError:
                pass

    def send(self, process: RankProcess, message: Message, payload: bytes = b"") -> None:
        """Send to a rank; a rank whose connection is broken is ended."""
        try:
            process.line.send(message, payload)
        except (BrokenPipeError, ConnectionResetError):
            # usually it has just ended, which its pidfd reports
            process.silent = True
        except (OSError, FrameError):
            self.stop(process, "did not read its messages")

    def keep_spares(self) -> None:
        """Start spares up to the configured number."""
        if not self._warm.ready or self._forks:
            return
        self._warm.keep_standby()
        for _ in range(self.spares - sum(1 for one in self.processes.values() if one.rank is None)):
            self._fork()

    def descriptors(self) -> list[tuple[int, bool]]:
        """Descriptors to poll: (descriptor, also for writing)."""
        found = [(descriptor, False) for descriptor in self._warm.descriptors()]
        for process in self.processes.values():
            if not process.silent:
                found.append((process.line.fileno(), process.line.waiting))
            if process.pidfd >= 0:
                found.append((process.pidfd, False))
        return found

    def handle(self, ready: Iterable[int]) -> list[Event]:
        """Events of the descriptors that are ready."""
        descriptors = set(ready)
        events = self._receive_from_warm(descriptors)
        for process in list(self.processes.values()):
            if process.pidfd in descriptors:
                # its last messages first: it may have reported that it leaves
                events += self._receive(process)
                events.append(self._ended(process))
            elif process.line.fileno() in descriptors:
                events += self._receive(process)
        return events

    def watch(self, now: float) -> None:
        """End processes that were stopped (SIGSTOP) or disconnected for too long; called periodically."""
        for process in self.processes.values():
            if not process.pid:
                continue
            if process.silent:
                process.silent_at = process.silent_at or now
                if now - process.silent_at > 1:
                    self.stop(process, "closed its connection to the node agent")
            before, process.watched = process.watched, process.page.read()[0]
            if process.watched != before or state(process.pid) != "T":
                process.stopped_at = None
            elif process.stopped_at is None:
                process.stopped_at = now
            elif now - process.stopped_at >= STOPPED:
                self.stop(process, f"was stopped (SIGSTOP) for {now - process.stopped_at:.1f} s and was ended")
        self._warm.watch(now)

    def close(self) -> None:
        """End every process of this node and wait for them."""
        for process in list(self.processes.values()):
            self.stop(process, "the job ends")
        self._warm.close()
        for process in self.processes.values():
            process.line.close()
            if process.pidfd >= 0:
                os.close(process.pidfd)
        self.processes.clear()
        # the ranks are children of this process now; reap them all
        end = time.monotonic() + CLOSING
        while time.monotonic() < end:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.005)
            except ChildProcessError:
                return

    def _fork(self) -> RankProcess:
        ours, theirs = socket.socketpair()
        page = Page.create()
        process = RankProcess(next(self._slots), Connection(ours), Page(page))
        self.processes[process.slot] = process
        self._forks.append((process, [theirs.detach(), page]))
        self._send_forks()
        return process

    def _send_forks(self) -> None:
        while self._forks:
            process, descriptors = self._forks[0]
            if not self._warm.fork(process.slot, descriptors):
                return
            self._forks.popleft()
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive_from_warm(self, ready: set[int]) -> list[Event]:
        events: list[Event] = []
        for came in self._warm.handle(ready):
            message = came.message
            match message["t"]:
                case "unable":
                    return [*events, StartFailed(message["text"])]
                case "lost":
                    events += self._never_started()
                case "forked":
                    self._forked(message["slot"], message["pid"], came.descriptors[0])
                case "ended":
                    self._explain(message["pid"], message["status"])
        self._send_forks()
        return events

    def _forked(self, slot: int, pid: int, pidfd: int) -> None:
        process = self.processes.get(slot)
        if process is None:
            os.close(pidfd)
            return
        process.pid, process.pidfd = pid, pidfd
        if process.ending:
            self.stop(process, process.ending)

    def _never_started(self) -> list[Event]:
        """Forks that the lost warm process was asked for and had not confirmed."""
        waiting = {process.slot for process, _ in self._forks}
        unborn = [one for one in self.processes.values() if not one.pid and one.slot not in waiting]
        return [self._ended(one, "its process was never started") for one in unborn]

    def _explain(self, pid: int, status: int) -> None:
        """Record the exit status of a process, which its parent reports; usually its pidfd was faster."""
        for process in self.processes.values():
            if process.pid == pid:
                process.status = status
                return
        if self._unexplained.pop(pid, None) and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number != signal.SIGKILL:
                say(f"process {pid} was ended by {signal.Signals(number).name}")
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) not in (0, AGENT_GONE):
            say(f"process {pid} had ended with {os.WEXITSTATUS(status)}")

    def adopt(self, sock: socket.socket, with_rank: bool) -> dict[str, Any] | None:
        """Take over a process that a former node agent had started, by its first message on ``sock``: the state of a
        rank; None for a spare, a warm process, and one that is not needed or whose message cannot be used.
        ``with_rank``: ranks may still come."""
        sock.settimeout(1)
        page: list[int] = []
        try:
            data, page, _, _ = socket.recv_fds(sock, 1 << 20, 1)
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            body = json.loads(data)
            if uid != os.getuid() or not page:
                raise ValueError("not a process of ours")
            if body.get("t") == "warm":
                self._adopt_warm(sock, pid, page[0])
                return None
            process, state = self._adopted(sock, pid, page[0], body, with_rank)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sock.close()
            return None
        finally:
            for descriptor in page:
                os.close(descriptor)

        try:
            sock.send(TAKEN)
        except OSError:
            # its end follows
            pass
        self.processes[process.slot] = process
        return state

    def _adopt_warm(self, sock: socket.socket, pid: int, descriptor: int) -> None:
        with sock:
            if self._warm.adopt(pid, descriptor):
                sock.send(TAKEN)
        self._send_forks()

    def _adopted(
        self, sock: socket.socket, pid: int, page: int, body: dict[str, Any], with_rank: bool
    ) -> tuple[RankProcess, dict[str, Any] | None]:
        """The process behind a message of a rank or a spare, and the rank's state. Raises what bad messages raise, and
        ``ValueError`` when it is not needed."""
        rank = body["rank"]
        if rank is None:
            if sum(1 for one in self.processes.values() if one.rank is None) >= self.spares:
                raise ValueError("one spare too many")
        elif not with_rank or self.of(int(rank)) is not None:
            raise ValueError("the rank is not needed")
        incarnation = int(body["inc"])
        shards = {int(number): str(shard) for number, shard in body["shards"].items()}
        state = {name: body[name] for name in ("rank", "inc", "gen", "entered", "finished", "leaving", "done")}

        process = RankProcess(next(self._slots), Connection(sock), Page(page), pid, os.pidfd_open(pid))
        if rank is None:
            return process, None
        process.rank, process.incarnation = int(rank), incarnation
        return process, {**state, "shards": shards, "active": body.get("active", ()), "divides": body.get("divides")}

    def _receive(self, process: RankProcess) -> list[Event]:
        found: list[Event] = []
        try:
            process.line.flush()
            while messages := process.line.receive():
                for message, payload in messages:
                    if message["t"] == Leaving.KIND:
                        process.leaving = int(message.get("code", 1))
                    elif message["t"] == Failed.KIND:
                        process.failed = str(message.get("text", ""))
                    found.append(RankMessage(process, message, payload))
            if messages is None:
                process.silent = True
        except ValueError as error:
            self.stop(process, f"sent an unreadable message ({error})")
        except OSError:
            # it ended with messages unread
            process.silent = True
        return found

    def _ended(self, process: RankProcess, why: str = "") -> ProcessLost:
        del self.processes[process.slot]
        process.line.close()
        process.done = process.page.read()[0]
        process.page.close()
        if process.pidfd >= 0:
            os.close(process.pidfd)
            try:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    process.status = status
            except ChildProcessError:
                # the warm process is its parent and reaps it
                pass
        if process.status is None and not process.ending:
            self._unexplained[process.pid] = True
            while len(self._unexplained) > 100:
                del self._unexplained[next(iter(self._unexplained))]
        return ProcessLost(process, why or process.ending or _why(process))


def _why(process: RankProcess) -> str:
    if process.failed:
        return f"failed: {process.failed}"
    if process.leaving is not None:
        return f"left with {process.leaving}"
    if process.status is None:
        return f"died (process {process.pid})"
    if os.WIFSIGNALED(process.status):
        return f"was killed by {signal.Signals(os.WTERMSIG(process.status)).name} (process {process.pid})"
    return f"ended with {os.waitstatus_to_exitcode(process.status)} (process {process.pid})"
