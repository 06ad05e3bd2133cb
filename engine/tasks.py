"""The Celery application: two queues, three lines a task.

Tasks are at-least-once by contract: acknowledged late, fetched one at a time, results ignored, JSON only. There is no
task per object: ``plan`` gets a shard's name, ``act`` a batch of writes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from celery import Celery
from celery.signals import worker_init
from kombu import Queue

from engine import log
from engine.reconcile import Worker
from engine.settings import Settings, from_environment
from engine.store import StoreUnavailable, connect, eviction_warning
from engine.triggers import Triggers

RECONCILE = "belay.reconcile"
ACT = "belay.act"
_log = log.get("worker")


def broker_url(redis_url: str) -> str:
    """The same Redis as Celery names it."""
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://")
    return redis_url


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings. ``visibility`` must exceed the longest task, else a batch still at work is handed out
    again.
    """
    return {
        "broker_url": broker_url(settings.redis_url),
        "task_queues": [Queue("plan"), Queue("act")],
        "task_default_queue": "plan",
        "task_routes": {RECONCILE: {"queue": "plan"}, ACT: {"queue": "act"}},
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_ignore_result": True,
        "task_soft_time_limit": 150,
        "task_time_limit": 180,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": max(settings.visibility, 1),
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
    }


app = Celery("belay", set_as_current=False)
app.config_from_object(configuration(from_environment()))


@functools.cache
def worker() -> Worker:
    """This process' worker: made after the fork, on first use."""
    return Worker(from_environment(), functools.partial(send, app, ACT))


def send(application: Celery, name: str, argument: str) -> None:
    """Send a task with its one argument. Raises kombu's OperationalError when the broker does not answer within
    seconds.
    """
    policy = {"max_retries": 2, "interval_start": 0.1, "interval_max": 0.5}
    application.send_task(name, args=[argument], retry=True, retry_policy=policy)


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
