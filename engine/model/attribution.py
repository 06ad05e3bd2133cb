"""The faults on each rank of a job, and the job's health, for recovery services and people.

Rank of a process = rank of its pod × chips per pod + position of its chip in the pod. Rules and levels follow
component/clusterd/pkg/application/faultmanager/jobprocess/faultrank and docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

import msgspec

from belay.engine.model.cluster import ChipFault, DeviceReport, Node, NodeReport, Observed, Pod
from belay.engine.model.levels import (
    FREE_RESTART,
    SEPARATE,
    SUB_HEALTH,
    FaultLevel,
    SwitchLevel,
)
from belay.engine.model.pod_options import fault_type


def _concerns_jobs(level: FaultLevel) -> bool:
    match level:
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE | FaultLevel.PRE_SEPARATE:
            return False
        case FaultLevel.SUB_HEALTH | FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return True
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return True
        case _:
            assert_never(level)


#: Levels that leave a job healthy, whatever else they mean for placement.
HARMLESS: Final[frozenset[str]] = frozenset({"", SwitchLevel.PRE_SEPARATE}).union(
    level for level in FaultLevel if not _concerns_jobs(level)
)
HEALTHY: Final = "Healthy"
SUB_HEALTHY: Final = "SubHealthy"
UNHEALTHY: Final = "UnHealthy"


class FaultRank(msgspec.Struct, frozen=True, order=True):
    """One code on one process of a job.

    ``chip``: device name. ``code``: empty for a lost node; codes of the node or switch are joined by a comma and hit
    every rank. ``time_ms``: when the fault was raised (0: unknown).
    """

    rank: int
    pod: str
    node: str
    chip: str
    code: str
    level: str
    time_ms: int = 0


class PodPlacement(msgspec.Struct, frozen=True):
    """A placed pod of a job; ``chips`` are physical ids in the order of its processes."""

    pod: Pod
    rank: int
    chips: tuple[int, ...]


def fault_ranks(
    places: Sequence[PodPlacement],
    nodes: Mapping[str, Node],
    reports: Mapping[str, DeviceReport],
    node_reports: Mapping[str, NodeReport],
) -> tuple[FaultRank, ...]:
    """Every fault on the ranks of a job, by rank, then code; one record per code."""
    found: set[FaultRank] = set()
    for place in places:
        name = place.pod.node
        report = reports.get(name)
        whole = _whole_node(nodes.get(name), report, node_reports.get(name))
        for position, chip in enumerate(place.chips):
            rank = place.rank * len(place.chips) + position
            device = f"{report.prefix if report else ''}{chip}"
            for fault in _of_chip(report, chip):
                found.add(FaultRank(rank, place.pod.key, name, device, fault.code, fault.level, fault.time_ms))
            for code, level in whole:
                found.add(FaultRank(rank, place.pod.key, name, device, code, level))
    return tuple(sorted(found))


def health(places: Sequence[PodPlacement], ranks: Sequence[FaultRank]) -> str:
    """A job's health: UnHealthy, SubHealthy or Healthy; labels from relation faults count, too."""
    labels = {fault_type(place.pod) for place in places}
    levels = {record.level for record in ranks} - HARMLESS
    if levels - {SUB_HEALTH} or "Separate" in labels:
        return UNHEALTHY
    return SUB_HEALTHY if levels or "SubHealth" in labels else HEALTHY


def quiet(node: str, observed: Observed) -> bool:
    """Whether a node has no fault of any kind, so that its jobs need no attribution."""
    report, known = observed.reports.get(node), observed.nodes.get(node)
    if report is None or known is None or not known.ready or node in observed.node_reports:
        return False
    return not report.faults and (report.switch is None or report.switch.node_status == HEALTHY)


def _of_chip(report: DeviceReport | None, chip: int) -> list[ChipFault]:
    if report is None:
        return []
    listed = (report.unhealthy | (report.network_unhealthy or 0)) >> chip & 1
    return [f for f in report.faults if f.chip == chip and (listed or f.level != FREE_RESTART)]


def _whole_node(node: Node | None, report: DeviceReport | None, hardware: NodeReport | None) -> list[tuple[str, str]]:
    """Faults that hit every rank on the node: (codes, level)."""
    if node is None or not node.ready:
        return [("", SEPARATE)]
    found: list[tuple[str, str]] = []
    if hardware is not None and hardware.status == UNHEALTHY:
        found.append((",".join(sorted({code for d in hardware.devices for code in d.codes})), SEPARATE))
    switch = report.switch if report is not None else None
    if switch is not None and switch.node_status in (UNHEALTHY, SUB_HEALTHY):
        level = SEPARATE if switch.node_status == UNHEALTHY else SUB_HEALTH
        found.append((",".join(switch.codes), level))
    return found
