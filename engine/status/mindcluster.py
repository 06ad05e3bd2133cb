"""The aggregated ConfigMaps in MindCluster's own formats, for its readers and for people's searches.

``cluster-info-*`` as ClusterD writes them (component/clusterd), ``vcjob-fault-npu-cm`` as the NPU
scheduler does (component/ascend-for-volcano). Shards are filled by serialised size; a surplus shard is
blanked, never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from engine.model.cluster import DeviceReport, Observed, ids_of, mask_of
from engine.model.levels import IN_SERVICE, worst
from engine.model.plan import ChipState, Plan
from engine.status.bodies import MAX_BYTES, config_map, text
from engine.wire.deviceinfo import fault_element
from engine.wire.gojson import go_json, read_object
from engine.wire.names import DEVICE_PREFIX, NODE_NAMESPACE, NODE_PREFIX, SCHEDULER_NAMESPACE, VOLCANO_LABEL

DEVICE_SHARD: Final = "cluster-info-device-"
SWITCH_SHARD: Final = "cluster-info-switch-"
NODE_INFO: Final = "cluster-info-node-cm"
FAULT_NPU: Final = "vcjob-fault-npu-cm"
_SWITCH_KEY: Final = "mindx-dl-switchinfo-"
_OUT_OF_SERVICE: Final = frozenset({"isolated", "manually-isolated", "resetting", "recovering"})
_MEMO_LIMIT: Final = 40_000


class ClusterInfo:
    """Renders the aggregated ConfigMaps; remembers each node's text so that a quiet node costs nothing."""

    def __init__(self) -> None:
        self._memo: dict[str, tuple[tuple[Any, ...], str]] = {}
        self._shards: dict[str, int] = {}

    def bodies(self, plan: Plan, observed: Observed) -> list[dict[str, Any]]:
        """Every aggregated ConfigMap, surplus shards blanked."""
        states: dict[str, list[ChipState]] = {}
        for chip in plan.chips:
            states.setdefault(chip.node, []).append(chip)
        devices = [
            (DEVICE_PREFIX + node, self._device_entry(report, tuple(states.get(node, ()))))
            for node, report in observed.reports.items()
            if node in observed.nodes
        ]
        switches = [
            (_SWITCH_KEY + node, _switch_entry(node, report))
            for node, report in observed.reports.items()
            if report.switch is not None
        ]
        nodes = {
            NODE_PREFIX + node: {
                "FaultDevList": [
                    {"DeviceType": d.device_type, "DeviceId": d.device_id, "FaultCode": d.codes, "FaultLevel": d.level}
                    for d in report.devices
                ],
                "NodeStatus": report.status,
                "CmName": NODE_PREFIX + node,
            }
            for node, report in observed.node_reports.items()
        }
        return [
            *self._sharded(DEVICE_SHARD, devices),
            _aggregate(NODE_INFO, go_json(nodes)),
            *self._sharded(SWITCH_SHARD, switches),
            fault_npu(plan, observed),
        ]

    def _device_entry(self, report: DeviceReport, chips: tuple[ChipState, ...]) -> str:
        version = (report.resource_version, report.update_time, chips)
        known = self._memo.get(report.node)
        if known is not None and known[0] == version:
            return known[1]
        if len(self._memo) > _MEMO_LIMIT:
            self._memo.clear()
        entry: dict[str, Any] = {
            "DeviceList": device_list(report, chips),
            "UpdateTime": int(report.update_time),
            "CmName": DEVICE_PREFIX + report.node,
            "SuperPodID": report.super_pod_id,
            "RackID": report.rack_id,
            "ServerIndex": report.server_index,
        }
        rendered = go_json(entry)
        self._memo[report.node] = (version, rendered)
        return rendered

    def _sharded(self, prefix: str, entries: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
        shards: list[list[str]] = [[]]
        used = 2
        for name, rendered in entries:
            pair = f'"{name}":{rendered}'
            size = len(pair.encode()) + 1
            if used + size > MAX_BYTES and shards[-1]:
                shards.append([])
                used = 2
            shards[-1].append(pair)
            used += size
        if not entries and prefix not in self._shards:
            return
        for index in range(max(len(shards), self._shards.get(prefix, 0))):
            full = "{" + ",".join(shards[index]) + "}" if index < len(shards) else ""
            yield _aggregate(f"{prefix}{index}", full)
        self._shards[prefix] = max(len(shards), self._shards.get(prefix, 0))


def device_list(report: DeviceReport, chips: tuple[ChipState, ...]) -> dict[str, str]:
    """A node's ``DeviceList`` after Belay's judgement: its own lists plus what the pass took out of service."""
    out = report.unhealthy
    for chip in chips:
        if chip.state in _OUT_OF_SERVICE:
            out |= 1 << int(chip.chip.rpartition("-")[2])
    lists = {
        report.resource: _join(report.prefix, report.free & ~out),
        f"{report.resource}-Fault": go_json(_elements(report, chips)),
        f"{report.resource}-Recovering": _join(report.prefix, report.recovering),
        f"{report.resource}-Unhealthy": _join(report.prefix, out),
    }
    if report.network_unhealthy is not None:
        lists[f"{report.resource}-NetworkUnhealthy"] = _join(report.prefix, report.network_unhealthy)
    return dict(sorted(lists.items()))


def fault_npu(plan: Plan, observed: Observed) -> dict[str, Any]:
    """``volcano-system/vcjob-fault-npu-cm``: nodes with faults and the retries that jobs have left."""
    states: dict[str, list[ChipState]] = {}
    for chip in plan.chips:
        if chip.level not in IN_SERVICE or chip.codes:
            states.setdefault(chip.node, []).append(chip)
    rows = []
    for node in plan.nodes:
        report = observed.reports.get(node.node)
        chips = states.get(node.node, [])
        if report is None or (not chips and node.state == "healthy"):
            continue
        network = report.network_unhealthy or 0
        unhealthy = report.unhealthy | mask_of(
            [int(c.chip.rpartition("-")[2]) for c in chips if c.state in _OUT_OF_SERVICE]
        )
        if not chips and not unhealthy and not network and node.state in ("healthy", "unknown"):
            continue
        rows.append(
            {
                "FaultDeviceList": [_plain(e) for e in _elements(report, tuple(chips))],
                "NodeName": node.node,
                "UnhealthyNPU": _names(report.prefix, unhealthy),
                "NetworkUnhealthyNPU": _names(report.prefix, network),
                "NodeHealthState": _health(node.state, unhealthy, network),
                "UpdateTime": int(report.update_time),
            }
        )
    times = {}
    for key, memory in plan.history.jobs.items():
        if memory.retries >= 0 and memory.uid:
            namespace, _, name = key.split("/", 2)
            times[f"{namespace}/{name}-{memory.uid}"] = {"UUID": memory.uid, "Times": memory.retries}
    return config_map(SCHEDULER_NAMESPACE, FAULT_NPU, {"fault-node": go_json(rows), "remain-retry-times": text(times)})


def _elements(report: DeviceReport, chips: tuple[ChipState, ...]) -> list[dict[str, Any]]:
    """Fault elements merged per (kind, chip); a chip that only Belay isolated gets an element without a code."""
    grouped: dict[tuple[str, int], dict[str, tuple[int, str]]] = {}
    for fault in report.faults:
        codes = grouped.setdefault((fault.kind, fault.chip), {})
        if fault.code:
            codes[fault.code] = (fault.time_ms, fault.level)
    judged = {int(c.chip.rpartition("-")[2]): c for c in chips}
    for index, chip in judged.items():
        if chip.state in _OUT_OF_SERVICE and not any(key[1] == index for key in grouped):
            grouped[("CardUnhealthy", index)] = {}
    elements = []
    for (kind, index), codes in sorted(grouped.items()):
        level = worst(*(level for _, level in codes.values())) if codes else ""
        if index in judged and kind != "CardNetworkUnhealthy":
            level = worst(level, judged[index].level) if level else judged[index].level
        name = f"{report.prefix}{index}" if index >= 0 else ""
        elements.append(fault_element(kind, name, codes, level))
    return elements


def _plain(element: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in element.items() if key != "fault_time_and_level_map"}


def _switch_entry(node: str, report: DeviceReport) -> str:
    body = read_object(node, "SwitchInfoCfg", report.switch.text) if report.switch else {}
    return go_json({**body, "CmName": _SWITCH_KEY + node})


def _health(state: str, unhealthy: int, network: int) -> str:
    if state in ("isolated", "not-ready", "manually-isolated"):
        return "NodeUnhealthy"
    if unhealthy:
        return "CardUnhealthy"
    return "CardNetworkUnhealthy" if network else "Healthy"


def _aggregate(name: str, value: str) -> dict[str, Any]:
    return config_map(NODE_NAMESPACE, name, {name: value}, {VOLCANO_LABEL: "true"})


def _names(prefix: str, mask: int) -> list[str]:
    return [f"{prefix}{index}" for index in ids_of(mask)]


def _join(prefix: str, mask: int) -> str:
    return ",".join(_names(prefix, mask))
