"""Kills at random points, full disks, power cuts, a server that is gone, torn bytes: nothing half visible, nothing
durable lost, all damage found.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.agents.training.checkpoint import durable, sums
from tests.training import checkpoint_world as world
from tests.training.checkpoint_cuts import Cuts, gone
from tests.training.checkpoint_torture import Torture
from tests.training.torn_files import TornFiles

pytestmark = pytest.mark.real_time


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_saves_survive_kills_and_damage_is_found(tmp_path: Path, seed: int):
    one = Torture(tmp_path, seed)
    one.run(150)
    assert one.kills and one.corrupted


@pytest.mark.timeout(300)
def test_a_disk_that_is_full_for_a_while_loses_nothing_durable(tmp_path: Path):
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    with world.small_disk(tmp_path / "disk", "60m") as disk:
        one = Torture(disk, 3)
        one.client.work = tmp_path / "work"
        for number in range(1, 40):
            one.save(number)
        one.settle()
        filler = disk / "filler"
        filler.write_bytes(b"x" * (os.statvfs(disk).f_bavail * 4096 - 8192))
        for number in range(40, 60):
            one.save(number)
            one.look()
        one.kill()
        one.look()
        filler.unlink()
        one.settle()
        one.look()
        one.end()


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[world.Disk]:
    """One disk for the tests of this file."""
    if why := world.lacks_fuse():
        pytest.skip(why)
    with world.torn_disk(tmp_path_factory.mktemp("torn") / "disk", 1 << 30) as disk:
        yield disk


@pytest.mark.timeout(300)
def test_what_was_durable_survives_power_cuts(tmp_path: Path, torn: world.Disk):
    one = Cuts(torn.place / "cuts", 2, disk=torn, work=tmp_path / "work")
    said = one.run(6)
    assert one.saves > 10 and one.newest and one.newest_step >= 0, said
    assert torn.do("on", seed=1)["dropped"], said


@pytest.mark.timeout(300)
def test_a_server_that_is_gone_stops_neither_training_nor_saves_elsewhere(tmp_path: Path, torn: world.Disk):
    assert "all written when it came back" in gone(torn.place / "gone", torn, tmp_path / "work")


def test_a_folder_that_was_not_synced_is_lost_at_a_cut_on_this_disk(torn: world.Disk, monkeypatch: pytest.MonkeyPatch):
    """The disk bites: without the sync of folders some cut takes a file that was called durable."""
    monkeypatch.setattr(sums, "sync_folder", lambda folder: None)
    for seed in range(40):
        place = torn.place / f"bites-{seed}"
        place.mkdir()
        durable.write(place / "a.bin", memoryview(bytearray(b"x" * 100)))
        torn.do("off")
        torn.do("on", seed=seed)
        if not (place / "a.bin").exists():
            return
    raise AssertionError("forty cuts lost no file whose folder was never synced")


def test_a_save_whose_folder_cannot_be_synced_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.fsync

    def failing(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO, "the disk is broken")
        real(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="broken"):
        durable.write(tmp_path / "a.bin", memoryview(bytearray(b"x" * 100)))


def test_new_folders_are_synced_from_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[Path] = []
    monkeypatch.setattr(sums, "sync_folder", synced.append)
    durable.folder(tmp_path / "a/b")
    assert synced == [tmp_path, tmp_path / "a"] and (tmp_path / "a/b").is_dir()
    durable.folder(tmp_path / "a/b")
    assert len(synced) == 2
    (tmp_path / "iter_1/mp_rank_00").mkdir(parents=True)
    durable.write(tmp_path / "iter_1/mp_rank_00/model.pt", memoryview(bytearray(b"x")))
    assert {tmp_path / "iter_1/mp_rank_00", tmp_path / "iter_1", tmp_path} <= set(synced)


def test_the_disk_keeps_what_was_synced_and_parts_of_the_rest():
    seen = set()
    for seed in range(50):
        files = TornFiles(1 << 20, lambda: 0.0)
        kept, torn = (files.make(files.root, name, 0o100644) for name in ("kept", "torn"))
        for node in (kept, torn):
            files.write(node, 0, b"a" * 8192)
            files.sync(node)
        files.sync(files.root)
        files.write(torn, 0, b"b" * 8192)
        files.make(files.root, "new", 0o100644)
        files.cut(random.Random(seed))
        names = files.root.names
        assert bytes(names["kept"].data) == b"a" * 8192 and set(names["torn"].data) <= {97, 98}
        seen.add(("new" in names, bytes(names["torn"].data)))
    assert len(seen) > 20 and {new for new, _ in seen} == {True, False}
