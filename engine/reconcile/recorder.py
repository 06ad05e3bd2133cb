"""Records of passes for ``belay replay``: everything a plan was made from, so that it can be made again byte for
byte.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.log import get
from engine.model.plan import Plan

_log = get("replay")
BYTES_LIMIT = 64 * 1024 * 1024
"""Largest recorded world, unpacked."""


class Recording(msgspec.Struct, frozen=True):
    """One recorded pass: the revision's files, the observed objects as JSON texts, the time, and the digest to
    reach.
    """

    pass_id: str
    shard: str
    now: float
    digest: str
    revision: str
    has_git: bool
    files: dict[str, str]
    blobs: dict[str, bytes]
    objects: list[msgspec.Raw]
    previous: dict[str, list[str]] = {}


class Recorder:
    """Keeps the newest ``keep`` recordings in a folder. A full or read-only disk loses recordings, never a pass."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def record(
        self,
        pass_id: str,
        shard: str,
        plan: Plan,
        files: Mapping[str, str],
        blobs: Mapping[str, bytes],
        raw: Mapping[str, bytes],
        has_git: bool,
    ) -> None:
        """Write one recording; a world beyond 64 MiB is left out with a warning."""
        if not self._keep:
            return
        size = sum(map(len, raw.values())) + sum(map(len, blobs.values()))
        if size > BYTES_LIMIT:
            _log.warning("pass not recorded: too large", bytes=size, limit=BYTES_LIMIT)
            return
        recording = Recording(
            pass_id,
            shard,
            plan.now,
            plan.digest(),
            plan.revision,
            has_git,
            dict(files),
            dict(sorted(blobs.items())),
            [msgspec.Raw(raw[field]) for field in sorted(raw)],
        )
        try:
            self._write(f"{shard}-{plan.now:017.3f}-{pass_id[-8:]}.json.gz", msgspec.json.encode(recording))
            self._trim(shard)
        except OSError as error:
            _log.warning("pass not recorded", reason=str(error))

    def _write(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{name}.{os.getpid()}"
        draft.write_bytes(gzip.compress(content, compresslevel=3, mtime=0))
        draft.replace(self._folder / name)

    def _trim(self, shard: str) -> None:
        for old in sorted(self._folder.glob(f"{shard}-*.json.gz"))[: -self._keep]:
            old.unlink(missing_ok=True)


def read_recording(path: Path) -> Recording:
    """A recording from its file; raises OSError or msgspec.DecodeError."""
    with gzip.open(path) as file:
        return msgspec.json.decode(file.read(2 * BYTES_LIMIT), type=Recording)


def objects_of(recording: Recording) -> list[dict[str, Any]]:
    """The observed objects."""
    return [msgspec.json.decode(bytes(raw)) for raw in recording.objects]
