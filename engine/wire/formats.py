"""Which format a ConfigMap of Belay's own has: the annotation ``belay.dev/format``, a number.

Absent means 1, which every version up to now writes. Fields may be added within a format: readers ignore what they do
not know. A change that an older reader would misread gets the next number; this version refuses such an object by name
instead, so that after a downgrade nothing is placed, reset or pruned by a misread memory, and nothing is overwritten
until the newer version is back or has migrated it (docs/upgrading.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.labels import FORMAT_ANNOTATION
from belay.engine.model.quantities import whole_number
from belay.engine.wire.errors import NewerFormat
from belay.engine.wire.names import HISTORY, LEDGER_PREFIX, ORDERS_PREFIX, REPORT_PREFIX, REVISIONS, SYNC

NEWEST: Final[Mapping[str, int]] = {
    LEDGER_PREFIX: 1,
    HISTORY: 1,
    ORDERS_PREFIX: 1,
    REPORT_PREFIX: 1,
    REVISIONS: 1,
    SYNC: 1,
}
"""The newest format that this version reads, by the beginning of the name: what must outlive an upgrade."""


def format_of(config_map: Mapping[str, Any]) -> str:
    """The annotation's text; ``1`` where there is none."""
    metadata = config_map.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return str(annotations.get(FORMAT_ANNOTATION, "1")) if isinstance(annotations, Mapping) else "1"


def check(config_map: Mapping[str, Any], prefix: str) -> None:
    """Refuse an object of a format that this version does not read.

    Raises:
        NewerFormat: its format is newer, or no number.
    """
    found, newest = format_of(config_map), NEWEST[prefix]
    number = whole_number(found, digits=4)
    if number is not None and 1 <= number <= newest:
        return
    metadata = config_map.get("metadata") or {}
    raise NewerFormat(
        f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}",
        f"metadata.annotations[{FORMAT_ANNOTATION}]",
        f"has format {found[:20]!r}, this version reads up to {newest}: a newer Belay wrote it; run that again",
    )
