"""Celery over Redis: the broker, two queues, and the settings that make tasks at-least-once.

Tasks are acknowledged late, fetched one at a time, results ignored, JSON only.
"""

from __future__ import annotations

from typing import Any, Final

import redis
import redis.retry
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from engine.controller import broker
from engine.controller.broker import ACT, QUEUES, RECONCILE, waiting
from engine.settings import Settings
from engine.store import StoreUnavailable, sentinel, translated

__all__ = ["ACT", "MOST_WAITING", "QUEUES", "RECONCILE", "broker_url", "configuration", "send", "waiting"]

MOST_WAITING: Final = {RECONCILE: 1000, ACT: 200}
"""Most messages that may wait: without workers a queue must not fill Redis (a batch has at most 512 KiB)."""


def broker_url(redis_url: str) -> str:
    """The URL of the same Redis in Celery's form."""
    if sentinel.is_sentinel(redis_url):
        return sentinel.parse(redis_url).broker_url()
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://")
    return redis_url


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings. ``visibility`` must exceed the longest task, or a running batch is delivered again."""
    broker.install()
    behind, secure = _behind_sentinels(settings.redis_url)
    return {
        "broker_url": broker_url(settings.redis_url),
        "task_queues": [Queue("plan"), Queue("act")],
        "task_default_queue": "plan",
        "task_routes": {name: {"queue": queue} for name, queue in QUEUES.items()},
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
        # its mailbox in Redis would let every writer there stop workers, change their pool or revoke tasks
        "worker_enable_remote_control": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": max(settings.visibility, 1),
            # one list per queue: a key of a wrong type among those of other priorities would be met in every poll
            "priority_steps": [0],
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            **behind,
        },
    } | secure


def _behind_sentinels(redis_url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(transport options, further settings) where Sentinels say which Redis is the broker; empty where none do."""
    if not sentinel.is_sentinel(redis_url):
        return {}, {}
    asked = sentinel.parse(redis_url)
    options = {
        "master_name": asked.name,
        "sentinel_kwargs": asked.asking() | sentinel.patience(redis.retry.Retry),
    }
    return options, {} if asked.tls is None else {"broker_use_ssl": {"ssl_cert_reqs": "required", **asked.tls}}


def send(application: Celery, client: redis.Redis, name: str, argument: str) -> None:
    """Send a task with its one argument; ``client`` is the broker's Redis.

    Raises StoreUnavailable when the broker does not answer within seconds, or when too many messages wait.
    """
    if (count := waiting(client, (QUEUES[name],))) >= MOST_WAITING[name]:
        raise StoreUnavailable(f"{count} messages wait in queue {QUEUES[name]} and no worker takes them")
    policy = {"max_retries": 2, "interval_start": 0.1, "interval_max": 0.5}
    with translated():
        try:
            application.send_task(name, args=[argument], retry=True, retry_policy=policy)
        except OperationalError as error:
            raise StoreUnavailable(f"the broker does not take messages: {type(error).__name__}") from error
