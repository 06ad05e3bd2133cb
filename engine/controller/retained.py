"""Versions of files that ``belay-sync`` remembers, so that a broken file does not remove what it declared before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from belay.engine.load import FileVersion, Loaded, PriorState, Retained
from belay.engine.store import RevisionRecord
from belay.engine.wire.sync import FileVersions, RetainedFiles

VERSIONS_KEPT = 3
"""Number of good versions of a file that are remembered."""


def identities(record: RevisionRecord) -> dict[str, str]:
    """The identity of each file's content: its blob id, or ``!`` and a digest of the reason when the source refuses it
    unread.
    """
    return {**record.files, **{path: _reason(problem) for path, problem in refused_unread(record.meta)}}


def refused_unread(meta: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The files that the source refuses unread, with the problem of each."""
    for problem in meta.get("problems") or []:
        if isinstance(problem, dict) and problem.get("path"):
            yield str(problem["path"]), problem


def _reason(problem: Mapping[str, Any]) -> str:
    text = f"{problem.get('reason')} {problem.get('message')}"
    return "!" + hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=10).hexdigest()


def needed(remembered: FileVersions, now: Mapping[str, str]) -> frozenset[str]:
    """The blobs that say what changed files declared until now."""
    in_force = {blob for _, blob in _changed(remembered, now)}
    return frozenset(in_force.union(blob for one in remembered.kept for _, blob in one.versions))


def helpful(remembered: FileVersions, now: Mapping[str, str]) -> frozenset[str]:
    """The blobs of good versions of files that changed or are refused."""
    return frozenset(
        blob
        for path, blobs in remembered.good.items()
        if path in remembered.refused or blobs[0] != now.get(path)
        for blob in blobs
    )


def before_of(remembered: FileVersions, now: Mapping[str, str], contents: Mapping[str, bytes]) -> PriorState:
    """What was declared until now, with the ``contents`` of the blobs that were found."""

    def version(path: str, blob: str) -> FileVersion:
        good = remembered.good.get(path, ())
        return FileVersion(path, blob, contents.get(blob), good.index(blob) + 1 if blob in good else 0)

    known = {path: remembered.refused.get(path) or blobs[0] for path, blobs in remembered.good.items()}
    known |= remembered.refused
    same = frozenset(path for path, blob in known.items() if now.get(path) == blob)
    in_force = {path: (version(path, blob),) for path, blob in _changed(remembered, now)}
    older = {
        path: tuple(
            version(path, blob)
            for blob in blobs
            if blob in contents and blob != now.get(path) and (path not in in_force or in_force[path][0].blob != blob)
        )
        for path, blobs in remembered.good.items()
        if path not in same or path in remembered.refused
    }
    return PriorState(
        in_force=in_force,
        older={path: versions for path, versions in older.items() if versions},
        same=same,
        settled=frozenset(path for path in same if path in remembered.refused),
        kept=tuple(
            Retained(frozenset(one.until), tuple(version(path, blob) for path, blob in one.versions))
            for one in remembered.kept
        ),
        complete=remembered.complete,
    )


def _changed(remembered: FileVersions, now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every file that changed or is gone, with the blob of it that was in force."""
    for path in sorted({*remembered.good, *remembered.refused}):
        good = remembered.good.get(path, ("",))[0]
        last = remembered.refused.get(path) or good
        blob = good if last.startswith("!") else last
        if last != now.get(path) and blob:
            yield path, blob


def remembered_after(remembered: FileVersions, record: RevisionRecord, loaded: Loaded) -> FileVersions:
    """The memory once a revision is in force; applying the same revision again changes nothing."""
    now = identities(record)
    good: dict[str, tuple[str, ...]] = {}
    for path, blob in sorted(record.files.items()):
        older = tuple(one for one in remembered.good.get(path, ()) if one != blob)
        good[path] = ((blob, *older) if loaded.good.get(path, True) else older)[:VERSIONS_KEPT]
    return FileVersions(
        {path: blobs for path, blobs in good.items() if blobs},
        {path: now[path] for path in sorted(loaded.refused_files) if path in now},
        tuple(
            RetainedFiles(tuple(sorted(one.until)), tuple((version.path, version.blob) for version in one.versions))
            for one in loaded.kept
        ),
        remembered.complete or not loaded.refused_files,
    )
