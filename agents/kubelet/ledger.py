"""The device plugin's answers to Allocate, written to disk before kubelet receives them.

An append-only file of lines (``agents/common/linefile.py``). A line truncated by a crash was never synced, so
kubelet never received the answer; it is dropped. A file damaged otherwise is set aside: the holders are then derived
from kubelet's records and the pods' annotations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from belay.agents.common.linefile import LineFile, lines_of, records_of

FILE: Final = "grants"
MAX_BYTES: Final = 512 * 1024


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer to Allocate.

    ``ids`` are kubelet's, empty once kubelet has released them; ``real`` names the devices as annotations do,
    ``visible`` as the container's environment does; ``chips``: (physical id, parts of it). Until kubelet's records
    confirm it (``confirmed``) the pod is the intended one, then the actual holder: kubelet may have asked for another
    pod of the same size. ``meant`` is the UID of the pod that the scheduler chose these chips for, ``predicate`` the
    time of that choice. A ``lost`` grant holds nothing; it records that the pod ``meant`` must be served again.
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

    def as_lost(self) -> Grant:
        """The grant once its answer has not reached kubelet: it holds nothing."""
        return msgspec.structs.replace(
            self, ids=(), real=(), visible=(), chips=(), vdev=0, uid="", confirmed=False, lost=True
        )


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    put: Grant | None = None
    drop: int = 0


class Ledger:
    """All grants by number. A method that changes the ledger returns once the change is on disk, or raises OSError and
    changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._file = LineFile(folder / FILE)
        self._grants: dict[int, Grant] = {}
        self._highest = 0
        self.lost = ""

    @property
    def grants(self) -> list[Grant]:
        """All grants, the oldest first."""
        return [self._grants[number] for number in sorted(self._grants)]

    def open(self) -> None:
        """Read the file. A damaged one is set aside, and ``lost`` states why. Raises OSError."""
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
        """Return an unused grant number."""
        return self._highest + 1

    def put(self, grant: Grant) -> None:
        """Add or replace a grant."""
        self._append([_Line(put=grant)], {**self._grants, grant.number: grant})
        self._highest = max(self._highest, grant.number)

    def change(self, put: Iterable[Grant], drop: Iterable[int]) -> None:
        """Apply several changes with one write; without changes, write nothing."""
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
