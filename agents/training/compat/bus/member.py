"""One member of the bus: serves those below, connects upward, sends and receives.

Methods are called from ordinary threads; the work is done in the bus thread (`loop`). Directions, buffers and codes:
component/taskd/taskd/go/toolkit_backend/net.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from belay.agents.training.compat.bus import codes, loop, wire
from belay.agents.training.compat.bus.message import MAX_BYTES, Body, Received, parse
from belay.agents.training.compat.bus.position import AGENT, MANAGER, PROXY, WORKER, Position
from belay.agents.training.compat.bus.routes import DuplicateFilter, Routes
from belay.agents.training.compat.bus.service import TaskNet
from belay.agents.training.compat.bus.streams import DownStream
from belay.agents.training.compat.bus.uplink import Uplink
from belay.engine.wire.clusterd import tasknet_pb2_grpc

log = logging.getLogger(__name__)

BUFFERS: Final = {MANAGER: 1024, PROXY: 32, AGENT: 8, WORKER: 8}
BUFFER_SECONDS: Final = 0.010
MAX_UNDER_WAY: Final = 4096
"""Maximum number of forwarded messages without an answer."""


class Member:
    """``listen`` (host:port, levels 2 and 3) and ``upstream`` (levels 1 and 2) say where; ``job`` keeps jobs apart.

    ``joined`` is called in the bus thread whenever the connection upward is established.
    """

    def __init__(
        self,
        own: Position,
        *,
        listen: str = "",
        upstream: str = "",
        job: str = "",
        joined: Callable[[], None] | None = None,
    ) -> None:
        if own.level == 0:
            raise ValueError(f"role {own.role!r} is none of Mgr, Proxy, Agent, Worker")
        self.own, self.job, self._listen = own, job, listen
        self.routes = Routes(own)
        self.uplink: Uplink | None = None
        self._upstream = upstream
        self._joined = joined
        self._server: Any = None
        self._streams: dict[Position, DownStream] = {}
        self._seen = DuplicateFilter()
        self._inbox: queue.Queue[Received | None] = queue.Queue(BUFFERS[own.role])
        self._tasks: set[asyncio.Task[int]] = set()
        self._came_up = False
        self._closed = False
        self.port = 0
        self._warned = 0.0

    def start(self) -> None:
        """Listen and begin to join, without waiting. Raises OSError when the address cannot be listened on."""
        loop.call(self._start(), 30.0)

    async def _start(self) -> None:
        if self._listen:
            self._server = grpc.aio.server(options=wire.SERVER_OPTIONS)
            tasknet_pb2_grpc.add_TaskNetServicer_to_server(TaskNet(self), self._server)  # type: ignore[no-untyped-call]
            try:
                self.port = self._server.add_insecure_port(self._listen)
            except RuntimeError as error:
                raise OSError(f"{self.own.role} cannot listen on {self._listen}: {error}") from error
            if self.port == 0:
                raise OSError(f"{self.own.role} cannot listen on {self._listen}: the address is in use")
            await self._server.start()
        if self._upstream:
            self.uplink = Uplink(self, self._upstream)
            self.uplink.start()

    def close(self) -> None:
        """Leave the bus. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            loop.call(self._close(), 10.0)
        except TimeoutError as error:
            log.warning("%s left without an answer: %s", self.own, error)
        try:
            self._inbox.put_nowait(None)
        except queue.Full:
            # a full inbox wakes its reader anyway
            pass

    async def _close(self) -> None:
        if self.uplink is not None:
            await self.uplink.close()
        for stream in list(self._streams.values()):
            stream.close()
        for task in list(self._tasks):
            task.cancel()
        if self._server is not None:
            await self._server.stop(0.2)

    def wait_joined(self, timeout: float) -> bool:
        """Wait until the member has joined; False after ``timeout`` seconds."""

        async def wait() -> bool:
            assert self.uplink is not None
            try:
                async with asyncio.timeout(timeout):
                    await self.uplink.joined.wait()
                return True
            except TimeoutError:
                return False

        return self.uplink is None or loop.call(wait(), timeout + 5.0)

    @property
    def connected(self) -> bool:
        """Whether the member has joined; always for the manager."""
        return self.uplink is None or self.uplink.joined.is_set()

    @property
    def trouble(self) -> str:
        """The reason why it has not joined."""
        return "" if self.uplink is None else self.uplink.trouble

    # sending and receiving

    def send(self, dst: Position, body: Body, *, sync: bool = False, tries: int = 1, uuid: str = "") -> int:
        """Send; 0 or a code of `codes`. Asynchronous messages answer as soon as their route is known.

        ``tries`` repeats a failed synchronous message after 1 s. Text of more than 8 MiB is refused (4999).
        """
        text = body.text()
        if len(text.encode()) > MAX_BYTES:
            log.error("a message of %d bytes is not sent, at most %d are taken", len(text), MAX_BYTES)
            return codes.CLIENT_ERROR
        found = wire.message(self.own, dst, text, mtype=body.kind, sync=sync, uuid=uuid)
        code = codes.NETWORK_ERROR
        for attempt in range(tries):
            if attempt:
                time.sleep(1.0)
            if self._closed:
                return codes.NO_BUFFER
            try:
                code = loop.call(self.forward(found), wire.ACK_SECONDS * 2 + 1)
            except TimeoutError:
                code = codes.ACK_LOST
            if code == codes.OK or not sync:
                break
        return code

    def post(self, dst: Position, body: Body, *, done: Callable[[int], None] | None = None) -> None:
        """Send without waiting; ``done`` is called with the answer, in the bus thread."""
        found = wire.message(self.own, dst, body.text(), mtype=body.kind, sync=True)

        async def go() -> None:
            code = await self.forward(found)
            if done is not None:
                done(code)

        loop.submit(go())

    def receive(self, timeout: float | None = None) -> Received | None:
        """The next message; None when none came within ``timeout`` seconds or the member left."""
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None

    # in the bus thread

    async def forward(self, found: Any, *, from_above: bool = False, from_below: Position | None = None) -> int:
        """Send a message along its route; 0 or a code."""
        header = found.header
        route = self.routes.route(wire.from_wire(header.dst), from_above=from_above, from_below=from_below)
        if route.code != codes.OK:
            return route.code
        assert route.dst is not None
        header.dst.CopyFrom(wire.to_wire(route.dst))
        code = await self._deliver(found) if route.here else codes.OK
        steps = [self._down(position, found) for position in route.down]
        if route.up:
            steps.append(self._up(found))
        if header.sync and not route.broadcast:
            for step in steps:
                code = await step or code
            return code
        for index, step in enumerate(steps):
            if len(self._tasks) >= MAX_UNDER_WAY:
                for rest in steps[index:]:
                    rest.close()
                return codes.BUFFER_FULL
            task = asyncio.ensure_future(step)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return code

    async def announce(self, path: tuple[Position, ...]) -> int:
        """Pass a path from below upward, with this member at its end; 0 where this member is the manager."""
        return codes.OK if self.uplink is None else await self.uplink.discover((*path, self.own))

    async def _up(self, found: Any) -> int:
        return codes.NO_STREAM if self.uplink is None else await self.uplink.transfer(found)

    async def _down(self, position: Position, found: Any) -> int:
        stream = self._streams.get(position)
        if stream is None:
            return codes.NO_STREAM
        code = await stream.send(found)
        if code == codes.ACK_LOST:
            # a member that does not answer must open a new stream
            self.end_stream(position)
        return code

    async def _deliver(self, found: Any) -> int:
        if self._closed:
            return codes.NO_BUFFER
        uuid = found.header.uuid
        try:
            body = parse(found.body)
        except ValueError as error:
            self._warn("a message of %s is ignored: %s", wire.from_wire(found.header.src), error)
            return codes.OK
        if self._seen.again(uuid):
            return codes.OK
        received = Received(wire.from_wire(found.header.src), body, uuid, found.header.sync)
        last = time.monotonic() + BUFFER_SECONDS
        while True:
            try:
                self._inbox.put_nowait(received)
                return codes.OK
            except queue.Full:
                if time.monotonic() >= last:
                    self._seen.forget(uuid)
                    return codes.BUFFER_FULL
                await asyncio.sleep(0.001)

    def _warn(self, text: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._warned >= 1.0:
            self._warned = now
            log.warning(text, *values)

    async def came_up(self) -> None:
        """The member has joined. The manager may be a new one, so members below must join again with their paths."""
        if self._came_up:
            for position in list(self._streams):
                self.end_stream(position)
        self._came_up = True
        if self._joined is not None:
            self._joined()

    def begin_stream(self, position: Position) -> DownStream | None:
        """A member subscribes; None when it is not registered."""
        if position not in self.routes.members:
            return None
        self.end_stream(position)
        stream = self._streams[position] = DownStream()
        return stream

    def end_stream(self, position: Position) -> None:
        """Close the stream of a member; it may subscribe again."""
        if (stream := self._streams.pop(position, None)) is not None:
            stream.close()

    def stream_ended(self, position: Position, stream: DownStream) -> None:
        """A member's stream broke: it and the members behind it are unreachable, unless it has rejoined meanwhile."""
        stream.close()
        if self._streams.get(position) is stream:
            del self._streams[position]
            self.routes.forget(position)
