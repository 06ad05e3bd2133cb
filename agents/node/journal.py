"""The agent's memory of destructive acts: written before the act, so that no epoch ever runs twice.

An append-only file of lines (`linefile.py`). A line that a crash cut off was never synced, so what it announces never
began; it is dropped. Any other damage, or a missing file, means the journal is lost: its owner must not trust it and
asks for a new baseline. The file is rewritten as a snapshot before it outgrows its bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from belay.agents.common.linefile import LineFile, lines_of, records_of

INTERRUPTED: Final = "failed: interrupted"
"""Result of an act that was begun and whose end is unknown."""

MAX_BYTES: Final = 256 * 1024
LAYOUT: Final = "layout"
_FILE: Final = "journal"

Kind = Literal["base", "begin", "end"]


class JournalLost(Exception):
    """The journal does not exist or cannot be trusted."""


class Done(msgspec.Struct, frozen=True):
    """An epoch of one chip (or of the node's vNPU layout) that was executed, refused or taken as done, and its
    result.
    """

    epoch: int
    result: str


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: Kind
    epoch: int
    keys: tuple[str, ...]
    time: int = 0
    result: str = ""


class Journal:
    """What was begun and ended, by key: a chip's device name, or LAYOUT."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = LineFile(folder / _FILE)
        self._book = _Entries()

    @property
    def folder(self) -> Path:
        """The folder that survives restarts."""
        return self._folder

    @property
    def done(self) -> dict[str, Done]:
        """A copy of the newest epoch per key that has a result."""
        return dict(self._book.done)

    @property
    def running(self) -> dict[str, int]:
        """A copy of the epochs that were begun and have no result."""
        return dict(self._book.running)

    def open(self) -> None:
        """Read the journal. What was begun and not ended is recorded as interrupted. Raises JournalLost, and OSError
        when the disk fails."""
        try:
            raw = self._file.read()
        except FileNotFoundError as error:
            raise JournalLost("there is no journal") from error
        self._book, torn = _replay(raw)
        if torn:
            self._rewrite()
        for key, epoch in sorted(self.running.items()):
            self.end([key], epoch, INTERRUPTED)

    def establish(self, baseline: dict[str, Done]) -> None:
        """Start again: the given epochs count as done. Until this returns the journal stays lost."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._book = _Entries(dict(baseline))
        self._rewrite()

    def last(self, key: str) -> int:
        """Return the newest epoch of a key that was begun, refused or taken as done; 0 when there is none."""
        return self._book.last(key)

    def begin(self, keys: Iterable[str], epoch: int, now_ms: int) -> None:
        """Record that an act is about to start. Only when this has returned may it start.

        Raises ValueError for an epoch that is not newer than the last one of any key.
        """
        names = tuple(keys)
        if stale := [key for key in names if epoch <= self.last(key)]:
            raise ValueError(f"epoch {epoch} is not newer than {self.last(stale[0])} of {stale[0]}")
        self._append(_Record("begin", epoch, names, now_ms))

    def end(self, keys: Iterable[str], epoch: int, result: str) -> None:
        """Record the result of an act, or that it was refused before it began."""
        self._append(_Record("end", epoch, tuple(keys), result=result))

    def _append(self, record: _Record) -> None:
        line = lines_of([record])
        if self._file.size + len(line) > MAX_BYTES:
            self._rewrite()
        self._file.append(line)
        self._book.apply(record)

    def _rewrite(self) -> None:
        # a header makes an empty journal different from a truncated one
        records = [_Record("base", 0, ())]
        records += [
            _Record("base", done.epoch, (key,), result=done.result) for key, done in sorted(self._book.done.items())
        ]
        records += [_Record("begin", epoch, (key,)) for key, epoch in sorted(self._book.running.items())]
        self._file.replace(lines_of(records))


class _Entries:
    """The state that the records describe."""

    def __init__(self, done: dict[str, Done] | None = None) -> None:
        self.done = done or {}
        self.running: dict[str, int] = {}

    def last(self, key: str) -> int:
        done = self.done.get(key)
        return max(done.epoch if done else 0, self.running.get(key, 0))

    def apply(self, record: _Record) -> None:
        for key in record.keys:
            if record.kind == "begin":
                self.running[key] = record.epoch
                continue
            if record.epoch >= self.last(key) or key not in self.done:
                self.done[key] = Done(record.epoch, record.result)
            if record.epoch >= self.running.get(key, 0):
                self.running.pop(key, None)


def _replay(raw: bytes) -> tuple[_Entries, bool]:
    if not raw:
        raise JournalLost("the journal is empty")
    if b"\n" not in raw:
        raise JournalLost("the journal has no complete line")
    book = _Entries()
    try:
        for record in records_of(raw, _Record):
            book.apply(record)
    except ValueError as error:
        raise JournalLost(f"{error} in the journal") from error
    return book, not raw.endswith(b"\n")
