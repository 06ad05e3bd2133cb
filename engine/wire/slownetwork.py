"""What is wrong in the network between chips, as public faults 2000010xx and as rows of ``belay-slow-networks``.

Source: component/ascend-faultdiag-online/pkg/service/serviceapi/netfaultapi/netfault_api.go (codes by the kind of both
ends, ``srcType``, ``srcId``, ``dstType``, ``dstId``), pkg/algo_src/netfault/algo/constants.go (numbers of the kinds).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from belay.engine.model.pings import NetworkFinding, NetworkPart, NetworkProblem, explained
from belay.engine.model.public_faults import MAX_DESCRIPTION, MAX_DEVICES, MAX_INFLUENCES
from belay.engine.wire.slownode import SLOW_BETWEEN_NODES, SLOW_IN_NODE, SLOW_LINK

#: Kinds of causes: an NPU, the switch of a rack, a node, the switch of a super pod.
TYPES: Final = {
    NetworkPart.LINK: 0, NetworkPart.PORT: 0, NetworkPart.CHIP: 0, NetworkPart.RACK_SWITCH: 3,
    NetworkPart.MESH: 4, NetworkPart.NODE: 4,
    NetworkPart.SUPER_POD_SWITCH: 6,
}  # fmt: skip
_CHIPS: Final = frozenset({NetworkPart.LINK, NetworkPart.PORT, NetworkPart.CHIP})


def code_of(found: NetworkFinding) -> str:
    """200001010: chips of one node; 200001011: chips of several; 200001012: a node or a switch."""
    if found.part not in _CHIPS:
        return SLOW_LINK
    return SLOW_IN_NODE if len({node for node, _ in found.chips}) < 2 else SLOW_BETWEEN_NODES


def faults(findings: Iterable[NetworkFinding], nodes: Collection[str]) -> dict[str, dict[str, Any]]:
    """What stands for each finding, by the id of its fault. One that concerns none of ``nodes`` is left out."""
    found: dict[str, dict[str, Any]] = {}
    for one in findings:
        chips: dict[str, list[int]] = {}
        for node, chip in one.chips:
            if node in nodes and 0 <= chip < MAX_DEVICES:
                chips.setdefault(node, []).append(chip)
        if not chips:
            continue
        ends = [_end(end.node, end.chip, end.address) for end in one.ends]
        first, last = (ends[0], ends[-1]) if ends else (one.name, one.name)
        kind = str(TYPES[one.part])
        found[one.key] = {
            "job": "", "name": one.name[:128], "id": one.key, "code": code_of(one), "kind": one.problem.value,
            "part": one.part.value, "excess": one.excess,
            "nodes": dict(list(chips.items())[:MAX_INFLUENCES]),
            "location": {"srcType": kind, "srcId": first[:128], "dstType": kind, "dstId": last[:128]},
            "text": explained(one)[:MAX_DESCRIPTION],
        }  # fmt: skip
    return found


def recorded_delays(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the excess of each delay that an earlier server recorded, by the key of its finding."""
    found = {}
    for key, row in rows.items():
        excess = row.get("excess")
        if row.get("kind") == NetworkProblem.DELAY.value and isinstance(excess, int | float) and 0 < excess < 1000:
            found[key] = float(excess)
    return found


def _end(node: str, chip: int, address: str) -> str:
    return f"{node}/{chip}" if node else address


__all__ = ["code_of", "faults", "recorded_delays"]
