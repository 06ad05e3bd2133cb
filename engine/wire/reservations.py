"""``belay-budget``: what every shard has reserved of the safety budgets, so that budgets wider than a shard hold.

A reservation is written by compare-and-swap before the act; without an outcome it counts as spent until its window
passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.wire.errors import WireError

KEY = "reservations.json"

Row = tuple[int, str, int, str]
"""When (Unix ms), the unit that is spent, how many, and the shard that spent it."""


def parse(config_map: Mapping[str, Any]) -> dict[str, tuple[Row, ...]]:
    """Reservations by the name of their limit and scope.

    Raises:
        WireError: they cannot be read; nothing disruptive may be done until they can.
    """
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    text = (config_map.get("data") or {}).get(KEY) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[Row, ...]])
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(
            where, f"data.{KEY}", f"holds no reservations: {error}; nothing disruptive is done until it is readable"
        ) from error


def text(rows: Mapping[str, list[Row]]) -> str:
    """The value of ``KEY``."""
    return msgspec.json.encode(dict(sorted(rows.items()))).decode()
