"""Looks whether a worker still works, and starts it again in place when it does not.

A Celery worker may live and yet consume nothing: its consumer never came back after the broker's death, its loop
stands still, or every slot is stuck. Nothing is concluded from silence alone: Redis has to answer *us* while the worker
makes no progress although there is work. Then the process replaces itself (``execv``: same process id, same identity,
so its Lease and its claims are taken up at once), which is as safe as a ``kill -9`` and bounded: after ``MOST``
restarts within ``WINDOW`` seconds it ends with code 70 and leaves pausing to whoever started it.
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

from engine.log import get
from engine.store import StoreUnavailable

_log = get("watchdog")
TICK_SECONDS: Final = 1.0
BEAT_SECONDS: Final = 1.0
MOST: Final = 5
WINDOW: Final = 600.0
RESTARTS: Final = "BELAY_WORKER_RESTARTS"
"""Environment variable that carries the times (Unix s) of earlier restarts over ``execv``."""
GAVE_UP: Final = 70
"""Exit code after too many restarts (EX_SOFTWARE)."""
_SILENT_LOOKS: Final = 10.0
"""Seconds without a look after which ``/healthz`` fails."""
_REQUEST_SECONDS: Final = 2.0


class Sign(msgspec.Struct, frozen=True):
    """What one look found. Times are monotonic seconds.

    ``waiting``: messages in our queues, None while Redis does not answer us; ``taken``: tasks begun since the process
    started; ``running``: tasks at work; ``slots``: how many could be; ``beat``: when the consumer's own loop last
    turned while it was connected.
    """

    now: float
    waiting: int | None
    taken: int
    running: frozenset[str]
    slots: int
    beat: float


class Judge:
    """Decides from a series of signs whether the worker is stuck.

    ``stall``: longest time in s that Redis answers and the consumer is silent, or that messages wait beside a free slot
    without one being taken; ``longest``: longest time in s that one task may run.
    """

    def __init__(self, stall: float, longest: float) -> None:
        self._stall = stall
        self._longest = longest
        self._answers_since: float | None = None
        self._idle_since: float | None = None
        self._taken = -1
        self._begun: dict[str, float] = {}

    def look(self, sign: Sign) -> str:
        """Empty while the worker works or nobody could; else what is wrong."""
        self._begun = {task: self._begun.get(task, sign.now) for task in sign.running}
        if sign.waiting is None:
            self._answers_since = self._idle_since = None
            return ""
        if self._answers_since is None:
            self._answers_since = sign.now
        silent = sign.now - max(sign.beat, self._answers_since)
        if silent > self._stall:
            return f"the consumer has been silent for {silent:.0f} s although Redis answers"
        return self._stuck(sign) or self._idle(sign, sign.waiting)

    def _stuck(self, sign: Sign) -> str:
        old = [task for task, begun in self._begun.items() if sign.now - begun > self._longest]
        if old and len(old) >= sign.slots:
            return f"all {sign.slots} slots have been at one task for more than {self._longest:.0f} s"
        return ""

    def _idle(self, sign: Sign, waiting: int) -> str:
        progress, self._taken = sign.taken != self._taken, sign.taken
        if not waiting or progress or len(sign.running) >= sign.slots:
            self._idle_since = None
            return ""
        if self._idle_since is None:
            self._idle_since = sign.now
        idle = sign.now - self._idle_since
        return f"{waiting} messages wait and none was taken for {idle:.0f} s" if idle > self._stall else ""


class Watchdog:
    """Looks every second from a thread of its own.

    ``waiting`` asks Redis how many messages wait and raises StoreUnavailable when it does not
    answer; ``restart`` gets the reason.
    """

    def __init__(
        self,
        judge: Judge,
        slots: int,
        waiting: Callable[[], int],
        restart: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._judge = judge
        self._slots = slots
        self._waiting = waiting
        self._restart = restart
        self._clock = clock
        self._looked = self._beat = clock()
        self._answers = False
        self._stopped = threading.Event()

    def beat(self) -> None:
        """The consumer's loop turned."""
        self._beat = self._clock()

    def stop(self) -> None:
        """The worker is asked to end: from now on it may be idle."""
        self._stopped.set()

    def run(self) -> None:
        """Look until stopped."""
        while not self._stopped.wait(TICK_SECONDS):
            if reason := self.look():
                self._restart(reason)
                return

    def look(self) -> str:
        """Look once; returns why the worker has to start again, empty when it need not."""
        try:
            waiting: int | None = self._waiting()
        except StoreUnavailable:  # only counted here: the consumer itself says why it cannot go on
            waiting = None
        now = self._clock()
        running = frozenset(str(request.id) for request in list(state.active_requests))
        sign = Sign(now, waiting, state.all_total_count[0], running, self._slots, self._beat)
        self._looked, self._answers = now, waiting is not None
        return self._judge.look(sign)

    @property
    def alive(self) -> bool:
        """Whether the process as a whole still turns; a worker that is merely stuck restarts itself."""
        return self._clock() - self._looked < _SILENT_LOOKS

    @property
    def ready(self) -> bool:
        """Whether it consumes: Redis answers and the consumer's loop turned lately."""
        return self.alive and self._answers and self._clock() - self._beat < _SILENT_LOOKS


class Pulse(bootsteps.StartStopStep):
    """Part of Celery's consumer: a timer in its own loop, set anew with every connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    watchdog: Watchdog | None = None

    def start(self, parent: Any) -> None:
        """The consumer is connected."""
        if self.watchdog is not None:
            self.watchdog.beat()
            parent.timer.call_repeatedly(BEAT_SECONDS, self.watchdog.beat)


def start(watchdog: Watchdog, port: int = 0) -> None:
    """Watch in the background; with a ``port`` also answer ``/healthz`` and ``/readyz`` there on all addresses."""
    Pulse.watchdog = watchdog
    threading.Thread(target=watchdog.run, name="belay-watchdog", daemon=True).start()
    if port:
        threading.Thread(target=_serve, args=(watchdog, port), name="belay-health", daemon=True).start()


def restart_in_place(reason: str, environ: Mapping[str, str] | None = None, now: float | None = None) -> None:
    """Replace this process by a fresh one with the same arguments, or end it after too many restarts."""
    given = os.environ if environ is None else environ
    moment = time.time() if now is None else now
    recent = earlier(given.get(RESTARTS, ""), moment)
    if len(recent) >= MOST:
        _log.error("worker ends: it restarted too often", reason=reason, restarts=len(recent), window_s=WINDOW)
        sys.stderr.flush()
        os._exit(GAVE_UP)
    _log.warning("worker restarts in place", reason=reason, restarts=len(recent) + 1)
    sys.stdout.flush()
    sys.stderr.flush()
    variables = {**given, RESTARTS: ",".join(f"{at:.0f}" for at in [*recent, moment])}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)


def earlier(text: str, now: float) -> list[float]:
    """The restarts within the window that the environment tells of; what cannot be read is none."""
    return [at for at in _numbers(text.split(",")) if now - WINDOW < at <= now]


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
        _log.error("no health port, probes will fail", port=port, reason=str(error))
        return
    server.serve_forever()
