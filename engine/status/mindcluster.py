"""The aggregated ConfigMaps in MindCluster's formats, for its readers and for users.

``cluster-info-*`` as ClusterD writes them (component/clusterd). Shards are filled by serialised size; a surplus shard
is emptied, never deleted. Node and switch entries show PreSeparate as ClusterD's readers know it: Healthy for a node in
use, UnHealthy for an idle one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.documents import Desired
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import DeviceReport, NodeReport, Observed, SwitchReport
from belay.engine.model.faults import code_key
from belay.engine.model.labels import VOLCANO_CONSUMER
from belay.engine.model.levels import NOT_HANDLE, SWITCH_LEVELS, NodeStatus, SwitchLevel, switch_status
from belay.engine.model.plan import ChipState, Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.status import public_fault_statistics
from belay.engine.status.bodies import MAX_BYTES, config_map
from belay.engine.status.elements import NO_PLANES, Planes, elements, network_unhealthy, unhealthy
from belay.engine.status.readers import NOTHING, graded_for_readers
from belay.engine.wire import deviceinfo
from belay.engine.wire.gojson import go_json, read_object
from belay.engine.wire.names import DEVICE_PREFIX, NODE_NAMESPACE, NODE_PREFIX

DEVICE_SHARD: Final = "cluster-info-device-"
SWITCH_SHARD: Final = "cluster-info-switch-"
NODE_INFO: Final = "cluster-info-node-cm"
_SWITCH_KEY: Final = "mindx-dl-switchinfo-"
#: Fields of ClusterD's SwitchFaultInfo, in their order.
_SWITCH_FIELDS: Final[tuple[str, ...]] = ("FaultCode", "FaultLevel", "UpdateTime", "NodeStatus", "FaultTimeAndLevelMap")
_MEMO_LIMIT: Final = 40_000
_TIME: Final = re.compile(r'"UpdateTime":\d+')
REFRESH_SECONDS: Final = 60.0
"""Seconds for which new times of reports alone change no aggregate: their readers call a report stale after minutes."""


class _Entry(NamedTuple):
    """One node's part of an aggregate: ``essence`` is its text without the time of the report."""

    name: str
    text: str
    essence: str


class _Part(NamedTuple):
    """One rendered ConfigMap of an aggregate, and what it was made of at ``time``."""

    entries: tuple[_Entry, ...]
    body: dict[str, Any]
    time: float


class ClusterInfo:
    """Renders the aggregated ConfigMaps; caches each node's text, so that an unchanged node costs nothing.

    Agents repeat their reports every few minutes, so with many nodes some time has always changed. A ConfigMap in which
    nothing else changed stays as it is for a while; else it would be written every second.
    """

    def __init__(self) -> None:
        self._memo: dict[str, tuple[tuple[Any, ...], _Entry]] = {}
        self._shards: dict[str, int] = {}
        self._parts: dict[str, _Part] = {}

    def bodies(
        self, plan: Plan, observed: Observed, desired: Desired = NOTHING, cache: PlanCache | None = None
    ) -> list[dict[str, Any]]:
        """Every aggregated ConfigMap, surplus shards empty. ``desired`` holds the products that policies may name."""
        raw = public_fault_statistics.with_public_faults(plan, observed)
        observed, grading = graded_for_readers(plan, raw, desired, cache)
        states: dict[str, list[ChipState]] = {}
        for chip in plan.chips:
            states.setdefault(chip.node, []).append(chip)
        devices = [
            self._device_entry(
                observed.reports[node], tuple(states.get(node, ())), raw.reports[node], plan.planes.get(node, {})
            )
            for node in sorted(observed.reports)
            if node in observed.nodes
        ]
        used = {chip.node for chip in plan.chips if chip.used_by}
        switches = [
            _entry(
                _SWITCH_KEY + node,
                _switch_entry(
                    node, report, node in used, grading.switch_levels(observed, report), plan.switches.get(node)
                ),
            )
            for node, report in sorted(observed.reports.items())
            if report.switch is not None
        ]
        nodes = {
            NODE_PREFIX + node: _node_entry(report, node in used)
            for node, report in sorted(observed.node_reports.items())
        }
        return [
            *self._sharded(DEVICE_SHARD, devices, plan.now),
            _aggregate(NODE_INFO, go_json(nodes) if nodes else ""),
            *self._sharded(SWITCH_SHARD, switches, plan.now),
            *public_fault_statistics.bodies(plan, observed),
        ]

    def _device_entry(
        self, report: DeviceReport, chips: tuple[ChipState, ...], raw: DeviceReport, planes: Planes
    ) -> _Entry:
        version = (report.resource_version, report.update_time, chips, report.faults, raw.faults, planes)
        known = self._memo.get(report.node)
        if known is not None and known[0] == version:
            return known[1]
        if len(self._memo) > _MEMO_LIMIT:
            self._memo.clear()
        entry: dict[str, Any] = {
            "DeviceList": device_list(report, chips, raw, planes),
            "UpdateTime": int(report.update_time),
            "CmName": DEVICE_PREFIX + report.node,
            "SuperPodID": report.super_pod_id,
            "RackID": max(report.rack_id, 0),  # 0 outside racks, as ClusterD has it
            "ServerIndex": report.server_index,
        }
        rendered = _entry(DEVICE_PREFIX + report.node, go_json(entry))
        self._memo[report.node] = (version, rendered)
        return rendered

    def _sharded(self, prefix: str, entries: list[_Entry], now: float) -> Iterator[dict[str, Any]]:
        shards: list[list[_Entry]] = [[]]
        used = 2
        for entry in entries:
            size = len(entry.name) + len(entry.text.encode()) + 4  # quotes, colon and comma
            if used + size > MAX_BYTES and shards[-1]:
                shards.append([])
                used = 2
            shards[-1].append(entry)
            used += size
        if not entries and prefix not in self._shards:
            return
        for index in range(max(len(shards), self._shards.get(prefix, 0))):
            yield self._body(f"{prefix}{index}", tuple(shards[index]) if index < len(shards) else (), now)
        self._shards[prefix] = max(len(shards), self._shards.get(prefix, 0))

    def _body(self, name: str, entries: tuple[_Entry, ...], now: float) -> dict[str, Any]:
        """The ConfigMap of these entries: the one made before, where only times have changed since, a while ago."""
        known = self._parts.get(name)
        if known is not None and _same(known.entries, entries, times=not 0 <= now - known.time < REFRESH_SECONDS):
            return known.body
        # nothing to show is an empty text, as ClusterD has it, in the first shard too
        full = "{" + ",".join(f'"{entry.name}":{entry.text}' for entry in entries) + "}" if entries else ""
        made = _Part(entries, _aggregate(name, full), now)
        self._parts[name] = made
        return made.body


def _same(before: tuple[_Entry, ...], after: tuple[_Entry, ...], *, times: bool) -> bool:
    """Whether entries say the same; ``times``: also at the same times."""
    if len(before) != len(after):
        return False
    pairs = zip(before, after, strict=True)
    if times:
        return all(old is new or old == new for old, new in pairs)
    return all(old is new or (old.name == new.name and old.essence == new.essence) for old, new in pairs)


def _entry(name: str, text: str) -> _Entry:
    return _Entry(name, text, _TIME.sub("", text))


def device_list(
    report: DeviceReport,
    chips: tuple[ChipState, ...],
    raw: DeviceReport | None = None,
    planes: Planes = NO_PLANES,
) -> dict[str, str]:
    """A node's ``DeviceList``: its own lists corrected by the states of the pass. ``raw`` is the report as received,
    ``report`` has the levels of policies, ``planes`` the levels of both planes.
    """
    raw = report if raw is None else raw
    out = unhealthy(report, chips)
    lists = {
        report.resource: _join(report.prefix, report.free & ~out),
        deviceinfo.fault_key(report.resource): go_json(elements(report, chips, raw, planes)),
        f"{report.resource}-Unhealthy": _join(report.prefix, out),
    }
    # inference products have neither of these
    if report.network_unhealthy is not None or report.recovering:
        lists[f"{report.resource}-Recovering"] = _join(report.prefix, report.recovering)
    if report.network_unhealthy is not None:
        lists[f"{report.resource}-NetworkUnhealthy"] = _join(report.prefix, network_unhealthy(report, raw, planes))
    return dict(sorted(lists.items()))


def _node_entry(report: NodeReport, used: bool) -> dict[str, Any]:
    devices = [
        {"DeviceType": d.device_type, "DeviceId": d.device_id, "FaultCode": list(d.codes), "FaultLevel": d.level}
        for d in report.devices
    ]
    return {
        "FaultDevList": devices,
        "NodeStatus": _settled(report.status, used),
        "CmName": NODE_PREFIX + report.node,
    }


def _switch_entry(node: str, report: DeviceReport, used: bool, words: dict[str, str], left: SwitchReport | None) -> str:
    """A switch's entry as reported, its keys in the order of ClusterD's structure.

    Args:
        used: whether chips of the node are in use.
        words: levels that policies give to codes; if one of its codes is among them, level and status follow them.
        left: the switch without the faults that jobs tolerate for now; None when they tolerate none.
    """
    body = read_object(node, "SwitchInfoCfg", report.switch.text) if report.switch and report.switch.text else {}
    entry = {key: body[key] for key in _SWITCH_FIELDS if key in body}
    entry |= {key: body[key] for key in sorted(body) if key not in _SWITCH_FIELDS}
    if report.switch is not None and any(code_key(code) in words for code in report.switch.codes):
        graded = {"FaultLevel": _switch_word(report.switch.level), "NodeStatus": report.switch.node_status}
        entry |= {key: value for key, value in graded.items() if key in entry}
    if left is not None:
        entry |= {key: value for key, value in _left_over(entry, left, words).items() if key in entry}
    if "NodeStatus" in entry:
        entry["NodeStatus"] = _settled(str(entry["NodeStatus"]), used)
    times = entry.get("FaultTimeAndLevelMap")
    if isinstance(times, dict):
        entry["FaultTimeAndLevelMap"] = {key: _regraded(key, times[key], words) for key in sorted(times)}
    return go_json({**entry, "CmName": _SWITCH_KEY + node})


def _left_over(entry: Mapping[str, Any], left: SwitchReport, words: dict[str, str]) -> dict[str, Any]:
    """Faults, level and status of a switch without the faults that jobs tolerate for now."""
    times = entry.get("FaultTimeAndLevelMap")
    rows = times if isinstance(times, dict) else {}
    kept = {place: row for place, row in rows.items() if deviceinfo.switch_fault(place, row) in left.faults}
    levels = [_switch_word(words.get(code_key(fault.code)) or fault.level or left.level) for fault in left.faults]
    if left.faults and not words:
        levels.append(_switch_word(left.level))  # a switch that is cut off is worse than each of its links
    level = max(levels, key=SWITCH_LEVELS.index, default=SwitchLevel.NOT_HANDLE)
    faults = [text for text in entry.get("FaultCode") or [] if _is_left(str(text), rows, kept, left.codes)]
    return {
        "FaultCode": faults, "FaultLevel": level, "NodeStatus": switch_status(level), "FaultTimeAndLevelMap": kept,
    }  # fmt: skip


def _is_left(text: str, rows: Mapping[str, Any], kept: Mapping[str, Any], codes: Collection[str]) -> bool:
    """Whether an item of ``FaultCode``, a JSON object or a plain code, is none that jobs tolerate."""
    if not text.startswith("{"):
        return text in codes
    body = read_object(SWITCH_SHARD, "SwitchInfoCfg.FaultCode", text)
    place = "{AssembledFaultCode}_{SwitchChipId}_{SwitchPortId}".format_map(defaultdict(str, body))
    return place in kept if place in rows else str(body.get("AssembledFaultCode", "")) in codes


def _regraded(place: str, row: Any, words: dict[str, str]) -> Any:
    """One row of ``FaultTimeAndLevelMap``, whose key is ``<code>_<chip>_<port>``."""
    level = words.get(code_key(place.rsplit("_", 2)[0]))
    return {**row, "fault_level": _switch_word(level)} if level and isinstance(row, dict) else row


def _switch_word(level: str) -> SwitchLevel:
    """A level in the words of switch reports, which have five."""
    if level in ("", SwitchLevel.NOT_HANDLE, NOT_HANDLE):
        return SwitchLevel.NOT_HANDLE
    if level.startswith(("SubHealth", SwitchLevel.RESTART_REQUEST)):
        return SwitchLevel.SUB_HEALTH if level.startswith("SubHealth") else SwitchLevel.RESTART_REQUEST
    return SwitchLevel.PRE_SEPARATE if level.startswith(SwitchLevel.PRE_SEPARATE) else SwitchLevel.SEPARATE


def _settled(status: str, used: bool) -> str:
    """PreSeparate spares the work on a node: Healthy while its chips are in use, else UnHealthy."""
    if status != NodeStatus.PRE_SEPARATE:
        return status
    return NodeStatus.HEALTHY if used else NodeStatus.UNHEALTHY


def _aggregate(name: str, value: str) -> dict[str, Any]:
    return config_map(NODE_NAMESPACE, name, {name: value}, {VOLCANO_CONSUMER: "true"})


def _join(prefix: str, mask: int) -> str:
    return ",".join(f"{prefix}{index}" for index in ids_of(mask))
