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
from celery.signals import worker_init

from engine import log
from engine.messages import ACT, RECONCILE, configuration, send
from engine.reconcile import Worker
from engine.settings import Settings, from_environment
from engine.store import StoreUnavailable, connect, eviction_warning
from engine.triggers import Triggers

_log = log.get("worker")

app = Celery("belay", set_as_current=False)
app.config_from_object(configuration(from_environment()))


_workers: dict[int, Worker] = {}
_making = threading.Lock()


def worker() -> Worker:
    """This process' worker: made after the fork, on first use, by whichever thread comes first."""
    with _making:
        if os.getpid() not in _workers:
            _workers[os.getpid()] = Worker(from_environment(), functools.partial(send, app, ACT))
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
    """Run a Celery worker until SIGTERM; the environment must hold ``settings.to_environment``."""
    app.config_from_object(configuration(settings))
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


def main(queues: Sequence[str] = ("plan", "act"), concurrency: int = 4) -> int:
    """`belay worker`: the settings come from the environment. Raises InputError for bad ones."""
    settings = from_environment()
    run(settings, queues, concurrency)
    return 0
