"""What lies in Redis: messages of Celery, batches, records, snapshots."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from typing import Any, Final

import msgspec

from belay.engine.act import batch
from belay.engine.controller import broker
from belay.engine.controller.revision_reader import RevisionReader
from belay.engine.controller.snapshot_reader import SnapshotReader
from belay.engine.controller.triggers import Triggers
from belay.engine.errors import BelayError, InputError
from belay.engine.observe.observed import observe
from belay.engine.serve.engine_client import EngineClient
from belay.engine.store import PassStore, StoredRevisions, StoredSnapshots, StoreUnavailable, connect, heal, sentinel
from belay.engine.store.keyring import read_keys
from belay.engine.wire import lastchanges
from tests.fuzz.harness import Form, Harness, scratch, text


@cache
def _client() -> Any:
    from belay.engine.sandbox.redis_process import start_redis

    folder = tempfile.mkdtemp(prefix="belay-fuzz-")
    return connect(start_redis(folder).url)


def _message(data: bytes) -> None:
    """What kombu reads from a queue."""
    from kombu.utils.json import loads

    try:
        raw = loads(data.decode("utf-8", "replace"))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return  # dropped by the channel
    for queue in ("plan", "act"):
        try:
            sound = broker.cleaned(raw, queue)
        except broker.Rejected as error:
            assert len(str(error)) < 400
            continue
        assert set(sound) == {"body", "content-encoding", "content-type", "headers", "properties"}


_KEYS: Final = {
    "pass": "belay:{main}:pass",
    "revision": "belay:{main}:revision",
    "meta": "belay:{main}:meta",
    "log": "belay:{main}:log",
    "objects": "belay:{main}:objects",
    "summaries": "belay:summaries",
    "counters": "belay:counters",
    "alive": "belay:alive:controller/main",
    "dirty": "belay:{triggers}:dirty",
    "busy": "belay:{triggers}:busy",
    "sent": "belay:{triggers}:sent",
    "epochs": "belay:{triggers}:epochs",
    "files": "belay:revision:abc",
    "blobs": "belay:blobs",
}


def _memory(data: bytes) -> None:
    """An object of keys: text is a value, an object a hash, a list of pairs a sorted set, a list of texts a set."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(body, dict):
        return
    client = _client()
    client.flushall()
    for name, value in body.items():
        if name in _KEYS:
            _put(client, _KEYS[name], value)
    passes, revisions, triggers = PassStore(client), StoredRevisions(client), Triggers(client)
    reader = SnapshotReader("main", StoredSnapshots(client))
    for look in (
        lambda: passes.current("main"),
        lambda: _state(passes),
        passes.alive,
        passes.counters,
        passes.summaries,
        lambda: RevisionReader("main", revisions).load(observe([])),
        lambda: reader.refresh(passes, 1.0),
        reader.observed,
        lambda: EngineClient(client, None).summaries(),
        triggers.ready,
        lambda: triggers.claim("main", "me", 5.0),
        triggers.free,
    ):
        try:
            look()
        except StoreUnavailable:
            heal(client)
            look()


def _state(passes: PassStore) -> None:
    state = passes.state("main")
    if state is not None:
        assert isinstance(state.outcomes, list) and isinstance(state.writes, list) and state.finished in (True, False)


def _put(client: Any, key: str, value: Any) -> None:
    if isinstance(value, dict) and value:
        client.hset(key, mapping={_text(name): _text(one) for name, one in value.items()})
    elif isinstance(value, list) and value and isinstance(value[0], list):
        client.zadd(
            key, {_text(row[0]): float(row[1]) for row in value if len(row) == 2 and _finite(row[1])} or {"a": 1}
        )
    elif isinstance(value, list) and value:
        client.sadd(key, *map(_text, value))
    else:
        client.set(key, _text(value))


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and value == value and abs(value) < 1e300


def _text(value: Any) -> bytes:
    """Nested values stand for JSON."""
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "replace")


def _keys(data: bytes) -> None:
    read_keys(scratch(data))


_PASSWORD: Final = "pass-word-of-redis"


def _sentinels(url: str) -> None:
    """A URL of Sentinels; what stands before its hosts is shown in no error."""
    try:
        found = sentinel.parse(url)
    except BelayError as error:
        said = f"{error} {error.hint}"
        assert len(said) < 1000
        before, _, after = url.rpartition("@")
        if _PASSWORD in before and _PASSWORD not in after:
            assert _PASSWORD not in said, said
        return
    assert 0 < len(found.hosts) <= sentinel.MOST_SENTINELS
    assert all(host and 0 < port < 65536 for host, port in found.hosts)
    assert found.broker_url().count("sentinel://") == len(found.hosts)
    found.asking()


HARNESSES: Final = (
    Harness(
        "sentinel-url",
        text(_sentinels),
        ("engine/store/sentinel.py",),
        form=Form.TEXT,
        words=(
            b"redis+sentinel://",
            b"rediss+sentinel://",
            b"[::1]:26379",
            b"/mymaster/0",
            b"?sentinel_auth=1",
            b"@",
            b"user:pass-word-of-redis@",
            b"&ssl_ca_certs=/a",
            b"%2F",
            b"\xe2\x84\x80",
        ),
        seeds=lambda: (
            b"redis+sentinel://a.example.com:26379,b.example.com/mymaster/0",
            b"rediss+sentinel://user:pass-word-of-redis@[::1]:26379,10.0.0.1/m/1?sentinel_auth=1&ssl_ca_certs=/ca.crt",
            b"redis+sentinel://user:pass-word-of-redis/x@a/mymaster",
            b"redis+sentinel://:pass-word-of-redis[@a/mymaster",
        ),
    ),
    Harness("celery-message", _message, ("engine/controller/broker.py",)),
    Harness(
        "batch",
        text(batch.decode),
        ("engine/act/batch.py", "engine/model/action_documents.py"),
        (msgspec.DecodeError, RecursionError),
    ),
    Harness(
        "redis",
        _memory,
        (
            "engine/store/passes.py",
            "engine/store/revisions.py",
            "engine/store/snapshot.py",
            "engine/controller/snapshot_reader.py",
            "engine/controller/revision_reader.py",
            "engine/controller/triggers.py",
            "engine/serve/engine_client.py",
        ),
        steps=3_000_000,
        tries=0.4,
        prepare=_client,
    ),
    Harness("last-changes", lastchanges.decode, ("engine/wire/lastchanges.py",)),
    Harness("batch-keys", _keys, ("engine/store/keyring.py",), (InputError,), Form.TEXT),
)
