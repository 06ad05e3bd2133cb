"""``belay-refused``: what the API server refused, until it accepts it; written by workers, read by passes.

While it cannot be read, the last one that could stays; a process that has read none tries everything, which is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.refusals import RefusalKey, ServerRefusal
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM, refusals_config_map

KEY: Final = "refusals.json"
MOST: Final = 1000
"""Most records: with the longest answers they stay below 800 KiB. The oldest stay."""


def parse(config_map: Mapping[str, Any]) -> dict[RefusalKey, ServerRefusal]:
    """The records by what was tried.

    Raises:
        WireError: they cannot be read.
    """
    listed = (config_map.get("data") or {}).get(KEY) or "[]"
    try:
        rows = msgspec.json.decode(listed, type=list[ServerRefusal])
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeError) as error:
        metadata = config_map.get("metadata") or {}
        where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        raise WireError(where, f"data.{KEY}", f"is not a list of refusals: {error}; delete it") from error
    return {row.key: row for row in rows[:MOST]}


def build(shard: str, refusals: Iterable[ServerRefusal]) -> dict[str, Any]:
    """The ConfigMap of a shard; equal records give equal text."""
    oldest = sorted(refusals, key=lambda row: (row.since, row.key))[:MOST]
    rows = sorted(oldest, key=lambda row: row.key)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": refusals_config_map(shard),
            "namespace": SYSTEM,
            "labels": {ABOUT_LABEL: "refusals"},
        },
        "data": {KEY: msgspec.json.encode(rows).decode()},
    }
