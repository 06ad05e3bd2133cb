"""Pool and writing process: saves return after the copy, become durable, survive deaths on both sides, stay bounded."""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.training import checkpoint_world as world

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import durable, image, jobs, pool, reading, settings, slots, sums
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged, PoolFull
from belay.agents.training.checkpoint.saver import Saver, Way

pytestmark = pytest.mark.real_time

MIB = 1 << 20


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WriterClient]:
    with world.writing(tmp_path / "work") as one:
        yield one


def state(step: int, size: int = MIB) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((size // 4,), float(step))}


def whole(path: Path, step: int) -> bool:
    found = reading.load(path)
    return bool(found["step"] == step and (found["weights"] == step).all())


def test_a_save_goes_through_memory_and_becomes_durable(tmp_path: Path, client: WriterClient):
    saver, model = Saver(client), state(1)
    pending = saver.save(model, tmp_path / "a.pt", [tmp_path / "b.pt"])
    model["weights"].zero_()
    assert pending.way is Way.MEMORY and pending.durable()
    assert whole(tmp_path / "a.pt", 1) and whole(tmp_path / "b.pt", 1)
    assert (tmp_path / "a.pt").stat().st_ino == (tmp_path / "b.pt").stat().st_ino
    assert not list(tmp_path.glob("*.stg"))


def test_threads_that_write_go_behind_training_and_answers_do_not(tmp_path: Path, client: WriterClient):
    assert Saver(client).save(state(1, 16 * MIB), tmp_path / "a.pt").durable()
    found = {}
    for task in Path(f"/proc/{world.pid_of(tmp_path / 'work')}/task").iterdir():
        with suppress(FileNotFoundError):
            found[task.name] = int((task / "stat").read_text().rpartition(")")[2].split()[16])
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert found[str(world.pid_of(tmp_path / "work"))] == own
    assert sorted(set(found.values())) == sorted({own, max(own, jobs.NICE)})


def test_an_overlapped_save_holds_the_state_of_the_call(tmp_path: Path, client: WriterClient):
    saver, model = Saver(client), state(3, 64 * MIB)
    pending = saver.save_async(model, tmp_path / "a.pt")
    model["step"] = 4
    assert pending.copied(60)
    model["weights"].zero_()
    assert pending.durable()
    assert whole(tmp_path / "a.pt", 3)


def test_a_save_is_read_from_memory_before_it_is_on_the_disk(tmp_path: Path, client: WriterClient):
    saver, away = Saver(client), tmp_path / "not there yet"
    pending = saver.save(state(1), away / "a.pt")
    assert saver.load(away / "a.pt")["step"] == 1
    assert not away.exists() and not pending.durable(0.1)
    away.mkdir()
    assert pending.durable()
    assert whole(away / "a.pt", 1)


def test_memory_is_not_served_for_a_file_that_was_replaced_or_removed(tmp_path: Path, client: WriterClient):
    saver, path = Saver(client), tmp_path / "a.pt"
    assert saver.save(state(1), path).durable()
    durable.write(path, memoryview(bytearray(b"".join(image.image(state(2)).chunks()))))
    assert saver.load(path)["step"] == 2
    path.unlink()
    with pytest.raises(FileNotFoundError):
        saver.load(path)


def test_the_death_of_the_writing_process_loses_no_save(tmp_path: Path, client: WriterClient):
    saver = Saver(client)
    pending = [saver.save(state(n, 8 * MIB), tmp_path / f"{n}.pt") for n in range(4)]
    world.kill(client.work)
    assert all(one.durable(60) for one in pending)
    assert all(whole(tmp_path / f"{n}.pt", n) for n in range(4))
    assert saver.save(state(9), tmp_path / "9.pt").way is Way.MEMORY


def test_saves_of_one_name_keep_their_order_over_a_death(tmp_path: Path, client: WriterClient):
    saver, path = Saver(client), tmp_path / "a.pt"
    for n in range(8):
        last = saver.save(state(n, 4 * MIB), path)
        if n == 5:
            world.kill(client.work)
    assert last.durable(60) and whole(path, 7)
    saver.flush()
    assert whole(path, 7)


def test_without_a_writing_process_saves_go_to_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pending = Saver(WriterClient(tmp_path / "work")).save(state(1), tmp_path / "a.pt")
    assert pending.way is Way.FILE and pending.durable() and whole(tmp_path / "a.pt", 1)
    assert "cannot be started" in caplog.text


RANK = """
import sys, os, torch
from pathlib import Path
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.saver import Saver
saver = Saver(WriterClient(Path(sys.argv[1])))
torch.manual_seed(0)
pending = saver.save({"step": 1, "weights": torch.ones(1 << 22)}, Path(sys.argv[2]))
if sys.argv[3] == "half":
    from belay.agents.training.checkpoint.image import image
    ticket = saver.client.allocate(1 << 24)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["whole", "half"])
def test_saves_of_a_killed_rank_are_still_written(tmp_path: Path, client: WriterClient, how: str):
    client.connect()
    rank = subprocess.run([sys.executable, "-c", RANK, str(client.work), str(tmp_path / "a.pt"), how], check=False)
    assert rank.returncode == -signal.SIGKILL
    world.until(lambda: (tmp_path / "a.pt").exists())
    assert whole(tmp_path / "a.pt", 1)
    world.until(lambda: client.ask({"do": "status"})[0]["filling"] == 0)


JOB = """
import os, sys
from pathlib import Path
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.settings import WriterSettings
WriterClient(Path(sys.argv[1]), WriterSettings(capacity_gb=1), job=os.getpid()).connect()
print("there", flush=True)
input()
"""


def test_the_writing_process_ends_with_the_jobs_that_it_serves(tmp_path: Path):
    command = [sys.executable, "-c", JOB, str(tmp_path)]
    jobs = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [job.stdout and job.stdout.readline() for job in jobs] == ["there\n"] * 2
    writer = world.pid_of(tmp_path)
    assert writer is not None
    jobs[0].communicate("\n")
    assert world.alive(writer)
    jobs[1].communicate("\n")
    world.until(lambda: not world.alive(writer))


def test_the_pool_stays_bounded_and_reports_that_it_is_full(tmp_path: Path, client: WriterClient):
    saver, paths = Saver(client), [tmp_path / f"{n}.pt" for n in range(3)]
    with ExitStack() as others:
        for n, path in enumerate(paths):
            # another writer of the same name: a save waits for it, however slow this machine is
            fcntl.flock(others.enter_context(open(durable.staging(path), "wb")), fcntl.LOCK_EX)
            saver.save(state(n, 300 * MIB), path)
        with pytest.raises(PoolFull, match="3 saves wait for the disk"):
            client.allocate(300 * MIB, 0.1)
        status = client.ask({"do": "status"})[0]
        assert status["used"] <= status["capacity"] and status["committed"] == 3
    saver.flush(240)
    assert client.allocate(300 * MIB, 1).size == 300 * MIB
    with pytest.raises(CheckpointError, match="never fit"):
        client.allocate(2000 * MIB)


def test_a_failed_save_is_reported_and_its_memory_reused(tmp_path: Path):
    done: list[tuple[str, str | None]] = []
    times = [0.0]

    def write(path: Path, data: memoryview, **_: Any) -> None:
        raise OSError(5, "Input/output error")

    one = pool.Slot(1, slots.create(100))
    queue = jobs.WriteQueue(lambda job, error: done.append((job.path.name, error)), writers=0, threads=1, work=tmp_path,
                      clock=lambda: times[0], write=write)  # fmt: skip
    queue.add(one, tmp_path / "a", (), 0o600)
    tried: list[float] = []
    while not done:
        if job := queue.take():
            tried.append(times[0])
            queue.work(job)
        times[0] += 0.5
    assert [after - before for before, after in itertools.pairwise(tried)] == [1, 2, 4, 8, 10, 10, 10, 10, 10]
    assert "Input/output" in str(done[0][1]) and not queue.serviceable
    alarm = json.loads((tmp_path / "ccae" / "ockiod_report_CCAE.json").read_text())
    assert (alarm["alarmId"], alarm["status"]) == ("0x1001001", "Uncleared")
    one.memory.close()


def test_a_write_that_hangs_is_reported_and_others_go_on(tmp_path: Path):
    """A hard-mounted network file system whose server is gone answers never."""
    times, done = [0.0], []
    slots_held = [pool.Slot(number, slots.create(100)) for number in range(2)]
    queue = jobs.WriteQueue(lambda job, error: done.append(job.path.name), writers=0, threads=1, work=tmp_path,
                      clock=lambda: times[0], write=lambda *_, **__: None)  # fmt: skip
    for one, name in zip(slots_held, ("hangs", "goes"), strict=True):
        queue.add(one, tmp_path / name, (), 0o600)
    hanging = queue.take()
    assert hanging is not None and hanging.path.name == "hangs" and not queue.status()["stuck"]
    times[0] += jobs.SLOW_S + 1
    assert queue.status()["stuck"] == [str(tmp_path / "hangs")]
    other = queue.take()
    assert other is not None
    queue.work(other)
    assert done == ["goes"]
    for one in slots_held:
        one.memory.close()


def test_a_full_disk_leaves_the_old_file_and_nothing_half(tmp_path: Path):
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    with world.small_disk(tmp_path / "disk", "24m") as disk:
        old = memoryview(bytearray(b"".join(image.image(state(1, 4 * MIB)).chunks())))
        durable.write(disk / "a.pt", old)
        big = memoryview(bytearray(b"".join(image.image(state(2, 32 * MIB)).chunks())))
        with pytest.raises(OSError, match="No space"):
            durable.write(disk / "a.pt", big)
        assert whole(disk / "a.pt", 1)
        assert sorted(path.name for path in disk.iterdir()) == [".belay", "a.pt"]


def test_two_writers_of_one_name_leave_one_whole_file(tmp_path: Path):
    contents = [memoryview(bytearray(b"".join(image.image(state(n, 9 * MIB)).chunks()))) for n in range(4)]
    threads = [threading.Thread(target=durable.write, args=(tmp_path / "a.pt", data)) for data in contents * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = reading.load(tmp_path / "a.pt")
    assert whole(tmp_path / "a.pt", found["step"]) and not list(tmp_path.glob("*.stg"))


def test_the_staging_file_of_a_dead_writer_counts_as_abandoned(tmp_path: Path):
    stage = durable.staging(tmp_path / "a.pt")
    stage.write_bytes(b"half")
    assert durable.abandoned(stage)
    with durable._staged(stage, 0o600):
        assert not durable.abandoned(stage)


def test_every_corrupt_byte_of_a_large_file_is_found(tmp_path: Path):
    path, chance = tmp_path / "a.pt", random.Random(1)
    durable.write(path, memoryview(bytearray(b"".join(image.image(state(1, 40 * MIB)).chunks()))))
    size = path.stat().st_size
    assert len(sums.read(path)[0].values) == -(-size // sums.BLOCK)
    for _ in range(12):
        place = chance.randrange(size)
        with open(path, "r+b") as file:
            file.seek(place)
            old = file.read(1)
            file.seek(place)
            file.write(bytes([old[0] ^ (1 << chance.randrange(8))]))
        with pytest.raises(CheckpointError):
            reading.load(path)
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(old)
    assert whole(path, 1)
    os.truncate(path, size - 1)
    with pytest.raises(Damaged, match="truncated"):
        reading.load(path)


def test_wrong_settings_are_named():
    found = settings.parse({"memfs.data_block_pool_capacity_in_gb": "8", "memfs.write.parallel.enabled": "False"})
    assert (found.capacity_gb, found.parallel) == (8, False)
    for bad in ({"memfs.write.parallel.thread_num": "1"}, {"x": "1"}, {"memfs.write.parallel.enabled": "yes"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            settings.parse(bad)


def test_warm_slots_are_reused_and_durable_ones_evicted_oldest_first():
    unit = slots.UNIT
    one = pool.Pool(4 * unit)
    held = []
    for n in range(4):
        slot = one.allocate(unit // 2, f"rank-{n}", n)
        assert slot is not None
        slot.path = f"/{n}"
        slot.mark(slots.SlotState.DURABLE)
        held.append(slot)
    one.touch(held[0])
    held[1].readers[9] = 1
    assert one.allocate(unit // 2, "new", 9) is held[2]
    assert one.allocate(unit // 2, "new", 9) is held[3]
    assert one.allocate(3 * unit, "new", 9) is None
    one.leave(9)
    assert one.resident("/1") is held[1]
    assert one.allocate(3 * unit, "new", 9) is not None
    assert one.used <= one.limit


def test_a_rank_that_forgets_a_slot_keeps_none_of_its_memory(tmp_path: Path):
    def held() -> int:
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdecimal()
                 and os.path.islink(f"/proc/self/fd/{name}")]  # fmt: skip
        return sum("belay-checkpoint" in link for link in links)

    # slots of the tests before
    gc.collect()
    before = held()
    for size in (100, 5 * MIB, 100):
        memory = slots.create(size)
        assert held() > before
        del memory
    gc.collect()
    assert held() == before


def test_folders_are_made_below_one_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced, sync = [], sums.sync_folder

    def denied(folder: Path) -> None:
        # mode 1733, as anyone but the superuser sees it
        if folder == tmp_path:
            raise PermissionError(13, "Permission denied", str(folder))
        synced.append(folder)
        sync(folder)

    monkeypatch.setattr(sums, "sync_folder", denied)
    durable.folder(tmp_path / "job" / "iter")
    assert (tmp_path / "job" / "iter").is_dir() and synced == [tmp_path / "job"]
