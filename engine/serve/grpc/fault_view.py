"""Faults of nodes and jobs as subscribers of the service `Fault` read them. Pure.

Sources: component/clusterd/pkg/application/fault and faultmanager (faultrank, faultclusterprocess),
docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

from belay.engine.model.attribution import HEALTHY, SUB_HEALTHY, UNHEALTHY
from belay.engine.model.cluster import ChipFault, DeviceReport, Node, NodeReport, Observed, SwitchReport
from belay.engine.model.labels import PRODUCT_SERIAL
from belay.engine.model.levels import (
    FREE_RESTART,
    MANUALLY_SEPARATE,
    NOT_HANDLE,
    SUB_HEALTH,
    FaultLevel,
    NodeLevel,
    SwitchLevel,
    SwitchTableLevel,
)
from belay.engine.serve.grpc.job_view import JobView, places
from belay.engine.wire import publicinfo
from belay.engine.wire.clusterd import fault_pb2 as pb

CLUSTER: Final = "-1"
FAULT: Final = "fault"
NORMAL: Final = "normal"
_WHOLE: Final = "-1"
_STATES: Final = (HEALTHY, SUB_HEALTHY, UNHEALTHY)


def _state(level: FaultLevel) -> str:
    match level:
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE:
            return HEALTHY
        case FaultLevel.SUB_HEALTH | FaultLevel.PRE_SEPARATE:
            return SUB_HEALTHY
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return UNHEALTHY
        case FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return UNHEALTHY
        case _:
            assert_never(level)


_NOT_HANDLE: Final[frozenset[str]] = frozenset({"", FaultLevel.NORMAL, NOT_HANDLE, SwitchLevel.NOT_HANDLE})
_SUB_HEALTH: Final[frozenset[str]] = frozenset({"SubHealth", SUB_HEALTH})
_SOFT: Final[frozenset[str]] = (
    _SUB_HEALTH
    | {SwitchLevel.PRE_SEPARATE, NodeLevel.PRE_SEPARATE}
    | {one for one in FaultLevel if _state(one) == SUB_HEALTHY}
)
_UNHEALTHY: Final[frozenset[str]] = frozenset(
    {NodeLevel.SEPARATE, SwitchLevel.SEPARATE, "Reset", SwitchTableLevel.RESET}
).union(one for one in FaultLevel if _state(one) == UNHEALTHY)


def state_in_job(level: str) -> str:
    """The health that a level means in messages about one job."""
    return SUB_HEALTHY if level in _SOFT else UNHEALTHY if level in _UNHEALTHY else HEALTHY


def state_in_cluster(level: str) -> str:
    """The health that a level means in messages about the whole cluster."""
    return HEALTHY if level in _NOT_HANDLE else SUB_HEALTHY if level in _SUB_HEALTH else UNHEALTHY


def of_cluster(observed: Observed) -> list[pb.NodeFaultInfo]:
    """Every node with faults, sorted by address."""
    found = [_node(observed, name, None) for name in sorted(observed.nodes)]
    return _ordered(found)


def of_jobs(views: Iterable[JobView], observed: Observed) -> list[pb.NodeFaultInfo]:
    """The nodes of one job, or of all jobs of an inference service, with faults of their chips or of the node."""
    chips: dict[str, set[int]] = {}
    for view in views:
        for pod in view.pods:
            if pod.node:
                chips.setdefault(pod.node, set())
        for place in places(view, observed):
            chips.setdefault(place.pod.node, set()).update(place.chips)
    return _ordered([_node(observed, name, chips[name]) for name in sorted(chips)])


def of_each_job(views: Mapping[str, JobView], observed: Observed) -> dict[str, list[pb.NodeFaultInfo]]:
    """The faults of every job that has any, by job."""
    loud = {node.nodeName for node in of_cluster(observed)}
    nodes_of = {job: {pod.node for pod in view.pods if pod.node} for job, view in views.items()}
    hit = sorted(job for job, nodes in nodes_of.items() if nodes & loud or not nodes <= observed.nodes.keys())

    found = {job: of_jobs([views[job]], observed) for job in hit}
    return {job: faults for job, faults in found.items() if faults}


def signal(job: str, nodes: list[pb.NodeFaultInfo], uuid: str = "") -> pb.FaultMsgSignal:
    """The message; its signal type says whether there are faults."""
    return pb.FaultMsgSignal(uuid=uuid, jobId=job, signalType=FAULT if nodes else NORMAL, nodeFaultInfo=nodes)


def _ordered(nodes: Iterable[pb.NodeFaultInfo | None]) -> list[pb.NodeFaultInfo]:
    return sorted((node for node in nodes if node is not None), key=lambda node: (node.nodeIP, node.nodeName))


def _node(observed: Observed, name: str, chips: set[int] | None) -> pb.NodeFaultInfo | None:
    """One node's faults; ``chips`` are the chips of the job in question, None for the whole cluster."""
    node, report, hardware = observed.nodes.get(name), observed.reports.get(name), observed.node_reports.get(name)
    memory = observed.history.nodes.get(name)
    devices: list[pb.DeviceFaultInfo] = []
    if report is not None:
        if memory is not None and memory.public:
            report = publicinfo.merged(report, memory.public)
        devices += _chips(report, chips)
        if report.switch is not None:
            devices += _switch(report.switch, chips is not None)
    if hardware is not None:
        devices += _hardware(hardware, chips is not None)
    if node is None or not node.ready:
        devices.append(pb.DeviceFaultInfo(deviceId=_WHOLE, deviceType="Node", faultLevel=UNHEALTHY))
    if not devices:
        return None
    devices.sort(key=lambda device: (device.deviceId, device.deviceType))
    return pb.NodeFaultInfo(
        nodeName=name,
        nodeIP=node.internal_ip if node is not None else "",
        nodeSN=_serial(node),
        faultLevel=_worst(device.faultLevel for device in devices),
        faultDevice=devices,
    )


def _serial(node: Node | None) -> str:
    return node.annotations.get(PRODUCT_SERIAL, "") if node is not None else ""


def _chips(report: DeviceReport, chips: set[int] | None) -> list[pb.DeviceFaultInfo]:
    by_chip: dict[int, list[ChipFault]] = {}
    for fault in report.faults:
        if fault.chip >= 0 and (chips is None or (fault.chip in chips and _hits_its_job(fault, report))):
            by_chip.setdefault(fault.chip, []).append(fault)
    for chip in range(report.manual.bit_length()):
        if report.manual >> chip & 1 and chip not in by_chip and (chips is None or chip in chips):
            by_chip[chip] = [ChipFault("CardUnhealthy", chip, "", MANUALLY_SEPARATE, 0)]

    state = state_in_cluster if chips is None else state_in_job
    return [
        _device(
            str(chip),
            "NPU",
            {fault.code: fault.level for fault in faults if fault.code},
            _worst(state(fault.level) for fault in faults),
        )
        for chip, faults in sorted(by_chip.items())
    ]


def _hits_its_job(fault: ChipFault, report: DeviceReport) -> bool:
    """Whether the fault concerns the job on the chip: a chip to be reset once it is free works on for its job."""
    unhealthy = report.unhealthy | (report.network_unhealthy or 0)
    return fault.level != FREE_RESTART or bool(unhealthy >> fault.chip & 1)


def _hardware(report: NodeReport, in_job: bool) -> list[pb.DeviceFaultInfo]:
    state = state_in_job if in_job else state_in_cluster
    return [
        _device(
            str(device.device_id), device.device_type, dict.fromkeys(device.codes, device.level), state(device.level)
        )
        for device in report.devices
        if device.codes or not in_job
    ]


def _switch(report: SwitchReport, in_job: bool) -> list[pb.DeviceFaultInfo]:
    if not report.codes:
        return []
    body = _body(report.text)
    times = body.get("FaultTimeAndLevelMap")
    infos: list[pb.SwitchFaultInfo] = []
    levels: dict[str, str] = {}
    for code, chip, port, raised in sorted(_entries(body) or ((code, "", "", 0) for code in report.codes)):
        row = times.get(f"{code}_{chip}_{port}") if isinstance(times, dict) else None
        row = row if isinstance(row, dict) else {}
        levels[code] = str(row.get("fault_level") or report.level)
        infos.append(
            pb.SwitchFaultInfo(
                faultCode=code,
                switchChipId=chip,
                switchPortId=port,
                faultTime=str(row.get("fault_time") or raised),
                faultLevel=levels[code],
            )
        )
    state = (state_in_job if in_job else state_in_cluster)(report.level)
    device = _device(_WHOLE, "Switch", levels, state)
    device.switchFaultInfos.extend(infos)
    return [device]


def _body(text: str) -> dict[str, Any]:
    """A switch report decoded; empty when it cannot be read."""
    try:
        body = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _entries(body: Mapping[str, Any]) -> list[tuple[str, str, str, int]]:
    """(code, chip, port, time) of each fault; older switches report the code only."""
    found = []
    for entry in body.get("FaultCode") or ():
        inner = _body(entry) if isinstance(entry, str) and entry.startswith("{") else {}
        code = str(inner.get("AssembledFaultCode") or entry)
        raised = inner.get("AlarmRaisedTime")
        chip, port = inner.get("SwitchChipId", ""), inner.get("SwitchPortId", "")
        found.append((code, str(chip), str(port), raised if isinstance(raised, int) else 0))
    return found


def _device(number: str, kind: str, levels: Mapping[str, str], state: str) -> pb.DeviceFaultInfo:
    """A device; ``faultType`` and ``faultReason``, which the interface reserves, stay empty."""
    codes = sorted(levels)
    return pb.DeviceFaultInfo(
        deviceId=number,
        deviceType=kind,
        faultCodes=codes,
        faultLevel=state,
        faultLevels=[levels[code] for code in codes],
    )


def _worst(states: Iterable[str]) -> str:
    return max(states, key=_STATES.index, default=HEALTHY)


__all__ = ["CLUSTER", "FAULT", "of_cluster", "of_each_job", "of_jobs", "signal", "state_in_cluster", "state_in_job"]
