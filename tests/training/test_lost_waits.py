"""Waits for messages that gloo has lost: ended, and no other wait with them."""

from __future__ import annotations

import mmap
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from belay.agents.training.train.native.gloo import held
from belay.agents.training.train.native.lost_waits import _Kind, _object_around, _read, _threads
from tests.training.conftest import Launch
from tests.training.launched import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("training"), pytest.mark.timeout(300)]

RANK = """
import datetime, os, signal, sys, threading, time
import torch, torch.distributed as dist
from belay.agents.training.train.native.lost_waits import LostWaits

rank, kind = int(sys.argv[1]), sys.argv[2]
limit = datetime.timedelta(seconds=200)
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2, timeout=limit)
message = torch.full((16 << 20,), float(rank + 1))
pids = [None, None]
dist.all_gather_object(pids, os.getpid())
waits = LostWaits()

def say(*words):
    # one write: two threads speak at once
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def tear():
    # the first bytes are here, the last are not: rank 1 dies
    while message[0] == rank + 1:
        pass
    os.kill(pids[1], signal.SIGKILL)

def gone(pid):
    try:
        return " (zombie)" in open(f"/proc/{pid}/status").read()
    except OSError:
        return True

def free():
    while not gone(pids[1]):
        time.sleep(0.01)
    time.sleep(0.3)
    # in a receive the main thread waits, in a collective a thread of the group's run loop
    kept = waits.end(2 if kind == "recv" else 1, left=True, closed=True)
    ended, until = 0, time.monotonic() + 60
    while not ended and time.monotonic() < until:
        ended = waits.end(2, left=kind != "recv", closed=True)
    say(kept, ended)

receives = kind in ("recv", "broadcast-1")
if rank == (0 if receives else 1):
    threading.Thread(target=tear, daemon=True).start()
if rank == 0:
    threading.Thread(target=free, daemon=True).start()
try:
    if kind == "recv":
        dist.recv(message, 1) if rank == 0 else dist.send(message, 0)
    else:
        dist.broadcast(message, int(kind[-1]))
except RuntimeError as error:
    say(error)
time.sleep(0.5)
os._exit(0)
"""

TABLE = 0x7F00_0000_1000


class Memory:
    """Memory from the beginning of a page on, with an object of a class at its start; none before it."""

    def __init__(self, begin: int) -> None:
        self.begin, self.at = begin, 0
        self.words = struct.pack("2P", TABLE, 5) + bytes(mmap.PAGESIZE)

    def seek(self, place: int) -> None:
        self.at = place

    def read(self, length: int) -> bytes:
        if self.at < self.begin:
            raise OSError("no memory is mapped there")
        return self.words[self.at - self.begin :][:length]


def test_the_object_around_a_futex_is_found_at_the_edge_of_memory_and_no_further_away() -> None:
    page, kind = 64 * mmap.PAGESIZE, _Kind(TABLE, 256)
    memory = Memory(page)
    assert _object_around(memory, page + 0x40, kind) == page
    assert _object_around(memory, page + 0x104, kind) == page
    assert _object_around(memory, page + 0x110, kind) == 0
    assert _object_around(memory, page + 0x40, _Kind(TABLE + 8, 256)) == 0


def test_looking_at_threads_and_sockets_interns_no_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    interned: list[str] = []
    monkeypatch.setattr(sys, "intern", lambda text: interned.append(text) or text)
    with select.epoll() as loop, socket.create_server(("127.0.0.1", 0)) as server:
        loop.register(server)
        assert _threads() and all(_read(f"/proc/self/task/{thread}/status") for thread in _threads())
        assert list(held(loop.fileno())) == [server.fileno()]
    # Python would make its table of them again and again, megabytes each time, for numbers that come and go
    assert interned == []


CONNECTING = """
import os, sys, threading, time
import belay.agents.training.train.worker.groups as groups
from belay.agents.training.train.protocol import StoreAnswer
from belay.agents.training.train.values import join, split

class Coordinator:
    \"\"\"Gives rank 0 the address of a rank 1 that never comes.\"\"\"

    def __init__(self):
        self.freeing, self.ended, self.called = [], [], []
        self.generation, self.joined, self.port, self.address = 0, 0, 0, b""

    def active(self, generation):
        return (0, 1)

    def check(self, generation):
        if generation != self.generation:
            raise RuntimeError("over")

    def send(self, said, payload):
        [self.address] = split(payload)

    def ask(self, generation, verb, keys, payload, number):
        # the port of 127.0.0.1 lies before it
        at = self.address.index(b"\\x7f\\x00\\x00\\x01")
        other = self.address[: at - 2] + self.port.to_bytes(2, "big") + self.address[at:]
        return StoreAnswer(0), join([other for _ in keys])

coordinator = Coordinator()
made = groups.Groups(coordinator, 0, "127.0.0.1", 200.0)
# the one with the smaller address, or the larger one, waits for the other to connect
for coordinator.port in (1, 65535):
    coordinator.generation += 1
    thread = made.form(coordinator.generation).thread
    time.sleep(0.5)
    if thread.is_alive():
        break
for _ in range(8):
    made._ended(coordinator.generation, True)
    time.sleep(0.1)
print("of this generation:", thread.is_alive())
coordinator.generation += 1
made.form(coordinator.generation)
end = time.monotonic() + 60
while thread.is_alive() and time.monotonic() < end:
    made._ended(coordinator.generation, True)
    time.sleep(0.05)
print("after it:", thread.is_alive(), flush=True)
os._exit(0)
"""


def test_a_thread_that_waits_for_a_rank_which_died_while_it_connected_ends_with_its_generation() -> None:
    command = [sys.executable, "-c", CONNECTING]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert ended.stdout.splitlines() == ["of this generation: True", "after it: False"], ended.stderr


@pytest.mark.parametrize("kind", ["recv", "broadcast-1", "broadcast-0"])
def test_a_message_that_was_lost_in_the_middle_frees_its_rank_and_a_wait_of_the_newest_group_goes_on(
    tmp_path: Path, kind: str
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), kind, str(tmp_path / "store")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said, _ = ranks[0].communicate(timeout=150)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    lines = sorted(said.splitlines())
    assert lines == ["0 1", "the peer of this collective was lost in the middle of a message"]


def test_the_last_copy_lives_through_deaths_in_the_middle_of_a_message(launch: Launch) -> None:
    job = launch("torn.py", 12, options=("--nproc", "2"))
    assert job.end() == 0, job.errors()
    # rank 0 holds the only copy and was never replaced; each step is done, with the same weights in both ranks
    assert len({one.pid for one in job.steps(0)}) == 1
    assert len({one.pid for one in job.steps(1)}) == 3
    assert [{one.step: one.digest for one in job.steps(rank)} for rank in (0, 1)] == [
        {one.step: one.digest for one in job.steps(0)}
    ] * 2
    # of the groups of three generations one hook is left
    assert (job.folder / "hooks-0").read_text() == "1"
    assert max(float(str(one["freed_ms"])) for one in job.recoveries()) < 5000


def test_the_last_copy_lives_through_ranks_that_die_while_they_connect_a_group_of_the_script(launch: Launch) -> None:
    job = launch("unconnected.py", 8, 5, options=("--nproc", "2"))
    assert job.end() == 0, job.errors()
    assert (job.folder / "died").read_text() == "5"
    # rank 0 holds the only copy and was never replaced; each step is done, with the same weights in both ranks
    assert len({one.pid for one in job.steps(0)}) == 1
    assert [{one.step: one.digest for one in job.steps(rank)} for rank in (0, 1)] == [
        {one.step: one.digest for one in job.steps(0)}
    ] * 2
    assert max(float(str(one["freed_ms"])) for one in job.recoveries()) < 5000
