"""``clusterd-manual-info-cm``: chips that ClusterD isolated for frequent faults; Belay's own list has the same form.

One key per node: ``{"Total": ["Ascend910-0"], "Detail": {"Ascend910-0": [{"FaultCode", "FaultLevel",
"LastSeparateTime"}]}}``. An operator releases a chip by deleting its name from ``Total``. Adding names has no
effect on Belay's own list, ``belay-system/belay-manual``, which only shows chips held for frequent faults.
Source: component/clusterd/pkg/domain/manualfault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import go_json, read_object
from belay.engine.wire.orders import chip_number

NAMESPACE: Final = "cluster-system"
NAME: Final = "clusterd-manual-info-cm"


class ManualEntry(NamedTuple):
    """Why a chip is isolated: the code, the level it was given, and the time (Unix ms)."""

    code: str
    level: str
    since_ms: int


Chips = dict[int, tuple[ManualEntry, ...]]


def parse(config_map: Mapping[str, Any]) -> tuple[dict[str, Chips], tuple[WireError, ...]]:
    """Each node's isolated chips with their reasons, and the errors; a node with an error is left out."""
    out: dict[str, Chips] = {}
    problems: list[WireError] = []
    data, metadata = config_map.get("data"), config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    for node, text in sorted(data.items() if isinstance(data, dict) else ()):
        try:
            out[node] = _chips(where, node, text)
        except WireError as error:
            problems.append(error)
    return out, tuple(problems)


def build(nodes: Mapping[str, Mapping[str, Iterable[ManualEntry]]]) -> dict[str, str]:
    """The ConfigMap's data; ``nodes`` maps node → device name → reasons."""
    return {
        node: go_json(
            {
                "Total": sorted(chips),
                "Detail": {
                    name: [
                        {"FaultCode": one.code, "FaultLevel": one.level, "LastSeparateTime": one.since_ms}
                        for one in sorted(entries)
                    ]
                    for name, entries in sorted(chips.items())
                },
            }
        )
        for node, chips in sorted(nodes.items())
    }


def _chips(where: str, node: str, text: object) -> Chips:
    field = f"data.{node}"
    body = read_object(where, field, text) if text else {}
    total, detail = body.get("Total") or [], body.get("Detail") or {}
    if not isinstance(total, list) or not isinstance(detail, dict):
        raise WireError(where, field, "Total must be a list of device names and Detail an object")
    try:
        return {chip_number(name): _entries(detail.get(name)) for name in total}
    except (ValueError, TypeError) as error:
        raise WireError(where, f"{field}.Total", str(error)) from error


def _entries(rows: object) -> tuple[ManualEntry, ...]:
    return tuple(
        sorted(
            ManualEntry(
                str(row.get("FaultCode") or "").upper(),
                str(row.get("FaultLevel") or ""),
                since if isinstance(since := row.get("LastSeparateTime"), int) else 0,
            )
            for row in (rows if isinstance(rows, list) else ())
            if isinstance(row, dict)
        )
    )
