"""Moments that can be looked at again: recorded passes on disk, and documents that this server saw.

A recording is a pass with all its inputs: every question can be asked about it, and its figures stand beside it. The
documents that the server saw lie compressed in memory; they show the cluster between recorded passes, and where the
recordings are on another machine. Where they become too many, those of long ago are thinned out: what happened at a
fault, an eviction or a revision stays longer than what lies between.
"""

from __future__ import annotations

import threading
import time
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.replay.summary import RECORDING_SUFFIX, PassDigest, read_digest
from belay.engine.serve.console.comparison import SeenDigest
from belay.engine.serve.console.document import StateDocument

MOST_RECORDINGS: Final = 2_000
MOST_SEEN: Final = 1_000
SEEN_BYTES: Final = 64 * 1024 * 1024
SEEN_EVERY: Final = 1.0
"""Least seconds between two documents that are kept."""
LOOK_SECONDS: Final = 2.0
PRESENT: Final = "present"
"""In place of a moment's id: the present, which comes after all moments."""
RECORDING: Final = "recording"
STATUS: Final = "status"


class HistoryMoment(msgspec.Struct, frozen=True):
    """One moment: ``at`` in Unix seconds; ``source`` is ``recording`` or ``status``; figures are None where unknown."""

    id: str
    at: float
    revision: str
    shard: str
    source: str
    faults: int | None = None
    evictions: int | None = None
    bound: int | None = None
    waiting: int | None = None

    def row(self) -> dict[str, Any]:
        """As the API shows it."""
        row: dict[str, Any] = msgspec.to_builtins(self)
        del row["at"]
        return row | {"time": rfc3339(self.at)}


class PastMoments:
    """The moments of one cluster. ``folder`` holds recordings (None: there are none); safe for several threads."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._looked = float("-inf")
        self._recorded: dict[str, tuple[Path, HistoryMoment, PassDigest | None]] = {}
        self._seen: OrderedDict[str, tuple[HistoryMoment, bytes, PassDigest]] = OrderedDict()
        self._bytes = 0
        self._last: StateDocument | None = None
        self._lock = threading.Lock()

    def see(self, document: StateDocument, encoded: bytes, at: float) -> None:
        """Keep a document that was shown; several within a second count as one."""
        before = self._last
        if self._seen and at - next(reversed(self._seen.values()))[0].at < SEEN_EVERY:
            return
        self._last = document
        figures = _figures(before, document)
        moment = HistoryMoment(
            document.id, at, document.moment["revision"], document.moment["shard"], STATUS, figures.fault_count,
            figures.evictions, figures.bound, figures.waiting,
        )  # fmt: skip
        packed = zlib.compress(encoded, 1)
        with self._lock:
            self._seen[document.id] = (moment, packed, figures)
            self._bytes += _size(packed, figures)
            while len(self._seen) > max(1, MOST_SEEN) or (self._bytes > SEEN_BYTES and len(self._seen) > 1):
                _, gone, old = self._seen.pop(_dispensable([row[0] for row in self._seen.values()]))
                self._bytes -= _size(gone, old)

    def moments(self) -> list[HistoryMoment]:
        """Every moment in order of time; reads the folder now and then."""
        with self._lock:
            if self.folder is not None and self._clock() - self._looked > LOOK_SECONDS:
                self._looked = self._clock()
                self._read(self.folder)
            found = [row[1] for row in self._recorded.values()] + [row[0] for row in self._seen.values()]
        return sorted(found, key=lambda moment: (moment.at, moment.id))

    def named(self, text: str) -> str:
        """The id of the newest moment that is not after a time (RFC 3339), or of the first one: so links name times,
        which every server understands. Any other text is an id already.
        """
        try:
            at = parse_rfc3339(text)
        except ValueError:
            return text
        found = self.moments()
        before = bisect_right([moment.at for moment in found], at + 1.0)
        return found[max(0, before - 1)].id if found else text

    def recording(self, identity: str) -> Path | None:
        """The file of a recorded moment."""
        self.moments()
        with self._lock:
            found = self._recorded.get(identity)
        return found[0] if found is not None else None

    def seen(self, identity: str) -> bytes | None:
        """The document of a moment that this server saw."""
        with self._lock:
            found = self._seen.get(identity)
        return zlib.decompress(found[1]) if found is not None else None

    def digests(self, begin: float, end: float) -> list[SeenDigest]:
        """What each moment of a time showed, in order; of each source also the last moment before."""
        self.moments()
        with self._lock:
            rows = [(row[1], row[2]) for row in self._recorded.values() if row[2] is not None]
            rows += [(row[0], row[2]) for row in self._seen.values()]
        every = [SeenDigest(row.at, row.shard, row.source == STATUS, one) for row, one in rows if one is not None]
        every.sort(key=lambda one: one.at)
        before = {(one.shard, one.status): one for one in every if one.at < begin}
        return [*before.values(), *(one for one in every if begin <= one.at <= end)]

    def _read(self, folder: Path) -> None:
        try:
            found_files = [file for file in folder.iterdir() if file.name.endswith(RECORDING_SUFFIX)]
            files = sorted(found_files, key=lambda file: file.name.removesuffix(RECORDING_SUFFIX).rsplit("-", 2)[-2:])
            files = files[-MOST_RECORDINGS:]
        except OSError:
            return
        known = {row[0]: identity for identity, row in self._recorded.items()}
        found = {}
        for file in files:
            identity = known.get(file)
            kept = self._recorded[identity] if identity is not None else None
            if kept is None or kept[2] is None:
                kept = _recorded(file)
            if kept is not None:
                found[kept[1].id] = kept
        self._recorded = found


def _dispensable(moments: Sequence[HistoryMoment]) -> str:
    """The id of the moment that is missed least: of the older half, the one whose neighbours are nearest to each other
    for its age. One at which something happened counts as if they were far apart. The first one stays.
    """
    now, half = moments[-1].at, moments[1 : 1 + max(1, len(moments) // 2)]
    least, found = float("inf"), moments[0].id
    for before, here, after in zip(moments, half, [*moments[2:], moments[-1]], strict=False):
        worth = (after.at - before.at + 1.0) / (now - here.at + 1.0) * (_HAPPENED if _happened(before, here) else 1.0)
        if worth < least:
            least, found = worth, here.id
    return found


_HAPPENED: Final = 50.0
"""A moment at which something happened stays as long as one that is alone for so many times as long."""


def _happened(before: HistoryMoment, here: HistoryMoment) -> bool:
    return bool(here.evictions) or here.faults != before.faults or here.revision != before.revision


def one_recording(file: Path) -> PastMoments:
    """A history of a single recorded pass, wherever its file lies."""
    history = PastMoments()
    kept = _recorded(file)
    if kept is None:
        identity = "".join(char for char in file.name.partition(".")[0] if char.isalnum())[-40:] or "recording"
        kept = (file, HistoryMoment(identity, 0.0, "", "main", RECORDING), read_digest(file))
    history._recorded[kept[1].id] = kept
    return history


def _recorded(file: Path) -> tuple[Path, HistoryMoment, PassDigest | None] | None:
    """What the name of a recording says (``shard-milliseconds-digest``), and the figures beside it."""
    shard, _, rest = file.name.removesuffix(RECORDING_SUFFIX).rpartition("-")
    shard, _, millis = shard.rpartition("-")
    if not (millis.isascii() and millis.isdecimal() and len(millis) <= 15 and rest.isalnum()):
        return None
    told = read_digest(file)
    figures = (told.fault_count, told.evictions, told.bound, told.waiting) if told else (None, None, None, None)
    moment = HistoryMoment(
        f"r{int(millis)}-{rest}", int(millis) / 1000, told.revision if told else "", shard, RECORDING, *figures
    )
    return file, moment, told


def _figures(before: StateDocument | None, document: StateDocument) -> PassDigest:
    """What a document shows; pods bound and evicted are those of jobs whose numbers differ from the one before."""
    rows = document.sections["faults"]
    jobs = {_key(row): row for row in document.sections["jobs"] if row is not None}
    old = {_key(row): row for row in before.sections["jobs"] if row is not None} if before is not None else {}
    placed = {
        key: row["pods"]["placed"] - (old[key]["pods"]["placed"] if key in old else 0) for key, row in jobs.items()
    }
    return PassDigest(
        revision=document.moment["revision"],
        fault_count=len(rows) + document.sections["leftOut"].get("faults", 0),
        evictions=sum(max(0, -change) for key, change in placed.items() if key in old) if before is not None else 0,
        bound=sum(max(0, change) for change in placed.values()) if before is not None else 0,
        waiting=sum(row["phase"] == "Pending" for row in jobs.values()),
        faults=tuple((row["node"], -1 if row["chip"] is None else int(row["chip"]), row["code"]) for row in rows),
        links=tuple(
            (row["link"], row["node"], row["state"]) for row in document.sections["links"] if row["state"] != "linked"
        ),
    )


def _size(packed: bytes, figures: PassDigest) -> int:
    """Bytes that a kept document takes, its figures counted roughly."""
    return len(packed) + 100 * (len(figures.faults) + len(figures.links))


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["namespace"], row["kind"], row["name"]


def following(moments: Sequence[HistoryMoment], identity: str, of: str, direction: int) -> HistoryMoment | None:
    """The next moment before (-1) or after (1) one, at which a fault came, pods were evicted, or a revision changed.

    ``identity``: that of a moment, or ``PRESENT``.
    """
    ids = (*(moment.id for moment in moments), PRESENT)
    place = ids.index(identity) if identity in ids else None
    if place is None:
        return None
    span = range(place + 1, len(moments)) if direction > 0 else range(place - 1, -1, -1)
    for at in span:
        here = moments[at]
        earlier = (one for one in reversed(moments[:at]) if (one.shard, one.source) == (here.shard, here.source))
        before = next(earlier, None)
        if of == "eviction":
            hit = bool(here.evictions)
        elif of == "revision":
            hit = before is not None and bool(here.revision) and here.revision != before.revision
        else:
            hit = (here.faults or 0) > ((before.faults or 0) if before is not None else 0)
        if hit:
            return here
    return None


def within(moments: Sequence[HistoryMoment], begin: float, end: float) -> list[HistoryMoment]:
    """The moments of a time."""
    first = bisect_left(moments, begin, key=lambda moment: moment.at)
    return [moment for moment in moments[first:] if moment.at <= end]
