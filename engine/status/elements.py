"""The fault elements of a node after Belay's judgement: what its device plugin reports, and what the pass adds."""

from __future__ import annotations

from typing import Any, Final

from engine.model.cluster import DeviceReport
from engine.model.levels import PRE_SEPARATE, worst
from engine.model.plan import ChipState
from engine.wire.deviceinfo import fault_element

#: States in which a chip takes no work.
OUT_OF_SERVICE: Final = frozenset({"isolated", "manually-isolated", "resetting", "recovering"})


def takes_no_work(chip: ChipState) -> bool:
    """Whether readers must take the chip for unhealthy; one at PreSeparateNPU spares the work that is on it."""
    return chip.state in OUT_OF_SERVICE and not (chip.level == PRE_SEPARATE and chip.used_by)


def elements(report: DeviceReport, chips: tuple[ChipState, ...]) -> list[dict[str, Any]]:
    """Fault elements merged per (kind, chip); a chip that only Belay isolated gets an element without a code.

    Source: component/clusterd/pkg/domain/faultdomain (merge and split of device faults).
    """
    grouped: dict[tuple[str, int], dict[str, tuple[int, str]]] = {}
    for fault in report.faults:
        codes = grouped.setdefault((fault.kind, fault.chip), {})
        if fault.code:
            codes[fault.code] = (fault.time_ms, fault.level)
    judged = {int(c.chip.rpartition("-")[2]): c for c in chips}
    for index, chip in judged.items():
        if chip.state in OUT_OF_SERVICE and not any(key[1] == index for key in grouped):
            grouped[("CardUnhealthy", index)] = {}
    found = []
    for (kind, index), codes in sorted(grouped.items()):
        level = worst(*(level for _, level in codes.values())) if codes else ""
        if index in judged and kind != "CardNetworkUnhealthy":
            level = worst(level, judged[index].level) if level else judged[index].level
        found.append(fault_element(kind, f"{report.prefix}{index}" if index >= 0 else "", codes, level))
    return found
