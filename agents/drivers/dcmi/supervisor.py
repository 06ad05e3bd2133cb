"""The parent's end of the driver process: deadlines, restarts, events.

A call past its deadline fails with TIMED_OUT and leaves its thread behind. A new process is started after `MAX_HUNG` of
them, when the process dies, or when every call fails as after a reload of the driver. Failing starts are spaced out.
What the library prints is logged within bounds (`driver_output`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any, Final

from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi import driver_output
from belay.agents.drivers.dcmi.errors import TIMED_OUT, DcmiError

_log = Log("driver")

MAX_HUNG: Final = 4
MAX_WAITING: Final = 256
MAX_EVENTS: Final = 10_000
START_SECONDS: Final = 30.0
END_SECONDS: Final = 5.0
SUBSCRIBE_SECONDS: Final = 5.0
#: Attempts to subscribe to events at the start, a second apart, as in MindCluster's device plugin.
SUBSCRIBE_TRIES: Final = 3
SUBSCRIBE_PAUSE: Final = 1.0
BACKOFF: Final = (0.2, 1.0, 5.0, 10.0)
READ_LIMIT: Final = 1 << 20
MAX_MESSAGE: Final = 65_536
"""Bytes of a call, as the driver process takes them."""
#: Return codes of every call after a reload of the driver that the library had opened: internal error, ioctl, send,
#: receive. Where only one chip is lost, calls for others still succeed.
STALE: Final = frozenset({-8005, -8009, -8010, -8011})
#: After so many such answers, over so many seconds, without a good one the library is reloaded; the seconds double
#: after each reload without effect, up to the second number.
STALE_CALLS: Final = 6
STALE_SECONDS: Final = (15.0, 600.0)


class Supervisor:
    """One driver process at a time. Methods belong to one event loop.

    ``cards_timeout``: seconds for which the first start waits for cards that are not back yet. Without ``listens`` it
    subscribes to no events."""

    def __init__(
        self,
        library: Path,
        *,
        owners: frozenset[int] = frozenset(),
        env: dict[str, str] | None = None,
        cards_timeout: float = 0.0,
        listens: bool = True,
    ) -> None:
        self._library, self._owners, self._env, self._listens = library, owners, env, listens
        self._process: asyncio.subprocess.Process | None = None
        self._requests: socket.socket | None = None
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._printed: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next, self._hung, self._failures = 0, 0, 0
        self._stale, self._stale_since, self._patience = 0, 0.0, STALE_SECONDS[0]
        self._cards_timeout, self._cards_until = cards_timeout, 0.0
        self._starting = asyncio.Lock()
        self._not_before = 0.0
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_EVENTS)
        self.starts = 0
        self.sent = 0  # calls that went to a process; tests count them
        self.v2 = False
        self.announces = False
        self.places: tuple[tuple[int, int, int, int], ...] = ()

    async def ask(self, call: str, *arguments: Any, timeout: float) -> Any:
        """Call, for at most ``timeout`` seconds. Raises DriverError; past its time, DcmiError with TIMED_OUT."""
        process = await self._running()
        if len(self._waiting) >= MAX_WAITING:
            raise DriverError(f"{MAX_WAITING} calls to the driver wait already")
        self._next += 1
        number = self._next
        message = json.dumps({"id": number, "call": call, "args": arguments}).encode()
        if len(message) > MAX_MESSAGE:
            raise DriverError(f"a call to the driver has {len(message)} bytes, more than {MAX_MESSAGE}")
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._send(message)
                answer = await future
            await self._suspect(process, *_failures(answer))
            return answer
        except DcmiError as error:
            await self._suspect(process, {error.code}, 1)
            raise
        except TimeoutError:
            self._hung += 1
            _log.warning("a driver call hangs", call=call, hung=self._hung)
            if self._hung >= MAX_HUNG:
                await self._end("too many calls hang")
            raise DcmiError(call, TIMED_OUT) from None
        except ConnectionError as error:
            raise DriverError("the driver process ended") from error
        finally:
            self._waiting.pop(number, None)

    async def _send(self, message: bytes) -> None:
        """Hand a message to the process; waits while its queue is full, one sender after the other."""
        async with self._sending:
            if self._requests is None:
                raise ConnectionResetError
            self.sent += 1
            await asyncio.get_running_loop().sock_sendall(self._requests, message)

    async def _suspect(self, process: asyncio.subprocess.Process, codes: Set[int], times: int) -> None:
        """Check the codes of an answer (`_failures`): a library that has lost its driver is reloaded."""
        now = asyncio.get_running_loop().time()
        if not codes:
            self._stale, self._patience = 0, STALE_SECONDS[0]
        if codes.isdisjoint(STALE):
            return
        if not self._stale:
            self._stale_since = now
        self._stale += times
        if self._stale >= STALE_CALLS and now - self._stale_since >= self._patience and process is self._process:
            self._stale, self._patience = 0, min(2 * self._patience, STALE_SECONDS[1])
            await self._end("every call fails: the driver was reloaded")

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            loop = asyncio.get_running_loop()
            if loop.time() < self._not_before:
                raise DriverError("the driver could not be loaded; it is tried again shortly")
            try:
                return await self._start()
            except DriverError:
                self._not_before = loop.time() + BACKOFF[min(self._failures, len(BACKOFF) - 1)]
                self._failures += 1
                raise

    async def _start(self) -> asyncio.subprocess.Process:
        owners = [text for owner in sorted(self._owners) for text in ("--owner", str(owner))]
        command = [sys.executable, "-m", "belay.agents.drivers.dcmi.child", str(self._library), *owners]
        pipe = asyncio.subprocess.PIPE
        requests, taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests.setblocking(False)
        with taken:
            process = await asyncio.create_subprocess_exec(
                *command, "--parent", str(os.getpid()), stdin=taken.fileno(), stdout=pipe, stderr=pipe,
                limit=READ_LIMIT, env={**os.environ, **(self._env or {})}, start_new_session=True,
            )  # fmt: skip
        self._hang_up()
        self._requests = requests
        assert process.stdout is not None and process.stderr is not None
        printed = asyncio.create_task(driver_output.log(process.stderr))
        self._printed.add(printed)
        printed.add_done_callback(self._printed.discard)
        try:
            async with asyncio.timeout(START_SECONDS):
                greeting = json.loads(await process.stdout.readline() or b'{"error": "it ended without a word"}')
        except (TimeoutError, ValueError) as error:
            await _kill(process)
            raise DriverError(f"{self._library}: the driver did not answer in {START_SECONDS:g} s") from error
        except BaseException:
            await _kill(process)
            raise
        if not greeting.get("ready"):
            await _kill(process)
            raise DriverError(str(greeting.get("error"))[:500])
        if self._incomplete(int(greeting.get("missing", 0))):
            await _kill(process)
            raise DriverError(f"{greeting['missing']} cards are not back yet; the start waits for them")
        self._process, self._hung, self._failures = process, 0, 0
        self.v2, self.places = bool(greeting["v2"]), tuple(tuple(place) for place in greeting["places"])
        self.starts += 1
        self._reader = asyncio.create_task(self._read(process))
        if self._listens:
            await self._subscribe(process)
        return process

    def _incomplete(self, missing: int) -> bool:
        """Whether the first start has to wait for cards that are counted and not named, as those in a reset are."""
        now = asyncio.get_running_loop().time()
        if self.starts or not missing:
            return False
        self._cards_until = self._cards_until or now + self._cards_timeout
        if now < self._cards_until:
            return True
        _log.warning("cards have not come back, the start goes on without them", missing=missing)
        return False

    async def _subscribe(self, process: asyncio.subprocess.Process) -> None:
        """Subscribe to fault events. The first call waits for this, so that its caller misses no later event.

        A driver that refuses is only polled; one that does not answer may still subscribe, and is asked once.
        """
        self.announces = False
        for attempt in range(SUBSCRIBE_TRIES):
            await asyncio.sleep(SUBSCRIBE_PAUSE if attempt else 0)
            taken = self._waiting[0] = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(SUBSCRIBE_SECONDS):
                    await self._send(json.dumps({"id": 0, "call": "subscribe"}).encode())
                    await taken
                self.announces = True
                return
            except TimeoutError:
                _log.warning("no word about fault events, codes are polled", seconds=SUBSCRIBE_SECONDS)
                return
            except (DriverError, OSError) as error:
                _log.warning("no fault events, codes are polled", error=str(error), attempt=attempt + 1)
                if process.returncode is not None or (isinstance(error, DcmiError) and not error.supported):
                    return
            finally:
                self._waiting.pop(0, None)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._receive(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _log.error("the driver process said something unreadable", error=str(error)[:200])
            await _kill(process)
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(DriverError("the driver process ended"))

    def _receive(self, message: dict[str, Any]) -> None:
        """Hand an answer or event on. Raises TypeError, KeyError or AttributeError for a message of another form."""
        if "event" in message:
            if self.events.full():
                return  # codes are polled too, so a lost event is recovered
            self.events.put_nowait(message["event"])
            return
        future = self._waiting.get(message["id"])
        if future is None or future.done():
            return
        if "error" not in message:
            future.set_result(message["value"])
        elif "code" in message:
            future.set_exception(DcmiError(message["function"], message["code"]))
        else:
            future.set_exception(DriverError(message["error"]))

    async def _end(self, why: str = "") -> None:
        """End the process; ``why`` the next call starts another one, empty if none will be started."""
        process, self._process = self._process, None
        if process is not None:
            if why:
                _log.warning("the driver process is started again", error=why)
            await _kill(process)

    def _hang_up(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    async def close(self) -> None:
        """End the process; waiting calls fail."""
        await self._end()
        self._hang_up()
        tasks = [*self._printed, *((self._reader,) if self._reader is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failures(answer: Any) -> tuple[Set[int], int]:
    """Return the error codes of a batch in which every reading failed, and of how many chips it was; else no code."""
    chips = 1
    if isinstance(answer, list) and answer and all(isinstance(one, list) for one in answer):
        chips = len(answer)
        answer = [reading for turn in answer for reading in turn]

    if not isinstance(answer, list) or not all(
        isinstance(one, dict) and isinstance(one.get("code"), int) for one in answer
    ):
        return frozenset(), 0
    return {one["code"] for one in answer}, chips


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and what its library started. Its end is waited for within bounds: a process in an
    uninterruptible call outlives SIGKILL, and asyncio sees an end only when nothing holds the pipes open."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
