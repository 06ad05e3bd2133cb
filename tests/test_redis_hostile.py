"""What lies in Redis is checked or thrown away: no key and no message ends a worker."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.engine.controller import broker
from belay.engine.controller.broker import Rejected, cleaned
from belay.engine.controller.messages import broker_url, configuration
from belay.engine.controller.queues import ACT, RECONCILE
from belay.engine.controller.triggers import Triggers
from belay.engine.settings import Settings
from belay.engine.store import PassStore, StoredRevisions, StoredSnapshots, StoreUnavailable, connect, heal, repair
from tests.loop_world import Cluster, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_tasks import Processes, each_chip_once, processes

__all__ = ["cluster", "processes"]

TRIGGERS = [f"belay:{{triggers}}:{name}" for name in ("dirty", "busy", "sent", "epochs")]
SHARD = [f"belay:{{main}}:{name}" for name in ("log", "objects", "meta", "pass", "revision")]
OTHERS = ["belay:summaries", "belay:counters", "belay:blobs", "belay:blobs:used", "belay:alive:worker/worker"]
PRIORITIES = [f"{queue}\x06\x16{priority}" for queue in ("plan", "act") for priority in "369"]
QUEUES = ["plan", "act", "unacked", "unacked_index", "_kombu.binding.plan"]


def message(task: str = RECONCILE, argument: Any = "main", **changes: Any) -> dict[str, Any]:
    """A message as Celery sends it, with parts changed."""
    body = json.dumps([[argument], {}, {"callbacks": None}])
    made: dict[str, Any] = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": "0e7e9065", "eta": None, "retries": 0},
        "properties": {"body_encoding": "base64", "delivery_tag": "2c9732d9", "delivery_info": {"routing_key": "plan"}},
    }
    for path, value in changes.items():
        target = made
        *above, last = path.split("__")
        for part in above:
            target = target[part]
        if value is None:
            target.pop(last)
        else:
            target[last] = value
    return made


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


HOSTILE: dict[str, str] = {
    "no JSON": "\x00garbage",
    "a number": "5",
    "deep JSON": deep(200_000),
    "no properties": json.dumps(message(properties=None)),
    "no headers": json.dumps(message(headers=None)),
    "a shard that is a number": json.dumps(message(argument=5)),
    "a shard that is not a name": json.dumps(message(argument="../x")),
    "no argument": json.dumps(message(body=base64.b64encode(b"[[], {}, {}]").decode())),
    "a body that is not base64": json.dumps(message(body="§")),
    "a deep body": json.dumps(message(body=base64.b64encode(deep(100_000).encode()).decode())),
    "ten megabytes": json.dumps(message(argument="x" * 10_000_000)),
    "a compressed body": json.dumps(message(headers__compression="application/x-gzip")),
    "another task": json.dumps(message(task="celery.backend_cleanup")),
    "a batch in the queue of passes": json.dumps(message(task=ACT)),
    "pickle": json.dumps(message(**{"content-type": "application/x-python-serialize"})),
    "a tagged value": json.dumps({"__type__": "uuid", "__value__": {"hex": 5}}),
}
HARMLESS: dict[str, dict[str, Any]] = {
    "eta that is a list": message(headers__eta=[1, 2]),
    "eta in a thousand years": message(headers__eta="3026-01-01T00:00:00"),
    "retries that are a text": message(headers__retries="many"),
    "a tag that is an object": message(properties__delivery_tag={"a": 1}),
    "an id that is a megabyte": message(headers__id="x" * 1_000_000),
    "delivery_info that is a list": message(properties__delivery_info=[]),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_message_that_is_no_task_of_ours_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        raw = json.loads(text)
        with pytest.raises(Rejected):
            cleaned(raw, "plan")


@pytest.mark.parametrize("raw", HARMLESS.values(), ids=HARMLESS)
def test_strange_fields_of_a_task_are_left_out(raw: dict[str, Any]) -> None:
    sound = cleaned(raw, "plan")
    assert sound["headers"]["eta"] is None and sound["headers"]["retries"] == 0
    assert len(sound["headers"]["id"]) <= 64 and isinstance(sound["properties"]["delivery_tag"], str)
    assert json.loads(base64.b64decode(sound["body"]))[0] == ["main"]


def test_what_celery_sends_is_a_task_of_ours() -> None:
    assert cleaned(message(), "plan")["headers"]["task"] == RECONCILE
    batch = message(ACT, "x" * 500_000)
    assert cleaned(batch, "act")["headers"]["task"] == ACT


def wrong(client: Any, key: str) -> None:
    """Give a key a type that no command of ours expects."""
    kind = client.type(key).decode()
    client.delete(key)
    if kind == "set" or "binding" in key:
        client.lpush(key, "wrong")
    else:
        client.sadd(key, "wrong")


def test_keys_of_a_wrong_type_are_deleted_and_others_stay(redis_url: str) -> None:  # noqa: F811
    client: Any = connect(redis_url)
    client.set("other:key", "1")
    client.set("belay:{main}:relist", "1")
    for key in [*TRIGGERS, *SHARD, *OTHERS, *QUEUES]:
        wrong(client, key)
    damaged = repair(client)
    assert set(damaged) >= {*TRIGGERS, *OTHERS, *QUEUES, "belay:{main}:pass", "belay:{main}:revision"}
    assert set(client.keys("*")) == {b"other:key", b"belay:{main}:relist"}


def test_a_damaged_snapshot_is_deleted_whole(redis_url: str) -> None:  # noqa: F811
    client: Any = connect(redis_url)
    client.hset("belay:{main}:meta", mapping={"generation": "g", "seq": "1", "synced": "1"})
    client.zadd("belay:{main}:log", {"v1|Node||a": 1})
    client.set("belay:{main}:objects", "wrong")
    with pytest.raises(StoreUnavailable):
        StoredSnapshots(client).changes_after("main", "", 0)
    assert heal(client) == ["belay:{main}:objects"]
    changes = StoredSnapshots(client).changes_after("main", "g", 1)
    assert changes.reset and not changes.synced and changes.generation == ""


def test_wrong_values_count_as_lost(redis_url: str) -> None:  # noqa: F811
    client: Any = connect(redis_url)
    passes, triggers = PassStore(client), Triggers(client)
    client.hset("belay:{main}:pass", mapping={"record": deep(100_000), "batch:x": "{"})
    client.hset("belay:counters", mapping={"good": "3", "bad": "x", "endless": "inf"})
    client.set("belay:alive:worker/a", "never")
    client.set("belay:{main}:revision", '{"sha": 5}')
    client.hset("belay:{main}:meta", mapping={"generation": "g", "seq": "x", "floor": "-"})
    client.hset("belay:{triggers}:busy", mapping={"main": "nonsense", "other": "1"})
    client.hset("belay:{triggers}:epochs", mapping={"main": "x", "full": str(2**63 - 1)})
    client.hset("belay:{triggers}:sent", mapping={"main": "x"})
    assert passes.current("main") is None and passes.state("main") is None
    assert passes.counters() == {"good": 3, "bad": 0, "endless": 0} and passes.alive() == {"worker/a": 0.0}
    assert StoredRevisions(client).current("main") is None
    assert StoredSnapshots(client).changes_after("main", "", 0).seq == 0
    assert triggers.free("absent") == 0 and sorted(triggers.ready()) == ["main", "other"]
    first = triggers.claim("main", "me", 1.0)
    triggers.mark("full")
    second = triggers.claim("full", "me", 1.0)
    assert first and second
    assert triggers.done("main", "me", first) is False
    triggers.mark("main")
    assert (triggers.claim("main", "me", 1.0) or 0) > first


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_worker_survives_every_wrong_key_and_message(
    cluster: Cluster,
    processes: Processes,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    client: Any = connect(redis_url)
    controller, worker = processes.start("controller"), processes.start("worker")
    for number in range(4):
        cluster.add_node(f"node-{number}")
    cluster.add_pod("before", 8)
    until(lambda: cluster.bound() == {"before"}, 180, "the first binding")
    for text in [*HOSTILE.values(), *(json.dumps(raw) for raw in HARMLESS.values())]:
        client.lpush("plan", text)
        client.lpush("act", text)
    client.hset("unacked", mapping={"a": "garbage", "b": "[1]", "c": json.dumps([{}, "", "plan"])})
    client.zadd("unacked_index", {"a": 1, "b": 2, "c": 3})
    cluster.add_pod("messages", 8)
    until(lambda: cluster.bound() >= {"messages"}, 180, "the binding after hostile messages")
    for key in [*TRIGGERS, *SHARD, *OTHERS, *QUEUES, *PRIORITIES]:
        wrong(client, key)
    cluster.add_pod("keys", 8)
    until(lambda: cluster.bound() >= {"keys"}, 180, "the binding after damaged keys")
    each_chip_once(cluster, 24)
    assert controller.poll() is None and worker.poll() is None
    said = (tmp_path / "worker.log").read_text()
    assert "restarts in place" not in said and "Traceback" not in said
    assert "message dropped" in said
    longest = max(map(len, said.splitlines()))
    assert longest < 4_000, f"a line of {longest} characters"


def test_an_acknowledgement_survives_damaged_keys(redis_url: str) -> None:  # noqa: F811
    from kombu import Connection, Queue

    broker.install()
    client: Any = connect(redis_url)
    with Connection(broker_url(redis_url)) as connection, connection.channel() as channel:
        queue = Queue("plan", channel=channel)
        queue.declare()
        taken = []
        for key in ("unacked_index", "unacked"):
            client.lpush("plan", json.dumps(message()))
            found = cleaned(json.loads(client.rpop("plan")), "plan")
            made = channel.Message(found, channel=channel)
            wrong(client, key)
            channel.qos.append(made, made.delivery_tag)
            wrong(client, key)
            channel.qos.ack(made.delivery_tag)
            taken.append(made)
        assert client.type("unacked") in (b"hash", b"none") and client.type("unacked_index") in (b"zset", b"none")
        assert len(taken) == 2


def test_messages_that_wait_again_survive_damaged_keys(redis_url: str) -> None:  # noqa: F811
    from kombu import Connection

    broker.install()
    client: Any = connect(redis_url)
    with Connection(broker_url(redis_url)) as connection, connection.channel() as channel:
        client.set("unacked_index", "wrong")
        channel.qos.restore_visible()
        assert client.exists("unacked_index") == 0


def test_only_the_two_queues_are_read_and_remote_control_is_off(redis_url: str) -> None:  # noqa: F811
    from celery import Celery
    from kombu import Consumer, Queue

    application = Celery("reader", set_as_current=False)
    application.config_from_object(configuration(Settings(identity="x", redis_url=redis_url)))
    assert application.conf.worker_enable_remote_control is False
    client: Any = connect(redis_url)
    # a key of a wrong type at every other priority was met in every poll, which took half a core
    for priority in ("3", "6", "9"):
        client.set(f"plan\x06\x16{priority}", "wrong")
    client.lpush("plan", json.dumps(message()))
    taken: list[Any] = []

    def take(body: object, found: Any) -> None:
        taken.append(found.headers["task"])
        found.ack()

    with application.connection_for_read() as connection, Consumer(connection, Queue("plan"), callbacks=[take]):
        connection.drain_events(timeout=60)
    assert taken == [RECONCILE]


def test_a_damaged_key_that_cannot_be_deleted_is_asked_for_once_a_second(
    redis_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kombu import Connection, Consumer, Queue

    broker.install()
    pauses: list[float] = []
    monkeypatch.setattr(broker, "repair", lambda client: [])
    # only what this module sleeps: other threads of the process sleep too
    monkeypatch.setattr(broker, "time", SimpleNamespace(sleep=pauses.append))
    client: Any = connect(redis_url)
    with (
        Connection(broker_url(redis_url)) as connection,
        Consumer(connection, Queue("plan")),
        contextlib.suppress(TimeoutError),
    ):
        client.set("plan", "wrong")
        connection.drain_events(timeout=2)
    assert pauses and set(pauses) == {broker.REPAIR_PAUSE}


def test_an_error_of_celerys_callback_is_not_blamed_on_the_message(redis_url: str) -> None:  # noqa: F811
    from kombu import Connection, Consumer, Queue

    broker.install()
    client: Any = connect(redis_url)

    def fails(body: object, message: object) -> None:
        raise ValueError("a bug of ours")

    client.lpush("plan", "5", json.dumps(message()))
    with (
        Connection(broker_url(redis_url)) as connection,
        Consumer(connection, Queue("plan"), callbacks=[fails]),
        pytest.raises(ValueError, match="a bug of ours"),
    ):
        for _ in range(3):
            connection.drain_events(timeout=60)


def test_a_redis_without_memory_is_one_to_connect_to_again(redis_url: str) -> None:  # noqa: F811
    import redis
    from kombu import Connection
    from kombu.exceptions import OperationalError

    broker.install()
    client: Any = connect(redis_url)
    client.config_set("maxmemory", 1)
    try:
        with Connection(broker_url(redis_url)) as connection:
            assert issubclass(redis.OutOfMemoryError, connection.connection_errors), "Celery ends for other errors"
            with pytest.raises(OperationalError, match="used memory"):
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            client.config_set("maxmemory", 0)
            assert connection.ensure_connection(max_retries=1).connected
    finally:
        client.config_set("maxmemory", 0)


def test_the_transport_is_the_checked_one() -> None:
    from kombu import Connection

    broker.install()
    assert isinstance(Connection("redis://localhost:1/0").transport, broker.BrokerTransport)
