"""Rows of recoveries and of accepted revisions, from the records that the engine keeps in the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.cli.selection import Answer
from belay.engine.model.costs import cost, so_far
from belay.engine.model.history import JobMemory, Recovery
from belay.engine.model.times import rfc3339
from belay.engine.status.status_reader import PublishedStatus
from belay.engine.wire import names, revisionlog
from belay.engine.wire.errors import WireError

_SUBJECT: Final = 120


def recovery_rows(memories: Mapping[str, JobMemory], now: float) -> Answer:
    """The newest recoveries of every job, newest first; ``memories`` by ``namespace/Kind/name``."""
    now_ms = max(round(now * 1000), 0)
    found: list[tuple[Recovery, dict[str, Any]]] = []
    for key, memory in memories.items():
        namespace, kind, name = key.split("/", 2)
        for one in memory.recoveries:
            row = {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "time": rfc3339(one.at / 1000),
                "reason": one.reason,
                "codes": list(one.codes),
                "level": one.level,
                "chips": one.chips,
                "state": "done" if one.back else "under way",
                "seconds": _seconds((one.back or now_ms) - one.at),
                "lostChipHours": round((cost(one) if one.back else so_far(one, now_ms)) / 3600, 2),
                "by": "cost" if one.estimates else "ladder",
            }
            found.append((one, row))
    found.sort(key=lambda item: (-item[0].at, item[1]["namespace"], item[1]["kind"], item[1]["name"]))
    columns = ("namespace", "name", "time", "reason", "codes", "level", "state", "seconds", "lostChipHours")
    return Answer(columns, [row for _, row in found], ("kind", "chips", "by"))


def _seconds(milliseconds: int) -> float:
    """Whole seconds, and the milliseconds of what takes less than ten: processes recover in tenths of a second."""
    return milliseconds // 1000 if milliseconds >= 10_000 else milliseconds / 1000


def revision_rows(logs: Mapping[str, Mapping[str, Any]], published: PublishedStatus, applied: str) -> Answer:
    """The accepted revisions, newest first, from ``belay-revisions`` of every shard by name."""
    rows: list[dict[str, Any]] = []
    stands = _stands(published)
    for name, raw in logs.items():
        shard = name.partition(".")[2] or names.MAIN_SHARD
        try:
            entries = revisionlog.parse(raw).entries
        except WireError as error:
            rows.append({"revision": "", "shard": shard, "time": None, "state": "unreadable", "subject": str(error)})
            continue
        for entry in reversed(entries):
            author, subject = entry.said()
            rows.append(
                {
                    "revision": entry.revision,
                    "shard": shard,
                    "time": rfc3339(entry.time / 1000) if entry.time else None,
                    "state": stands if entry.revision == applied else "accepted",
                    "verified": entry.verified,
                    "signer": entry.signer,
                    "author": author[:_SUBJECT],
                    "subject": subject[:_SUBJECT],
                    "source": entry.source,
                }
            )
    columns = ("revision", "time", "state", "author", "signer", "subject")
    return Answer(columns, [*_refused_whole(published), *rows], ("verified", "shard", "source"))


def _refused_whole(published: PublishedStatus) -> list[dict[str, Any]]:
    """The newest revision, where it was tried and nothing of it came into force."""
    if not published.attempted or published.attempted == published.applied:
        return []
    why = next((str(one.get("reason")) for one in published.conditions if one.get("type") == "Ready"), "")
    state = f"refused: {why}" if why else "refused"
    return [{"revision": published.attempted, "shard": names.MAIN_SHARD, "time": None, "state": state, "subject": ""}]


def _stands(published: PublishedStatus) -> str:
    """How the newest applied revision stands, by what the engine publishes of its objects."""
    counts = published.objects
    rest = ", ".join(f"{number} {word}" for key, word in _NOT_IN_FORCE if (number := counts.get(key, 0)))
    return f"in force but for {rest}" if rest else "in force"


_NOT_IN_FORCE: Final = (("refused", "refused"), ("heldBack", "held back"), ("waiting", "on the way"))
