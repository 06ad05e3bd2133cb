"""The repository's part of a document: revisions, findings, and what is held back until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.plan import CONFIRM
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.serve.console.texts import MOST_ROWS, decoded, line, mapping, number, picked, rows, words
from belay.engine.wire import names, revisionlog, sync

MOST_REVISIONS: Final = 100
MOST_FINDINGS: Final = 500
MOST_SHARDS: Final = 64
MOST_OF_REVISION: Final = 60
"""Findings that stand beside a revision too."""


class RepositoryCommit(msgspec.Struct, frozen=True):
    """A commit as the repository holds it; ``time`` in Unix seconds, ``changed`` the first files that it changed."""

    id: str
    author: str = ""
    time: float = 0.0
    subject: str = ""
    changed: tuple[str, ...] = ()


def commit_of(row: Mapping[str, Any]) -> RepositoryCommit:
    """A commit as the answering process says it."""
    return msgspec.convert(row, RepositoryCommit)


def section(
    sync_data: Mapping[str, str],
    logs: Mapping[str, Mapping[str, str]],
    git: Sequence[RepositoryCommit],
    shard: str = names.MAIN_SHARD,
) -> dict[str, Any]:
    """Section ``git`` of a document: ``logs``: the ``belay-revisions*`` ConfigMaps, one of each shard; ``git``:
    commits, newest first; ``shard``: whose acceptance counts. The document cuts ``findings`` to MOST_FINDINGS.
    """
    applied, attempted = line(sync_data.get(sync.APPLIED), 64), line(sync_data.get(sync.ATTEMPTED), 64)
    findings = [finding(row) for row in rows(sync_data.get("diagnostics.json"))]
    revisions = _revisions(logs, git, applied, attempted, shard)
    for row in revisions:
        if row["id"] == attempted:
            row["findings"] = findings[:MOST_OF_REVISION]
    held = [_held(row) for row in rows(sync_data.get("deferred.json"))[:MOST_ROWS]]
    prune = mapping(decoded(sync_data.get(sync.HELD_PRUNE)))
    if prune:
        given = prune.get("list")
        listed = [line(one.get("object")) for one in given if isinstance(one, dict)] if isinstance(given, list) else []
        held.insert(
            0,
            {
                "what": line(f"deleting {counted(len(listed), 'object')}: {', '.join(listed[:10])}"),
                "action": "DeleteObject",
                "budget": line(prune.get("budget"), 120),
                "until": None,
                "why": line(f"exceeds {', '.join(words(prune.get('limits')))}; it waits for a person"),
                "release": _trailer(prune.get("release")),
            },
        )  # fmt: skip
    return {
        "attempted": attempted,
        "applied": applied,
        "conditions": [
            picked(row, "type", "status", "reason", "message", "severity")
            for row in rows(sync_data.get("conditions.json"))[:50]
        ],
        "revisions": revisions,
        "findings": findings,
        "held": held,
    }


def finding(row: Mapping[str, Any]) -> dict[str, str]:
    """A diagnostic with its place as ``file:line:col``, or the object where no file has it."""
    if row.get("file"):
        where = f"{row['file']}:{number(row.get('line')) or 0}:{number(row.get('column')) or 0}"
    else:
        where = str(row.get("object") or "")
    return {
        "severity": line(row.get("severity"), 16), "where": line(where), "field": line(row.get("field"), 200),
        "message": line(row.get("message")),
    }  # fmt: skip


def _held(row: Mapping[str, Any]) -> dict[str, Any]:
    confirm = line(row.get("confirm"), 80)
    return {
        "what": line(row.get("what")),
        "action": line(row.get("action"), 40),
        "budget": line(row.get("budget"), 120),
        "until": line(row.get("until"), 40) or None,
        "why": line(f"held back by {row.get('budget')}"),
        "release": _trailer(f"{CONFIRM}: {confirm}") if confirm else "",
    }


def _trailer(text: object) -> str:
    """The command that adds a commit with this trailer."""
    found = line(text, 120)
    plain = found and all(char.isalnum() or char in "-: " for char in found)
    return f"git commit --allow-empty -m 'Confirm the deletion' --trailer '{found}' && git push" if plain else ""


def _revisions(
    logs: Mapping[str, Mapping[str, str]], git: Sequence[RepositoryCommit], applied: str, attempted: str, shard: str
) -> list[dict[str, Any]]:
    found = {commit.id: _commit_row(commit) for commit in git[:MOST_REVISIONS]}
    for key, data in logs.items():
        is_own = key == names.revisions_config_map(shard)
        taker = shard if is_own else key.removeprefix(names.REVISIONS).removeprefix(".") or names.MAIN_SHARD
        for entry in _entries(data)[-MOST_REVISIONS:]:
            row = found.setdefault(entry.revision, _row(entry.revision))
            _add_entry(row, entry, line(taker, 63), is_own=is_own)

    for revision in filter(None, (applied, attempted)):
        found.setdefault(revision, _row(revision))

    newest_first = sorted(found.values(), key=lambda row: row["time"] or "9", reverse=True)
    _accept_ancestors(newest_first, {commit.id for commit in git}, applied, attempted)
    return newest_first[:MOST_REVISIONS]


def _commit_row(commit: RepositoryCommit) -> dict[str, Any]:
    return _row(commit.id) | {
        "author": line(commit.author, 200),
        "time": rfc3339(commit.time) if commit.time else None,
        "subject": line(commit.subject, 200),
        "changed": words(commit.changed),
    }


def _add_entry(row: dict[str, Any], entry: revisionlog.RevisionEntry, taker: str, *, is_own: bool) -> None:
    """Add what a shard wrote down when it took a revision; what Git says of the commit stays."""
    # what the controller wrote down is how it verified the commit: ssh, gpg or none
    verified = "good" if entry.verified in ("ssh", "gpg") else line(entry.verified, 16)
    row |= {"signer": line(entry.signer, 200), "verified": verified, "accepted": row["accepted"] or is_own}
    if taker not in row["shards"] and len(row["shards"]) < MOST_SHARDS:
        row["shards"] = [*row["shards"], taker]

    taken = rfc3339(entry.time / 1000) if entry.time else None
    if is_own and taken:
        row["taken"] = taken
    row["time"] = row["time"] or taken
    author, subject = _said(entry)
    row["author"], row["subject"] = row["author"] or author, row["subject"] or subject


def _accept_ancestors(newest_first: Sequence[dict[str, Any]], lineage: set[str], applied: str, attempted: str) -> None:
    """Mark the applied revision, and with it all that came before it in the same history, as accepted."""
    reached = False
    for row in newest_first:
        reached = reached or row["id"] == applied
        came_before = reached and row["id"] in lineage and row["id"] != attempted
        row["accepted"] = row["accepted"] or came_before or row["id"] == applied


def _row(revision: str) -> dict[str, Any]:
    return {
        "id": line(revision, 64), "author": "", "signer": "", "verified": "none", "time": None, "taken": None,
        "subject": "", "accepted": False, "shards": [], "findings": [], "changed": [],
    }  # fmt: skip


def _entries(data: Mapping[str, str]) -> tuple[revisionlog.RevisionEntry, ...]:
    try:
        return msgspec.json.decode(data.get(revisionlog.ENTRIES) or "[]", type=tuple[revisionlog.RevisionEntry, ...])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return ()  # the controller says in its log and in a condition that the log is broken


def _said(entry: revisionlog.RevisionEntry) -> tuple[str, str]:
    """Author and subject of a revision."""
    author, subject = entry.said()
    return line(author, 200), line(subject, 200)
