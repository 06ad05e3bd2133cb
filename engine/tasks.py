"""The Celery application: two queues, three lines a task.

Tasks are at-least-once by contract: acknowledged late, fetched one at a time, results ignored, JSON only. There is no
task per object: ``plan`` gets a shard's name, ``act`` a batch of writes.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Sequence

from celery import Celery
from celery.signals import worker_init, worker_shutting_down

from engine import collector, log, watchdog
from engine.messages import ACT, RECONCILE, configuration, send, waiting
from engine.reconcile import TASK_SECONDS, Worker
from engine.settings import Settings, from_environment, warn
from engine.store import StoreUnavailable, connect, eviction_warning
from engine.triggers import Triggers

_log = log.get("worker")

app = Celery("belay", set_as_current=False)
app.config_from_object(configuration(from_environment()))
app.steps["consumer"].add(watchdog.Pulse)

_SLACK_SECONDS = 30.0
"""How much longer than its limit a task may take to end."""
_workers: dict[int, Worker] = {}
_making = threading.Lock()


def worker() -> Worker:
    """This process' worker: made after the fork, on first use, by whichever thread comes first."""
    with _making:
        if os.getpid() not in _workers:
            settings = from_environment()
            client = connect(settings.redis_url)
            _workers[os.getpid()] = Worker(settings, functools.partial(send, app, client, ACT))
        return _workers[os.getpid()]


@app.task(name=RECONCILE)
def reconcile(shard: str) -> None:
    """One pass over a shard."""
    worker().reconcile(shard)


@app.task(name=ACT)
def act(batch: str) -> None:
    """One batch of writes."""
    worker().act(batch)


@worker_init.connect
def _started(**_: object) -> None:
    """After a restart nothing waits: claims of this identity's earlier life end, and their shards are due at once."""
    settings = from_environment()
    log.configure(settings.log_level, "worker")
    warn(_log)
    collector.settle()
    for name in ("celery.worker.strategy", "celery.app.trace"):  # a line for every message received and done
        logging.getLogger(name).setLevel(logging.WARNING)
    client = connect(settings.redis_url)
    try:
        warning, freed = eviction_warning(client), Triggers(client).free(settings.identity)
    except StoreUnavailable as error:  # claims then run out by themselves
        _log.warning("starting without Redis", reason=str(error))
        return
    _log.info("worker started", identity=settings.identity, freed=freed)
    if warning:
        _log.warning(warning)


def run(
    settings: Settings, queues: Sequence[str] = ("plan", "act"), concurrency: int = 4, pool: str = "threads"
) -> None:
    """Run a Celery worker until SIGTERM; the environment must hold ``settings.to_environment``.

    A worker that stops consuming, or that Celery ends by itself (it gives up when an acknowledgement meets a connection
    that is being closed), starts again in place.
    """
    app.config_from_object(configuration(settings))
    client = connect(settings.redis_url)
    dog = watchdog.Watchdog(
        watchdog.Judge(settings.stall, TASK_SECONDS + _SLACK_SECONDS),
        concurrency,
        functools.partial(waiting, client, tuple(queues)),
        watchdog.restart_in_place,
    )
    asked: list[bool] = []

    @worker_shutting_down.connect(weak=False)
    def _ending(**_: object) -> None:
        asked.append(True)
        dog.stop()

    watchdog.start(dog, settings.health_port)
    app.worker_main(
        [
            "worker",
            f"--queues={','.join(queues)}",
            f"--concurrency={concurrency}",
            f"--pool={pool}",
            f"--hostname={settings.identity}@%h",
            f"--loglevel={settings.log_level}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )
    dog.stop()
    if not asked:  # it returns, with code 0, also after an error that it calls unrecoverable
        watchdog.restart_in_place("Celery ended the worker by itself")


def main(queues: Sequence[str] = ("plan", "act"), concurrency: int = 4) -> int:
    """`belay worker`: the settings come from the environment. Raises InputError for bad ones."""
    settings = from_environment()
    run(settings, queues, concurrency)
    return 0
