"""Durability: an append-only log of changes and a snapshot, in one folder.

Each change is one line, `crc32 json`, written before the request is answered: killing the process loses nothing. The
operating system flushes (fsync) in batches, so a power failure loses at most the last batch. When the log is
larger than the snapshot, the state is written to a new snapshot (temporary file, fsync, rename) and the old files are
deleted; the folder holds at most about three times the state.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from belay.engine.errors import BelayError
from belay.engine.sandbox.api.store import Key, ObjectVersion

LOG = logging.getLogger(__name__)
MIN_ROTATE_BYTES = 16 * 1024 * 1024
"""Smallest log that is replaced by a snapshot, bytes."""

FLUSH_SECONDS = 0.1
RETRY_SECONDS = 5.0
_VERSION = 1


class JournalError(BelayError):
    """The data folder cannot be used: locked, unreadable or damaged."""

    code = "JournalUnreadable"


class DiskJournal:
    """The log and snapshot of one server. Only one process may hold a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise JournalError(
                "another server is using this data folder", where=str(folder), hint="Stop it or choose another."
            ) from error
        self._fd = -1
        self._size = 0
        self._rotate_at = MIN_ROTATE_BYTES
        self._dirty = False
        self.rv = 0

    # -- loading

    def load(self) -> list[ObjectVersion]:
        """Read the snapshot and the log.

        Sets `rv` to the newest version. A torn last line is dropped, damage elsewhere is an error.
        """
        state: dict[tuple[str, Key], ObjectVersion] = {}
        snapshots = sorted(self._folder.glob("snapshot-*.jsonl"))
        start = 0
        if snapshots:
            start = _number(snapshots[-1])
            self._read(snapshots[-1], state, last=False)
        logs = [path for path in sorted(self._folder.glob("log-*.jsonl")) if _number(path) >= start]
        for path in logs:
            self._read(path, state, last=path is logs[-1])
        self.rv = max(self.rv, start)
        self._open(logs[-1] if logs else self._folder / f"log-{self.rv:020d}.jsonl")
        return list(state.values())

    def _read(self, path: Path, state: dict[tuple[str, Key], ObjectVersion], *, last: bool) -> None:
        good = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _parse(line)
                if record is None:
                    if not last or file.read(1):
                        raise JournalError(
                            "damaged record",
                            where=f"{path}:{number}",
                            hint="Restore the folder or remove it to start empty.",
                        )
                    LOG.warning(
                        "dropped a torn record at the end of the log", extra={"file": str(path), "line": number}
                    )
                    os.truncate(path, good)
                    return
                good += len(line)
                self._replay(record, state)

    def _replay(self, record: dict[str, object], state: dict[tuple[str, Key], ObjectVersion]) -> None:
        rv = int(str(record["rv"]))
        self.rv = max(self.rv, rv)
        if "r" not in record:
            return
        key = (str(record["ns"]), str(record["n"]))
        identity = (str(record["r"]), key)
        obj = record.get("o")
        if isinstance(obj, dict):
            state[identity] = ObjectVersion(identity[0], key, obj, rv)
        else:
            state.pop(identity, None)

    # -- writing

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def put(self, entry: ObjectVersion) -> None:
        """Record a new version."""
        self._append(_put_line(entry))

    def delete(self, storage: str, key: Key, rv: int) -> None:
        """Record a deletion."""
        self._append(orjson.dumps({"rv": rv, "r": storage, "ns": key[0], "n": key[1]}))

    def _append(self, record: bytes) -> None:
        line = b"%08x %b\n" % (zlib.crc32(record), record)
        try:
            written = os.write(self._fd, line)
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            # half a line in the middle would make the whole log unreadable
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)
        self._dirty = True

    async def flush_forever(self, state: Iterable[ObjectVersion]) -> None:
        """Flush in batches, and write a snapshot when the log has grown.

        `state` yields the current entries when iterated.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                if self._dirty:
                    self._dirty = False
                    await loop.run_in_executor(None, os.fsync, self._fd)
                if self._size > self._rotate_at:
                    await self.rotate(state)
            except OSError as error:
                LOG.error("cannot flush the log", extra={"folder": str(self._folder), "error": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def rotate(self, state: Iterable[ObjectVersion]) -> None:
        """Start a new log, write the state so far to a snapshot, then delete the old files."""
        entries = list(state)
        rv = max([self.rv, *(entry.rv for entry in entries)])
        self._fresh_log(rv)
        await asyncio.get_running_loop().run_in_executor(None, self._snapshot, entries, rv)

    def _fresh_log(self, rv: int) -> None:
        old = self._fd
        self._open(self._folder / f"log-{rv:020d}.jsonl")
        os.fsync(old)
        os.close(old)

    def _snapshot(self, entries: list[ObjectVersion], rv: int) -> None:
        final = self._folder / f"snapshot-{rv:020d}.jsonl"
        temporary = final.with_suffix(".tmp")
        size = 0
        with temporary.open("wb") as file:
            for record in _snapshot_records(entries, rv):
                size += file.write(b"%08x %b\n" % (zlib.crc32(record), record))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(final)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        self._rotate_at = max(MIN_ROTATE_BYTES, size)
        for path in [*self._folder.glob("snapshot-*.jsonl"), *self._folder.glob("log-*.jsonl")]:
            if _number(path) < rv:
                path.unlink()

    def close(self) -> None:
        """Flush, and unlock the folder."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
        os.close(self._lock)


def _snapshot_records(entries: list[ObjectVersion], rv: int) -> Iterator[bytes]:
    yield orjson.dumps({"rv": rv, "version": _VERSION})
    for entry in entries:
        yield _put_line(entry)


def _put_line(entry: ObjectVersion) -> bytes:
    head = orjson.dumps({"rv": entry.rv, "r": entry.storage, "ns": entry.key[0], "n": entry.key[1]})
    return head[:-1] + b',"o":' + entry.raw + b"}"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _parse(line: bytes) -> dict[str, object] | None:
    if len(line) < 10 or not line.endswith(b"\n"):
        return None
    record = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(record):
            return None
        parsed = orjson.loads(record)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
