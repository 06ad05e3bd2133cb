"""Rows of `belay get links`, of a plan or of what the engine publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Final

from belay.engine.cli.selection import Answer

_KEYS: Final = ("state", "latencyMs", "error", "node", "decode", "prefill", "since", "tries")


def link_rows(links: Iterable[tuple[str, Mapping[str, Any]]]) -> Answer:
    """Every link with both ends and its state, of the KVLink's name and the row that its ConfigMap has for it."""
    found = []
    for link, row in links:
        ends = {"link": link, "from": row.get("holder"), "to": row.get("peer")}
        found.append(ends | {key: row.get(key) for key in _KEYS})
    found.sort(key=lambda row: [str(one) for one in itemgetter("link", "from", "to")(row)])
    return Answer(
        ("link", "from", "to", "state", "latencyMs", "error"), found, ("node", "decode", "prefill", "since", "tries")
    )
