"""Kills at random points, full disks and torn bytes: nothing half visible, nothing durable lost, all damage found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.training import checkpoint_world as world
from tests.training.checkpoint_torture import Torture

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
