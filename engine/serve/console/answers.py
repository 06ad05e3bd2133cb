"""Questions that need the planner, answered by a few child processes: bounded in number, time and memory.

A child reads requests from its standard input and writes answers to its standard output, each with its length before
it. It keeps what it read last, so the next question about the same moment is quick, and goes after a time of silence.
A child that takes too long or too much memory, or whose caller left, is killed with all that it started (git is one),
and only its question fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.engine.errors import bounded
from belay.engine.log import get
from belay.engine.serve.console import failures

_log = get("console")
CHILDREN: Final = 2
"""Questions that are answered at one time, where the container's memory has room for so many."""
WAITING: Final = 16
"""Questions that wait for a child; beyond, callers are sent away."""
IDLE_SECONDS: Final = 300.0
"""Seconds after which a child without questions is ended, and its memory is free."""
MEMORY_BYTES: Final = 6 * 1024**3
"""Most memory of a child."""
SECRETS: Final = frozenset({"BELAY_WEBHOOK_SECRET", "BELAY_REDIS_URL", "BELAY_REDIS_PASSWORD_FILE"})
"""Variables that a child does not get: it reads what viewers write."""
LEAST_BYTES: Final = 512 * 1024**2
"""A child that gets less than this answers about no cluster of a thousand nodes."""
SERVER_BYTES: Final = 600 * 1024**2
"""What the server itself takes of its container's memory."""
MAX_ANSWER: Final = 256 * 1024 * 1024
LENGTH: Final = struct.Struct(">I")


class AnswerHead(msgspec.Struct, frozen=True):
    """What stands before an answer: its HTTP status, and for errors why and what to do."""

    status: int
    error: str = ""
    hint: str = ""


class Unanswered(Exception):
    """A question without an answer: HTTP ``status``, why, and what to do."""

    def __init__(self, status: int, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.hint = status, text, hint


class _Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.topic, self.since = process, "", time.monotonic()


def room(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> tuple[int, int]:
    """How many children fit into the container beside the server, at least one, and the bytes of memory for each."""
    try:
        whole = int(limit.read_text(encoding="ascii"))
    except (OSError, ValueError):
        # "max", or no container
        return CHILDREN, MEMORY_BYTES
    left = whole - SERVER_BYTES
    children = max(1, min(CHILDREN, left // LEAST_BYTES))
    return children, max(LEAST_BYTES, min(MEMORY_BYTES, left // children))


class Answers:
    """The children. ``command`` starts one; ``children`` and ``memory``, how many and the bytes for each (0: as the
    container allows).

    Used from one event loop.
    """

    def __init__(
        self, command: Sequence[str], *, children: int = 0, memory: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        most, each = room()
        self.children = children = children or most
        self._command, self._memory, self._clock = list(command), memory or each, clock
        self._free: list[_Child] = []
        self._all: set[_Child] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(children)
        self._waiting = 0

    async def ask(self, request: Mapping[str, Any], seconds: float, topic: str = "") -> bytes:
        """The answer's JSON within ``seconds``, waiting included. ``topic`` names what the question is about: a child
        that knows it is preferred. The child reads in the question's ``ends`` when its time is over: on the clock that
        all processes of a machine have in common.

        Raises:
            Unanswered: too many wait, it took too long, or the child says why not.
        """
        if self._gate.locked() and self._waiting >= WAITING:
            raise Unanswered(429, "too many questions wait", "Try again in a moment.")
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        self._waiting += 1
        try:
            async with asyncio.timeout_at(ends):
                await self._gate.acquire()
        except TimeoutError:
            text = f"other questions took all of the {seconds:.0f} s that an answer may take"
            raise Unanswered(504, text, "Try again in a moment.") from None
        finally:
            self._waiting -= 1
        child = None
        try:
            child = await self._take(topic)
            async with asyncio.timeout_at(ends):
                due = time.monotonic() + ends - loop.time()
                return await self._exchange(child, {**request, "ends": due})
        except TimeoutError:
            self._end(child)
            raise Unanswered(504, f"no answer within {seconds:.0f} s", "Ask about less, or a shorter time.") from None
        except (asyncio.IncompleteReadError, OSError) as error:
            self._end(child)
            _log.warning("question not answered", reason=bounded(f"{type(error).__name__}: {error}", 200))
            raise Unanswered(503, "the process that answers ended", "The cluster may be too large for it.") from error
        except asyncio.CancelledError:
            self._end(child)
            raise
        finally:
            if child is not None and child in self._all:
                child.topic, child.since = topic, self._clock()
                self._free.append(child)
            self._gate.release()

    async def close(self) -> None:
        """End every child process."""
        for child in list(self._all):
            self._end(child)
        self._free.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def end_idle_ones(self) -> None:
        """End children that nothing has been asked for a while, now and then until cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 10)
            self.end_idle()

    def end_idle(self) -> None:
        """End children that nothing has been asked for a while."""
        for child in [one for one in self._free if self._clock() - one.since > IDLE_SECONDS]:
            self._free.remove(child)
            self._end(child)

    async def _take(self, topic: str) -> _Child:
        known = next((one for one in self._free if one.topic == topic), None) or next(iter(self._free), None)
        if known is not None:
            self._free.remove(known)
            if known.process.returncode is None:
                return known
            self._all.discard(known)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in os.environ.keys() - SECRETS} | {MEMORY_VARIABLE: str(self._memory)},
            limit=1024 * 1024,
            start_new_session=True,
        )
        child = _Child(process)
        self._all.add(child)
        return child

    async def _exchange(self, child: _Child, request: Mapping[str, Any]) -> bytes:
        reader, writer = child.process.stdout, child.process.stdin
        assert reader is not None and writer is not None
        body = msgspec.json.encode(request)
        writer.write(LENGTH.pack(len(body)) + body)
        await writer.drain()
        head = msgspec.json.decode(await _framed(reader), type=AnswerHead)
        answer = await _framed(reader)
        if head.status >= 500:
            failures.count("answer")
            asked = str(request.get("ask", ""))
            _log.warning("question not answered", asked=asked, status=head.status, reason=bounded(head.error, 200))
        if head.status != 200:
            raise Unanswered(head.status, head.error, head.hint)
        return answer

    def _end(self, child: _Child | None) -> None:
        if child is None:
            return
        self._all.discard(child)
        searched = None
        if child.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGSTOP)
            # begun at once: it ends the child also where the loop ends before a task of it has a turn
            searched = asyncio.get_running_loop().run_in_executor(None, kill_whole, child.process.pid)
        ending = asyncio.create_task(_ended(child.process, searched))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


MEMORY_VARIABLE: Final = "BELAY_ANSWER_MEMORY"
"""Variable in which a child finds its limit of memory in bytes."""


def kill_whole(pid: int, proc: Path = Path("/proc")) -> None:
    """Kill a process with all that it started and that these started, whatever session they made for themselves.

    Reads every process of the machine a few times, so an event loop runs it in a thread.

    Source: proc(5), field 4 (ppid) of /proc/PID/stat; signal(7): SIGSTOP cannot be ignored.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # it starts nothing more while its descendants are sought
    for one in [*_descendants(pid, proc), pid]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


async def _ended(process: asyncio.subprocess.Process, searched: asyncio.Future[None] | None) -> None:
    """Wait until a process is killed, and read to the end of its pipes, so that they close."""
    if searched is not None:
        await searched
    await process.communicate()


def _descendants(pid: int, proc: Path) -> list[int]:
    """The process ids below one, those nearest to it first; each is stopped as it is found."""
    found = [pid]
    for _ in range(_MOST_ROUNDS):
        known = set(found)
        fresh = [one for one, parent in _parents(proc) if parent in known and one not in known]
        for one in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGSTOP)
        if not fresh:
            break
        found += fresh
    return found[1:]


_MOST_ROUNDS: Final = 16


def _parents(proc: Path) -> list[tuple[int, int]]:
    """Every process of this machine or container with its parent."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
                # the name of the command, in brackets, may hold anything
                found.append((int(folder.name), int(stat.rpartition(")")[2].split()[1])))
            except (OSError, ValueError, IndexError):
                continue  # it ended meanwhile
    return found


async def _framed(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > MAX_ANSWER:
        raise OSError("the answer is too long")
    return await reader.readexactly(length)
