"""The native API: checkpoints of a job, one file per rank.

checkpoints = Checkpoints("/ssd/job", rank, world_size, shared="/nfs/job", keep=3)
pending = checkpoints.save_async(state, step)      # while forward and backward run
pending.copied()                                   # before optimizer.step()
step, state = checkpoints.load_newest()
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from agents.training.checkpoint import retention, sets
from agents.training.checkpoint.errors import Incomplete
from agents.training.checkpoint.saver import Pending, Saver, saver
from agents.training.checkpoint.tiers import Tiers

log = logging.getLogger("belay.checkpoint")


class Checkpoints:
    """Checkpoints of one rank of a job.

    ``folder`` is the nearest storage; ``shared``, if given, gets a copy of each checkpoint. ``keep`` complete ones stay
    in each (0: all); rank 0 removes the others. ``local``: only this host, with ``ranks``, sees ``folder``.
    """

    def __init__(
        self, folder: str | Path, rank: int, world_size: int, *, shared: str | Path | None = None, keep: int = 0,
        ranks: frozenset[int] | None = None, through: Saver | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not within 0..{world_size - 1}")
        self.rank, self.world_size, self.keep = rank, world_size, keep
        self.folder, self.shared = Path(folder).absolute(), Path(shared).absolute() if shared else None
        self.saver = through or saver(owner=f"rank-{rank}")
        places = [("local", self.folder), *([("shared", self.shared)] if self.shared else [])]
        self.tiers = Tiers(places, self.saver, ranks)

    def save(self, state: object, step: int) -> Pending:
        """Save the state after ``step``; it may be changed when this returns. Raises what ``Saver.save`` raises."""
        first, links = self._places(step)
        pending = self.saver.save(state, first, links)
        self._retire()
        return pending

    def save_async(self, state: object, step: int) -> Pending:
        """Save while the caller computes; ``copied()`` must return before the state changes."""
        first, links = self._places(step)
        return self.saver.save_async(state, first, links, done=lambda _: self._retire())

    def load_newest(self) -> tuple[int, Any]:
        """Step and state of the newest complete checkpoint that passes verification.

        Raises :class:`Incomplete` naming the missing files, also when another number of ranks wrote it.
        """
        found, state = self.tiers.load_newest(self.rank)
        if found.world_size != self.world_size:
            raise Incomplete(
                f"the checkpoint of step {found.step} was written by {found.world_size} ranks, this job has "
                f"{self.world_size}; save through torch.distributed.checkpoint to load on another number of ranks"
            )
        return found.step, state

    def _places(self, step: int) -> tuple[Path, list[Path]]:
        if step < 0:
            raise ValueError(f"step is {step}; it must not be negative")
        names = [
            sets.rank_file(folder, step, self.rank, self.world_size)
            for folder in (self.folder, self.shared)
            if folder is not None
        ]
        for name in names:
            name.parent.mkdir(parents=True, exist_ok=True)
        return names[0], names[1:]

    def _retire(self) -> None:
        if not self.keep or self.rank:
            return
        for _, folder in self.tiers.folders:
            try:
                for one in retention.outdated(sets.scan(folder), keep=self.keep, oldest=None):
                    retention.remove(one)
            except OSError as error:
                log.warning("outdated checkpoints in %s were not removed: %s", folder, error)
