"""``mindx-dl-deviceinfo-<node>``: a device plugin's report on the chips of a node.

Format and CheckCode: docs/zh/scheduling/07_references/02_common_operations.md and
component/ascend-device-plugin/pkg/common/common.go. The CheckCode covers
``{"DeviceList":…,"UpdateTime":…}`` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from belay.engine.model.cluster import ChipFault, DeviceReport, SwitchFault, SwitchReport, Upgrade
from belay.engine.model.labels import ASCEND_310, ASCEND_310P, ASCEND_910, CIM_CONSUMER, NPU
from belay.engine.model.levels import (
    MANUALLY_SEPARATE,
    SwitchLevel,
)
from belay.engine.model.quantities import whole_number
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import check_code, go_json, read_json, read_object
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX

#: Reports with a larger chip id are rejected (the largest supported node has 64 chips).
MAX_CHIP = 1023

MANUAL_KEY: Final = MANUALLY_SEPARATE.value
"""Key of ``data``: chips that were isolated manually."""
UPGRADES_KEY: Final = "UpgradeFaultReason"
_UNHEALTHY = "-Unhealthy"
_NETWORK = "-NetworkUnhealthy"
_RECOVERING = "-Recovering"
_FAULT = "-Fault"
_SUFFIXES = (_NETWORK, _UNHEALTHY, _RECOVERING, _FAULT)
#: The device plugin reports faults of Ascend310 chips under the key of Ascend310P, and readers expect them there.
_FAULT_KEYS = {ASCEND_310: "huawei.com/Ascend310P-Fault"}
_KNOWN = (ASCEND_910, NPU, ASCEND_310P, ASCEND_310)
_NAME = re.compile(r"^([A-Za-z][A-Za-z0-9]*)-(\d{1,4})$")


def parse(config_map: Mapping[str, Any]) -> DeviceReport:
    """Verify and parse one device-info ConfigMap.

    Raises:
        WireError: the CheckCode is missing or wrong, the JSON is invalid, or a field has a wrong type. The caller
            keeps the last valid report.
    """
    metadata = config_map.get("metadata") or {}
    name = str(metadata.get("name", ""))
    where = f"ConfigMap/{metadata.get('namespace', '')}/{name}"
    if not name.startswith(DEVICE_PREFIX) or len(name) == len(DEVICE_PREFIX):
        raise WireError(where, "metadata.name", f"must be {DEVICE_PREFIX}<node>")
    data = config_map.get("data")
    if not isinstance(data, dict):
        raise WireError(where, "data", "is missing")
    outer = read_object(where, "data.DeviceInfoCfg", data.get("DeviceInfoCfg"))
    devices, updated = _verified(where, outer)
    resource = _resource(devices)
    prefix = resource.rsplit("/", 1)[-1] + "-"
    free = _free_mask(devices.get(resource, ""), prefix)
    unhealthy = _mask(where, devices, resource + _UNHEALTHY, prefix)
    recovering = _mask(where, devices, resource + _RECOVERING, prefix)
    network = _mask(where, devices, resource + _NETWORK, prefix) if resource + _NETWORK in devices else None
    faults = _faults(where, devices, prefix)
    listed = free | unhealthy | recovering | (network or 0)
    for fault in faults:
        if fault.chip >= 0:
            listed |= 1 << fault.chip
    manual, upgrades = manual_and_upgrades(config_map, prefix)
    return DeviceReport(
        node=name.removeprefix(DEVICE_PREFIX),
        resource_version=str(metadata.get("resourceVersion", "")),
        resource=resource,
        prefix=prefix,
        listed=listed,
        free=free,
        unhealthy=unhealthy,
        network_unhealthy=network,
        recovering=recovering,
        faults=faults,
        manual=manual,
        upgrades=upgrades,
        switch=_switch(where, data.get("SwitchInfoCfg")),
        update_time=float(updated),
        super_pod_id=_integer(where, outer, "SuperPodID", -2),
        server_index=_integer(where, outer, "ServerIndex", -2),
        rack_id=_integer(where, outer, "RackID", -1),
    )


def manual_and_upgrades(config_map: Mapping[str, Any], prefix: str) -> tuple[int, tuple[Upgrade, ...]]:
    """Parse keys ``ManuallySeparateNPU`` (a mask of chips) and ``UpgradeFaultReason`` (the reasons).

    Raises:
        WireError: a name or a value in them cannot be read.
    """
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    data = config_map.get("data") or {}
    manual = _names_mask(where, f"data.{MANUAL_KEY}", data.get(MANUAL_KEY) or "", prefix)
    return manual, _upgrades(where, data.get(UPGRADES_KEY), prefix)


def build(
    node: str,
    *,
    device_list: Mapping[str, str],
    update_time: int,
    super_pod_id: int = -2,
    server_index: int = -2,
    rack_id: int | None = None,
    manual: Sequence[str] = (),
    upgrades: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    switch: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The ConfigMap as a device plugin writes it; ``update_time`` in Unix seconds."""
    inner = {"DeviceList": dict(sorted(device_list.items())), "UpdateTime": update_time}
    outer: dict[str, Any] = {
        "DeviceInfo": inner,
        "SuperPodID": super_pod_id,
        "ServerIndex": server_index,
        "CheckCode": check_code(inner),
    }
    if rack_id is not None:
        outer["RackID"] = rack_id
    data = {
        "DeviceInfoCfg": go_json(outer),
        MANUAL_KEY: ",".join(manual),
        UPGRADES_KEY: go_json(dict(sorted((upgrades or {}).items()))),
        "Description": "",
    }
    if switch is not None:
        data["SwitchInfoCfg"] = go_json(switch)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": DEVICE_PREFIX + node, "namespace": DEVICE_NAMESPACE, "labels": {CIM_CONSUMER: "true"}},
        "data": data,
    }


def fault_key(resource: str) -> str:
    """The key of a resource's faults in ``DeviceList`` (docs/zh/scheduling/06_api/02_ascend_device_plugin.md)."""
    return _FAULT_KEYS.get(resource, resource + _FAULT)


def fault_element(kind: str, name: str, codes: Mapping[str, tuple[int, str]], level: str) -> dict[str, Any]:
    """One element of the ``-Fault`` list; ``codes`` maps an upper-case code to (time ms, level)."""
    return {
        "fault_type": kind,
        "npu_name": name,
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": ",".join(codes),
        "fault_time_and_level_map": {
            code: {"fault_time": time_ms, "fault_level": code_level}
            for code, (time_ms, code_level) in sorted(codes.items())
        },
    }


def _verified(where: str, outer: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    inner = outer.get("DeviceInfo")
    if not isinstance(inner, dict):
        raise WireError(where, "data.DeviceInfoCfg.DeviceInfo", "must be a JSON object")
    devices, updated = inner.get("DeviceList"), inner.get("UpdateTime")
    if not isinstance(devices, dict) or not all(isinstance(v, str) for v in devices.values()):
        raise WireError(where, "data.DeviceInfoCfg.DeviceInfo.DeviceList", "must map names to text")
    if not isinstance(updated, int) or isinstance(updated, bool) or not 0 <= updated < 1 << 40:
        raise WireError(where, "data.DeviceInfoCfg.DeviceInfo.UpdateTime", "must be Unix seconds")
    claimed = outer.get("CheckCode")
    if not claimed or not isinstance(claimed, str):
        raise WireError(where, "data.DeviceInfoCfg.CheckCode", "is missing; the report is ignored")
    computed = check_code({"DeviceList": dict(sorted(devices.items())), "UpdateTime": updated})
    if claimed != computed:
        raise WireError(
            where, "data.DeviceInfoCfg.CheckCode", "does not match the report's content; the report is ignored"
        )
    return devices, updated


def _resource(devices: Mapping[str, str]) -> str:
    names = {_stem(key) for key in devices}
    for known in _KNOWN:
        if known in devices:
            return known
    for known in _KNOWN:
        if known in names:
            return known
    return min((name for name in names if name), default=ASCEND_910)


def _stem(key: str) -> str:
    for suffix in _SUFFIXES:
        if key.endswith(suffix):
            return key.removesuffix(suffix)
    return key


def _free_mask(text: str, prefix: str) -> int:
    """The plugin's list of free chips; empty if one token does not parse, as in MindCluster's scheduler."""
    mask = 0
    for token in text.split(",") if text else ():
        number = whole_number(token.removeprefix(prefix), digits=4)
        if number is None or number > MAX_CHIP:
            return 0
        mask |= 1 << number
    return mask


def _mask(where: str, devices: Mapping[str, str], key: str, prefix: str) -> int:
    return _names_mask(where, f"data.DeviceInfoCfg.DeviceInfo.DeviceList[{key}]", devices.get(key, ""), prefix)


def _names_mask(where: str, field: str, text: object, prefix: str) -> int:
    if not isinstance(text, str):
        raise WireError(where, field, "must be text")
    mask = 0
    for token in text.split(","):
        token = token.strip()
        if token:
            mask |= 1 << chip_id(where, field, token, prefix)
    return mask


def chip_id(where: str, field: str, name: str, prefix: str) -> int:
    """The physical id in a device name such as ``Ascend910-4``.

    Raises:
        WireError: the name does not have the node's prefix and a number.
    """
    match = _NAME.match(name)
    if match is None or match.group(1) + "-" != prefix or int(match.group(2)) > MAX_CHIP:
        raise WireError(where, field, f"{name!r} is not a device name such as {prefix}0")
    return int(match.group(2))


def _faults(where: str, devices: Mapping[str, str], prefix: str) -> tuple[ChipFault, ...]:
    faults: set[tuple[str, int, str, str, int]] = set()
    for key in sorted(devices):
        if not key.endswith(_FAULT) or not devices[key]:
            continue
        field = f"data.DeviceInfoCfg.DeviceInfo.DeviceList[{key}]"
        elements = read_json(where, field, devices[key])
        if elements is None:
            continue
        if not isinstance(elements, list):
            raise WireError(where, field, "must be a JSON list")
        for element in elements:
            faults.update(_element(where, field, element, prefix))
    return tuple(ChipFault(*row) for row in sorted(faults))


def _element(where: str, field: str, element: object, prefix: str) -> list[tuple[str, int, str, str, int]]:
    if not isinstance(element, dict):
        raise WireError(where, field, "every element must be a JSON object")
    kind = str(element.get("fault_type") or "CardUnhealthy")
    name = element.get("npu_name") or ""
    if not isinstance(name, str):
        raise WireError(where, f"{field}.npu_name", "must be text")
    chip = chip_id(where, f"{field}.npu_name", name, prefix) if name else -1
    level = str(element.get("fault_level") or element.get("fault_handling") or "")
    codes_text, times = element.get("fault_code") or "", element.get("fault_time_and_level_map") or {}
    if not isinstance(codes_text, str) or not isinstance(times, dict):
        raise WireError(where, field, "fault_code must be text and fault_time_and_level_map an object")
    codes = [code.strip().upper() for code in codes_text.split(",") if code.strip()]
    known = {str(code).upper(): entry for code, entry in times.items()}
    rows = []
    for code in codes or [""]:
        entry = known.get(code)
        entry = entry if isinstance(entry, dict) else {}
        moment = entry.get("fault_time", 0)
        rows.append(
            (kind, chip, code, str(entry.get("fault_level") or level), moment if isinstance(moment, int) else 0)
        )
    return rows


def _upgrades(where: str, text: object, prefix: str) -> tuple[Upgrade, ...]:
    if not text:
        return ()
    field = "data.UpgradeFaultReason"
    reasons = read_object(where, field, text) if text != "null" else {}  # Go's encoding of a nil map
    rows = []
    for name, entries in sorted(reasons.items()):
        chip = chip_id(where, field, name, prefix)
        if not isinstance(entries, list):
            raise WireError(where, field, f"{name} must hold a list")
        for entry in entries:
            if not isinstance(entry, dict):
                raise WireError(where, field, f"{name} must hold objects")
            moment = entry.get("upgrade_time", 0)
            rows.append(
                Upgrade(
                    chip=chip,
                    code=str(entry.get("fault_code", "")).upper(),
                    level=str(entry.get("fault_level", "")),
                    kind=str(entry.get("upgrade_type", "")),
                    time_ms=moment if isinstance(moment, int) else 0,
                )
            )
    return tuple(rows)


def _switch(where: str, text: object) -> SwitchReport | None:
    if not text or text == "null":
        return None
    body = read_object(where, "data.SwitchInfoCfg", text)
    codes = set()
    for entry in body.get("FaultCode") or []:
        if isinstance(entry, str) and entry.startswith("{"):
            inner = read_object(where, "data.SwitchInfoCfg.FaultCode", entry)
            codes.add(str(inner.get("AssembledFaultCode", "")))
        else:
            codes.add(str(entry))
    updated = body.get("UpdateTime", 0)
    return SwitchReport(
        level=str(body.get("FaultLevel") or SwitchLevel.NOT_HANDLE),
        node_status=str(body.get("NodeStatus") or "Healthy"),
        codes=tuple(sorted(codes)),
        update_time=float(updated) if isinstance(updated, int) else 0.0,
        text=str(text),
        faults=_switch_faults(codes, body.get("FaultTimeAndLevelMap")),
    )


def switch_fault(place: str, entry: object) -> SwitchFault | None:
    """The fault behind an entry of ``FaultTimeAndLevelMap``, whose key is ``<code>_<switch chip>_<port>``."""
    if not isinstance(entry, Mapping):
        return None
    moment = entry.get("fault_time", 0)
    level = str(entry.get("fault_level") or "")
    return SwitchFault(place.rsplit("_", 2)[0], level, moment if isinstance(moment, int) else 0)


def _switch_faults(codes: Iterable[str], times: object) -> tuple[SwitchFault, ...]:
    """The faults with these codes; ``times`` maps ``<code>_<switch chip>_<port>`` to time (ms) and level."""
    found: dict[str, list[SwitchFault]] = {}
    for key, entry in times.items() if isinstance(times, Mapping) else ():
        fault = switch_fault(str(key), entry)
        if fault is not None:
            found.setdefault(fault.code, []).append(fault)
    rows = [fault for code in codes for fault in found.get(code) or [SwitchFault(code)]]
    return tuple(sorted(rows, key=lambda fault: (fault.code, fault.time_ms, fault.level)))


def _integer(where: str, outer: Mapping[str, Any], key: str, default: int) -> int:
    value = outer.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise WireError(where, f"data.DeviceInfoCfg.{key}", "must be an integer")
    return value
