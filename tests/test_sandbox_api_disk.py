"""What the sandbox's API server keeps on disk, and what it makes of a folder that a crash left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from belay.engine.sandbox.api import journal
from belay.engine.sandbox.api.journal import DiskJournal, JournalError
from belay.engine.sandbox.api.store import ClusterStore
from tests.api_client import Sandbox, at

pytestmark = pytest.mark.real_time

CM = "/api/v1/namespaces/default/configmaps"


def filled(folder: Path, count: int) -> ClusterStore:
    made = DiskJournal(folder)
    store = ClusterStore(made)
    store.load(made.load(), made.rv)
    for i in range(count):
        store.put("things", ("n", f"t{i % 5}"), {"metadata": {"name": f"t{i % 5}"}, "i": i})
    return store


def contents(folder: Path) -> tuple[dict[str, int], int]:
    made = DiskJournal(folder)
    entries = {entry.key[1]: entry.obj["i"] for entry in made.load()}
    made.close()
    return entries, made.rv


def closed(store: ClusterStore) -> None:
    assert isinstance(store.journal, DiskJournal)
    store.journal.close()


def test_written_objects_are_read_back_with_their_versions(tmp_path: Path) -> None:
    store = filled(tmp_path, 12)
    store.delete("things", ("n", "t0"))
    closed(store)
    entries, version = contents(tmp_path)
    assert entries == {"t1": 11, "t2": 7, "t3": 8, "t4": 9}
    assert version == store.rv


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_record_is_dropped_and_the_rest_kept(tmp_path: Path, cut: int) -> None:
    closed(filled(tmp_path, 5))
    log = next(tmp_path.glob("log-*.jsonl"))
    os.truncate(log, log.stat().st_size - cut)
    assert contents(tmp_path)[0] == {"t0": 0, "t1": 1, "t2": 2, "t3": 3}
    # the torn bytes are gone, so that what is written next is readable too
    store = filled(tmp_path, 1)
    closed(store)
    assert contents(tmp_path)[0]["t0"] == 0


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    closed(filled(tmp_path, 5))
    log = next(tmp_path.glob("log-*.jsonl"))
    lines = log.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"i":2', b'"i":7')
    log.write_bytes(b"".join(lines))
    made = DiskJournal(tmp_path)
    with pytest.raises(JournalError, match=r"log-.*:3: damaged record"):
        made.load()
    made.close()


def test_a_full_disk_refuses_the_write_and_keeps_the_log_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 3)
    write = os.write

    def short_of_space(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return write(fd, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", short_of_space)
    version = store.rv
    with pytest.raises(OSError, match="No space"):
        store.put("things", ("n", "lost"), {"metadata": {"name": "lost"}, "i": 0, "pad": "x" * 7})
    with pytest.raises(OSError, match="No space"):
        store.delete("things", ("n", "t0"))
    monkeypatch.undo()
    assert store.get("things", ("n", "lost")) is None
    assert store.get("things", ("n", "t0")) is not None
    assert store.rv == version
    store.put("things", ("n", "kept"), {"metadata": {"name": "kept"}, "i": 1})
    closed(store)
    assert contents(tmp_path)[0] == {"t0": 0, "t1": 1, "t2": 2, "kept": 1}


def test_two_servers_cannot_share_a_folder(tmp_path: Path) -> None:
    made = DiskJournal(tmp_path)
    with pytest.raises(JournalError, match="another server"):
        DiskJournal(tmp_path)
    made.close()
    DiskJournal(tmp_path).close()


def test_a_snapshot_replaces_the_log(tmp_path: Path) -> None:
    store = filled(tmp_path, 50)
    made = store.journal
    assert isinstance(made, DiskJournal)
    asyncio.run(made.rotate(list(store.collection("things").entries())))
    store.put("things", ("n", "after"), {"metadata": {"name": "after"}, "i": 99})
    closed(store)
    assert len(list(tmp_path.glob("snapshot-*.jsonl"))) == 1
    assert len(list(tmp_path.glob("log-*.jsonl"))) == 1
    entries, version = contents(tmp_path)
    assert entries == {"t0": 45, "t1": 46, "t2": 47, "t3": 48, "t4": 49, "after": 99}
    assert version == store.rv


def test_a_crash_between_new_log_and_snapshot_loses_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, 10)
    made = store.journal
    assert isinstance(made, DiskJournal)
    made._fresh_log(store.rv)
    store.put("things", ("n", "after"), {"metadata": {"name": "after"}, "i": 99})
    (tmp_path / f"snapshot-{store.rv:020d}.tmp").write_bytes(b"half a snap")
    closed(store)
    assert contents(tmp_path)[0] == {"t0": 5, "t1": 6, "t2": 7, "t3": 8, "t4": 9, "after": 99}


def test_the_folder_stays_bounded_under_rewrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MIN_ROTATE_BYTES", 20_000)
    monkeypatch.setattr(journal, "FLUSH_SECONDS", 0.005)
    store = filled(tmp_path, 1)
    made = store.journal
    assert isinstance(made, DiskJournal)
    made._rotate_at = 20_000

    class Current:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(list(store.collection("things").entries()))

    async def rewrite() -> None:
        flushing = asyncio.create_task(made.flush_forever(Current()))
        for i in range(3000):
            store.put("things", ("n", "t0"), {"metadata": {"name": "t0"}, "i": i, "pad": "x" * 100})
            if i % 50 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        flushing.cancel()

    asyncio.run(rewrite())
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    closed(store)
    assert size < 100_000
    assert contents(tmp_path)[0] == {"t0": 2999}


def test_objects_tokens_and_versions_survive_a_restart(tmp_path: Path) -> None:
    first = Sandbox(data_dir=tmp_path)
    api = first.client()
    made = api.send("POST", CM, {"metadata": {"name": "a"}, "data": {"k": "v"}})[1]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": "test.belay.dev",
        "scope": "Cluster",
        "names": {"plural": "kept", "kind": "Kept"},
        "versions": [version],
    }
    api.send(
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {"metadata": {"name": "kept.test.belay.dev"}, "spec": spec},
    )
    api.send("POST", "/apis/test.belay.dev/v1/kept", {"metadata": {"name": "x"}})
    token = first.server.token
    first.close()
    second = Sandbox(data_dir=tmp_path)
    api = second.client()
    assert second.server.token == token
    assert api.send("GET", f"{CM}/a")[1] == made
    assert api.send("GET", "/apis/test.belay.dev/v1/kept/x")[0] == 200
    newer = api.send("POST", CM, {"metadata": {"name": "b"}})[1]
    assert int(newer["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    old = api.watch(f"{CM}?resourceVersion={made['metadata']['resourceVersion']}", 1)
    assert at(old[0], "object.code") == 410
    second.close()


def start(folder: Path, kubeconfig: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "belay.engine.sandbox.api", "--data", str(folder), "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command)
    ends = time.monotonic() + 30
    while not kubeconfig.exists():
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.02)
    return process


def test_a_killed_process_loses_no_acknowledged_write(tmp_path: Path) -> None:
    """The real process, killed in the middle of writes: what was answered is there afterwards."""
    process = start(tmp_path / "data", tmp_path / "one")
    helper = Sandbox()
    url = yaml.safe_load((tmp_path / "one").read_text())["clusters"][0]["cluster"]["server"]
    answered: list[str] = []

    async def write() -> None:
        async def one(i: int) -> None:
            async with helper.session.post(url + CM, json={"metadata": {"name": f"c{i}"}}) as response:
                if response.status == 201:
                    answered.append(f"c{i}")
            if len(answered) == 100:
                os.kill(process.pid, signal.SIGKILL)

        await asyncio.gather(*(one(i) for i in range(300)), return_exceptions=True)

    helper.call(write())
    process.wait(10)
    assert len(answered) >= 100
    again = start(tmp_path / "data", tmp_path / "two")
    url = yaml.safe_load((tmp_path / "two").read_text())["clusters"][0]["cluster"]["server"]

    async def read() -> set[str]:
        async with helper.session.get(url + CM) as response:
            return {item["metadata"]["name"] for item in (await response.json())["items"]}

    found = helper.call(read())
    again.terminate()
    assert again.wait(10) == 0
    helper.close()
    assert set(answered) <= found
