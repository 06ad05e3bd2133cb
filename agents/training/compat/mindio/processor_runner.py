"""Runs the processor of one rank: connection to the controller, callbacks of the framework, the waiting train thread.

One thread with an event loop; it and the train thread use the state machine under one condition variable.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from belay.agents.training.compat.mindio.environment import log
from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft import processor_commands as k
from belay.agents.training.compat.tft.constants import Action, ReportState
from belay.agents.training.compat.tft.messages import BadMessage, Message, MessageDecoder
from belay.agents.training.compat.tft.processor import Processor
from belay.agents.training.compat.tft.steplock import UpdatePermission

CONNECT_LIMIT = 5.0
LEAVE_LIMIT = 1.5
"""Seconds for which a process that ends waits until its farewell is sent: a connection that ends without is a fault."""
T = TypeVar("T")


class StoppedError(RuntimeError):
    """The train thread must leave its step; the text contains FORCE STOP, which the decorated function recognises."""


class _Link(asyncio.Protocol):
    def __init__(self, runner: ProcessorRunner) -> None:
        self.runner = runner
        self.frames = MessageDecoder()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.frames.feed(data):
                self.runner.received(message)
        except BadMessage as error:
            log.warning("the connection to the controller is closed: %s", str(error)[:300])
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.runner.lost(self)


class ProcessorRunner:
    """A running processor. ``callback(name, arguments)`` calls back the framework and returns 0 on success."""

    def __init__(
        self,
        settings: k.ProcessorSettings,
        callback: Callable[[str, dict[str, Any]], int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.machine = Processor(settings)
        self.changed = threading.Condition()
        self._callback = callback
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._link: _Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running: threading.Thread | None = None
        self._over = False
        self._out: list[k.ProcessorCommand] = []

    # -- for the train thread ------------------------------------------------------------------------------------

    def start(self, connect: float, register: float) -> bool:
        """Connect within ``connect`` seconds and register within ``register`` more; whether both succeeded."""
        threading.Thread(target=self._run, name="tft-processor", daemon=True).start()
        self.use(lambda p: p.start())
        self.wait(lambda p: p.registered or p.leaving, connect)
        if self.machine.linked or self.machine.refused:
            self.wait(lambda p: p.registered or p.leaving, register)
        return self.machine.registered

    def use(self, change: Callable[[Processor], T]) -> T:
        """Change or read the state machine, then carry out its commands."""
        with self.changed:
            found = change(self.machine)
            self._after()
            return found

    def wait(self, condition: Callable[[Processor], bool], limit: float | None = None) -> bool:
        """Wait until ``condition`` holds; False after ``limit`` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self._try(condition), limit)

    def _try(self, condition: Callable[[Processor], bool]) -> bool:
        held = condition(self.machine)
        self._after(notify=False)
        return held

    def start_update(self, backup_step: int) -> None:
        """Wait until the state may be changed. Raises StoppedError, or RuntimeError when it is being saved."""
        found: list[UpdatePermission] = []

        def may(p: Processor) -> bool:
            found[:] = [p.lock.permission()]
            return found[0] is not UpdatePermission.WAIT

        with self.changed:
            self.changed.wait_for(lambda: self._try(may))
            if found[0] is UpdatePermission.STOP:
                raise StoppedError("FORCE STOP: held at a step that is being repaired")
            if found[0] is UpdatePermission.DUMP:
                raise RuntimeError("the state is being saved as the last checkpoint and must not change any more")
            self.machine.lock.start(backup_step)

    def end_update(self, step: int) -> None:
        """Finish a step; wait while ranks are held at it."""
        self.use(lambda p: p.ended_update(step, time.monotonic()))
        if self.machine.lock.limit is not None:
            self.wait(lambda p: not p.lock.past())

    def report(self, state: ReportState, code: str = "") -> None:
        """Report how the train function ended."""
        self.use(lambda p: p.report(state, code))

    def next_action(self) -> Action:
        """Wait for stop and clean; a new rank for its groups."""
        return self._action(lambda p: p.next_action())

    def repair_action(self) -> Action:
        """Wait for repair and rollback."""
        return self._action(lambda p: p.repair_action())

    def _action(self, ask: Callable[[Processor], Action | None]) -> Action:
        found: list[Action | None] = []

        def decided(p: Processor) -> bool:
            found[:] = [ask(p)]
            return found[0] is not None

        self.wait(decided)
        return found[0] or Action.EXIT

    def pause(self, step: int) -> None:
        """Wait while training is paused. Raises RuntimeError STEP FINISH for a hot switch, StoppedError for a fault."""
        with self.changed:
            if self.machine.pause_step is None or not self.machine.pause_at(step):
                return
            self._after()
            if self.machine.pause_hot:
                raise RuntimeError("STEP FINISH")
            self.changed.wait_for(lambda: self.machine.pause_step is None or self.machine.leaving)
            if self.machine.lock.stopping:
                raise StoppedError("FORCE STOP: a fault came while training was paused")

    def leave(self) -> None:
        """Leave after training: inform the controller and close, within LEAVE_LIMIT."""
        with self.changed:
            if self._over:
                return
            self.machine.leave()
            self._after()
            self._over = True
        done = threading.Event()
        try:
            self._loop.call_soon_threadsafe(self._close, done)
        except RuntimeError:
            return
        done.wait(LEAVE_LIMIT)

    # -- machinery -----------------------------------------------------------------------------------------------

    def _after(self, notify: bool = True) -> None:
        """Under the condition: queue the commands of the state machine."""
        found = self.machine.take()
        if found:
            self._out += found
            if not self._over:
                try:
                    self._loop.call_soon_threadsafe(self._flush)
                except RuntimeError:
                    self._over = True
        if notify or found:
            self.changed.notify_all()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _flush(self) -> None:
        with self.changed:
            found, self._out = self._out, []
        for command in found:
            if isinstance(command, k.SendToController):
                if self._link is not None and self._link.transport is not None:
                    self._link.transport.write(m.encode(command.message))
            elif isinstance(command, k.Connect):
                self._drop()
                self._loop.call_later(command.wait, self._connect, command.address)
            elif isinstance(command, k.RunCallback):
                self._call(command)
            else:
                self._exit(command)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self.changed:
            deadline = self.machine.tick(time.monotonic())
            if self.machine._out:
                self._after()
        if deadline is not None and not self._over:
            self._timer = self._loop.call_later(max(0.005, deadline - time.monotonic()), self._arm)

    def _connect(self, address: str) -> None:
        if not self._over:
            self._loop.create_task(self._open(address))

    async def _open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        link = _Link(self)
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                await self._loop.create_connection(
                    lambda: link, host.strip("[]"), int(port), ssl=self._tls, server_hostname="" if self._tls else None
                )
        except (OSError, ValueError, TimeoutError, ssl.SSLError) as error:
            log.info("controller %s does not answer: %s", address, str(error)[:200] or type(error).__name__)
            self.use(lambda p: p.unlink(time.monotonic()))
            return
        self._link = link
        self.use(lambda p: p.link(time.monotonic()))

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None and link.transport is not None:
            link.transport.abort()

    def received(self, message: Message) -> None:
        """Pass a message of the controller to the state machine."""
        self.use(lambda p: p.receive(message, time.monotonic()))

    def lost(self, link: _Link) -> None:
        """The connection was lost."""
        if link is self._link:
            self._link = None
            if not self._over:
                self.use(lambda p: p.unlink(time.monotonic()))

    def _close(self, done: threading.Event) -> None:
        self._flush()
        link, self._link = self._link, None
        if link is not None and link.transport is not None:
            link.transport.close()

        def end() -> None:
            done.set()
            self._loop.stop()

        self._loop.call_later(0.01, end)

    def _call(self, command: k.RunCallback) -> None:
        """Call back in a new thread. Only `stop` and `exit` overtake a running callback, since they free it."""
        before = self._running if command.callback not in ("stop", "exit") else None

        def run() -> None:
            if before is not None:
                before.join()
            started = time.monotonic()
            result = self._callback(command.callback, command.arguments)
            took = time.monotonic() - started
            log.info("rank %d: %s answered %d after %.3f s", self.machine.settings.rank, command.callback, result, took)
            self.use(lambda p: p.finished(command.token, result))

        thread = threading.Thread(target=run, name=f"tft-{command.callback}", daemon=True)
        if command.callback not in ("stop", "exit"):
            self._running = thread
        thread.start()

    def _exit(self, command: k.ExitProcess) -> None:
        text = f"rank {self.machine.settings.rank} ends with {command.code}: {command.reason}"
        log.warning("%s", text)
        end_process(command.code, text)


def end_process(code: int, text: str) -> None:
    """Exit at once, even while threads are blocked."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is sys.stderr:
                stream.write(f"belay: {text}\n")
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
