"""Celery's transport for an untrusted Redis: a message that is not one of Belay's tasks is dropped with a log line.

Redis is working memory, and its queues may hold anything: text that is not JSON, a message without properties, a
compressed bomb, an ``eta`` that is a list. kombu raises for most of these inside the consumer's loop, which ends the
worker. So each message is read once, checked, and rebuilt from the few fields that Belay's tasks have.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any, Final

import kombu.transport
from kombu.transport import redis as transport
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from belay.engine import log
from belay.engine.controller.queues import QUEUES, RECONCILE, task_message
from belay.engine.store import StoreUnavailable, repair, require_room
from belay.engine.store.redis_library import redis

_log = log.get("broker")
# kombu's stubs lack what is overridden here
_QoS: Any = transport.QoS
_Channel: Any = transport.Channel
_SentinelChannel: Any = transport.SentinelChannel
_Transport: Any = transport.Transport

LARGEST_BODY: Final = 1024 * 1024
"""Most characters of a task's encoded body; a batch of actions has at most 512 KiB."""
REPAIR_PAUSE: Final = 1.0
"""Seconds until the queues are asked again after a key of a wrong type that could not be deleted."""
_TAG: Final = re.compile(r"[0-9A-Za-z-]{1,64}\Z")
_SHARD: Final = re.compile(r"([0-9a-f]{8}\.[0-9a-f]{64} )?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
"""A shard's name, behind its seal where messages are sealed."""


class Rejected(ValueError):
    """A message that is not one of Belay's tasks; the text says what is wrong."""


def cleaned(raw: object, queue: str) -> dict[str, Any]:
    """A message of Celery's protocol 2 with only one of Belay's tasks and its one argument.

    Args:
        raw: the decoded JSON of one queue entry.
        queue: the queue that held it.

    Raises:
        Rejected: the entry is no such task.
    """
    message = _mapping(raw, "the message")
    headers, properties = _mapping(message.get("headers"), "headers"), _mapping(message.get("properties"), "properties")
    task = headers.get("task")
    if not isinstance(task, str) or QUEUES.get(task) != queue:
        raise Rejected(f"task {task!r:.60} does not belong in queue {queue}")
    argument = _argument(message, properties)
    if task == RECONCILE and not _SHARD.match(argument):
        raise Rejected("the shard is not a DNS name")
    identity, tag = _tag(headers.get("id")), _tag(properties.get("delivery_tag"))
    info = properties.get("delivery_info")
    again = isinstance(info, Mapping) and info.get("redelivered") is True
    return task_message(task, argument, identity, tag, redelivered=again)


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Rejected(f"{name} must be an object, not {type(value).__name__}")
    return value


def _argument(message: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    """The task's one argument, from a base64 body of plain JSON."""
    body, form = message.get("body"), message.get("content-type")
    if form != "application/json" or properties.get("body_encoding") != "base64" or not isinstance(body, str):
        raise Rejected("the body must be JSON in base64")
    if len(body) > LARGEST_BODY:
        raise Rejected(f"the body has {len(body)} characters, the limit is {LARGEST_BODY}")
    if _mapping(message.get("headers"), "headers").get("compression") is not None:
        raise Rejected("the body is compressed")
    try:
        content = json.loads(base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise Rejected(f"the body cannot be read: {type(error).__name__}") from error
    arguments = content[0] if isinstance(content, list) and content else None
    if not isinstance(arguments, list) or len(arguments) != 1 or not isinstance(arguments[0], str):
        raise Rejected("the task must have one argument, a text")
    return arguments[0]


def _tag(value: object) -> str:
    return value if isinstance(value, str) and _TAG.match(value) else str(uuid.uuid4())


class BrokerQoS(_QoS):  # type: ignore[misc]
    """Unacknowledged messages in Redis: an unreadable one is removed instead of ending the timer that restores them."""

    def append(self, message: Any, delivery_tag: Any) -> None:
        """Store a message until it is acknowledged."""
        self._twice(super().append, message, delivery_tag)

    def ack(self, delivery_tag: Any) -> None:
        """Remove a message that was carried out."""
        self._twice(super().ack, delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Remove a message, or put it back."""
        self._twice(super().reject, delivery_tag, requeue)

    def restore_visible(self, *arguments: Any, **options: Any) -> Any:
        """Put back the messages of workers that died."""
        return self._twice(super().restore_visible, *arguments, **options)

    def _twice(self, command: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Repeat a command after deleting keys of a wrong type: such an error would end Celery."""
        try:
            return command(*arguments, **options)
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            with self.channel.conn_or_acquire() as client:
                repair(client)
            return command(*arguments, **options)

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Put a message back into its queue if it still is one of Belay's tasks."""
        with self.channel.conn_or_acquire(client) as connection:
            kept = connection.hget(self.unacked_key, tag)
            if kept is not None:
                try:
                    raw, _exchange, queue = loads(bytes_to_str(kept))
                    cleaned(raw, queue if isinstance(queue, str) else "")
                except (ValueError, TypeError, RecursionError) as error:
                    _dropped("unacked", error)
                    self._remove_from_indices(tag).execute()
                    return
            super().restore_by_tag(tag, client=connection, leftmost=leftmost)


class BrokerChannel(_Channel):  # type: ignore[misc]
    """Redis' channel; an entry that is not JSON is dropped."""

    QoS = BrokerQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            self._repair()
            raise Empty from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            if error is self.connection.failure:  # Celery's own, about a sound task
                raise
            _dropped("a queue", error)
            return True

    def _repair(self) -> None:
        """Delete keys of a wrong type; where that changes nothing, pause: the same answer would come at once."""
        try:
            with self.conn_or_acquire() as client:
                mended = repair(client)
        except StoreUnavailable:
            mended = []
        if not mended:
            time.sleep(REPAIR_PAUSE)


class BrokerTransport(transport.Transport):
    """Redis' transport; only Belay's tasks reach Celery."""

    Channel = BrokerChannel
    #: Celery connects again, with pauses, where it would end the worker for a Redis that is full for a while.
    connection_errors = (*_Transport.connection_errors, redis.exceptions.OutOfMemoryError)
    failure: Exception | None = None
    """The last exception of Celery's own callback, which is not the message's fault."""

    def establish_connection(self) -> Any:
        """Connect to a Redis that takes writes: with any other Celery would only begin, and fail, again and again."""
        connection: Any = super().establish_connection()
        try:
            for channel in connection._avail_channels:
                require_room(channel.client)
        except Exception:
            self.close_connection(connection)
            raise
        return connection

    def _deliver(self, message: Any, queue: Any) -> None:
        try:
            sound = cleaned(message, str(queue))
        except Rejected as error:
            _dropped(str(queue), error)
            return
        try:
            super()._deliver(sound, queue)
        except Exception as error:
            self.failure = error
            raise


class SentinelBrokerChannel(BrokerChannel, _SentinelChannel):  # type: ignore[misc]
    """The same, to whichever Redis its Sentinels call the primary."""


class SentinelBrokerTransport(BrokerTransport):
    """The same transport where Sentinels name the Redis (`belay.engine.store.sentinel`)."""

    default_port = 26379
    Channel = SentinelBrokerChannel


def _dropped(where: str, error: Exception) -> None:
    with contextlib.suppress(Exception):
        _log.warning("message dropped: it is no task of Belay's", queue=where[:60], reason=str(error)[:200])


def install() -> None:
    """Make every Celery connection of this process to Redis use this transport."""
    for scheme in ("redis", "rediss"):
        kombu.transport.TRANSPORT_ALIASES[scheme] = "belay.engine.controller.broker:BrokerTransport"
    kombu.transport.TRANSPORT_ALIASES["sentinel"] = "belay.engine.controller.broker:SentinelBrokerTransport"
