"""The two queues in Redis: what a message is, how many wait, how one is sent.

Celery takes messages from them. To send one needs nothing of Celery, and the controller, which only sends, has none.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from typing import Any, Final

import orjson

from belay.engine.store import StoreUnavailable, require_room, translated
from belay.engine.store.redis_library import redis

RECONCILE: Final = "belay.reconcile"
ACT: Final = "belay.act"
QUEUES: Final = {RECONCILE: "plan", ACT: "act"}
"""Task → its queue, a list in Redis of the same name."""
MOST_WAITING: Final = {RECONCILE: 1000, ACT: 200}
"""Most messages that may wait: without workers a queue must not fill Redis (a batch has at most 512 KiB)."""


def waiting(client: redis.Redis, queues: Sequence[str] = ("plan", "act"), *, takes_writes: bool = False) -> int:
    """The number of messages that wait in these queues, asked in one message. Raises StoreUnavailable, with
    ``takes_writes`` also if Redis takes no writes.
    """
    with translated(), client.pipeline(transaction=False) as pipe:
        if takes_writes:
            require_room(pipe)
        for queue in queues:
            pipe.llen(queue)
        answers = pipe.execute()
    return sum(map(int, answers[-len(queues) :]))


def task_message(task: str, argument: str, identity: str, tag: str, *, redelivered: bool = False) -> dict[str, Any]:
    """A message of Celery's protocol 2 for a task with one argument."""
    body = orjson.dumps([[argument], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    return {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py", "task": task, "id": identity, "root_id": identity, "parent_id": None, "group": None,
            "eta": None, "expires": None, "retries": 0, "timelimit": [None, None], "argsrepr": "", "kwargsrepr": "",
            "origin": "", "ignore_result": True, "stamped_headers": None, "stamps": {},
        },
        "properties": {
            "correlation_id": identity, "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
            "delivery_tag": tag, "delivery_info": {
                "exchange": "", "routing_key": QUEUES[task], "redelivered": redelivered,
            },
        },
    }  # fmt: skip


def send(client: redis.Redis, task: str, argument: str) -> None:
    """Send a task with its one argument to its queue.

    Raises StoreUnavailable when Redis does not answer within seconds, or when too many messages wait.
    """
    queue = QUEUES[task]
    if (count := waiting(client, (queue,))) >= MOST_WAITING[task]:
        raise StoreUnavailable(f"{count} messages wait in queue {queue} and no worker takes them")
    made = task_message(task, argument, str(uuid.uuid4()), str(uuid.uuid4()))
    with translated():
        client.lpush(queue, orjson.dumps(made))
