"""Hosts the controller: connections of processors, the clock, callbacks to ClusterD. One thread with an event loop; the
state machine is used in that thread only.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from belay.agents.training.compat.mindio.environment import log
from belay.agents.training.compat.tft import controller_commands as o
from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.machine import controller as make
from belay.agents.training.compat.tft.messages import BadMessage, Message, MessageDecoder

REPORT_TRIES = 3
REPORT_WAIT = 1.0
FIRST_MESSAGE = 10.0
STOP_WAIT = 2.0
BEYOND = 64


class _Link(asyncio.Protocol):
    def __init__(self, server: ControllerServer) -> None:
        self.server = server
        self.frames = MessageDecoder()
        self.number = -1
        self.transport: asyncio.Transport | None = None
        self.greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.number = self.server.opened(self)
        asyncio.get_running_loop().call_later(FIRST_MESSAGE, self._first)

    def _first(self) -> None:
        if not self.greeted and self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.frames.feed(data):
                if not self.greeted and message["op"] != m.REGISTER:
                    raise BadMessage(f"the first message must be {m.REGISTER}")
                self.greeted = True
                self.server.received(self.number, message)
        except BadMessage as error:
            log.warning("a connection is closed: %s", str(error)[:300])
            if self.transport is not None:
                self.transport.abort()
        self.server.pump_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.closed(self.number)


def _taken(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that a callback takes: MindSpore's own report_fault_ranks takes the faults only, without codes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return arguments
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return arguments
    return arguments[: sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)]


class ControllerServer:
    """A controller with its listener."""

    def __init__(
        self, settings: o.ControllerSettings, callbacks: Callable[[], Mapping[str, Callable[..., Any]]],
        on_end: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._callbacks = callbacks
        self._on_end = on_end
        self._links: dict[int, _Link] = {}
        self._next = 0
        self._encoded: tuple[Message | None, bytes] = None, b""
        self._reports: queue.Queue[o.Report | None] = queue.Queue(maxsize=1000)
        self._timer: asyncio.TimerHandle | None = None
        self._pumping = False
        self._loop = asyncio.new_event_loop()
        self._ended = threading.Event()
        self._stop: asyncio.Event | None = None
        self.machine = make(settings, time.monotonic())
        self.port = 0

    def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Start the thread and listen. Raises OSError when the address cannot be used."""
        ready: queue.Queue[OSError | None] = queue.Queue()
        self._thread = threading.Thread(
            target=self._run, args=(host, port, tls, ready), name="tft-controller", daemon=True
        )
        self._thread.start()
        problem = ready.get()
        if problem is not None:
            raise problem
        threading.Thread(target=self._send_reports, name="tft-reports", daemon=True).start()

    def order(self, order: o.Order) -> None:
        """Pass on an order of ClusterD or of the hosting process."""
        if not self._ended.is_set():
            self._loop.call_soon_threadsafe(self._order, order)

    def linked(self) -> bool:
        """Whether any processor is registered."""
        return any(peer.link is not None for peer in list(self.machine.peers.values()))

    def destroy(self) -> None:
        """End regularly: processors are informed, and train on without protection."""
        self.order(o.Order("destroy"))
        if threading.current_thread() is not self._thread:
            self._ended.wait(STOP_WAIT)
            self._thread.join(STOP_WAIT)

    # -- in the loop's thread ------------------------------------------------------------------------------------

    def _run(self, host: str, port: int, tls: ssl.SSLContext | None, ready: queue.Queue[OSError | None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(host, port, tls, ready))
        finally:
            self._ended.set()
            self._reports.put(None)
            self._loop.close()

    async def _serve(
        self, host: str, port: int, tls: ssl.SSLContext | None, ready: queue.Queue[OSError | None]
    ) -> None:
        self._stop = asyncio.Event()
        try:
            server = await self._loop.create_server(
                lambda: _Link(self), host, port, ssl=tls, backlog=1024, reuse_address=True
            )
        except OSError as error:
            ready.put(error)
            return
        self.port = server.sockets[0].getsockname()[1]
        ready.put(None)
        log.info("controller of rank %d listens on %s:%d", self.settings.rank, host, self.port)
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)
        for link in list(self._links.values()):
            if link.transport is not None:
                link.transport.close()
        await asyncio.sleep(0.01)

    def opened(self, link: _Link) -> int:
        """Add a connection; a surplus one is closed."""
        self._next += 1
        self._links[self._next] = link
        if len(self._links) > 2 * self.settings.world + BEYOND and link.transport is not None:
            log.warning("too many connections: %d", len(self._links))
            link.transport.abort()
        return self._next

    def received(self, number: int, message: Message) -> None:
        """Pass a message to the state machine."""
        self.machine.received(number, message, time.monotonic())

    def closed(self, number: int) -> None:
        """Remove a connection."""
        self._links.pop(number, None)
        self.machine.unlinked(number, time.monotonic())
        self.pump_soon()

    def _order(self, order: o.Order) -> None:
        self.machine.order(order)
        self.pump_soon()

    def pump_soon(self) -> None:
        """Run the state machine once the messages that have arrived are read: 10,000 ranks answer at once."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Run the state machine and carry out its commands."""
        self._pumping = False
        for command in self.machine.handle(time.monotonic()):
            self._carry_out(command)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.machine.deadline()
        if deadline is not None:
            self._timer = self._loop.call_later(max(0.001, deadline - time.monotonic()), self.pump)

    def _carry_out(self, command: o.ControllerCommand) -> None:
        if isinstance(command, o.SendTo):
            link = self._links.get(command.link)
            if link is not None and link.transport is not None:
                if command.message is not self._encoded[0]:
                    # an order to all ranks is one message
                    self._encoded = command.message, m.encode(command.message)
                link.transport.write(self._encoded[1])
        elif isinstance(command, o.Close):
            link = self._links.get(command.link)
            if link is not None and link.transport is not None:
                link.transport.close()
        elif isinstance(command, o.Report):
            try:
                self._reports.put_nowait(command)
            except queue.Full:
                log.error("report %s is lost: ClusterD's callbacks do not return", command.name)
        elif isinstance(command, o.LogLine):
            (log.warning if command.warning else log.info)("%s", command.text)
        else:
            log.info("controller ends: %s", command.reason)
            if self._stop is not None:
                self._stop.set()
            if self._on_end is not None:
                self._on_end(command.reason)

    # -- the thread of reports -----------------------------------------------------------------------------------

    def _send_reports(self) -> None:
        while (report := self._reports.get()) is not None:
            for attempt in range(REPORT_TRIES):
                function = self._callbacks().get(report.name)
                if function is None:
                    log.error("ClusterD registered no %s", report.name)
                    break
                try:
                    answer = function(*_taken(function, report.arguments))
                except Exception as error:
                    log.warning("%s raised %s: %.200s", report.name, type(error).__name__, error)
                    answer = 1
                if not answer:
                    break
                log.warning("%s answered %.40s, try %d of %d", report.name, answer, attempt + 1, REPORT_TRIES)
                if attempt + 1 < REPORT_TRIES:
                    time.sleep(REPORT_WAIT)
