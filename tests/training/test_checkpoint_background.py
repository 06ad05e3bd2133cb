"""A state that was loaded as a mapping: memory of its own in the background, independent from where it came from."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.training import checkpoint_world as world

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import background, layout, pages, places, reading
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.errors import Damaged
from belay.agents.training.checkpoint.native import Checkpoints
from belay.agents.training.checkpoint.saver import Saver
from belay.agents.training.checkpoint.sources import FileSource

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(not pages.can_populate(), reason="the kernel is older than 5.14: states are copied when loaded"),
]

LATER = 3600.0
"""Seconds of grace that no test waits for."""
SIZE = 3 * background.STEP + 5 * pages.PAGE
"""Bytes of a mapping: some steps, and a part of one."""


@pytest.fixture
def origin() -> Iterator[int]:
    handle = os.memfd_create("origin")
    os.truncate(handle, SIZE)
    write(handle, b"a")
    yield handle
    os.close(handle)


def write(handle: int, letter: bytes) -> None:
    """Write over all of the origin in place."""
    for start in range(0, SIZE, pages.PAGE):
        os.pwrite(handle, letter * pages.PAGE, start)


def mapping(handle: int) -> mmap.mmap:
    return mmap.mmap(handle, SIZE, flags=mmap.MAP_PRIVATE)


def test_the_copy_keeps_contents_and_changes_when_the_origin_is_written(origin: int):
    memory, released = mapping(origin), threading.Event()
    background.own(memory, "origin", released.set, grace_s=LATER)
    memory[pages.PAGE] = ord("b")
    assert not released.is_set()
    background.finish()
    assert released.wait(60)
    write(origin, b"x")
    expected = bytearray(b"a" * SIZE)
    expected[pages.PAGE] = ord("b")
    assert memory[:] == expected


def test_the_copy_begins_after_the_grace(origin: int):
    memory, released = mapping(origin), threading.Event()
    background.own(memory, "origin", released.set, grace_s=0)
    assert released.wait(60)
    write(origin, b"x")
    assert memory[-1:] == b"a" == memory[:1]


def test_nothing_is_copied_for_a_state_that_is_gone(origin: int, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(pages, "advise", lambda *words: bool(asked.append(words[2])) or True)
    memory, released = mapping(origin), threading.Event()
    background.own(memory, "origin", released.set, grace_s=LATER)
    del memory
    gc.collect()
    assert released.wait(60) and not asked


def test_a_child_sees_what_was_there_at_the_fork(origin: int):
    memory, released = mapping(origin), threading.Event()
    background.own(memory, "origin", released.set, grace_s=LATER)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        # the origin has been written over before this end comes
        os.close(writes)
        os.read(reads, 1)
        os._exit(0 if memory[:1] == b"a" == memory[-1:] else 1)
    assert released.wait(60)
    write(origin, b"x")
    os.close(writes)
    os.close(reads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory[:1] == b"a" == memory[-1:]


def test_the_origin_is_held_as_long_as_it_is_used_where_memory_is_missing(
    origin: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(pages, "advise", lambda *_: False)
    memory, released = mapping(origin), threading.Event()
    with caplog.at_level(logging.WARNING):
        background.own(memory, "/ckpt/a.mindio", released.set, grace_s=LATER)
        background.finish()
        world.until(lambda: caplog.messages)
    assert "/ckpt/a.mindio gets no memory of its own" in caplog.text and not released.is_set()
    del memory
    gc.collect()
    assert released.wait(60)


def test_a_host_without_more_threads_copies_at_once(origin: int, monkeypatch: pytest.MonkeyPatch):
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    memory, released = mapping(origin), threading.Event()
    background.own(memory, "origin", released.set, grace_s=LATER)
    assert released.is_set() and not background._running
    write(origin, b"x")
    assert memory[:1] == b"a" == memory[-1:]
    background.finish()


def test_a_file_without_sums_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = 40 << 20
    Saver(None).save({"weights": torch.ones(size // 4)}, tmp_path / "a.mindio")
    for one in (tmp_path / ".belay").glob("*.sums"):
        one.unlink()
    assert (reading.load(tmp_path / "a.mindio", mapped=True)["weights"] == 1).all()
    into = FileSource.into

    def broken(self: FileSource, start: int, target: memoryview) -> None:
        if start < size // 2 < start + len(target):
            raise Damaged(f"{self.name}: bytes {start}..{start + len(target)} cannot be read")
        into(self, start, target)

    monkeypatch.setattr(FileSource, "into", broken)
    monkeypatch.setattr(pages, "advise", lambda *_: False)
    with pytest.raises(Damaged, match="cannot be read"):
        reading.load(tmp_path / "a.mindio", mapped=True)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WriterClient]:
    with world.writing(tmp_path / "work") as one:
        yield one


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small objects count as large."""
    monkeypatch.setattr(layout, "LARGE", 1 << 20)
    monkeypatch.setattr(places, "_DISKS", places._DISKS | {mount_kind(Path.cwd())})


def mount_kind(folder: Path) -> str:
    mount = places.mount_of(folder, Path("/proc/self/mountinfo").read_text())
    return mount.kind if mount else ""


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((1 << 20,), float(step)), "few": torch.ones(3)}


@pytest.mark.usefixtures("mapped")
def test_a_state_from_the_pool_outlives_its_slot(tmp_path: Path, client: WriterClient):
    checkpoints = Checkpoints(tmp_path / "c", 0, 1, through=Saver(client))
    checkpoints.save(state(1), 1).durable()
    step, found = checkpoints.load_newest()
    maps = Path("/proc/self/maps").read_text()
    assert step == 1 and "rw-p" in "\n".join(line for line in maps.splitlines() if "belay-checkpoint" in line)
    for later in range(2, 8):
        # the pool uses its slots again, but not the one that is still read from
        checkpoints.save(state(later), later).durable()
    assert (found["weights"] == 1).all()
    found["weights"] += 1
    background.finish()
    for later in range(8, 16):
        checkpoints.save(state(later), later).durable()
    assert (found["weights"] == 2).all() and (found["few"] == 1).all()


@pytest.mark.usefixtures("mapped")
def test_the_slot_of_a_state_that_is_gone_is_free_again(tmp_path: Path, client: WriterClient):
    checkpoints = Checkpoints(tmp_path / "c", 0, 1, through=Saver(client))
    checkpoints.save(state(1), 1).durable()
    for _ in range(3):
        found = checkpoints.load_newest()
        del found
    gc.collect()
    world.until(lambda: not background._running)
    for step in range(2, 30):
        checkpoints.save(state(step), step).durable()
    usage = client.ask({"do": "status"})[0]
    assert usage["used"] <= 3 * (8 << 20), usage


@pytest.mark.usefixtures("mapped")
def test_a_state_stays_when_the_writing_process_dies(tmp_path: Path, client: WriterClient):
    checkpoints = Checkpoints(tmp_path / "c", 0, 1, through=Saver(client))
    checkpoints.save(state(1), 1).durable()
    _, found = checkpoints.load_newest()
    world.kill(tmp_path / "work")
    background.finish()
    checkpoints.save(state(2), 2).durable()
    assert (found["weights"] == 1).all() and (checkpoints.load_newest()[1]["weights"] == 2).all()


@pytest.mark.usefixtures("mapped")
def test_a_state_from_the_disk_is_proven_and_outlives_its_file(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, 0, 1, through=Saver(None))
    checkpoints.save(state(1), 1)
    (path,) = tmp_path.glob("step-*/rank-*.mindio")
    _, found = checkpoints.load_newest()
    assert str(path) in Path("/proc/self/maps").read_text()
    background.finish()
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 100)
    assert (found["weights"] == 1).all()
    with pytest.raises(Damaged, match="do not match the checksums"):
        checkpoints.tiers.load(checkpoints.tiers.complete()[0], 0)
    path.unlink()
    assert (found["weights"] == 1).all()


def test_a_load_of_any_file_waits_for_memory_of_its_own(tmp_path: Path, client: WriterClient):
    Saver(client).save(state(1), tmp_path / "a.pt").durable()
    for one in (Saver(client), Saver(None)):
        found = one.load(tmp_path / "a.pt")
        assert not background._running
        assert (found["weights"] == 1).all()
    assert (reading.load(tmp_path / "a.pt")["weights"] == 1).all() and not background._running


def test_only_large_files_on_a_disk_of_this_host_are_mapped(tmp_path: Path):
    path = tmp_path / "a.mindio"

    def on(kind: str) -> bool:
        return places.mappable(path, table=f"36 35 0:61 / {tmp_path} rw - {kind} source rw")

    assert not on("ext4")
    path.touch()
    os.truncate(path, layout.LARGE - 1)
    assert not on("ext4")
    os.truncate(path, layout.LARGE)
    assert on("ext4") and on("xfs") and not on("nfs4") and not on("lustre") and not on("fuse.s3fs")


@pytest.mark.usefixtures("mapped")
def test_storages_of_a_large_file_are_aligned_and_those_of_a_small_one_are_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Saver(None).save(state(1), tmp_path / "large.mindio")
    found = reading.contents(FileSource(tmp_path / "large.mindio")).records
    where, size = found["data.pkl"]
    assert where == 0 and size % 64 == 0 and found["data/0"][0] == size
    monkeypatch.setattr(layout, "LARGE", 1 << 40)
    Saver(None).save(state(1), tmp_path / "small.mindio")
    small = (tmp_path / "small.mindio").read_bytes()
    found = reading.contents(FileSource(tmp_path / "small.mindio")).records
    pickled = small[: found["data.pkl"][1]]
    # as MindIO ACP writes it: the pickle ends with its STOP
    assert pickled.endswith(b".") and len(pickled) % 4
    large = (tmp_path / "large.mindio").read_bytes()
    assert large[:size] == pickled + bytes(size - len(pickled))


@pytest.mark.usefixtures("mapped")
@pytest.mark.parametrize("pool", [True, False])
def test_a_file_that_is_not_aligned_is_read(
    tmp_path: Path, client: WriterClient, monkeypatch: pytest.MonkeyPatch, pool: bool
):
    monkeypatch.setattr(layout, "padding", lambda *_: b"")
    checkpoints = Checkpoints(tmp_path / "c", 0, 1, through=Saver(client if pool else None))
    checkpoints.save(state(1), 1).durable()
    found = checkpoints.load_newest()[1]
    gc.collect()
    world.until(lambda: not background._running)
    assert (found["weights"] == 1).all() and (found["few"] == 1).all()
