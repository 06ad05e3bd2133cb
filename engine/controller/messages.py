"""Celery over Redis: the broker, two queues, and the settings that make tasks at-least-once.

Tasks are acknowledged late, fetched one at a time, results ignored, JSON only.
"""

from __future__ import annotations

from typing import Any

from kombu import Queue

from belay.engine.controller import broker
from belay.engine.controller.queues import QUEUES
from belay.engine.settings import Settings
from belay.engine.store import sentinel
from belay.engine.store.redis_library import redis


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
    """(transport options, further settings) where Sentinels say which Redis is the broker; empty if none do."""
    if not sentinel.is_sentinel(redis_url):
        return {}, {}
    asked = sentinel.parse(redis_url)
    options = {
        "master_name": asked.name,
        "sentinel_kwargs": asked.asking() | sentinel.patience(redis.retry.Retry),
    }
    return options, {} if asked.tls is None else {"broker_use_ssl": {"ssl_cert_reqs": "required", **asked.tls}}
