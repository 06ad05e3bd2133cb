"""One linked connection, the same on both sides: it sends requests to the remote side and answers its requests.

A separate task answers the remote side's requests, so that two sides that send at the same time never wait for each
other. At most `WAITING` requests wait; more are answered LLM_LINK_BUSY.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence

from belay.agents.datadist import frames, streams, transfer
from belay.agents.datadist.caches import Cache
from belay.agents.datadist.channels import Channel
from belay.agents.datadist.frames import BadFrame, Blocks, Kind, Region, RegionName
from belay.agents.datadist.status import LLMStatusCode

CODES = tuple(LLMStatusCode)
WAITING = 64
Sink = Callable[[int], Awaitable[None]]
#: Of the kernel's ``struct tcp_info``: milliseconds since data and since an acknowledgement arrived.
_TCP_INFO = struct.Struct("=52xII")


@dataclasses.dataclass
class _Question:
    done: asyncio.Future[LLMStatusCode]
    sink: Sink | None


class Peer:
    """The remote side of one link.

    ``granted`` are the local caches that it may access: those registered when the link was made.
    """

    def __init__(
        self,
        channel: Channel,
        cluster: int,
        regions: Sequence[Region],
        granted: Mapping[RegionName, Cache],
        ended: Callable[[Peer, bool], None],
    ) -> None:
        self.cluster = cluster
        self.broken: str | None = None
        self.regions = {region.name: region for region in regions}
        self._channel = channel
        self._granted = granted
        self._ended = ended
        self._sending = asyncio.Lock()
        self._questions: dict[int, _Question] = {}
        self._next = 1
        self._requests: asyncio.Queue[tuple[int, Awaitable[None]]] = asyncio.Queue(WAITING)
        self._tasks: list[asyncio.Task[None]] = []
        self.over = asyncio.Event()
        """Set when the link has ended, for any reason."""

    def start(self) -> None:
        """Start reading; must be called in the loop."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._answer())]

    def close(self, why: str) -> None:
        """Close the connection now; pending requests fail with ``why``."""
        if self.broken is None:
            self.broken = why
        self.over.set()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._channel.close()
        for question in self._questions.values():
            if not question.done.done():
                question.done.set_result(LLMStatusCode.LLM_NOT_YET_LINK)
        self._questions.clear()

    async def ask(
        self, kind: Kind, body: bytes = b"", *, payload: Callable[[], Awaitable[None]] | None = None,
        sink: Sink | None = None, timeout: float,
    ) -> LLMStatusCode:  # fmt: skip
        """Send a request and return its status; ``sink`` reads the answer's bytes, ``payload`` follows the body.

        A request without an answer in ``timeout`` seconds ends the link when bytes were in transit: the start of the
        next frame is then unknown.
        """
        if self.broken is not None:
            return LLMStatusCode.LLM_NOT_YET_LINK
        number, self._next = self._next, self._next % 0xFFFFFFFF + 1
        question = _Question(asyncio.get_running_loop().create_future(), sink)
        self._questions[number] = question
        try:
            async with asyncio.timeout(timeout):
                async with self._sending:
                    await streams.send(self._channel, kind, number, body)
                    if payload is not None:
                        await payload()
                return await question.done
        except TimeoutError:
            self._lost(f"no answer to {kind.name} in {timeout:g} s")
            return LLMStatusCode.LLM_WAIT_PROCESS_TIMEOUT
        except OSError as error:
            self._lost(str(error))
            return LLMStatusCode.LLM_NOT_YET_LINK
        finally:
            self._questions.pop(number, None)

    async def ping(self, timeout: float) -> float | None:
        """Return the round-trip time in seconds; None when the link has ended or ends now.

        A late answer does not end the link while bytes flow: they prove as much as an answer.
        """
        if self.broken is not None:
            return None
        began = asyncio.get_running_loop().time()
        asking = asyncio.create_task(self._ask_ping())
        try:
            while not (await asyncio.wait([asking], timeout=timeout))[0]:
                if self._silence() >= timeout / 2:
                    self._lost(f"no answer to PING in {timeout:g} s")
                    return None
        finally:
            asking.cancel()
        return asyncio.get_running_loop().time() - began if asking.result() else None

    async def _ask_ping(self) -> bool:
        number, self._next = self._next, self._next % 0xFFFFFFFF + 1
        question = _Question(asyncio.get_running_loop().create_future(), None)
        self._questions[number] = question
        try:
            async with self._sending:
                await streams.send(self._channel, Kind.PING, number)
            return await question.done is LLMStatusCode.LLM_SUCCESS
        except OSError as error:
            self._lost(str(error))
            return False
        finally:
            self._questions.pop(number, None)

    def _silence(self) -> float:
        """Return the seconds since the remote side sent bytes or an acknowledgement (tcp(7), TCP_INFO)."""
        try:
            info = self._channel.tcp_info(_TCP_INFO.size)
        except OSError:
            return math.inf
        received, acknowledged = _TCP_INFO.unpack(info)
        return float(min(received, acknowledged)) / 1000

    def _lost(self, why: str, polite: bool = False) -> None:
        if self.broken is None:
            self.close(why)
            self._ended(self, polite)

    async def _read(self) -> None:
        try:
            while True:
                kind, status, number, length = await streams.read_head(self._channel)
                if kind is Kind.ANSWER:
                    await self._answered(number, status, length)
                elif kind is Kind.UNLINK:
                    await self._unlinked(number)
                    return
                else:
                    await self._take(kind, number, length)
        except (OSError, BadFrame) as error:
            self._lost(str(error)[:300])

    async def _unlinked(self, number: int) -> None:
        """End this side, then answer: who has the answer may rely on it that no link is left here."""
        why = "the far side unlinked"
        self.broken = why
        self._ended(self, True)
        try:
            async with self._sending:
                await streams.send(self._channel, Kind.ANSWER, number)
        finally:
            self.close(why)

    async def _answered(self, number: int, status: int, length: int) -> None:
        question = self._questions.get(number)
        code = CODES[status] if status < len(CODES) else LLMStatusCode.LLM_FAILED
        if length and code is LLMStatusCode.LLM_SUCCESS and question is not None and question.sink is not None:
            await question.sink(length)
        elif length:
            await transfer.skip(self._channel, length)
        if question is not None and not question.done.done():
            question.done.set_result(code)

    async def _take(self, kind: Kind, number: int, length: int) -> None:
        if kind is Kind.PING:
            await self._later(number, self._say(number, LLMStatusCode.LLM_SUCCESS))
            return
        if kind not in (Kind.READ, Kind.WRITE):
            raise BadFrame(f"{kind.name} is not expected on a link")
        wanted = frames.decode(await streams.read_body(self._channel, length), Blocks)
        cache = self._granted.get(wanted.region)
        size = wanted.size * len(wanted.blocks) * len(wanted.tensors)
        if not 0 <= size < 1 << 32:
            raise BadFrame(f"{size} bytes in one request")
        problem = LLMStatusCode.LLM_KV_CACHE_NOT_EXIST if cache is None else None
        if cache is not None:
            try:
                transfer.check(cache, wanted)
            except BadFrame:
                problem = LLMStatusCode.LLM_PARAM_INVALID
        if kind is Kind.WRITE:
            if problem is None and cache is not None:
                await transfer.receive_blocks(self._channel, cache, wanted.tensors, wanted.blocks)
            else:
                await transfer.skip(self._channel, size)
            await self._later(number, self._say(number, problem or LLMStatusCode.LLM_SUCCESS))
        elif problem is not None or cache is None:
            await self._later(number, self._say(number, problem or LLMStatusCode.LLM_KV_CACHE_NOT_EXIST))
        else:
            await self._later(number, self._give(number, cache, wanted, size))

    async def _later(self, number: int, work: Awaitable[None]) -> None:
        try:
            self._requests.put_nowait((number, work))
        except asyncio.QueueFull:
            if asyncio.iscoroutine(work):
                work.close()
            await self._say(number, LLMStatusCode.LLM_LINK_BUSY)

    async def _answer(self) -> None:
        try:
            while True:
                _, work = await self._requests.get()
                await work
        except OSError as error:
            self._lost(str(error))
        finally:
            while not self._requests.empty():
                _, work = self._requests.get_nowait()
                if asyncio.iscoroutine(work):
                    work.close()

    async def _say(self, number: int, code: LLMStatusCode) -> None:
        async with self._sending:
            await streams.send(self._channel, Kind.ANSWER, number, status=CODES.index(code))

    async def _give(self, number: int, cache: Cache, wanted: Blocks, size: int) -> None:
        async with self._sending:
            await self._channel.send(frames.head(Kind.ANSWER, number, size))
            await transfer.send_blocks(self._channel, cache, wanted.tensors, wanted.blocks)

    async def pull(
        self, wanted: Blocks, into: Cache, tensors: Sequence[int], blocks: Sequence[int], timeout: float
    ) -> LLMStatusCode:
        """Read remote blocks into local ones of the same number and size."""

        async def sink(length: int) -> None:
            if length != wanted.size * len(wanted.blocks) * len(wanted.tensors):
                raise BadFrame(f"{length} bytes answered to a read of other length")
            await transfer.receive_blocks(self._channel, into, tensors, blocks)

        return await self.ask(Kind.READ, frames.encode(wanted), sink=sink, timeout=timeout)

    async def push(
        self, wanted: Blocks, source: Cache, tensors: Sequence[int], blocks: Sequence[int], timeout: float
    ) -> LLMStatusCode:
        """Write local blocks into remote ones of the same number and size."""

        async def payload() -> None:
            await transfer.send_blocks(self._channel, source, tensors, blocks)

        return await self.ask(Kind.WRITE, frames.encode(wanted), payload=payload, timeout=timeout)
