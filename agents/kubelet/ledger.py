"""What containers were given, written to the disk before kubelet hears of it.

An append-only file of lines (``agents/node/linefile.py``). A line that a crash cut off was never synced, so kubelet
never had the answer; it is dropped. A file that is damaged otherwise is put aside: kubelet's own books and the pods'
annotations then say who holds what.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from agents.node.linefile import LineFile, lines_of, records_of

FILE: Final = "grants"
MAX_BYTES: Final = 512 * 1024


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer to Allocate.

    ``ids`` are kubelet's, empty once kubelet has let them go; ``real`` the devices as annotations name them,
    ``visible`` as the container's environment does; ``chips`` (physical id, parts of it). Until ``confirmed`` by
    kubelet's books the pod is the one that was meant, from then on the one that has it: kubelet may have asked for
    another one of the same size. ``meant`` is the UID of the pod for which the scheduler chose these chips and
    ``predicate`` when. A ``lost`` grant gives nothing; it remembers that what was meant is to be served again.
    """

    number: int
    resource: str
    ids: tuple[str, ...]
    real: tuple[str, ...]
    chips: tuple[tuple[int, int], ...]
    visible: tuple[str, ...] = ()
    uid: str = ""
    namespace: str = ""
    name: str = ""
    container: str = ""
    meant: str = ""
    predicate: str = ""
    at_ms: int = 0
    vdev: int = 0
    confirmed: bool = False
    lost: bool = False

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}" if self.name else "a pod"


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    put: Grant | None = None
    drop: int = 0


class Ledger:
    """All grants by number. A method that changes something returns once the disk has it, or raises OSError and has
    changed nothing."""

    def __init__(self, folder: Path) -> None:
        self._file = LineFile(folder / FILE)
        self._grants: dict[int, Grant] = {}
        self._highest = 0
        self.lost = ""

    @property
    def grants(self) -> list[Grant]:
        """All of them, the oldest first."""
        return [self._grants[number] for number in sorted(self._grants)]

    def open(self) -> None:
        """Read the file. What cannot be believed is put aside, and ``lost`` says why. Raises OSError."""
        self._file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            raw = self._file.read()
        except FileNotFoundError:
            raw = b""
        try:
            self._replay(raw)
        except ValueError as error:
            self.lost, self._grants = str(error), {}
            os.replace(self._file.path, self._file.path.with_suffix(".damaged"))
        self._rewrite(self._grants)

    def next(self) -> int:
        """A number that no grant has had."""
        return self._highest + 1

    def put(self, grant: Grant) -> None:
        """Add a grant, or write it anew."""
        self._append([_Line(put=grant)], {**self._grants, grant.number: grant})
        self._highest = max(self._highest, grant.number)

    def change(self, put: Iterable[Grant], drop: Iterable[int]) -> None:
        """Several changes with one write; nothing is written for none."""
        fresh = dict(self._grants)
        lines = []
        for grant in put:
            if fresh.get(grant.number) != grant:
                fresh[grant.number] = grant
                lines.append(_Line(put=grant))
        for number in drop:
            if fresh.pop(number, None) is not None:
                lines.append(_Line(drop=number))
        if lines:
            self._append(lines, fresh)
            self._highest = max(self._highest, *fresh, 0)

    def _append(self, lines: list[_Line], fresh: dict[int, Grant]) -> None:
        data = lines_of(lines)
        if self._file.size + len(data) > MAX_BYTES:
            self._rewrite(fresh)
        else:
            self._file.append(data)
        self._grants = fresh

    def _replay(self, raw: bytes) -> None:
        try:
            for entry in records_of(raw, _Line):
                if entry.put is not None:
                    self._grants[entry.put.number] = entry.put
                    self._highest = max(self._highest, entry.put.number)
                self._grants.pop(entry.drop, None)
        except ValueError as error:
            raise ValueError(f"{error} in {self._file.path}") from error

    def _rewrite(self, grants: dict[int, Grant]) -> None:
        self._file.replace(lines_of(_Line(put=grants[number]) for number in sorted(grants)))
