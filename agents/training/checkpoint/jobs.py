"""The queue of the writing process: saves of one file are written in order, retried, and alarms raised.

The pause between tries is 1 s, 2 s, 4 s, … up to 10 s; after ten tries a save has failed, unless saves are kept for
ever. After ten consecutive failures no save is accepted until a write succeeds, and an alarm file reports it
(MindIO ACP's rules: ``ccae/ockiod_report_CCAE.json``, alarm 0x1001001).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import durable
from belay.agents.training.checkpoint.pool import Slot

log = logging.getLogger("belay.checkpoint")

TRIES = 10
LONGEST_S = 10.0
UNSERVICEABLE = 10
"""Consecutive failures after which no save is accepted."""
ALARM = 0x1001001
NICE = 10
"""Of the threads that hash and write: training goes first, and they need little. Answers to ranks are not delayed."""
SLOW_S = 60.0
"""Seconds after which a running write is reported: a hard-mounted network file system waits for its server for ever."""


@dataclass
class WriteJob:
    """One save on its way to the disk."""

    due: float
    number: int
    slot: Slot
    generation: int
    path: Path
    links: tuple[Path, ...]
    mode: int
    tries: int = 0
    written: int = 0
    begun: float | None = None


class WriteQueue:
    """The queue and its threads. ``finished(job, error)`` is called once per job, without the lock."""

    def __init__(
        self,
        finished: Callable[[WriteJob, str | None], None],
        *,
        writers: int,
        threads: int,
        work: Path,
        forever: bool = False,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[..., Any] = durable.write,
    ) -> None:
        self._finished, self._threads, self._forever, self._clock, self._write = (
            finished,
            threads,
            forever,
            clock,
            write,
        )
        self._alarm_file = work / "ccae" / "ockiod_report_CCAE.json"
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[WriteJob] = []
        self._running: dict[str, WriteJob] = {}
        self._numbers = itertools.count()
        self._stopped = False
        self.in_row = 0
        self._raised = False
        self._workers = [threading.Thread(target=self._run, daemon=True, name=f"write-{n}") for n in range(writers)]
        for worker in self._workers:
            worker.start()

    @property
    def serviceable(self) -> bool:
        """False after ten consecutive failures, until a write succeeds."""
        return self.in_row < UNSERVICEABLE

    def add(self, slot: Slot, path: Path, links: tuple[Path, ...], mode: int) -> None:
        """Queue the current content of a slot for ``path``."""
        with self._changed:
            job = WriteJob(self._clock(), next(self._numbers), slot, slot.generation, path, links, mode)
            self._waiting.append(job)
            self._changed.notify()

    def status(self) -> dict[str, Any]:
        """Numbers for an operator: saves waiting and running, bytes left, the oldest one's age in seconds."""
        with self._changed:
            jobs = [*self._waiting, *self._running.values()]
            now = self._clock()
            slow = [
                str(job.path)
                for job in self._running.values()
                if job.begun is not None and now - job.begun > SLOW_S + job.slot.size / (50 << 20)
            ]
            return {
                "waiting": len(self._waiting),
                "running": len(self._running),
                "bytes_left": sum(max(0, job.slot.size - job.written) for job in jobs),
                "stuck": slow[:10],
                "failures_in_row": self.in_row,
                "serviceable": self.serviceable,
            }

    def stop(self) -> None:
        """End the threads after their current writes."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def take(self) -> WriteJob | None:
        """The first due save whose file has no running and no earlier save."""
        with self._changed:
            now, seen = self._clock(), set(self._running)
            for job in sorted(self._waiting, key=lambda job: job.number):
                if job.due <= now and str(job.path) not in seen:
                    self._waiting.remove(job)
                    self._running[str(job.path)] = job
                    job.begun, job.written = now, 0
                    return job
                seen.add(str(job.path))
        return None

    def work(self, job: WriteJob) -> None:
        """Try to write a save returned by `take`."""
        try:
            self._attempt(job)
        finally:
            with self._changed:
                del self._running[str(job.path)]
                self._changed.notify_all()

    def _run(self) -> None:
        # of this thread, and of those that it starts
        own = threading.get_native_id()
        with suppress(OSError):
            # a sandbox may forbid it: writing goes on as it is then
            os.setpriority(os.PRIO_PROCESS, own, max(NICE, os.getpriority(os.PRIO_PROCESS, own)))
        while True:
            with self._changed:
                while (job := self.take()) is None and not self._stopped:
                    due = [job.due for job in self._waiting if job.due > self._clock()]
                    self._changed.wait(max(0.0, min(due) - self._clock()) if due else None)
            if job is None:
                return
            self.work(job)

    def _attempt(self, job: WriteJob) -> None:
        def progress(count: int) -> None:
            job.written += count

        try:
            data = job.slot.memory.content(job.slot.size)
            self._write(job.path, data, mode=job.mode, threads=self._threads, links=job.links, progress=progress)
        except Exception as error:
            self._failed(job, f"{type(error).__name__}: {error}")
        else:
            self.in_row = 0
            self._alarm(False)
            self._finished(job, None)

    def _failed(self, job: WriteJob, reason: str) -> None:
        job.tries += 1
        job.begun = None
        self.in_row += 1
        if not self.serviceable:
            self._alarm(True)
        if job.tries < TRIES or self._forever:
            wait = min(LONGEST_S, 2.0 ** min(job.tries - 1, 10))
            log.warning("%s was not written (try %d, next in %.0f s): %s", job.path, job.tries, wait, reason[:300])
            with self._changed:
                job.due = self._clock() + wait
                self._waiting.append(job)
        else:
            log.error("%s was not written in %d tries and is given up: %s", job.path, job.tries, reason[:300])
            self._finished(job, reason)

    def _alarm(self, raised: bool) -> None:
        if raised == self._raised:
            return
        self._raised = raised
        body = {
            "alarmId": hex(ALARM),
            "status": "Uncleared" if raised else "Cleared",
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "failuresInRow": self.in_row,
        }
        try:
            self._alarm_file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._alarm_file.write_text(json.dumps(body) + "\n")
        except OSError as error:
            log.warning("the alarm file %s cannot be written: %s", self._alarm_file, error)
