"""A worker's view of the revision in force: its files become the desired state, read again only where they changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine.load import LoadCache, Loaded, load
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.offline import recorded
from engine.plan.sync import declared_keys
from engine.status import Condition, SyncState
from engine.store import RevisionReader, RevisionRecord
from engine.wire.names import SYNC, SYSTEM

VERSIONS_KEPT = 3
"""How many good versions of a broken file are remembered."""
PATIENCE_SECONDS = 10.0
"""How long a revision waits for older versions of its broken files before it goes into force without them."""
_SYNC_KEY = ObjectKey("v1", "ConfigMap", SYSTEM, SYNC)
_LAST_GOOD = "lastGood.json"
_LONGEST_MESSAGE = 1024


class Intent:
    """What Git wants, as far as this worker knows. ``has_git`` False: there is no repository, and none is waited
    for.
    """

    def __init__(
        self, shard: str, reader: RevisionReader, *, has_git: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.previous: dict[str, list[bytes]] = {}
        """Older good contents of broken files, newest first."""
        self._files: Mapping[str, str] = {}
        self._shard = shard
        self._reader = reader
        self._has_git = has_git
        self._cache = LoadCache()
        self._read: tuple[str, Mapping[str, str], dict[str, list[str]]] | None = None
        self._record: RevisionRecord | None = None
        self._loaded: Loaded | None = None
        self._in_force: Loaded | None = None
        self._last_good: dict[str, list[str]] = {}
        self._copies: dict[str, bytes] = {}
        self._lacking: set[str] = set()
        self._waiting = ("", 0.0)
        self._clock = clock

    def load(self, observed: Observed) -> Loaded | None:
        """What is declared; None while nothing is known.

        A tree that is refused as a whole leaves the one before in force. Where Git never answered, the copies of the
        policies in the cluster are in force and nothing is applied or pruned.
        """
        if not self._has_git:
            self._in_force = self._in_force or load({}, has_git=False)
            return self._in_force
        record = self._reader.current(self._shard)
        if record is not None and record.sha:
            self._take(record, last_good(observed))
        elif record is not None and (self._in_force is None or not self._in_force.desired.has_git):
            self._take_copies(record, observed)
        return self._in_force

    def contents(self) -> dict[str, bytes]:
        """Every file in force by its path, for a recording; read anew, so that nobody keeps them all the time."""
        blobs = self._reader.blobs(self._files.values())
        return {path: blobs[blob] for path, blob in self._files.items() if blob in blobs}

    def state(self, observed: Observed) -> SyncState:
        """What ``belay-sync`` tells about the repository after this pass."""
        if self._record is None or self._loaded is None or self._in_force is None:
            return SyncState(inventory=observed.inventory)
        meta, desired = self._record.meta, self._in_force.desired
        told = msgspec.convert(meta.get("conditions") or [], list[Condition])
        return SyncState(
            attempted=str(meta.get("attempted") or self._record.sha),
            applied=desired.revision if desired.has_git else observed.applied_revision,
            conditions=(*told[:-1], *_refused_documents(self._loaded.diagnostics), *told[-1:]),
            diagnostics=(*self._loaded.diagnostics, *_refusals(meta)),
            inventory=self._inventory(observed),
            last_good={path: tuple(ids) for path, ids in self._last_good.items()},
        )

    def _take_copies(self, record: RevisionRecord, observed: Observed) -> None:
        copies = recorded(list(observed.objects.values()))
        if self._record is None or copies != self._copies:
            self._copies, self._loaded = copies, load(copies, has_git=False)
            self._in_force = self._loaded
        self._record, self._last_good = record, last_good(observed)

    def _take(self, record: RevisionRecord, remembered: dict[str, list[str]]) -> None:
        older = {
            path: ids for path, ids in remembered.items() if path in record.files and ids[:1] != [record.files[path]]
        }
        known = (record.sha, record.files, older)
        if known == self._read and not self._reader.blobs(self._lacking):
            self._record = record
            return
        fresh = {blob for path, blob in record.files.items() if self._cache.get(path, blob) is None}
        versions = {blob for ids in older.values() for blob in ids}
        contents = self._reader.blobs(fresh | versions)
        if not fresh <= contents.keys():
            return  # Redis lost some: the controller puts them again, until then the last one stays in force
        if self._waits_for(record.sha, versions - contents.keys()):
            return
        previous = {path: [contents[blob] for blob in ids if blob in contents] for path, ids in older.items()}
        loaded = load(
            _Files(record.files, contents),
            previous=previous,
            revision=record.sha,
            blob_ids=record.files,
            cache=self._cache,
        )
        self._read, self._record, self._loaded = known, record, loaded
        self._files, self.previous = record.files, previous
        if loaded.refused and self._in_force is not None:
            return
        self._in_force = loaded
        self._last_good = _remember(record.files, loaded.good, remembered)

    def _waits_for(self, sha: str, lacking: set[str]) -> bool:
        """Whether to give the controller time to find older versions in Git, without which broken files would be
        lost.
        """
        self._lacking = lacking
        if not lacking:
            self._waiting = ("", 0.0)
            return False
        if self._waiting[0] != sha:
            self._waiting = (sha, self._clock())
        return self._clock() - self._waiting[1] < PATIENCE_SECONDS

    def _inventory(self, observed: Observed) -> tuple[ObjectKey, ...] | None:
        """What Git applies now, and what it applied before and still exists because its deletion was refused or
        waits.
        """
        assert self._in_force is not None
        if not self._in_force.desired.has_git:
            return observed.inventory
        wanted = set(declared_keys(self._in_force.desired, observed))
        survivors = {key for key in observed.inventory or () if key in observed.objects}
        return tuple(sorted(wanted | survivors))


def last_good(observed: Observed) -> dict[str, list[str]]:
    """The blob ids of the newest good versions of each path, as ``belay-sync`` remembers them; empty when it cannot be
    read.
    """
    return last_good_of(observed.objects.get(_SYNC_KEY) or {})


def last_good_of(sync: Mapping[str, Any]) -> dict[str, list[str]]:
    """The same from the ConfigMap itself."""
    text = (sync.get("data") or {}).get(_LAST_GOOD)
    if not isinstance(text, str):
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, list[str]])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _remember(
    files: Mapping[str, str], good: Mapping[str, bool], before: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Only broken files need a memory: a good one is its own last good version, found by its blob id.

    The newest good version of every path is kept, because the next push may break it.
    """
    kept: dict[str, list[str]] = {}
    for path, blob in files.items():
        older = [one for one in before.get(path, []) if one != blob]
        kept[path] = ([blob, *older] if good.get(path, True) else older)[:VERSIONS_KEPT]
    return {path: ids for path, ids in sorted(kept.items()) if ids}


def _refusals(meta: Mapping[str, Any]) -> list[Diagnostic]:
    return [
        Diagnostic("error", "", str(problem.get("path") or ""), 0, 0, "", str(problem.get("message") or ""))
        for problem in meta.get("problems") or []
        if isinstance(problem, dict)
    ]


def _refused_documents(findings: Sequence[Diagnostic]) -> Iterator[Condition]:
    """Ready is about the revision; that documents of it are held back has a condition of its own."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        first, count = errors[0], f"{len(errors)} error{'s' if len(errors) > 1 else ''}"
        text = f"{count}, first {first.file}:{first.line}:{first.column} {first.message}"
        yield Condition("DocumentsRefused", "True", "BadDocuments", text[:_LONGEST_MESSAGE])


class _Files(Mapping[str, bytes]):
    """Paths of a revision whose contents are only there where they have to be read."""

    def __init__(self, files: Mapping[str, str], contents: Mapping[str, bytes]) -> None:
        self._files = files
        self._contents = contents

    def __getitem__(self, path: str) -> bytes:
        return self._contents[self._files[path]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: object) -> bool:
        return path in self._files
