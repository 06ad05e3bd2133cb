"""A rank's part in the proof of results: checksums of what it holds after an update, and copies of proven states.

The coordinator compares the checksums of ranks that hold copies (`belay.agents.training.train.decide.witness`) and says
how often they are computed, from what they cost here. Two states are kept in host memory: the newest proven one, and
the one that is to be proven next.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from belay.agents.training.train.notices import say
from belay.agents.training.train.protocol import Digest
from belay.agents.training.train.worker.digests import digest
from belay.agents.training.train.worker.loaders import Records
from belay.agents.training.train.worker.protected import Protected

PART = 0.25
"""Part of the free memory of a host that the copies of all its ranks may take."""


@dataclass
class KeptState:
    """The state of this rank after a finished step: its description and tensors in host memory, and where loaders
    were."""

    meta: Any
    tensors: list[torch.Tensor]
    loaders: Records


class Proof:
    """``send``: to the coordinator. What it holds survives the entries of the training function."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._kept: dict[int, KeptState] = {}
        self._last = 0
        """Finished steps before the next update."""
        self._compared = -1
        """Finished steps when it was last compared in this entry."""
        self._pace: tuple[int, ...] | None = None
        """Of the last update, by which something is due after ``_due`` finished steps."""
        self._due = 0.0
        self._shard = ""
        self._costs = [0.0, 0.0]
        self._fits: bool | None = None

    def enter(self, step: int) -> None:
        """The training function is entered at a step; what was kept of later ones was computed in vain."""
        self._last, self._compared, self._shard, self._pace = step, -1, "", None
        self._kept = {done: kept for done, kept in self._kept.items() if done <= step}

    def steps(self) -> list[int]:
        """Finished steps of which a copy is kept."""
        return sorted(self._kept)

    def updated(self, protected: Protected, pace: tuple[int, ...], loaders: Records, generation: int) -> None:
        """An update was made: compare and keep what is due."""
        before, self._last = self._last, protected.done
        if pace is self._pace and protected.done < self._due:
            return
        compare, keep, proven, *_ = pace
        self._pace, self._due = pace, min(_next(protected.done, keep), _next(protected.done, compare))
        if compare < 0:
            return
        first = not before or (proven < 0 and self._compared < 0)
        if first or _crossed(before, protected.done, keep):
            self._keep(protected, proven, loaders, generation)
        elif _crossed(before, protected.done, compare):
            self._compare(protected, generation)

    def finished(self, protected: Protected, pace: tuple[int, ...], generation: int) -> None:
        """The last step was made: its weights are compared before the script goes on with them."""
        if pace[0] >= 0 and self._compared != protected.done:
            self._compare(protected, generation)

    def loaders(self, step: int) -> Records:
        """Where loaders were when the copy of a step was made."""
        return dict(self._kept[step].loaders)

    def back(self, protected: Protected, step: int) -> None:
        """Restore the copy of a step."""
        kept = self._kept[step]
        # an optimizer takes over the tensors that it is given
        protected.restore(kept.meta, [tensor.clone() for tensor in kept.tensors])

    def received(self, protected: Protected, step: int, loaders: Records) -> None:
        """Another rank has given its copy of a step: this rank keeps one too."""
        meta, live = protected.capture()
        self._fits = _fits(live) if self._fits is None else self._fits
        if self._fits:
            self._copy(step, meta, live, step, loaders)

    def _compare(self, protected: Protected, generation: int) -> None:
        began = time.monotonic()
        weights = digest(protected.weights())
        self._costs[0] = time.monotonic() - began
        self._say(protected, generation, weights)

    def _keep(self, protected: Protected, proven: int, loaders: Records, generation: int) -> None:
        began = time.monotonic()
        weights = digest(protected.weights())
        self._costs[0] = time.monotonic() - began
        text, alike = protected.alike()
        whole = digest(alike, zlib.crc32(text.encode()))
        meta, live = protected.capture()
        if self._fits is None:
            self._fits = _fits(live)
        if self._fits:
            self._copy(protected.done, meta, live, proven, loaders)
        self._costs[1] = time.monotonic() - began
        self._say(protected, generation, weights, whole)

    def _copy(self, done: int, meta: Any, live: list[torch.Tensor], proven: int, loaders: Records) -> None:
        """Keep a copy, in the memory of the one that is needed no longer."""
        free = [step for step in self._kept if step != proven]
        old = self._kept.pop(free[0]).tensors if free else []
        for step in free[1:]:
            del self._kept[step]
        made = []
        with torch.no_grad():
            for index, tensor in enumerate(live):
                room = old[index] if index < len(old) else None
                if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
                    room = torch.empty(tensor.shape, dtype=tensor.dtype)
                made.append(room.copy_(tensor))
        self._kept[done] = KeptState(meta, made, dict(loaders))

    def _say(self, protected: Protected, generation: int, weights: int, whole: int | None = None) -> None:
        self._compared = protected.done
        self._shard = self._shard or protected.shard()
        self._send(Digest(generation, protected.done, self._shard, weights, tuple(self._costs), whole))


def _crossed(before: int, done: int, every: int) -> bool:
    """Whether a multiple of ``every`` lies after ``before`` and not after ``done``: updates may be several steps
    apart."""
    return every > 0 and before // every != done // every


def _next(done: int, every: int) -> float:
    """The first multiple of ``every`` after ``done``."""
    return (done // every + 1) * every if every > 0 else float("inf")


def _fits(tensors: list[torch.Tensor]) -> bool:
    """Whether two copies of this, in each rank of the host, leave it enough memory."""
    wanted = 2 * sum(tensor.nbytes for tensor in tensors) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free = _free_memory()
    if wanted <= free * PART:
        return True
    if os.environ.get("LOCAL_RANK", "0") == "0":
        say(
            f"proven states are not kept: the ranks of this host need {wanted >> 20} MiB for them, {free >> 20} MiB "
            "are free; a wrong result is found, but training cannot go back to before it",
            "belay_training: ",
        )
    return False


def _free_memory() -> int:
    """Bytes that this host, or this container, has left."""
    found = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, held = (Path("/sys/fs/cgroup", name).read_text().strip() for name in (limit, used))
            found.append(int(most) - int(held))
        except (OSError, ValueError):
            # "max", or the other version of cgroups
            continue
    return max(0, min(found, default=0))
