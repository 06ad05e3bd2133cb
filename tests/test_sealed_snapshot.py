"""Snapshot and revision in Redis behind their seals: what was altered there counts as lost and is written again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from belay.engine.kube import NODE
from belay.engine.store import (
    Changes,
    Keyring,
    RevisionWriter,
    SnapshotWriter,
    StoredRevisions,
    StoredSnapshots,
    connect,
    connect_async,
)
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_sealed_messages import NEW, OLD, keyring

__all__ = ["cluster"]

T = TypeVar("T")
META, OBJECTS, LOG = (f"belay:{{main}}:{name}" for name in ("meta", "objects", "log"))
MARKS = {"v1|Node": "7"}


class Written:
    """A writer with its own loop."""

    def __init__(self, url: str, keys: Keyring) -> None:
        self._loop = asyncio.new_event_loop()
        self._client: Any = connect_async(url)
        self.writer = SnapshotWriter(self._client, keys=keys)
        self.revisions = RevisionWriter(self._client, keys=keys)
        self.generation = ""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def begin(self) -> None:
        self.generation = self.run(self.writer.begin("main"))

    def put(self, changed: Mapping[str, bytes | None], *, synced: bool | None = None) -> bool:
        return self.run(self.writer.put("main", self.generation, changed, MARKS, synced))

    def close(self) -> None:
        self.run(self._client.aclose())
        self._loop.close()


@pytest.fixture
def written(redis_url: str, tmp_path: Path) -> Any:  # noqa: F811
    made = Written(redis_url, keyring(tmp_path, OLD))
    made.begin()
    made.put({"v1|Node||a": b"a1", "v1|Node||b": b"b1"}, synced=True)
    yield made
    made.close()


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return keyring(tmp_path, OLD)


def test_a_sealed_snapshot_is_followed_change_by_change(written: Written, redis_url: str, keys: Keyring) -> None:  # noqa: F811
    chance, world = random.Random(7), {"v1|Node||a": b"a1", "v1|Node||b": b"b1"}
    reader = StoredSnapshots(connect(redis_url), keys=keys)
    copy: dict[str, bytes] = {}

    def read() -> Changes:
        found = reader.changes("main")
        if found.reset:
            copy.clear()
        for field, value in found.changed.items():
            copy.pop(field, None)
            if value is not None:
                copy[field] = value
        return found

    for turn in range(60):
        changed: dict[str, bytes | None] = {}
        for _ in range(chance.randrange(4)):
            field = f"v1|Node||{chance.randrange(12)}"
            changed[field] = None if chance.random() < 0.3 else b"%d" % turn
        for field, value in changed.items():
            world.pop(field, None)
            if value is not None:
                world[field] = value
        if turn == 30:
            written.begin()
            written.put(world, synced=True)
        assert written.put(changed)
        if turn % 3 == 0:
            found = read()
            assert found.synced and copy == world and "|seal" not in found.watermarks and found.watermarks == MARKS
    assert StoredSnapshots(connect(redis_url)).changes("main").synced, "a worker without keys reads it too"
    assert not reader.damaged


def altered(client: Any) -> None:
    client.hset(OBJECTS, "v1|Node||a", b"forged")


def added(client: Any) -> None:
    client.hset(OBJECTS, "v1|Node||z", b"forged")
    client.zadd(LOG, {"v1|Node||z": 1})


def left_out(client: Any) -> None:
    client.hdel(OBJECTS, "v1|Node||a")


def unlisted(client: Any) -> None:
    client.zrem(LOG, "v1|Node||a")


def swapped(client: Any) -> None:
    client.hset(OBJECTS, mapping={"v1|Node||a": b"b1", "v1|Node||b": b"a1"})


def watermark(client: Any) -> None:
    client.hset(META, "rv:v1|Node", "99")


def sequence(client: Any) -> None:
    client.hset(META, "seq", "9")


def unsealed(client: Any) -> None:
    client.hdel(META, "rv:|seal")


@pytest.mark.parametrize("attack", [altered, added, left_out, unlisted, swapped, watermark, sequence, unsealed])
def test_an_altered_snapshot_counts_as_lost_until_it_is_written_again(
    attack: Callable[[Any], None],
    written: Written,
    redis_url: str,  # noqa: F811
    keys: Keyring,
) -> None:
    client: Any = connect(redis_url)
    attack(client)
    reader = StoredSnapshots(client, keys=keys)
    for _ in range(2):
        found = reader.changes("main")
        assert not found.synced and found.changed == {} and found.reset
    assert "sealed the snapshot" in reader.damaged["main"]
    written.begin()
    written.put({"v1|Node||a": b"a2"}, synced=True)
    found = reader.changes("main")
    assert found.synced and found.changed == {"v1|Node||a": b"a2"} and found.reset


def test_a_change_by_another_hand_is_noticed_by_who_read_before(
    written: Written,
    redis_url: str,  # noqa: F811
    keys: Keyring,
) -> None:
    client: Any = connect(redis_url)
    reader = StoredSnapshots(client, keys=keys)
    assert reader.changes("main").synced
    client.hset(OBJECTS, "v1|Node||a", b"forged")
    client.zadd(LOG, {"v1|Node||a": 2})
    client.hincrby(META, "seq", 1)
    assert not reader.changes("main").synced


def test_a_snapshot_never_goes_back(written: Written, redis_url: str, keys: Keyring) -> None:  # noqa: F811
    client: Any = connect(redis_url)
    reader = StoredSnapshots(client, keys=keys)
    assert reader.changes("main").synced
    kept = {key: client.dump(key) for key in (META, OBJECTS, LOG)}

    def put_back() -> None:
        for key, value in kept.items():
            client.restore(key, 0, value, replace=True)

    written.put({"v1|Node||a": b"a2"})
    assert reader.changes("main").synced
    put_back()
    assert not reader.changes("main").synced and "went back from 2 to 1" in reader.damaged.pop("main")
    written.begin()
    written.put({"v1|Node||a": b"a3"}, synced=True)
    assert reader.changes("main").synced
    put_back()
    assert not reader.changes("main").synced and "earlier generation" in reader.damaged.pop("main")


def test_a_new_key_seals_the_snapshot_again(redis_url: str, tmp_path: Path) -> None:  # noqa: F811
    time = [0.0]
    ring = keyring(tmp_path, OLD, clock=lambda: time[0])
    made = Written(redis_url, ring)
    made.begin()
    assert made.put({"v1|Node||a": b"a1"}, synced=True)
    keyring(tmp_path, NEW, OLD)
    time[0] += 60.0
    assert not made.put({"v1|Node||a": b"a2"}), "which makes the controller list everything again"
    made.begin()
    assert made.put({"v1|Node||a": b"a2"}, synced=True)
    made.close()
    keyring(tmp_path, NEW)
    assert StoredSnapshots(connect(redis_url), keys=Keyring(str(tmp_path / "keys"))).changes("main").synced


FILES = {"desired/a.yaml": "1" * 40, "desired/b.yaml": "2" * 40}
BLOBS = {"1" * 40: b"one", "2" * 40: b"two"}


def revision_files(client: Any) -> None:
    client.hset("belay:revision:c1", "desired/a.yaml", "2" * 40)


def revision_pointer(client: Any) -> None:
    client.set("belay:{main}:revision", b'{"sha":"c1","meta":{"confirmed":["x"]},"count":2}')


def other_shard(client: Any) -> None:
    client.set("belay:{main}:revision", client.get("belay:{other}:revision"))


@pytest.mark.parametrize("attack", [revision_files, revision_pointer, other_shard])
def test_a_revision_of_another_hand_is_not_in_force(
    attack: Callable[[Any], None],
    written: Written,
    redis_url: str,  # noqa: F811
    keys: Keyring,
) -> None:
    client: Any = connect(redis_url)
    reader = StoredRevisions(client, keys=keys)
    for shard in ("main", "other"):
        assert not written.run(written.revisions.put_revision(shard, "c1", FILES, BLOBS, now=1.0))
    assert reader.current("main") is not None and reader.blobs(BLOBS) == BLOBS and not reader.damaged
    attack(client)
    assert reader.current("main") is None and "revision" in reader.damaged


def test_an_altered_file_is_deleted_so_that_it_is_written_again(
    written: Written,
    redis_url: str,  # noqa: F811
    keys: Keyring,
) -> None:
    client: Any = connect(redis_url)
    reader = StoredRevisions(client, keys=keys)
    written.run(written.revisions.put_revision("main", "c1", FILES, BLOBS, now=1.0))
    client.hset("belay:blobs", "1" * 40, client.hget("belay:blobs", "2" * 40))
    assert reader.blobs(BLOBS) == {"2" * 40: b"two"} and reader.damaged == "1 file"
    assert written.run(written.revisions.put_revision("main", "c1", FILES, {}, now=2.0)) == {"1" * 40}
    written.run(written.revisions.put_revision("main", "c1", FILES, BLOBS, now=2.0))
    assert reader.blobs(BLOBS) == BLOBS


def test_a_forged_report_moves_no_pod_and_the_engine_recovers(
    cluster: Cluster,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A node that Redis alone calls gone or foreign gets no work, and the next list puts everything right."""
    keyring(tmp_path, OLD)
    loop = Loop(cluster, redis_url, tmp_path / "data", batch_key_file=str(tmp_path / "keys"))
    client: Any = connect(redis_url)
    cluster.add_node("node-1")
    until(lambda: loop.controller.ready)
    client.hset(OBJECTS, "v1|Node||forged", client.hget(OBJECTS, "v1|Node||node-1").replace(b"node-1", b"forged"))
    client.zadd(LOG, {"v1|Node||forged": int(client.hget(META, "seq"))})
    cluster.add_pod("train", 8)
    until(lambda: cluster.bound() == {"train"}, what="the binding, after everything was listed again")
    assert cluster.get(NODE, "forged") is None
    assert {place.partition("/")[0] for place in cluster.chips()} == {"node-1"}
    loop.close()
    assert loop.failures == []
