"""Rank tables as files: the wire form, the agent's files, and following a job's life."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.agents.node.rankfiles import RankFiles, keep_rank_files
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.status import forgotten
from belay.engine.wire import objects, rankfile
from belay.engine.wire.errors import WireError
from belay.engine.wire.rankfile import RankFile
from tests.agent_world import NODE, FakeCluster, VirtualClock
from tests.jobs import ascend_job

FILE = RankFile("train", "j", '{"status":"completed"}', "0", "u")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@given(st.text(max_size=200), st.integers(0, 2**40))
def test_what_is_built_is_read_back(table: str, version: int) -> None:
    file = RankFile("train", "j", table.encode("utf-8", "ignore").decode(), str(version), "u")
    assert rankfile.parse(rankfile.build(file)) == file


def test_large_tables_are_packed_and_come_back() -> None:
    rows = [
        {"device_id": str(i), "device_ip": f"192.168.{i % 256}.{i // 256}", "rank_id": str(i)} for i in range(10240)
    ]
    file = RankFile("train", "j", json.dumps({"server_list": rows}), "9", "u")
    body = rankfile.build(file)
    assert "hccl.json" not in body["data"]
    assert len(json.dumps(body)) < 400_000
    assert rankfile.build(file) == body, "the same bytes every time"
    assert rankfile.parse(body) == file


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"data": {}}, "data.job"),
        ({"data": {"job": "train/../../etc", "hccl.json": "{}"}}, "data.job"),
        ({"data": {"job": "train/other", "hccl.json": "{}"}}, "data.job"),
        ({"data": {"job": "train/j", "hccl.json": "{}", "version": "x"}}, "data.version"),
        ({"data": {"job": "train/j"}}, "data.hccl.json"),
        ({"data": {"job": "train/j"}, "binaryData": {"hccl.json.gz": "AAAA"}}, "binaryData.hccl.json.gz"),
    ],
)
def test_what_cannot_be_believed_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError) as caught:
        rankfile.parse({**rankfile.build(FILE), **change})
    assert caught.value.field == field


def test_files_modes_and_versions(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / "ranktable")
    before = os.umask(0o077)
    try:
        assert files.write(FILE)
    finally:
        os.umask(before)
    folder = tmp_path / "ranktable" / "train.j"
    assert ((folder / "hccl.json").read_text(), (folder / "version").read_text()) == (FILE.table, "0")
    assert [oct(mode(path)) for path in (folder, folder / "hccl.json", folder / "version")] == [
        "0o744", "0o644", "0o644",
    ]  # fmt: skip
    assert not files.write(FILE), "what stands is not written again"
    assert files.remove(FILE)
    assert not folder.exists()
    assert not files.remove(FILE)


def test_the_table_of_another_life_stays(tmp_path: Path) -> None:
    files = RankFiles(tmp_path)
    files.write(RankFile("train", "j", "{}", "5", "another"))
    assert not files.remove(FILE)
    assert (tmp_path / "train.j" / "hccl.json").read_text() == "{}"


def test_links_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "train.j").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        RankFiles(tmp_path / "root").write(FILE)
    assert list(target.iterdir()) == []
    (tmp_path / "root" / "train.k").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "root" / "train.k" / "hccl.json").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        RankFiles(tmp_path / "root").write(RankFile("train", "k", "{}", "0"))
    assert victim.read_text() == "mine"


class _State:
    """What the follower needs of a node's state."""

    def __init__(self) -> None:
        self.pods: list[Any] = []
        self.problems: dict[str, str] = {}


def pod(phase: str = "Running") -> Any:
    body = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "train", "name": "j-0", "uid": "p", "labels": {"job-name": "j"}},
        "spec": {"nodeName": NODE, "containers": [], "volumes": [{"name": "ranktable", "hostPath": {"path": "/x"}}]},
        "status": {"phase": phase},
    }  # fmt: skip
    return objects.pod(body)


async def until(clock: VirtualClock, so: Callable[[], bool]) -> None:
    """Moves the time on until it is so; files are written by threads, which take no virtual time."""
    ends = time.monotonic() + 30.0
    while time.monotonic() < ends:
        if so():
            return
        await clock.advance(0.5)
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def test_a_node_follows_its_jobs_tables(tmp_path: Path) -> None:
    folder = tmp_path / "train.j"

    def reads(name: str, text: str) -> bool:
        return (folder / name).exists() and (folder / name).read_text() == text

    async def story() -> None:
        clock = VirtualClock()
        cluster, state = FakeCluster(clock), _State()
        task = asyncio.create_task(keep_rank_files(state, cluster, clock, tmp_path))  # type: ignore[arg-type]
        cluster.set_map(rankfile.build(FILE))
        await clock.advance(3)
        assert list(tmp_path.iterdir()) == [], "no pod of the job is here"
        state.pods = [pod()]
        await until(clock, lambda: reads("hccl.json", FILE.table))
        cluster.set_map(rankfile.build(RankFile("train", "j", '{"status":"initializing"}', "12", "u")))
        await until(clock, lambda: reads("version", "12"))
        state.pods = []
        await clock.advance(3)
        cluster.set_map(None, "belay-system", "belay-ranktable-train.j")
        await until(clock, lambda: not folder.exists())
        assert state.problems == {}
        folder.symlink_to(tmp_path)
        state.pods = [pod()]
        cluster.set_map(rankfile.build(FILE))
        await until(clock, lambda: "symbolic link" in state.problems.get("rank table train.j", ""))
        folder.unlink()
        await until(clock, lambda: reads("hccl.json", FILE.table) and not state.problems)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


def test_a_table_that_is_written_while_the_pods_leave_is_followed_until_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, may_write, writing = RankFiles.write, threading.Event(), threading.Event()

    def slow_disk(files: RankFiles, file: RankFile) -> bool:
        writing.set()
        assert may_write.wait(30)
        return written(files, file)

    monkeypatch.setattr(RankFiles, "write", slow_disk)
    folder = tmp_path / "train.j"

    async def story() -> None:
        clock = VirtualClock()
        cluster, state = FakeCluster(clock), _State()
        task = asyncio.create_task(keep_rank_files(state, cluster, clock, tmp_path))  # type: ignore[arg-type]
        cluster.set_map(rankfile.build(FILE))
        state.pods = [pod()]
        await until(clock, writing.is_set)
        state.pods = []
        await clock.advance(5)
        may_write.set()
        await until(clock, (folder / "version").exists)
        await clock.advance(5)
        cluster.set_map(None, "belay-system", "belay-ranktable-train.j")
        await until(clock, lambda: not folder.exists())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


def test_tables_of_jobs_that_are_gone_are_forgotten() -> None:
    body = rankfile.build(RankFile("vision", "train", "{}", "0", "job-uid"))
    assert forgotten(Plan(revision="r", now=0.0), observe([body, ascend_job()])) == []
    assert forgotten(Plan(revision="r", now=0.0), observe([body])) == ["belay-ranktable-vision.train"]
