"""The Celery application: two queues, one task each.

Tasks are at-least-once: acknowledged late, fetched one at a time, results ignored, JSON only. There is no task per
object: queue ``plan`` holds names of shards, queue ``act`` batches of actions.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

from celery import Celery, bootsteps
from celery.signals import worker_init, worker_ready, worker_shutdown, worker_shutting_down
from celery.utils.log import mlevel
from celery.utils.nodenames import default_nodename, host_format

from belay.engine import log, tracing
from belay.engine.controller import garbage_collection, watchdog
from belay.engine.controller.messages import configuration
from belay.engine.controller.queues import ACT, RECONCILE, send, waiting
from belay.engine.controller.triggers import Triggers
from belay.engine.controller.worker import TASK_SECONDS, Worker
from belay.engine.errors import BelayError
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.settings import Settings, from_environment, warn
from belay.engine.store import Keyring, StoreUnavailable, connect, eviction_warning, heal, repair

_log = log.get("worker")

app = Celery("belay", set_as_current=False)
app.config_from_object(configuration(from_environment()))
app.steps["consumer"].add(watchdog.ConsumerHeartbeat)


class HangupHandler(bootsteps.StartStopStep):
    """End the worker on SIGHUP as on SIGTERM: Celery would restart it without a terminal.

    Under nohup the signal is ignored.
    """

    ignored = False

    def start(self, parent: Any) -> None:
        """Set the handler, after Celery has set its own."""
        handler = signal.SIG_IGN if self.ignored else lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGHUP, handler)


app.steps["worker"].add(HangupHandler)

UNSEALED: Final = (
    "messages in Redis are not sealed: every writer to Redis can steer the cluster; give controllers and workers "
    "the same BELAY_BATCH_KEY_FILE"
)
_SLACK_SECONDS = 30.0
"""Seconds beyond its limit that a task may take to end."""
_workers: dict[int, Worker] = {}
_making = threading.Lock()


def worker() -> Worker:
    """The worker of this process, made after the fork on first use."""
    with _making:
        if os.getpid() not in _workers:
            settings = from_environment()
            client = connect(settings.redis_url)
            _workers[os.getpid()] = Worker(settings, functools.partial(send, client))
        return _workers[os.getpid()]


@app.task(name=RECONCILE)
def reconcile(shard: str) -> None:
    """One pass over a shard."""
    worker().reconcile(shard)


@app.task(name=ACT)
def act(batch: str) -> None:
    """Carry out one batch of actions, given as the text of its message."""
    worker().act(batch)


@worker_init.connect
def _started(**_: object) -> None:
    """Drop the claims of this identity from before a restart, so that their shards are due at once."""
    settings = from_environment()
    log.configure(settings.log_level, "worker")
    tracing.configure("worker")
    warn(_log)
    garbage_collection.settle()
    for name in ("celery.worker.strategy", "celery.app.trace"):  # they log every message received and done
        logging.getLogger(name).setLevel(logging.WARNING)
    client = connect(settings.redis_url)
    try:
        repair(client)
        warning, freed = eviction_warning(client), Triggers(client).free(settings.identity)
    except StoreUnavailable as error:  # the claims then expire
        _log.warning("starting without Redis", reason=str(error))
        return
    _log.info("worker started", identity=settings.identity, freed=freed)
    if warning:
        _log.warning(warning)


@worker_ready.connect
def _resume(**_: object) -> None:
    """Take up what a former run of this identity left, beside the first messages."""

    def resume() -> None:
        try:
            worker().resume()
        except BelayError as error:  # the first message says it again
            _log.warning("worker cannot work", reason=str(error))

    threading.Thread(target=resume, name="belay-resume", daemon=True).start()


@worker_shutdown.connect
def _ended(**_: object) -> None:
    """Close this process' worker, if a task has made it."""
    with _making:
        made = _workers.pop(os.getpid(), None)
    if made is None:
        return
    try:
        made.close()
    except (BelayError, CancelledError, TimeoutError) as error:
        _log.warning("connections not closed", reason=f"{type(error).__name__}: {error}"[:256])


def run(
    settings: Settings, queues: Sequence[str] = ("plan", "act"), concurrency: int = 4, pool: str = "threads"
) -> None:
    """Run a Celery worker until SIGTERM; the environment must hold ``settings.to_environment``.

    A worker that stops consuming, or that Celery ends unasked (it gives up when an acknowledgement meets a connection
    that is being closed), restarts in place.
    """
    if Keyring(settings.batch_key_file).signing is None:  # a file that cannot be used ends the start
        _log.warning(UNSEALED)
    OrderKeys(settings.order_keys)  # so does a folder; the first message would be too late
    app.config_from_object(configuration(settings))
    HangupHandler.ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    client = connect(settings.redis_url)

    def count() -> int:
        """The number of waiting messages; a queue of a wrong type, at which Celery would fail, is repaired.

        A Redis that takes no writes answers nothing that a worker could make progress with.
        """
        try:
            return waiting(client, tuple(queues), takes_writes=True)
        except StoreUnavailable:
            heal(client)
            raise

    monitor = watchdog.Watchdog(
        watchdog.StallDetector(settings.stall, TASK_SECONDS + _SLACK_SECONDS),
        concurrency,
        count,
        watchdog.restart_in_place,
    )
    asked: list[bool] = []

    @worker_shutting_down.connect(weak=False)
    def _ending(**_: object) -> None:
        asked.append(True)
        monitor.stop()

    watchdog.start(monitor, settings.health_port)
    # without Celery's command line, whose shell and colours take 10 MiB
    app.Worker(
        queues=list(queues),
        concurrency=concurrency,
        pool_cls=pool,
        hostname=host_format(default_nodename(f"{settings.identity}@%h")),
        loglevel=mlevel(settings.log_level.upper()),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()
    monitor.stop()
    if not asked:  # it also returns, with code 0, after errors that it calls unrecoverable
        watchdog.restart_in_place("Celery ended the worker unasked")


def main(queues: Sequence[str] = ("plan", "act"), concurrency: int = 4) -> int:
    """`belay worker`: the settings come from the environment. Raises InputError for bad ones."""
    settings = from_environment()
    run(settings, queues, concurrency)
    return 0
