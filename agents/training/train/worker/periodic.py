"""Checkpoints of a protected function: saved every so many steps, loaded when no copy of its state lives.

One file per shard: ranks that hold copies of each other share one, so that a job of plain data parallelism saves its
state once, and goes on with any number of ranks.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.checkpoint.native import Checkpoints as Files
from belay.agents.training.checkpoint.newest import Found
from belay.agents.training.checkpoint.saver import Pending, Saver
from belay.agents.training.checkpoint.settings import WriterSettings
from belay.agents.training.checkpoint.wire import work_folder
from belay.agents.training.train.decide.donors import LAYOUT_MARK
from belay.agents.training.train.worker.buckets import Buckets
from belay.agents.training.train.worker.interruption import TrainingError
from belay.agents.training.train.worker.loaders import Loaders
from belay.agents.training.train.worker.process import current
from belay.agents.training.train.worker.protected import Protected

log = logging.getLogger("belay.checkpoint")
VARIABLE = "BELAY_CHECKPOINTS"
"""Options of :class:`PeriodicCheckpoints` as JSON, set by ``belay train --checkpoints``."""
_STORAGE = (CheckpointError, OSError, RuntimeError, MemoryError)
"""What a failed save raises: full disks, lost mounts, no memory for the copy."""
OFFERED = 20
"""Most steps that a rank offers, the newest ones."""
END_S = 600.0
"""Seconds for the last checkpoints to reach their places at the end."""


class PeriodicCheckpoints:
    """Checkpoints below ``folder``, after every ``every`` steps, of what ``protect`` protects.

    ``shared``: a second folder, on shared storage; ``objects``: a URL of fsspec (``s3://…``); ``keep``: complete ones
    that stay in each folder (0: all). ``listen``, ``peer`` (host:port) and ``secret`` (a file): copies in the memory of
    other hosts, see :class:`WriterSettings`. Raises ``TypeError`` and ``ValueError``.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, every: int, shared: str | os.PathLike[str] | None = None,
        objects: str = "", keep: int = 3, listen: str = "", peer: str = "", secret: str = "",
    ) -> None:  # fmt: skip
        for name, value, least in (("every", every, 1), ("keep", keep, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"PeriodicCheckpoints({name}={value!r}): give a whole number from {least}")
        if (listen or peer) and not secret:
            raise ValueError(
                "PeriodicCheckpoints(secret=…): copies at a peer need a file with a secret that both hosts know"
            )
        self.folder, self.every, self.keep = Path(folder).absolute(), every, keep
        self._shared = None if shared is None else Path(shared).absolute()
        self._objects = objects
        self._settings = WriterSettings(peer_listen=listen, peer=peer, peer_secret=secret)
        self._saver: Saver | None = None
        self._found: dict[int, Found] = {}
        self._damaged: set[int] = set()
        self._protected: Protected | None = None
        self._buckets: Buckets | None = None
        self._loaders: Loaders | None = None
        self._shards: list[str] = []
        self._files: Files | None = None
        self._writes = False
        self._pending: Pending | None = None
        self._saved = 0
        """Finished steps when one was last saved, or would have been by another rank."""

    @classmethod
    def of_environment(cls) -> PeriodicCheckpoints | None:
        """As ``belay train --checkpoints`` says; None without it. Raises ``TrainingError`` for another content."""
        text = os.environ.get(VARIABLE, "")
        if not text:
            return None
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise TrainingError(
                f"{VARIABLE} cannot be read: {str(error)[:200]}; use belay train --checkpoints"
            ) from None

    def bind(
        self, protected: Protected, buckets: Buckets, rank: int, shards: Sequence[str], loaders: Loaders | None = None
    ) -> None:
        """Save and load ``protected`` from now on, and how DDP reduces its gradients, and where loaders are;
        ``shards``: of each rank."""
        self._loaders = loaders
        self._protected, self._buckets, self._shards = protected, buckets, sorted(set(shards))
        self._writes = shards.index(shards[rank]) == rank
        index = self._shards.index(shards[rank])
        if self._files is None or (self._files.rank, self._files.world_size) != (index, len(self._shards)):
            self._files = self._of(index, len(self._shards))
        self._pending = None

    def begin(self, done: int) -> None:
        """Training goes on at ``done`` finished steps."""
        self._saved = done

    def steps(self) -> list[int]:
        """Finished steps in complete checkpoints, newest first, at most 20."""
        # which file is this rank's does not matter for what is there
        tiers = (self._files or self._of(0, 1)).tiers
        self._found = {}
        for one in tiers.complete():
            if one.step not in self._damaged:
                self._found.setdefault(one.step, one)
        if not self._found and os.environ.get("RANK", "0") == "0":
            # one rank says it for all
            for text in tiers.missing():
                log.warning("no complete checkpoint: %s", text[:300])
        return sorted(self._found, reverse=True)[:OFFERED]

    def latest(self) -> int | None:
        """Finished steps in the newest one; None without one."""
        return next(iter(self.steps()), None)

    def load(self, step: int) -> None:
        """Load the checkpoint of ``step`` into what is protected.

        Raises :class:`CheckpointError` naming the file; that checkpoint is not offered again.
        """
        assert self._files and self._protected and self._buckets, "bind() comes first"
        found = self._found.get(step)
        try:
            if found is None:
                raise CheckpointError(f"the checkpoint of step {step} below {self.folder} is gone")
            if found.world_size != len(self._shards):
                raise CheckpointError(
                    f"the checkpoint of step {step} in {found.place} has {found.world_size} shards, this job has "
                    f"{len(self._shards)}: start it with the parallelism that saved it"
                )
            state = self._files.tiers.load(found, self._files.rank)
            if not isinstance(state, dict) or not {"done", "shard", "orders", "meta", "tensors"} <= state.keys():
                raise CheckpointError(f"{found.place} was not written by protect(): it has other contents")
            shard = self._shards[self._files.rank]
            if state["done"] != step or not _same_shard(str(state["shard"]), shard):
                raise CheckpointError(
                    f"{found.place} has {state['shard']!r:.100} of step {state['done']}, not {shard!r}"
                )
            self._protected.restore(json.loads(state["meta"]), state["tensors"])
            self._buckets.orders = self._buckets.orders or json.loads(state["orders"])
            if self._loaders is not None:
                self._loaders.records = json.loads(state.get("loaders", "{}"))
        except (CheckpointError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._damaged.add(step)
            raise CheckpointError(str(error)[:500]) from error

    def stepped(self, done: int) -> None:
        """Begin to save when ``done`` steps are finished and it is time to: at the first update of each ``every``
        steps, for gradients that are being accumulated are not saved."""
        if done // self.every == self._saved // self.every:
            return
        self._saved = done
        if not (self._writes and self._files and self._protected and self._buckets):
            return
        meta, tensors = self._protected.capture()
        # a forward pass changes buffers while the copy is made; they are small
        moving = {buffer.data_ptr() for buffer in self._protected.buffers()}
        kept = [tensor.clone() if tensor.data_ptr() in moving else tensor for tensor in tensors]
        state: dict[str, Any] = {
            "done": done, "shard": self._shards[self._files.rank], "orders": json.dumps(self._buckets.orders),
            "meta": json.dumps(meta), "tensors": kept,
            "loaders": json.dumps(self._loaders.records if self._loaders is not None else {}),
        }  # fmt: skip
        try:
            self._pending = self._files.save_async(state, done)
        except _STORAGE as error:
            self._warn(error)

    def copied(self) -> None:
        """Wait until the protected state may change again. A save that failed is a warning: training goes on."""
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                pending.copied()
            except _STORAGE as error:
                self._warn(error)

    def flush(self) -> None:
        """Wait for the last checkpoints at the end of training; what is missing then is a warning."""
        if self._files is None:
            return
        self.copied()
        try:
            self._files.flush(END_S)
        except (TimeoutError, CheckpointError, OSError) as error:
            log.warning("%s", str(error)[:300])
        for reason in self._files.saver.failed():
            log.warning("a checkpoint was not written: %s", reason[:300])

    def _warn(self, error: BaseException) -> None:
        log.warning("a checkpoint below %s was not saved, training goes on: %s", self.folder, str(error)[:300])

    def _of(self, index: int, count: int) -> Files:
        if self._saver is None:
            member = current()
            job = member.control.home.supervisor if member is not None and member.control.home is not None else 0
            self._saver = Saver(WriterClient(work_folder(), self._settings, f"shard-{index}", job))
        return Files(
            self.folder, index, count, shared=self._shared, keep=self.keep, through=self._saver,
            objects=self._objects, peer=bool(self._settings.peer),
        )  # fmt: skip


def _same_shard(saved: str, mine: str) -> bool:
    """Whether a file has this rank's shard; files of former versions do not name the layout."""
    return saved == mine or (LAYOUT_MARK not in saved and saved == mine.partition(LAYOUT_MARK)[0])
