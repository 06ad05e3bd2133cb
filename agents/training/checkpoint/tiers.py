"""The newest complete checkpoint across tiers: memory of host and peer, local disk, shared storage, objects."""

from __future__ import annotations

import fcntl
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import objects, places, sets
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged, Incomplete
from belay.agents.training.checkpoint.newest import Found
from belay.agents.training.checkpoint.saver import Saver
from belay.agents.training.checkpoint.sets import CheckpointSet

log = logging.getLogger("belay.checkpoint")
_OF = re.compile(r"rank-\d{5,7}-of-(\d{5,7})\.mindio")


class Tiers:
    """Folders by name, nearest first: ``[("local", Path("/ssd/job")), ("shared", Path("/nfs/job"))]``.

    ``ranks``: the ranks of this host, for folders whose files the other hosts cannot see. ``url``: a folder in object
    storage, searched last; ``peer``: ask the peer of the writing process for copies of what this host has lost.
    """

    def __init__(
        self, folders: Sequence[tuple[str, Path]], saver: Saver | None = None, ranks: frozenset[int] | None = None,
        *, url: str = "", peer: bool = False,
    ) -> None:  # fmt: skip
        if not folders:
            raise ValueError("name at least one folder")
        self.folders = [(name, Path(folder).absolute()) for name, folder in folders]
        self.saver, self.ranks, self.url, self.peer = saver or Saver(None), ranks, url, peer

    def complete(self) -> list[Found]:
        """All complete checkpoints, newest first; of one step the nearest tier first. Hosts with local folders only
        compare these lists and choose the newest common step.
        """
        self._ask_peer()
        found = [self._found(name, one) for name, one in self._sets() if one.complete]
        stored = self._in_objects()
        if stored is None or any(one.step == stored.step for one in found):
            return found
        return sorted([*found, stored], key=lambda one: -one.step)

    def newest(self, at_most: int | None = None) -> Found | None:
        """The newest complete checkpoint, of a step up to ``at_most``."""
        return next((one for one in self.complete() if at_most is None or one.step <= at_most), None)

    def missing(self) -> list[str]:
        """The missing files of newer checkpoints, at most 20 lines."""
        best = self.newest()
        lines = [
            f"{one.folder}: {text}"
            for _, one in self._sets()
            if not one.complete and (best is None or one.step > best.step)
            for text in one.missing
        ]
        return lines[:20] or ([] if best else [f"{folder}: no checkpoint" for _, folder in self.folders])

    def load(self, found: Found, rank: int, *, weights_only: bool = True, mapped: bool | None = None) -> Any:
        """The state of ``rank`` in ``found``; see the protocol. ``mapped`` as in :meth:`Saver.load`; None maps large
        files on a disk of this host, which Belay never writes in place.
        """
        folder = Path(found.place).parent
        if found.tier == "objects":
            folder = self._downloaded(found)
        path = sets.rank_file(folder, found.step, rank, found.world_size)
        try:
            if mapped is None and places.mappable(path):
                mapped = True
            return self.saver.load(path, weights_only=weights_only, mapped=mapped)
        except FileNotFoundError as error:
            raise Incomplete(f"{path} is gone; the checkpoint of step {found.step} lacks it") from error
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from error

    def load_newest(self, rank: int, *, weights_only: bool = True, mapped: bool | None = None) -> tuple[Found, Any]:
        """Load the newest checkpoint that passes verification; damaged ones are skipped with a warning.

        Raises :class:`Incomplete` naming what is missing or damaged when there is none.
        """
        at_most, reasons = None, self.missing()
        tried: set[tuple[str, int]] = set()
        for found in self.complete():
            if (found.place, found.step) in tried or (at_most is not None and found.step > at_most):
                continue
            tried.add((found.place, found.step))
            try:
                return found, self.load(found, rank, weights_only=weights_only, mapped=mapped)
            except CheckpointError as error:
                log.warning("the checkpoint of step %d (%s) is skipped: %s", found.step, found.tier, error)
                reasons.append(str(error))
        raise Incomplete("no complete checkpoint can be loaded: " + "; ".join(reasons[:20]))

    def _sets(self) -> list[tuple[str, CheckpointSet]]:
        memory = self._memory()
        found = [(name, one) for name, folder in self.folders for one in sets.scan(folder, memory, self.ranks)
                 if one.kind == "belay"]  # fmt: skip
        order = {name: place for place, (name, _) in enumerate(self.folders)}
        return sorted(found, key=lambda pair: (-pair[1].step, not pair[1].in_memory, order[pair[0]]))

    def _ask_peer(self) -> None:
        """Let the writing process fetch what the peer keeps and this host lacks; once, and only if it has a peer."""
        if not self.peer or self.saver.client is None:
            return
        self.peer = False
        for _, folder in self.folders[:1]:
            try:
                if count := self.saver.client.restore(folder):
                    log.info("%d files of %s came from the peer's memory", count, folder)
            except CheckpointError as error:
                log.warning("%s", error)

    def _in_objects(self) -> Found | None:
        if not self.url:
            return None
        try:
            stored = objects.newest_set(self.url)
        except (CheckpointError, OSError) as error:
            log.warning("%s was not searched: %s", self.url, str(error)[:300])
            return None
        if stored is None or not (worlds := {int(match[1]) for name in stored[1] if (match := _OF.fullmatch(name))}):
            return None
        return Found(stored[0], max(worlds), "objects", f"{self.url.rstrip('/')}/{sets.step_folder(Path(), stored[0])}")

    def _downloaded(self, found: Found) -> Path:
        """The nearest folder, once it has the set of ``found`` from object storage; one process of a host downloads."""
        folder = self.folders[0][1]
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".download.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not any(one.complete and one.step == found.step for one in sets.scan(folder)):
                objects.get(self.url, found.step, folder)
        return folder

    def _memory(self) -> dict[str, int]:
        if self.saver.client is None:
            return {}
        found: dict[str, int] = {}
        for _, folder in self.folders:
            found.update(self.saver.client.listed(folder))
        return found

    def _found(self, name: str, one: CheckpointSet) -> Found:
        return Found(one.step, one.world_size, "memory" if one.in_memory else name, str(one.folder))
