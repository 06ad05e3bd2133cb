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
#: Codes of one plane of a chip, with the time and level of each.
_Codes = dict[str, tuple[int, str]]


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
    states = {int(chip.chip.rpartition("-")[2]): chip for chip in chips}
    regraded = _regraded(report, raw, network=False) if raw is not None else set()
    codes_by_plane = _codes_by_plane(report)
    _add_planes_without_codes(codes_by_plane, states, planes)

    found = []
    for (kind, index), codes in sorted(codes_by_plane.items()):
        if kind == NETWORK:
            shown, level = _network_fault(codes, planes.get(index))
        else:
            shown, level = _chip_fault(codes, states.get(index), planes.get(index), regraded=index in regraded)
        is_withheld = bool(codes) and not shown
        if not is_withheld:
            chip_name = f"{report.prefix}{index}" if index >= 0 else ""
            found.append(fault_element(kind, chip_name, shown, level))
    return found


def _codes_by_plane(report: DeviceReport) -> dict[tuple[str, int], _Codes]:
    """The codes of a report by kind of fault and chip; a fault without a code leaves its plane with none."""
    codes_by_plane: dict[tuple[str, int], _Codes] = {}
    for fault in report.faults:
        codes = codes_by_plane.setdefault((fault.kind, fault.chip), {})
        if fault.code:
            codes[fault.code] = (fault.time_ms, fault.level)
    return codes_by_plane


def _add_planes_without_codes(
    codes_by_plane: dict[tuple[str, int], _Codes], states: Mapping[int, ChipState], planes: Planes
) -> None:
    """Add chips out of service that the report does not name, and network planes that only rules call broken."""
    reported = {index for _, index in codes_by_plane}
    for index, chip in states.items():
        if chip.state in OUT_OF_SERVICE and index not in reported:
            codes_by_plane["CardUnhealthy", index] = {}

    for index, levels in planes.items():
        if levels.network:
            codes_by_plane.setdefault((NETWORK, index), {})


def _network_fault(codes: _Codes, plane: PlaneLevels | None) -> tuple[_Codes, str]:
    """The codes of a chip's network plane and its level: the worse of what is reported and what rules keep."""
    kept = plane.network if plane is not None else {}
    raised = {code: (at, worst(level, kept.get(code, level))) for code, (at, level) in codes.items()}
    levels = [*kept.values(), *(level for _, level in raised.values())]
    return raised, worst(*levels) if levels else ""


def _chip_fault(
    codes: _Codes, chip: ChipState | None, plane: PlaneLevels | None, *, regraded: bool
) -> tuple[_Codes, str]:
    """The codes of a chip's own plane that readers see, and its level.

    A chip whose codes a policy made harmless is shown by them alone, and a suspect one by what is not withheld: the
    level that the pass gave the chip counts for neither.
    """
    shown = _shown(codes, chip)
    harmless = regraded and chip is not None and chip.state not in OUT_OF_SERVICE
    if harmless:
        shown = _mild(shown)

    level = worst(*(level for _, level in shown.values())) if shown else ""
    if chip is None or chip.state == _SUSPECT or harmless:
        return shown, level
    judged = chip.level if plane is None else plane.chip
    return shown, worst(level, judged) if level else judged


def _mild(codes: _Codes) -> _Codes:
    """Codes of a chip that a policy keeps in service; overruled levels are shown as harmless."""
    return {code: (at, level if level in IN_SERVICE else NOT_HANDLE) for code, (at, level) in codes.items()}


def _shown(codes: _Codes, chip: ChipState | None) -> _Codes:
    """The codes of a chip's own plane for readers; a chip in service shows no level that takes it out of service."""
    if chip is None or chip.state in OUT_OF_SERVICE:
        return codes
    if chip.state == _SUSPECT:
        return {code: row for code, row in codes.items() if row[1] in IN_SERVICE}
    return {code: (at, level if rank(level) <= rank(chip.level) else chip.level) for code, (at, level) in codes.items()}
