"""``belay-budget``: reservations of safety budgets by all shards, so that budgets across shards hold.

The worker reserves by compare-and-swap before the action; a reservation without an outcome counts as spent until its
window passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from belay.engine.wire.errors import WireError

KEY = "reservations.json"

Reservation = tuple[int, str, int, str]
"""Time (Unix ms), spent unit, count, and the shard that spent it."""


def parse(config_map: Mapping[str, Any]) -> dict[str, tuple[Reservation, ...]]:
    """Reservations by limit and scope.

    Raises:
        WireError: not valid; no disruptive action is allowed until it is.
    """
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    text = (config_map.get("data") or {}).get(KEY) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[Reservation, ...]])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WireError(
            where, f"data.{KEY}", f"holds no reservations: {error}; nothing disruptive is done until it is readable"
        ) from error


def text(rows: Mapping[str, list[Reservation]]) -> str:
    """Return the reservations as the value of ``KEY`` in ``belay-budget``."""
    return msgspec.json.encode(dict(sorted(rows.items()))).decode()
