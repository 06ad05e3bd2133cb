"""The native API: checkpoints of a job, one file per rank.

checkpoints = Checkpoints("/ssd/job", rank, world_size, shared="/nfs/job", objects="s3://bucket/job", keep=3)
pending = checkpoints.save_async(state, step)      # while forward and backward run
pending.copied()                                   # before optimizer.step()
step, state = checkpoints.load_newest()
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import durable, retention, sets
from belay.agents.training.checkpoint import objects as storage
from belay.agents.training.checkpoint.errors import CheckpointError, Incomplete
from belay.agents.training.checkpoint.saver import Pending, Saver, saver
from belay.agents.training.checkpoint.tiers import Tiers

log = logging.getLogger("belay.checkpoint")
COMPLETE_S = 600.0
"""Seconds for which the files of other ranks are awaited before a set goes to object storage."""
OTHERS_S = 10.0
"""Seconds for which they are awaited at the end, before outdated sets are removed."""


class Checkpoints:
    """Checkpoints of one rank of a job.

    ``folder`` is the nearest storage; ``shared``, if given, gets a copy of each checkpoint. ``keep`` complete ones stay
    in each (0: all); rank 0 removes the others. ``ranks``: those of this host, when no other host sees ``folder``.
    ``objects``: a URL of fsspec; rank 0 uploads each complete set, or the newest where the storage is slower than
    training. ``peer``: ask the peer of the writing process for copies when this host has lost its own.
    """

    def __init__(
        self, folder: str | Path, rank: int, world_size: int, *, shared: str | Path | None = None, keep: int = 0,
        ranks: frozenset[int] | None = None, through: Saver | None = None, objects: str = "", peer: bool = False,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not within 0..{world_size - 1}")
        self.rank, self.world_size, self.keep = rank, world_size, keep
        self._last: int | None = None
        """Step of the newest save of this rank."""
        self.folder, self.shared = Path(folder).absolute(), Path(shared).absolute() if shared else None
        self.saver = through or saver(owner=f"rank-{rank}")
        places = [("local", self.folder), *([("shared", self.shared)] if self.shared else [])]
        self.tiers = Tiers(places, self.saver, ranks, url=objects, peer=peer)
        self.url = objects
        self._uploads: queue.Queue[tuple[int, Pending]] = queue.Queue()
        self._uploaded = threading.Condition()
        self._left = 0

    def save(self, state: object, step: int) -> Pending:
        """Save the state after ``step``; it may be changed when this returns. Raises what ``Saver.save`` raises."""
        first, links = self._places(step)
        pending = self.saver.save(state, first, links)
        self._retire(step)
        self._upload(step, pending)
        return pending

    def save_async(self, state: object, step: int) -> Pending:
        """Save while the caller computes; ``copied()`` must return before the state changes."""
        first, links = self._places(step)
        self._last = step
        pending = self.saver.save_async(state, first, links, done=lambda _: self._retire(step))
        self._upload(step, pending)
        return pending

    def flush(self, wait_s: float = COMPLETE_S) -> None:
        """Wait until every save of this rank is on the disk, and in object storage. Raises ``TimeoutError``."""
        until = time.monotonic() + wait_s
        self.saver.flush(wait_s)
        if self.keep and not self.rank and self._last is not None:
            # when this rank's file was written those of others were not: the set did not count yet
            self._complete(self._last, min(until, time.monotonic() + OTHERS_S))
            self._retire(self._last)
        with self._uploaded:
            if not self._uploaded.wait_for(lambda: not self._left, max(0.0, until - time.monotonic())):
                raise TimeoutError(f"{self._left} checkpoints are not in {self.url} after {wait_s:.0f} s")

    def load_newest(self, *, mapped: bool | None = None) -> tuple[int, Any]:
        """Step and state of the newest complete checkpoint that passes verification.

        Large tensors begin as a private mapping of memory or of a file on a disk of this host, and get memory of their
        own in the background: a load takes as long as the read. ``mapped=False`` waits for that memory; ``mapped=True``
        maps files of any size on any storage, which must then keep them while the tensors live.
        Raises :class:`Incomplete` naming the missing files, also when another number of ranks wrote it.
        """
        found, state = self.tiers.load_newest(self.rank, mapped=mapped)
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
            durable.folder(name.parent)
        return names[0], names[1:]

    def _upload(self, step: int, pending: Pending) -> None:
        if not self.url or self.rank:
            return
        with self._uploaded:
            self._left += 1
            self._uploads.put((step, pending))
            if self._left == 1:
                threading.Thread(target=self._upload_all, name="checkpoint-upload", daemon=True).start()

    def _upload_all(self) -> None:
        """Upload until nothing waits; of several that wait only the newest."""
        while True:
            with self._uploaded:
                count, (step, pending) = 1, self._uploads.get()
                while not self._uploads.empty():
                    count, (step, pending) = count + 1, self._uploads.get()
            try:
                if pending.durable(COMPLETE_S) and (one := self._complete(step)):
                    storage.put(self.url, one)
                else:
                    log.warning("the checkpoint of step %d is not complete: it is not uploaded to %s", step, self.url)
            except (CheckpointError, OSError) as error:
                log.warning("the checkpoint of step %d is not in %s: %s", step, self.url, str(error)[:300])
            with self._uploaded:
                self._left -= count
                self._uploaded.notify_all()
                if not self._left:
                    return

    def _complete(self, step: int, until: float | None = None) -> sets.CheckpointSet | None:
        """The set of ``step`` once all ranks have written it; None when it does not come, or is outdated already."""
        until = time.monotonic() + COMPLETE_S if until is None else until
        while time.monotonic() < until:
            found = sets.scan(self.folder)
            if one := next((one for one in found if one.step == step and one.complete), None):
                return one
            if any(one.step > step and one.complete for one in found):
                return None
            time.sleep(0.1)
        return None

    def _retire(self, step: int) -> None:
        """Remove what is outdated after a save. Sets of later steps stay and do not count: the job went back behind
        them, because they are damaged.
        """
        if not self.keep or self.rank:
            return
        for _, folder in self.tiers.folders:
            try:
                found = [one for one in sets.scan(folder) if one.step <= step]
                for one in retention.outdated(found, keep=self.keep, oldest=None):
                    retention.remove(one)
            except OSError as error:
                log.warning("outdated checkpoints in %s were not removed: %s", folder, error)
