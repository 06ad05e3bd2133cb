"""Saves while the writing process is killed at random points, the disk fills up, and staged bytes are torn.

``python -m tests.training.checkpoint_torture SAVES [SEED] [DIR]``; ``make checkpoint-torture`` runs the 10,000. Three
promises are checked all the time by reading the disk as a stranger would:

1. nothing half visible: whatever has its name proves whole and holds the content of some save of that name;
2. nothing durable lost: once a save was said to be durable, its name holds that save or a later one;
3. every corrupt byte found: of whole files a byte is flipped, cut off or zeroed; verify names each.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import struct
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from belay.agents.training.checkpoint import durable, retention, verifying
from belay.agents.training.checkpoint.client import Ticket, WriterClient
from belay.agents.training.checkpoint.errors import CheckpointError, PoolFull
from belay.agents.training.checkpoint.settings import WriterSettings
from tests.training import checkpoint_world as world

NAMES = 5
STAMP = struct.Struct("<QQ")


@dataclass
class Torture:
    """One run in ``folder``; the same seed decides the same (when kills hit is up to the machine)."""

    folder: Path
    seed: int
    client: WriterClient = field(init=False)
    newest: dict[int, int] = field(default_factory=dict)
    """Name → the newest save that was said to be durable."""
    open: list[tuple[int, int, Ticket]] = field(default_factory=list)
    kills: int = 0
    direct: int = 0
    corrupted: int = 0
    full: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        self.client = WriterClient(self.folder / "work", WriterSettings(capacity_gb=1))

    def path(self, name: int) -> Path:
        """Where saves of this name go."""
        return self.folder / "data" / f"{name}.bin"

    def run(self, saves: int) -> str:
        """All of it; the numbers. Raises ``AssertionError`` at the first broken promise."""
        try:
            for number in range(1, saves + 1):
                self.save(number)
                if self.chance.random() < 0.05:
                    self.kill()
                if self.chance.random() < 0.1:
                    self.settle()
                if self.chance.random() < 0.05:
                    self.look()
                if self.chance.random() < 0.02:
                    self.corrupt()
            self.settle()
            self.look()
            left = retention.leftovers(self.folder / "data")
            retention.prune(self.folder / "data")
            assert not retention.leftovers(self.folder / "data"), "leftovers stay after pruning"
            return (
                f"{saves} saves, {self.kills} kills, {self.direct} written directly, {self.corrupted} corruptions "
                f"found, {self.full} times full, {len(left)} leftovers pruned"
            )
        finally:
            self.end()

    def save(self, number: int) -> None:
        """Save number ``number`` under a random name: a stamp, and bytes that follow from it."""
        name, size = self.chance.randrange(NAMES), self.chance.choice((40, 5000, 300_000, 9_000_000))
        body = content(number, name, size)
        try:
            ticket = self.client.allocate(size, 60.0)
            ticket.memory.content(size)[:] = body
            self.client.commit(ticket, (self.path(name),))
            self.open.append((number, name, ticket))
        except PoolFull:
            self.full += 1
        except CheckpointError:
            # as a saver does it
            self.client.before_direct((self.path(name),))
            durable.write(self.path(name), memoryview(bytearray(body)))
            self.direct += 1
            self.newest[name] = number
        except OSError:
            # the disk was full when a rescue wrote directly: the old file must still be there
            self.full += 1

    def kill(self) -> None:
        """Kill the writing process now or a moment later."""
        pid = world.pid_of(self.client.work)
        if pid is not None and world.alive(pid):
            time.sleep(self.chance.random() * 0.02)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1

    def settle(self) -> None:
        """Wait for everything handed over and note what is durable."""
        left = self.client.wait([ticket for _, _, ticket in self.open], 120.0)
        assert not left, f"{len(left)} saves are not durable after two minutes"
        for number, name, ticket in self.open:
            if ticket.error is None:
                self.newest[name] = max(number, self.newest.get(name, 0))
        self.open = []

    def look(self) -> None:
        """Promises 1 and 2, by the disk alone."""
        noted = dict(self.newest)
        for name in range(NAMES):
            found = read(self.path(name))
            if found is None:
                assert name not in noted, f"save {noted[name]} of {name} was durable and is gone"
                continue
            number, kept, whole = found
            assert whole and kept == name, f"{self.path(name)} is visible and half"
            assert number >= noted.get(name, 0), f"save {noted[name]} of {name} was durable, {number} is there"
        for name in range(NAMES):
            if self.path(name).exists():
                verdict = verifying.verify(self.path(name))
                if verdict.state != "proven":
                    # a save may have replaced it between sums and bytes
                    self.settle()
                    verdict = verifying.verify(self.path(name))
                assert verdict.state == "proven", verdict.text

    def corrupt(self) -> None:
        """Promise 3, on a whole file that is put right again."""
        self.settle()
        path = self.path(self.chance.randrange(NAMES))
        if not path.exists() or not path.stat().st_size:
            return
        good, way = path.read_bytes(), self.chance.choice(("flip", "cut", "zero"))
        place = self.chance.randrange(len(good))
        if way == "cut":
            os.truncate(path, place)
        else:
            bad = (
                bytes([good[place] ^ (1 << self.chance.randrange(8))]) if way == "flip" else bytes(1 + good[place] % 2)
            )
            torn = good[:place] + bad + good[place + len(bad) :]
            if torn == good:
                return
            path.write_bytes(torn[: len(good)])
        verdict = verifying.verify(path)
        assert verdict.state == "damaged", f"{way} at byte {place} of {path} was not found"
        self.corrupted += 1
        path.write_bytes(good)

    def end(self) -> None:
        """The writing process goes with the run."""
        with suppress(CheckpointError, OSError):
            self.client.connect(start=False)
            self.client.ask({"do": "stop"})


def content(number: int, name: int, size: int) -> bytes:
    """The bytes of a save: a reader knows which one it is and whether it is whole."""
    seed = STAMP.pack(number, name)
    return (seed * (size // STAMP.size + 1))[:size]


def read(path: Path) -> tuple[int, int, bool] | None:
    """Save, name, and whether every byte is of it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    number, name = STAMP.unpack(data[: STAMP.size])
    return number, name, data == content(number, name, len(data)) and len(data) in (40, 5000, 300_000, 9_000_000)


def main(words: list[str]) -> int:
    """Run it and print the numbers."""
    saves, seed = int(words[0]), int(words[1]) if len(words) > 1 else 1
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="belay-torture-", dir=words[2] if len(words) > 2 else None) as folder:
        begin = time.monotonic()
        sys.stdout.write(Torture(Path(folder), seed).run(saves) + f", {time.monotonic() - begin:.0f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
