"""Records that an installation makes, empty, for writers that may not make them (components/without-admission)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.labels import PART_OF

MADE_BY: Final = "belay"


def is_unwritten(config_map: Mapping[str, Any]) -> bool:
    """Whether it was made for its writer and holds nothing: as if it were not there."""
    labels = (config_map.get("metadata") or {}).get("labels") or {}
    return labels.get(PART_OF) == MADE_BY and not config_map.get("data") and not config_map.get("binaryData")


__all__ = ["is_unwritten"]
