"""The manager at run time: bus, session with ClusterD, controller, and the pure core between them."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.bridge import Bridge
from belay.agents.training.clusterd.client import server_address
from belay.agents.training.clusterd.controller import MindIO, TrainingController
from belay.agents.training.clusterd.state import (
    Command,
    JobSettings,
    LogWarning,
    ReplyStress,
    ReplySwitch,
    ReportFaults,
    ToAgents,
    ToController,
    ToWorkers,
)
from belay.agents.training.compat import resetfile
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body
from belay.agents.training.compat.bus.position import AGENT, ALL, MANAGER, WORKER, Position
from belay.agents.training.compat.manager.core import ManagerCore
from belay.agents.training.compat.manager.session import RecoverSession

log = logging.getLogger(__name__)

MAX_EVENTS: Final = 40_000
RESET_SECONDS: Final = 1.0


def listen_address(environ: Mapping[str, str]) -> str:
    """The address of the manager: $POD_IP:9601 (TASKD_MANAGER_PORT); 127.0.0.1 without POD_IP or with a local proxy."""
    host = environ.get("POD_IP") or "127.0.0.1"
    if environ.get("LOCAL_PROXY_ENABLE") == "on":
        host = "127.0.0.1"
    port = constants.own_port(environ, "TASKD_MANAGER_PORT", constants.PORT)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def loop_seconds(environ: Mapping[str, str]) -> float:
    """Seconds between two ticks without an event: TASKD_PROCESS_INTERVAL, 100 to 1,000 ms."""
    text = environ.get("TASKD_PROCESS_INTERVAL", "")
    low, high = constants.LOOP_RANGE_MS
    return int(text) / 1000 if text.isdigit() and low <= int(text) <= high else constants.LOOP_SECONDS


def mindio_controller(callbacks: Mapping[str, Callable[..., int]], environ: Mapping[str, str]) -> TrainingController:
    """MindIO's controller, started. Raises ImportError without mindio_ttp, ValueError when a variable is missing."""
    world = environ.get("WORLD_SIZE") or environ.get("MS_WORKER_NUM") or ""
    if not world.isdigit() or not int(world):
        raise ValueError("WORLD_SIZE (MS_WORKER_NUM with MindSpore) is not set: it gives the number of processes")
    address, port = environ.get("POD_IP", ""), environ.get("TTP_PORT", "")
    if not address or not port.isdigit():
        raise ValueError("POD_IP and TTP_PORT must be set: the training controller listens there")
    controller = MindIO()
    controller.register_callbacks(callbacks)
    arf = environ.get("PROCESS_RECOVER") == "on"
    zit = "elastic-training" in environ.get("HIGH_AVAILABILITY", "")
    controller.begin(int(world), address, int(port), arf=arf, zit=zit)
    return controller


class ManagerService:
    """One manager. ``run`` blocks until ``stop``.

    ``make_controller`` builds the training controller from its callbacks; MindIO's by default. Without MINDX_SERVER_IP
    there is no ClusterD: the manager only starts agents and reschedules pods and jobs.
    """

    def __init__(
        self,
        settings: JobSettings,
        *,
        listen: str = "",
        server: str = "",
        controller: bool = True,
        make_controller: Callable[[Mapping[str, Callable[..., int]]], TrainingController] | None = None,
        environ: Mapping[str, str] | None = None,
        reset_file: Path = resetfile.FILE,
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.core = ManagerCore(settings)
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue(MAX_EVENTS)
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._reset_file, self._reset_seen = reset_file, (0, False)
        self._interval = loop_seconds(self.environ)
        self.member = Member(Position(MANAGER, "0"), listen=listen or listen_address(self.environ), job=settings.job)
        self.session = self._make_session(settings, server)
        make = make_controller or (lambda callbacks: mindio_controller(callbacks, self.environ))
        callbacks = self.session.callbacks() if self.session is not None else {}
        self.bridge = Bridge(lambda: make(callbacks)) if controller else None
        self._reports: queue.Queue[Callable[[], object] | None] = queue.Queue(1024)
        self._threads = [
            threading.Thread(target=self._receive_bus, name="manager-bus", daemon=True),
            threading.Thread(target=self._report, name="manager-reports", daemon=True),
        ]

    def _make_session(self, settings: JobSettings, server: str) -> RecoverSession | None:
        try:
            return RecoverSession(settings.job, server or server_address(self.environ), self._put)
        except ValueError as error:
            log.warning("no session with ClusterD: %s", error)
            return None

    def start(self) -> None:
        """Listen. Raises OSError when the address is in use."""
        self.member.start()

    def run(self) -> None:
        """Handle events until ``stop``."""
        for thread in self._threads:
            thread.start()
        if self.bridge is not None:
            self.bridge.start()
        if self.session is not None:
            self.session.start()
        checked = 0.0
        try:
            while not self._stopped.is_set():
                try:
                    kind, value = self._events.get(timeout=self._interval)
                except queue.Empty:
                    kind, value = "tick", None
                now = time.monotonic()
                self._do(self._decide(kind, value, now))
                if now - checked >= RESET_SECONDS:
                    checked = now
                    self._read_reset_file(now)
        finally:
            self._close()
            self._ended.set()

    def stop(self, timeout: float = 15.0) -> None:
        """End ``run`` and wait for it."""
        self._stopped.set()
        self._put("tick", None)
        self._ended.wait(timeout)

    def _close(self) -> None:
        self._stopped.set()
        if self.session is not None:
            self.session.stop()
        if self.bridge is not None:
            self.bridge.stop()
        self._reports.put(None)
        self.member.close()

    def _put(self, kind: str, value: Any) -> None:
        try:
            self._events.put_nowait((kind, value))
        except queue.Full:
            log.error("the manager has %d events waiting, %s is dropped", MAX_EVENTS, kind)

    def _receive_bus(self) -> None:
        while not self._stopped.is_set():
            if (received := self.member.receive(1.0)) is not None:
                self._put("message", received)

    def _decide(self, kind: str, value: Any, now: float) -> list[Command]:
        core = self.core
        match kind:
            case "message":
                return core.message(value, now)
            case "signal":
                if value.kind != constants.KEEP_ALIVE:
                    log.info(
                        "signal %s %s %s for %d ranks",
                        value.kind,
                        "+".join(value.actions),
                        value.strategy,
                        len(value.faults),
                    )
                return core.signal(value, now)
            case "subscribed":
                return core.subscribed(now)
            case "switch":
                return core.switch(value, now)
            case "stress":
                return core.stress(value, now)
            case "profiling":
                return core.profiling(value, now)
        return core.tick(now)

    def _read_reset_file(self, now: float) -> None:
        try:
            found = resetfile.read(self._reset_file)
        except (ValueError, OSError) as error:
            # the file is being replaced; the next read is complete
            log.debug("%s", error)
            return
        seen = (found.retry_time, found.graceful_exit)
        if seen != self._reset_seen or self.core.state.retry_time is None:
            self._reset_seen = seen
            self._do(self.core.reset_file(*seen, now))

    # commands

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case ToAgents():
                    log.info("agents %s: %s %s", _short(command.nodes), command.code, command.message[:120])
                    body = Body(codes.ACTION, command.code, command.message)
                    for node in command.nodes:
                        self._deliver(Position(AGENT, str(node)), body)
                case ToWorkers():
                    self._to_workers(command)
                case ToController() if self.bridge is not None:
                    log.info("controller: %s %s", "+".join(command.actions), command.strategy)
                    self.bridge.put(command)
                case ReportFaults() if self.session is not None:
                    report = self.session.callbacks()["report_fault_ranks"]
                    self._later(lambda faults=command.faults, report=report: report(faults))  # type: ignore[misc]
                case ReplySwitch() if self.session is not None:
                    self._later(lambda ok=command.ok: self.session.reply_switch(ok))  # type: ignore[misc]
                case ReplyStress() if self.session is not None:
                    self._later(lambda found=command.results: self.session.reply_stress(found))  # type: ignore[misc]
                case LogWarning():
                    log.warning("%s", command.text[:500])
                case _:
                    log.warning("no component carries out %s", type(command).__name__)

    def _to_workers(self, command: ToWorkers) -> None:
        body = Body(codes.ACTION, command.code, "", command.extension)
        if command.ranks is None:
            self.member.send(Position(WORKER, ALL, ALL), body)
            return
        for rank in command.ranks:
            if (worker := self.core.state.workers.get(rank)) is not None:
                self._deliver(Position(WORKER, str(worker.node), str(rank)), body)

    def _deliver(self, dst: Position, body: Body, attempt: int = 0) -> None:
        """Send; an undelivered message is sent again, at most five times."""

        def done(code: int) -> None:
            if code == codes.OK or self._stopped.is_set():
                return
            if attempt >= len(constants.RESEND_WAITS):
                log.error("%s is not delivered to %s: %s", body.code, dst, codes.explained(code))
                return
            timer = threading.Timer(constants.RESEND_WAITS[attempt], self._deliver, (dst, body, attempt + 1))
            timer.daemon = True
            timer.start()

        self.member.post(dst, body, done=done)

    def _later(self, work: Callable[[], object]) -> None:
        try:
            self._reports.put_nowait(work)
        except queue.Full:
            log.error("1,024 reports wait for ClusterD, a new one is dropped")

    def _report(self) -> None:
        while (work := self._reports.get()) is not None:
            work()


def _short(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes[:8])) + (f",… ({len(nodes)})" if len(nodes) > 8 else "")
