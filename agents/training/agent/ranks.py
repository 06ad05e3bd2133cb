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
import subprocess
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agents.training.frames import Connection, FrameError, Message
from agents.training.notices import say
from agents.training.page import Page

CLOSING = 2.0
"""Seconds to wait for killed processes at the end."""
STOPPED = 0.4
"""Seconds in the state stopped (SIGSTOP) after which a process counts as lost."""


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
    """Starts, stops and messages single ranks; replaces the warm process when it is lost."""

    def __init__(self, python: str, script: str, arguments: list[str], env: dict[str, str], spares: int) -> None:
        self._command = [python, "-m", "agents.training.agent.warm"]
        self._script, self._arguments, self._env = script, arguments, env
        self.spares = spares
        self.processes: dict[int, RankProcess] = {}
        self._slots = itertools.count(1)
        self._warm: socket.socket | None = None
        self._standby: socket.socket | None = None
        """A fork of the warm process that replaces it at once; it shares its pages, so it costs almost nothing."""
        self._warm_process: subprocess.Popen[bytes] | None = None
        self._warm_pid = self._standby_pid = 0
        self._helpers_stopped: dict[int, float] = {}
        """Process → since when the warm process or its replacement is stopped."""
        self._ready = False
        self._forks: deque[tuple[RankProcess, list[int]]] = deque()
        self._warm_deaths = 0
        self._unexplained: dict[int, bool] = {}
        self._warm_up()

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
        if not self._ready or self._forks:
            return
        if self._standby is None and self._warm is not None:
            self._fork_standby(self._warm)
        for _ in range(self.spares - sum(1 for one in self.processes.values() if one.rank is None)):
            self._fork()

    def descriptors(self) -> list[tuple[int, bool]]:
        """Descriptors to poll: (descriptor, also for writing)."""
        found = [(one.fileno(), False) for one in (self._warm, self._standby) if one is not None]
        for process in self.processes.values():
            if not process.silent:
                found.append((process.line.fileno(), process.line.waiting))
            if process.pidfd >= 0:
                found.append((process.pidfd, False))
        return found

    def handle(self, ready: Iterable[int]) -> list[Event]:
        """Events of the descriptors that are ready."""
        descriptors = set(ready)
        events: list[Event] = []
        if self._warm and self._warm.fileno() in descriptors:
            events += self._receive_from_warm()
        if self._standby and self._standby.fileno() in descriptors:
            self._receive_from_standby()
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
            if state(process.pid) != "T":
                process.stopped_at = None
            elif process.stopped_at is None:
                process.stopped_at = now
            elif now - process.stopped_at >= STOPPED:
                self.stop(process, f"was stopped (SIGSTOP) for {now - process.stopped_at:.1f} s and was ended")
        for pid in (self._warm_pid, self._standby_pid):
            if not pid or state(pid) != "T":
                self._helpers_stopped.pop(pid, None)
            elif now - self._helpers_stopped.setdefault(pid, now) >= STOPPED:
                # its connection reports its end
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End every process of this node and wait for them."""
        for process in list(self.processes.values()):
            self.stop(process, "the job ends")
        for sock in (self._warm, self._standby):
            if sock is not None:
                sock.close()
        self._warm = self._standby = None
        for process in self.processes.values():
            process.line.close()
            if process.pidfd >= 0:
                os.close(process.pidfd)
        self.processes.clear()
        if self._warm_process:
            self._warm_process.kill()
            self._warm_process.wait()
        # the ranks are children of this process now; reap them all
        end = time.monotonic() + CLOSING
        while time.monotonic() < end:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.005)
            except ChildProcessError:
                return

    def _warm_up(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = [*self._command, str(theirs.fileno()), self._script, *self._arguments]
        self._warm_process = subprocess.Popen(
            command, env=self._env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0
        )
        theirs.close()
        self._warm, self._ready, self._warm_pid = ours, False, self._warm_process.pid

    def _fork(self) -> RankProcess:
        ours, theirs = socket.socketpair()
        page = Page.create()
        process = RankProcess(next(self._slots), Connection(ours), Page(page))
        self.processes[process.slot] = process
        self._forks.append((process, [theirs.detach(), page]))
        self._send_forks()
        return process

    def _send_forks(self) -> None:
        while self._ready and self._warm and self._forks:
            process, descriptors = self._forks[0]
            try:
                socket.send_fds(self._warm, [json.dumps({"slot": process.slot}).encode()], descriptors)
            except BlockingIOError:
                return
            except OSError:
                return
            self._forks.popleft()
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive_from_warm(self) -> list[Event]:
        events: list[Event] = []
        while self._warm is not None:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._warm, 1 << 16, 4)
            except BlockingIOError:
                break
            except OSError:
                data, descriptors = b"", []
            if not data:
                events += self._warm_lost()
                break
            message: dict[str, Any] = json.loads(data)
            match message["t"]:
                case "unable":
                    self._warm_deaths = 99
                    return [StartFailed(message["text"])]
                case "warm":
                    self._ready = True
                    self._warm_deaths = 0
                case "forked":
                    process = self.processes.get(message["slot"])
                    if process is None:
                        os.close(descriptors[0])
                        continue
                    process.pid, process.pidfd = message["pid"], descriptors[0]
                    if process.ending:
                        self.stop(process, process.ending)
                case "ended":
                    self._explain(message["pid"], message["status"])
        self._send_forks()
        return events

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
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status):
            say(f"process {pid} had ended with {os.WEXITSTATUS(status)}")

    def _warm_lost(self) -> list[Event]:
        assert self._warm is not None and self._warm_process is not None
        self._warm.close()
        self._warm_deaths += 1
        self._warm_pid = 0
        # forks that it was asked for and had not confirmed will not come
        waiting = {process.slot for process, _ in self._forks}
        unborn = [one for one in self.processes.values() if not one.pid and one.slot not in waiting]
        events: list[Event] = [self._ended(one, "its process was never started") for one in unborn]
        if self._standby is not None:
            self._warm, self._standby, self._ready = self._standby, None, True
            self._warm_pid, self._standby_pid = self._standby_pid, 0
            self._send_forks()
            return events
        self._warm_process.kill()
        code = self._warm_process.wait()
        if self._warm_deaths > 5:
            return [
                *events,
                StartFailed(f"{self._command[0]} ended with {code} while importing, {self._warm_deaths} times"),
            ]
        say("the warm process was lost; a new one is started")
        self._warm_up()
        return events

    def _fork_standby(self, warm: socket.socket) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(warm, [b'{"standby": true}'], [theirs.fileno()])
        except OSError:
            # the warm process is lost; its connection reports that
            ours.close()
        else:
            ours.setblocking(False)
            self._standby = ours
        theirs.close()

    def _receive_from_standby(self) -> None:
        assert self._standby is not None
        try:
            data = self._standby.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._standby_pid = int(json.loads(data)["pid"])
        else:
            self._standby.close()
            self._standby, self._standby_pid = None, 0

    def adopt(self, sock: socket.socket) -> dict[str, Any] | None:
        """Take over a rank that a former node agent had started, by its first message on ``sock``: its state; None when
        the message cannot be used."""
        sock.settimeout(1)
        try:
            data, descriptors, _, _ = socket.recv_fds(sock, 1 << 20, 1)
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            body = json.loads(data)
            if uid != os.getuid() or not descriptors or self.of(int(body["rank"])) is not None:
                raise ValueError("not a rank of ours")
            process = RankProcess(next(self._slots), Connection(sock), Page(descriptors[0]), pid, os.pidfd_open(pid))
            process.rank, process.incarnation = int(body["rank"]), int(body["inc"])
            shards = {int(rank): str(shard) for rank, shard in body["shards"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sock.close()
            return None
        os.close(descriptors[0])
        try:
            sock.send(b"+")
        except OSError:
            # its end follows
            pass
        self.processes[process.slot] = process
        state = {name: body[name] for name in ("rank", "inc", "gen", "entered", "finished", "leaving", "done")}
        return {**state, "shards": shards}

    def _receive(self, process: RankProcess) -> list[Event]:
        found: list[Event] = []
        try:
            process.line.flush()
            while messages := process.line.receive():
                for message, payload in messages:
                    if message["t"] == "leaving":
                        process.leaving = int(message.get("code", 1))
                    elif message["t"] == "failed":
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


def state(pid: int) -> str:
    """The state of a process, as a letter of /proc; "T": it is stopped. Empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b") ")[2][0])
    except (OSError, IndexError):
        return ""
