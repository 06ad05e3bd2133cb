"""Check that a worker makes progress, and restart it in place when it does not.

A Celery worker may live and yet consume nothing: its consumer never reconnected after the broker's death, its loop
blocks, or every slot is stuck. Silence alone proves nothing: Redis has to answer *us* while there is work and the
worker makes no progress. Then the process replaces itself (``execv``: same process id and identity, so its Lease and
claims continue), which is as safe as a ``kill -9`` and bounded: after ``MAX_RESTARTS`` restarts within
``RESTART_WINDOW`` seconds it ends with code 70 and leaves the pause to its supervisor.
"""

from __future__ import annotations

import http.server
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from celery import bootsteps
from celery.worker import state

from belay.engine import hot_loops
from belay.engine.log import get
from belay.engine.model.hot_loop import HotLoopDetector
from belay.engine.store import StoreUnavailable

_log = get("watchdog")
TICK_SECONDS: Final = 1.0
BEAT_SECONDS: Final = 1.0
MAX_RESTARTS: Final = 5
RESTART_WINDOW: Final = 600.0
RESTARTS: Final = "BELAY_WORKER_RESTARTS"
"""Environment variable that carries the times (Unix s) of earlier restarts over ``execv``."""
GAVE_UP: Final = 70
"""Exit code after too many restarts (EX_SOFTWARE)."""
_SILENT_SECONDS: Final = 10.0
"""Seconds without a check after which ``/healthz`` fails."""
_REQUEST_SECONDS: Final = 2.0


class ProgressSample(msgspec.Struct, frozen=True):
    """The findings of one check. Times are monotonic seconds.

    ``waiting``: messages in our queues, None while Redis does not answer us; ``taken``: tasks begun since the process
    started; ``running``: ids of running tasks; ``slots``: most running tasks; ``beat``: when the connected consumer's
    loop last ran.
    """

    now: float
    waiting: int | None
    taken: int
    running: frozenset[str]
    slots: int
    beat: float


class StallDetector:
    """Decides from a series of samples whether the worker is stuck.

    ``stall``: longest time in s for which the consumer may be silent while Redis answers, or messages may wait while a
    slot is free; ``longest``: longest time in s for one task.
    """

    def __init__(self, stall: float, longest: float) -> None:
        self._stall = stall
        self._longest = longest
        self._answers_since: float | None = None
        self._idle_since: float | None = None
        self._taken = -1
        self._begun: dict[str, float] = {}

    def check(self, sample: ProgressSample) -> str:
        """What is wrong; empty while the worker makes progress or none is possible."""
        self._begun = {task: self._begun.get(task, sample.now) for task in sample.running}
        if sample.waiting is None:
            self._answers_since = self._idle_since = None
            return ""
        if self._answers_since is None:
            self._answers_since = sample.now
        silent = sample.now - max(sample.beat, self._answers_since)
        if silent > self._stall:
            return f"the consumer has been silent for {silent:.0f} s although Redis answers"
        return self._stuck(sample) or self._idle(sample, sample.waiting)

    def _stuck(self, sample: ProgressSample) -> str:
        old = [task for task, begun in self._begun.items() if sample.now - begun > self._longest]
        if old and len(old) >= sample.slots:
            return f"all {sample.slots} slots have been at one task for more than {self._longest:.0f} s"
        return ""

    def _idle(self, sample: ProgressSample, waiting: int) -> str:
        progress, self._taken = sample.taken != self._taken, sample.taken
        if not waiting or progress or len(sample.running) >= sample.slots:
            self._idle_since = None
            return ""
        if self._idle_since is None:
            self._idle_since = sample.now
        idle = sample.now - self._idle_since
        return f"{waiting} messages wait and none was taken for {idle:.0f} s" if idle > self._stall else ""


class Watchdog:
    """Checks every second in its own thread.

    ``waiting`` asks Redis how many messages wait and raises StoreUnavailable when it does not answer; ``restart`` gets
    the reason.
    """

    def __init__(
        self,
        detector: StallDetector,
        slots: int,
        waiting: Callable[[], int],
        restart: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._detector = detector
        self._slots = slots
        self._waiting = waiting
        self._restart = restart
        self._clock = clock
        self._checked = self._beat = clock()
        self._answers = False
        self._hot = HotLoopDetector()
        self._seen, self._busy = 0, False
        self._stopped = threading.Event()

    def beat(self) -> None:
        """Record that the consumer's loop ran."""
        self._beat = self._clock()

    def stop(self) -> None:
        """End the checks: the worker is shutting down."""
        self._stopped.set()

    def run(self) -> None:
        """Check until stopped."""
        while not self._stopped.wait(TICK_SECONDS):
            if reason := self.check():
                self._restart(reason)
                return

    def check(self) -> str:
        """Look once; returns why the worker has to start again, empty when it need not."""
        try:
            waiting: int | None = self._waiting()
        except StoreUnavailable:  # only counted here: the consumer logs the reason
            waiting = None
        now = self._clock()
        running = frozenset(str(request.id) for request in list(state.active_requests))
        sample = ProgressSample(now, waiting, state.all_total_count[0], running, self._slots, self._beat)
        self._checked, self._answers = now, waiting is not None
        idle, self._seen = not running and not self._busy and self._seen == sample.taken, sample.taken
        self._busy = bool(running)
        if hot := self._hot.check(now, time.process_time(), idle):
            hot_loops.warn(hot)
        return self._detector.check(sample)

    @property
    def alive(self) -> bool:
        """Whether the process runs; a worker that is merely stuck restarts itself."""
        return self._clock() - self._checked < _SILENT_SECONDS

    @property
    def ready(self) -> bool:
        """Whether the worker consumes: Redis answers and the consumer's loop ran lately."""
        return self.alive and self._answers and self._clock() - self._beat < _SILENT_SECONDS


class ConsumerHeartbeat(bootsteps.StartStopStep):
    """A timer in the loop of Celery's consumer, set again with every connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    watchdog: Watchdog | None = None

    def start(self, parent: Any) -> None:
        """Start the timer: the consumer is connected."""
        if self.watchdog is not None:
            self.watchdog.beat()
            parent.timer.call_repeatedly(BEAT_SECONDS, self.watchdog.beat)


def start(watchdog: Watchdog, port: int = 0) -> None:
    """Check in the background; with a ``port`` also answer ``/healthz`` and ``/readyz`` there on all addresses."""
    ConsumerHeartbeat.watchdog = watchdog
    threading.Thread(target=watchdog.run, name="belay-watchdog", daemon=True).start()
    if port:
        threading.Thread(target=_serve, args=(watchdog, port), name="belay-health", daemon=True).start()


def restart_in_place(reason: str, environ: Mapping[str, str] | None = None, now: float | None = None) -> None:
    """Replace this process by a new one with the same arguments, or end it after too many restarts."""
    given = os.environ if environ is None else environ
    moment = time.time() if now is None else now
    recent = earlier(given.get(RESTARTS, ""), moment)
    if len(recent) >= MAX_RESTARTS:
        _log.error("worker ends: it restarted too often", reason=reason, restarts=len(recent), window_s=RESTART_WINDOW)
        sys.stderr.flush()
        os._exit(GAVE_UP)
    _log.warning("worker restarts in place", reason=reason, restarts=len(recent) + 1)
    sys.stdout.flush()
    sys.stderr.flush()
    variables = {**given, RESTARTS: ",".join(f"{at:.0f}" for at in [*recent, moment])}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)


def earlier(text: str, now: float) -> list[float]:
    """The times of restarts within the window, from the environment; unreadable ones are left out."""
    return [at for at in _numbers(text.split(",")) if now - RESTART_WINDOW < at <= now]


def _numbers(words: Iterable[str]) -> list[float]:
    return [float(word) for word in words if word.isascii() and word.isdecimal()]


def _serve(watchdog: Watchdog, port: int) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            answers = {"/healthz": watchdog.alive, "/readyz": watchdog.ready}
            good = answers.get(self.path)
            self.send_response(404 if good is None else 200 if good else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Probes are not worth a line each."""

    try:
        server = http.server.HTTPServer(("", port), Handler)
    except OSError as error:
        _log.error("health port not opened, probes will fail", port=port, reason=str(error))
        return
    server.serve_forever()
