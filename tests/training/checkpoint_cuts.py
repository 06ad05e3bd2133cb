"""Saves on a disk whose power is cut: what was not synced is dropped, reordered or torn, and the host begins again.

``python -m tests.training.checkpoint_cuts CUTS [SEED]``; `make checkpoint-torture` runs it after the kills. The
promises are those of `checkpoint_torture`; in addition the newest set that was durable is still found complete.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from belay.agents.training.checkpoint import durable, sets, sums, verifying
from belay.agents.training.checkpoint.client import Ticket, WriterClient
from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.checkpoint.settings import WriterSettings
from tests.training import checkpoint_world as world
from tests.training.checkpoint_torture import Torture, content, read


@dataclass
class Cuts(Torture):
    """A torture on ``disk``; the writing process works below ``work``, on a sound one."""

    disk: world.Disk = field(kw_only=True)
    work: Path = field(kw_only=True)
    steps: list[tuple[int, Ticket]] = field(default_factory=list)
    newest_step: int = -1
    saves: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # a folder made before the first cut, as the folder of a job is
        for folder in (self.disk.place, self.folder):
            sums.sync_folder(folder)
        self.client = self._client()

    def _client(self) -> WriterClient:
        return WriterClient(self.work, WriterSettings(capacity_gb=1))

    def live(self) -> None:
        """Saves of names that are replaced, and of steps with a folder of their own, until the power is cut."""
        for _ in range(self.chance.randint(1, 6)):
            self.saves += 1
            self.save(self.saves)
            if self.chance.random() < 0.5:
                self.saves += 1
                self.save_step(self.saves)
            if self.chance.random() < 0.1:
                self.kill()
            if self.chance.random() < 0.2:
                self.settle()
        time.sleep(self.chance.random() * 0.05)
        self.cut()
        self.look()

    def save_step(self, step: int) -> None:
        """A set of one rank, in a new folder."""
        path, size = sets.rank_file(self.folder / "data", step, 0, 1), self.chance.choice((5000, 300_000))
        durable.folder(path.parent)
        try:
            ticket = self.client.allocate(size, 60.0)
            ticket.memory.content(size)[:] = content(step, 0, size)
            self.client.commit(ticket, (path,))
            self.steps.append((step, ticket))
        except CheckpointError:
            durable.write(path, memoryview(bytearray(content(step, 0, size))))
            self.newest_step = step

    def cut(self) -> None:
        """What is durable now must be there later; the rest may be."""
        for number, name, ticket in self.open:
            if ticket.durable:
                self.newest[name] = max(number, self.newest.get(name, 0))
        self.newest_step = max([self.newest_step, *(step for step, ticket in self.steps if ticket.durable)])
        self.disk.do("off")
        if (pid := world.pid_of(self.work)) is not None and world.alive(pid):
            world.kill(self.work)
        # the host's memory is gone too: nothing that this process still holds may reach the disk
        waiting = [*(ticket for _, _, ticket in self.open), *(ticket for _, ticket in self.steps)]
        assert not self.client.wait(waiting, 60.0)
        self.lost += sum(ticket.error is not None for ticket in waiting)
        self.open, self.steps = [], []
        self.client = self._client()
        self.disk.do("on", seed=self.chance.randrange(1 << 30))

    def look(self) -> None:
        """The promises of single names, and that the newest durable set is found complete."""
        super().look()
        complete = [one for one in sets.scan(self.folder / "data") if one.complete]
        found = max((one.step for one in complete), default=-1)
        assert found >= self.newest_step, f"step {self.newest_step} was durable, {found} is the newest complete one"
        for one in complete[:5]:
            for path in one.files:
                kept = read(path)
                assert kept == (one.step, 0, True), f"{path} is visible and half"
                assert (verdict := verifying.verify(path)).state == "proven", verdict.text

    def run(self, saves: int) -> str:
        """``saves`` cuts; the numbers."""
        try:
            for _ in range(saves):
                self.live()
                if self.chance.random() < 0.1:
                    self.corrupt()
            said = self.disk.do("on", seed=0)
            return (
                f"{saves} cuts, {self.saves} saves, {self.lost} that were not yet durable failed, {self.kills} kills, "
                f"{said['dropped']} changes dropped, {said['torn']} pages torn, {self.corrupted} corruptions found"
            )
        finally:
            self.end()


def gone(folder: Path, disk: world.Disk, work: Path) -> str:
    """The server of the storage goes while saves are on their way: training goes on, others are written elsewhere, and
    all arrive when the server is back.
    """
    one = Cuts(folder, 1, disk=disk, work=work)
    try:
        one.save(1)
        one.settle()
        disk.do("hang")
        begin = time.monotonic()
        for number in range(2, 12):
            one.save(number)
        handed = time.monotonic() - begin
        aside = work / "aside.bin"
        ticket = one.client.allocate(5000)
        ticket.memory.content(5000)[:] = content(99, 9, 5000)
        one.client.commit(ticket, (aside,))
        assert not one.client.wait([ticket], 60.0) and read(aside) == (99, 9, True), "another place waits too"
        assert not any(found.durable or found.error for _, _, found in one.open), "durable without a server"
        disk.do("go")
        one.settle()
        one.look()
        return f"10 saves handed over in {handed:.2f} s while the server was gone, all written when it came back"
    finally:
        disk.do("go")
        one.end()


def main(words: list[str]) -> int:
    """Run it and print the numbers."""
    cuts, seed = int(words[0]), int(words[1]) if len(words) > 1 else 1
    if why := world.lacks_fuse():
        sys.stdout.write(f"no cuts: {why}\n")
        return 0
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="belay-cuts-") as folder:
        begin, place = time.monotonic(), Path(folder)
        with world.torn_disk(place / "disk", 4 << 30) as disk:
            numbers = Cuts(disk.place / "job", seed, disk=disk, work=place / "work").run(cuts)
            sys.stdout.write(numbers + f", {time.monotonic() - begin:.0f} s\n")
        with world.torn_disk(place / "far", 4 << 30) as disk:
            sys.stdout.write(gone(disk.place / "job", disk, place / "work-2") + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
