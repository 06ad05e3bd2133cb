"""The agent of a pod on the bus: reports failed processes to the manager, and carries out its orders.

Messages and times: component/taskd/taskd/python/framework/agent of MindCluster. The pidfd of a process shows its end at
once, not at the next poll.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body, Received, ranks
from belay.agents.training.compat.bus.position import AGENT, MANAGER, NONE, Position
from belay.agents.training.compat.taskd.processes import Processes, ProcessState, ProcessStatus

log = logging.getLogger(__name__)

MGR: Final = Position(MANAGER, "0", NONE)
JOIN_SECONDS: Final = 180.0
START_SECONDS: Final = 900.0
PERIOD: Final = 1.0
ASK_SECONDS: Final = 30.0
"""Seconds between two requests to start the processes; the first answer counts."""
GRACE_SECONDS: Final = 600.0
REPORT_TIMEOUT_RANGE: Final = (300, 600)


class NoManager(RuntimeError):
    """The bus could not be joined, or the manager did not let the pod start."""


def report_timeout(environ: Mapping[str, str]) -> float | None:
    """TASKD_REPORT_FAULT_TIMEOUT, 300 to 600 s; None (no timeout) for any other value."""
    text = environ.get("TASKD_REPORT_FAULT_TIMEOUT", "")
    low, high = REPORT_TIMEOUT_RANGE
    return float(text) if text.isdigit() and low <= int(text) <= high else None


class BusAgent:
    """One agent. ``run`` returns the result of `Processes.finish`, or raises NoManager, or SystemExit(1) on the order
    to leave.

    The loss of the bus or the manager later does not affect the processes; the agent repeats its report afterwards.
    """

    def __init__(
        self,
        node: int,
        upstream: str,
        processes: Processes,
        *,
        job: str = "",
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes, self._clock = processes, clock
        self._environ = os.environ if environ is None else environ
        self._inbox: queue.Queue[Received] = queue.Queue(64)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._member = Member(Position(AGENT, str(node)), upstream=upstream, job=job, joined=self._joined)
        self._again = threading.Event()
        self._closed = False
        self._reported: frozenset[int] | None = frozenset()
        self._stopped: set[int] = set()
        self._faulty_since: float | None = None
        self._next_alive = 0.0
        self._next_try = 0.0

    def _joined(self) -> None:
        """In the bus thread: the manager may be a new one that does not know this pod."""
        self._again.set()
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            # the agent is awake already, or has ended
            pass

    def _receive(self) -> None:
        while not self._closed:
            if (received := self._member.receive(1.0)) is not None:
                self._inbox.put(received)
                self._wake()

    def run(self, join: float = JOIN_SECONDS, start: float = START_SECONDS) -> Any:
        """Join, ask to start, watch the processes until the end."""
        self._member.start()
        threading.Thread(target=self._receive, name="agent-bus", daemon=True).start()
        try:
            if not self._member.wait_joined(join):
                raise NoManager(f"the bus was not joined within {join:.0f} s: {self._member.trouble}")
            self._processes.start(self._permission(start))
            return self._watch()
        finally:
            self.close()

    def close(self) -> None:
        """Leave the bus."""
        if not self._closed:
            self._closed = True
            self._member.close()

    def _send(self, body: Body, tries: int = 1) -> bool:
        code = self._member.send(MGR, body, sync=True, tries=tries)
        if code != codes.OK:
            log.debug("%s %s is not delivered: %s", body.kind, body.code, codes.explained(code))
        return code == codes.OK

    def _ask(self) -> bool:
        left = str(self._processes.restarts())
        return self._send(Body(codes.REGISTER, codes.AGENT_REGISTERED)) and self._send(
            Body(codes.STATUS, codes.RESTART_TIMES, left)
        )

    def _permission(self, limit: float) -> int:
        """Ask to start until 210 arrives; the remaining restarts. Other messages wait until the processes run."""
        last = self._clock() + limit
        later: list[Received] = []
        asked_again = 0.0
        log.info("the agent has joined the bus and asks the manager to start its processes")
        while (now := self._clock()) < last:
            if self._again.is_set() or now >= asked_again:
                self._again.clear()
                asked_again = now + (ASK_SECONDS if self._ask() else PERIOD)
            self._sleep(PERIOD)
            while not self._inbox.empty():
                received = self._inbox.get_nowait()
                if received.body.code == codes.START_AGENT:
                    log.info("the processes may start, restarts left: %s", received.body.message[:20])
                    for one in later:
                        self._inbox.put_nowait(one)
                    return self._number(received.body.message)
                if received.body.code == codes.EXIT_AGENT:
                    log.error("the manager ends this pod before its processes were started")
                    sys.exit(1)
                later.append(received)
        raise NoManager(f"the manager did not let the processes start within {limit:.0f} s")

    def _number(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            log.warning("%r is not a number of restarts; the agent uses its own", text[:20])
            return self._processes.restarts()

    def _sleep(self, seconds: float) -> None:
        """Wait for a message, the end of a process, or ``seconds``."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for descriptor in self._processes.descriptors():
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def _watch(self) -> Any:
        while True:
            now = self._clock()
            if self._again.is_set():
                # a new manager requests nothing: register and repeat the report
                self._again.clear()
                self._send(Body(codes.REGISTER, codes.AGENT_REGISTERED))
                self._reported, self._next_try = (frozenset() if not self._reported else None), 0.0
            if now >= self._next_alive:
                self._next_alive = now + PERIOD
                self._member.post(MGR, Body(codes.KEEP_ALIVE, 0, _report(())))
            while not self._inbox.empty():
                self._handle(self._inbox.get_nowait())
            status = self._processes.monitor()
            if status.state is ProcessState.SUCCEEDED:
                return self._processes.finish(status)
            self._report_faults(status, self._clock())
            self._sleep(PERIOD)

    def _report_faults(self, status: ProcessStatus, now: float) -> None:
        """Report the set of failed ranks when it has changed, until the manager has received it."""
        failed = frozenset(status.failed - self._stopped)
        if failed and self._faulty_since is None:
            self._faulty_since = now
        elif not failed:
            self._faulty_since = None
        if failed != self._reported and now >= self._next_try:
            extension = {"REPORT_FAULT_TIME": str(int(time.time()))}
            if self._send(Body(codes.STATUS, codes.FAULT_RANKS, _report(sorted(failed)), extension)):
                log.info("ranks %s failed, the manager knows", sorted(failed)[:16])
                self._reported = failed
            else:
                self._next_try = now + PERIOD
        limit = report_timeout(self._environ)
        if limit is not None and self._faulty_since is not None and now - self._faulty_since >= limit:
            log.error("failed ranks were not handled for %.0f s (TASKD_REPORT_FAULT_TIMEOUT); the pod ends", limit)
            self._leave()

    def _handle(self, received: Received) -> None:
        body = received.body
        try:
            match body.code:
                case codes.EXIT_AGENT:
                    log.warning("the manager ends this pod")
                    self._leave()
                case codes.RESTART_AGENT:
                    self._restart_all(self._number(body.message))
                case codes.RESTART_WORKERS:
                    self._restart(ranks(body.message))
                case codes.STOP_WORKERS:
                    own = set(ranks(body.message)) & set(self._processes.ranks())
                    self._processes.stop(own)
                    self._stopped |= own
                case codes.START_AGENT:
                    # the answer to a repeated request
                    pass
                case codes.GRACE_EXIT:
                    self._grace()
                case _ if body.kind == codes.GRACE_EXIT:
                    self._grace()
                case _:
                    log.warning("%s sends %s %s, which an agent does not know", received.src, body.kind, body.code)
        except ValueError as error:
            log.warning("%s sends %s %s: %s", received.src, body.kind, body.code, error)

    def _restart(self, asked: tuple[int, ...]) -> None:
        """Restart these processes; ranks of other pods are ignored."""
        own = [rank for rank in asked if rank in self._processes.ranks()]
        if not own:
            log.warning("ranks %s are not of this pod", asked[:16])
            return
        log.info("ranks %s are restarted, the others continue", own[:16])
        os.environ["RESTART_FAULT_PROCESS_TYPE"] = "worker"
        try:
            self._processes.restart(own)
        finally:
            os.environ["RESTART_FAULT_PROCESS_TYPE"] = "pod"
        self._stopped -= set(own)
        # a rank that fails again must be reported, even if the set is the same
        self._reported = frozenset((self._reported or frozenset()) - set(own))

    def _restart_all(self, restarts: int) -> None:
        if restarts < 0:
            log.error("no restart is left")
            self._leave()
        self._processes.stop()
        self._stopped.clear()
        self._reported = frozenset()
        self._processes.start(restarts)

    def _grace(self) -> None:
        log.warning("the processes get SIGTERM and time to end")
        self._processes.stop(grace=GRACE_SECONDS)
        status = self._processes.monitor()
        if status.state is not ProcessState.SUCCEEDED:
            self._leave()

    def _leave(self) -> None:
        """End every process, report that no rank is faulty, exit with 1."""
        self._processes.stop()
        self._send(Body(codes.STATUS, codes.FAULT_RANKS, _report(())))
        sys.exit(1)


def _report(failed: Any) -> str:
    return json.dumps({"fault_ranks": list(failed), "restart_times": -1})


def terminate(pids: Mapping[int, int], grace: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send SIGTERM to the process groups, wait up to ``grace`` seconds, send SIGKILL to the rest. ``pids``: rank →
    pid."""
    for sig in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        alive = [pid for pid in pids.values() if _signal(pid, sig)]
        last = time.monotonic() + grace
        while sig == signal.SIGTERM and alive and time.monotonic() < last:
            sleep(0.05)
            alive = [pid for pid in alive if _signal(pid, 0)]


def _signal(pid: int, sig: int) -> bool:
    try:
        if sig:
            os.killpg(pid, sig)
        else:
            os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return False
