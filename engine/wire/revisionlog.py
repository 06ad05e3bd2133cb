"""``belay-revisions``: the accepted revisions of a shard's repository, as a log that can only grow at its end.

Each entry holds the digest of the one before it, so an entry that was changed, left out or put in between is noticed.
The oldest entries are dropped beyond a bound; ``start`` then says where the rest begins. It lies in Kubernetes, because
Redis may lose its data at any time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL, MANAGED_BY
from belay.engine.wire import formats, names
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object

ENTRIES: Final = "entries.json"
MAX_ENTRIES: Final = 256
MAX_BYTES: Final = 500 * 1024
"""Largest log, in bytes of JSON; with 256 entries of signed commits it is about half of that."""
MAX_COMMIT: Final = 4096
"""Longest commit object that an entry holds, in bytes; a longer one must be read from the repository."""


MAX_WORDS: Final = 200
"""Longest author and subject that an entry holds, in characters."""
_UNCOVERED: Final = ("author", "subject")


class RevisionEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One accepted revision.

    ``source`` is what it was accepted for (repository, branch, folder), ``verified`` how (none, ssh, gpg), ``signer``
    by whom it is signed, ``time`` when it came (Unix ms). ``commit`` is the commit object in base64, empty if it is
    too long or commits are not verified. ``author`` and ``subject`` are its words for people. ``hash`` covers all but
    these, which the revision itself covers, and ``previous``, the hash of the entry before.
    """

    number: int
    revision: str
    source: str
    verified: str = "none"
    signer: str = ""
    time: int = 0
    commit: str = ""
    previous: str = ""
    hash: str = ""
    author: str = ""
    subject: str = ""

    def digest(self) -> str:
        """The hash that this entry must have: SHA-256 of its JSON with sorted keys, ``hash`` empty."""
        covered: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, hash=""))
        for key in _UNCOVERED:
            del covered[key]
        return hashlib.sha256(msgspec.json.encode(covered, order="sorted")).hexdigest()

    def said(self) -> tuple[str, str]:
        """The author and the first line of the message, as the commit or the entry itself says them."""
        head, _, message = self.commit_bytes().partition(b"\n\n")
        author = next((row[7:] for row in head.split(b"\n") if row.startswith(b"author ")), b"")
        who = author.decode("utf-8", "replace").rpartition(">")[0]
        first = message.decode("utf-8", "replace").strip().partition("\n")[0]
        return f"{who}>" if who else self.author, first or self.subject

    def commit_bytes(self) -> bytes:
        """The commit object; empty if the entry holds none, or none that can be read."""
        try:
            return base64.b64decode(self.commit, validate=True)
        except (binascii.Error, ValueError):
            return b""


class LogStart(msgspec.Struct, frozen=True):
    """The last entry that was dropped: its number and hash; 0 and empty while nothing was."""

    number: int = 0
    hash: str = ""


class RevisionLog(msgspec.Struct, frozen=True):
    """The log, oldest entry first."""

    entries: tuple[RevisionEntry, ...] = ()
    start: LogStart = LogStart()

    @property
    def head(self) -> RevisionEntry | None:
        """The newest entry."""
        return self.entries[-1] if self.entries else None

    def of(self, source: str) -> dict[str, float]:
        """The verified revisions of one source with the times (Unix seconds) at which they came, oldest first."""
        found: dict[str, float] = {}
        for entry in self.entries:
            if entry.source == source and entry.verified != "none":
                came = found.pop(entry.revision, entry.time / 1000)
                found[entry.revision] = came
        return found

    def continues(self, older: RevisionLog) -> bool:
        """Whether this log is ``older`` with nothing changed and perhaps entries added at its end."""
        last = older.head
        if last is None:
            return True
        here = next((entry for entry in self.entries if entry.number == last.number), None)
        if here is not None:
            return here.hash == last.hash
        return self.start.number > last.number or self.start == LogStart(last.number, last.hash)

    def appended(self, entry: RevisionEntry) -> RevisionLog:
        """The log with one more entry, whose ``number``, ``previous`` and ``hash`` are set here."""
        last = self.head
        number, previous = (last.number, last.hash) if last else (self.start.number, self.start.hash)
        if len(entry.commit) > MAX_COMMIT * 4 // 3 + 4:
            entry = msgspec.structs.replace(entry, commit="")
        entry = msgspec.structs.replace(entry, number=number + 1, previous=previous, hash="")
        entries, start = [*self.entries, msgspec.structs.replace(entry, hash=entry.digest())], self.start
        sizes = [len(msgspec.json.encode(one)) + 1 for one in entries]
        total = sum(sizes)
        while len(entries) > 1 and (len(entries) > MAX_ENTRIES or total > MAX_BYTES):
            total -= sizes.pop(0)
            gone = entries.pop(0)
            start = LogStart(gone.number, gone.hash)
        return RevisionLog(tuple(entries), start)


def parse(config_map: Mapping[str, Any]) -> RevisionLog:
    """Read the log and check its chain.

    Raises:
        WireError: it cannot be read, or an entry was changed, left out or put in between.
    """
    formats.check(config_map, names.REVISIONS)
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    data = config_map.get("data")
    value = read_object(where, f"data.{ENTRIES}", data.get(ENTRIES) if isinstance(data, Mapping) else None)
    try:
        log = msgspec.convert(value, RevisionLog)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{ENTRIES}", str(error)) from error
    number, previous = log.start.number, log.start.hash
    for entry in log.entries:
        if entry.number != number + 1 or entry.previous != previous:
            raise WireError(where, f"data.{ENTRIES}", f"entry {entry.number} does not follow entry {number}")
        if entry.hash != entry.digest():
            raise WireError(where, f"data.{ENTRIES}", f"entry {entry.number} was changed: its hash does not fit")
        number, previous = entry.number, entry.hash
    return log


def build(log: RevisionLog, shard: str, version: str = "") -> dict[str, Any]:
    """The ConfigMap; ``version`` is the resourceVersion that it replaces."""
    metadata = {
        "name": names.revisions_config_map(shard),
        "namespace": names.SYSTEM,
        "labels": {ABOUT_LABEL: "revisions", MANAGED_BY: "belay"},
    }
    if version:
        metadata["resourceVersion"] = version
    head = log.head
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"head": head.revision if head else "", ENTRIES: msgspec.json.encode(log).decode()},
    }


def encoded(commit: bytes) -> str:
    """A commit object as an entry holds it."""
    return base64.b64encode(commit).decode() if len(commit) <= MAX_COMMIT else ""
