"""The fault elements of a node: what its device plugin reports, corrected by the states that the pass derived."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from belay.engine.model.cluster import DeviceReport
from belay.engine.model.faults import NETWORK
from belay.engine.model.levels import IN_SERVICE, NORMAL, NOT_HANDLE, PRE_SEPARATE, rank, worst
from belay.engine.model.plan import ChipState, PlaneLevels
from belay.engine.model.states import OUT_OF_SERVICE, ChipHealth
from belay.engine.wire.deviceinfo import fault_element

_SUSPECT: Final = ChipHealth.SUSPECT
#: Levels of the two planes of each chip (``Plan.planes``), by chip.
Planes = Mapping[int, PlaneLevels]
NO_PLANES: Final[Planes] = MappingProxyType({})


def takes_no_work(chip: ChipState) -> bool:
    """Whether readers must treat the chip as unhealthy; PreSeparateNPU spares running work."""
    return chip.state in OUT_OF_SERVICE and not (chip.level == PRE_SEPARATE and chip.used_by)


def unhealthy(report: DeviceReport, chips: tuple[ChipState, ...]) -> int:
    """The chips that readers must treat as unhealthy: the report's own, corrected by the pass' states. Chips whose
    faults a job tolerates for now, or that a policy calls harmless, are left out, or readers would move the job.

    Source: component/clusterd/pkg/application/faultmanager/cmprocess (filters take faults out of the lists too).
    """
    out = report.unhealthy
    for chip in chips:
        bit = 1 << int(chip.chip.rpartition("-")[2])
        out = out | bit if takes_no_work(chip) else out & ~bit
    return out


def network_unhealthy(report: DeviceReport, raw: DeviceReport, planes: Planes = NO_PLANES) -> int:
    """The chips whose parameter plane readers must treat as broken: the report's own, except where policies give a
    network code another level (``report`` against ``raw``). Planes that duration and frequency rules raised
    (``planes``) are broken too.

    Source: component/ascend-device-plugin/pkg/device/ascendcommon.go (anything but Normal and NotHandle).
    """
    out = raw.network_unhealthy or 0
    for chip in _regraded(report, raw, network=True):
        levels = [fault.level for fault in report.faults if fault.kind == NETWORK and fault.chip == chip]
        bit = 1 << chip
        out = out & ~bit if all(level in (NORMAL, NOT_HANDLE) for level in levels) else out | bit
    for chip, plane in planes.items():
        if any(level not in (NORMAL, NOT_HANDLE) for level in plane.network.values()):
            out |= 1 << chip
    return out


def _regraded(report: DeviceReport, raw: DeviceReport, *, network: bool) -> set[int]:
    """Chips with a code on that plane whose level a policy changed. Grading keeps the order of faults."""
    if report.faults is raw.faults:
        return set()
    pairs = zip(report.faults, raw.faults, strict=True)
    return {a.chip for a, b in pairs if a.level != b.level and (a.kind == NETWORK) == network}


def elements(
    report: DeviceReport,
    chips: tuple[ChipState, ...],
    raw: DeviceReport | None = None,
    planes: Planes = NO_PLANES,
) -> list[dict[str, Any]]:
    """Fault elements merged per (kind, chip), without withheld ones. Chips that only Belay isolated, and network planes
    for which only Belay keeps a level, get an element without a code. ``raw`` is the report as received; ``report`` has
    the levels of policies, at which a chip in service is shown. ``planes`` holds the levels of both
    planes.

    Source: component/clusterd/pkg/domain/faultdomain (merge and split of device faults).
    """
    grouped: dict[tuple[str, int], dict[str, tuple[int, str]]] = {}
    for fault in report.faults:
        codes = grouped.setdefault((fault.kind, fault.chip), {})
        if fault.code:
            codes[fault.code] = (fault.time_ms, fault.level)
    judged = {int(c.chip.rpartition("-")[2]): c for c in chips}
    spoken = _regraded(report, raw, network=False) if raw is not None else set()
    for index, chip in judged.items():
        if chip.state in OUT_OF_SERVICE and not any(key[1] == index for key in grouped):
            grouped[("CardUnhealthy", index)] = {}
    for index in [chip for chip, levels in planes.items() if levels.network]:
        grouped.setdefault((NETWORK, index), {})
    found = []
    for (kind, index), raw_codes in sorted(grouped.items()):
        own = judged.get(index) if kind != NETWORK else None
        plane = planes.get(index)
        if kind == NETWORK and plane is not None:
            raw_codes = {
                code: (at, worst(level, plane.network.get(code, level))) for code, (at, level) in raw_codes.items()
            }
        plain = index in spoken and own is not None and own.state not in OUT_OF_SERVICE
        codes = _mild(_shown(raw_codes, own)) if plain else _shown(raw_codes, own)
        if raw_codes and not codes:
            continue
        level = worst(*(level for _, level in codes.values())) if codes else ""
        if own is not None and own.state != _SUSPECT and not plain:
            judged_as = own.level if plane is None else plane.chip
            level = worst(level, judged_as) if level else judged_as
        if kind == NETWORK and plane is not None and plane.network:
            level = worst(*plane.network.values(), *([level] if level else ()))
        found.append(fault_element(kind, f"{report.prefix}{index}" if index >= 0 else "", codes, level))
    return found


def _mild(codes: dict[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    """Codes of a chip that a policy keeps in service; overruled levels are shown as harmless."""
    return {code: (at, level if level in IN_SERVICE else NOT_HANDLE) for code, (at, level) in codes.items()}


def _shown(codes: dict[str, tuple[int, str]], chip: ChipState | None) -> dict[str, tuple[int, str]]:
    """The codes of a chip's own plane for readers; a chip in service shows no level that takes it out of service."""
    if chip is None or chip.state in OUT_OF_SERVICE:
        return codes
    if chip.state == _SUSPECT:
        return {code: row for code, row in codes.items() if row[1] in IN_SERVICE}
    return {code: (at, level if rank(level) <= rank(chip.level) else chip.level) for code, (at, level) in codes.items()}
