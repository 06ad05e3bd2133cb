"""The fault elements of a node after Belay's judgement: what its device plugin reports, and what the pass adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.model.cluster import DeviceReport
from engine.model.faults import NETWORK
from engine.model.levels import IN_SERVICE, NORMAL, NOT_HANDLE, PRE_SEPARATE, rank, worst
from engine.model.plan import ChipState, PlaneLevels
from engine.wire.deviceinfo import fault_element

#: States in which a chip takes no work.
OUT_OF_SERVICE: Final = frozenset({"isolated", "manually-isolated", "resetting", "recovering"})
_SUSPECT: Final = "suspect"
#: The planes of a node's chips apart (``Plan.planes``), by chip.
Planes = Mapping[int, PlaneLevels]
NO_PLANES: Final[Planes] = {}


def takes_no_work(chip: ChipState) -> bool:
    """Whether readers must take the chip for unhealthy; one at PreSeparateNPU spares the work that is on it."""
    return chip.state in OUT_OF_SERVICE and not (chip.level == PRE_SEPARATE and chip.used_by)


def unhealthy(report: DeviceReport, chips: tuple[ChipState, ...]) -> int:
    """The chips that readers must take for unhealthy: the report's own, as the pass judged them. One whose faults a job
    rides out for now, or that a policy calls harmless, is not among them: whoever reads it moves the job.

    Source: component/clusterd/pkg/application/faultmanager/cmprocess (filters take faults out of the lists too).
    """
    out = report.unhealthy
    for chip in chips:
        bit = 1 << int(chip.chip.rpartition("-")[2])
        out = out | bit if takes_no_work(chip) else out & ~bit
    return out


def network_unhealthy(report: DeviceReport, raw: DeviceReport, planes: Planes = NO_PLANES) -> int:
    """The chips whose parameter plane readers must take for broken: the report's own, but where policies gave a
    network code another level (``report`` over ``raw``) that level says it. What duration and frequency rules raised
    (``planes``) is broken as well.

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
    """Chips with a code on that plane whose level policies changed; grading keeps the order of faults."""
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
    """Fault elements merged per (kind, chip), without what is withheld; a chip that only Belay isolated, and a network
    plane that only Belay keeps a level for, get an element without a code. ``raw`` is the report as it came where
    ``report`` has the levels of policies: a chip in service that they speak of is told with these, not with what else
    the pass saw of it. ``planes`` tells the levels of both planes apart.

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
    for (kind, index), told in sorted(grouped.items()):
        own = judged.get(index) if kind != NETWORK else None
        plane = planes.get(index)
        if kind == NETWORK and plane is not None:
            told = {code: (at, worst(level, plane.network.get(code, level))) for code, (at, level) in told.items()}
        plain = index in spoken and own is not None and own.state not in OUT_OF_SERVICE
        codes = _mild(_shown(told, own)) if plain else _shown(told, own)
        if told and not codes:
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
    """Codes of a chip that stays in service by a policy: what it overrules is told as harmless."""
    return {code: (at, level if level in IN_SERVICE else NOT_HANDLE) for code, (at, level) in codes.items()}


def _shown(codes: dict[str, tuple[int, str]], chip: ChipState | None) -> dict[str, tuple[int, str]]:
    """The codes of a chip's own plane that readers may see: of one in service, none that says it is not."""
    if chip is None or chip.state in OUT_OF_SERVICE:
        return codes
    if chip.state == _SUSPECT:
        return {code: row for code, row in codes.items() if row[1] in IN_SERVICE}
    return {code: (at, level if rank(level) <= rank(chip.level) else chip.level) for code, (at, level) in codes.items()}
