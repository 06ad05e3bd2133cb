"""The agent's reports about its node: MindCluster's device information, Belay's report, node labels and annotations.

Formats: docs/zh/scheduling/06_api/02_ascend_device_plugin.md and 12_k8s.md. The device information contains what the
driver reports, not what was ordered: an isolation that returned as a fault would sustain itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.agents.drivers.base import Machine, Plane
from belay.agents.node.fabric import rack_of
from belay.agents.node.faults import Present
from belay.agents.node.journal import LAYOUT, Done
from belay.agents.node.state import NodeState
from belay.engine.model.cluster import AgentChip, AgentReport, AgentVNPU
from belay.engine.model.faults import CARD, NETWORK, code_key
from belay.engine.model.generations import Generation
from belay.engine.model.labels import (
    ACCELERATOR_LABEL,
    BASE_DEVICES,
    CHIP_MEMORY,
    CHIP_NAME,
    DRIVER_VERSION,
    NODE_CARD_TYPE,
    NODE_RACK,
    NODE_SERVER_INDEX,
    NODE_SERVER_TYPE,
    NODE_SUPER_POD,
    RESET_INFO,
    SERVER_TYPE,
    TREE_RACK,
    TREE_SERVER,
    TREE_SUPER_POD,
)
from belay.engine.model.levels import MANUALLY_SEPARATE, NORMAL, RESETTABLE, SEPARATE, rank, worst
from belay.engine.wire import deviceinfo, orders
from belay.engine.wire.gojson import go_json

#: What Kubernetes takes as a label's value; one that it does not would cost the node all of them.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PLANES: Final[tuple[tuple[Plane, str], ...]] = (("chip", CARD), ("network", NETWORK))


def device_list(state: NodeState, now_ms: int, *, with_times: bool = True) -> dict[str, str]:
    """Return the DeviceList; without times two lists are equal when nothing but fault times differs."""
    resource = state.machine.resource
    carved = {vnpu.chip for vnpu in state.vnpus}
    healthy = {chip for chip in state.ids if state.healthy(chip)}
    free = [c for c in healthy if c not in carved and not state.in_use(c) and state.withheld(c) is None]
    lists = {
        resource: _names(state, free),
        f"{resource}-Unhealthy": _names(state, (c for c in state.ids if c not in healthy)),
        deviceinfo.fault_key(resource): go_json(fault_elements(state, with_times)),
    }
    if state.machine.training:
        lists[f"{resource}-NetworkUnhealthy"] = _names(state, (c for c in state.ids if not state.network_healthy(c)))
        lists[f"{resource}-Recovering"] = _names(state, state.resetting - state.healing)
    return lists


def fault_elements(state: NodeState, with_times: bool = True) -> list[dict[str, Any]]:
    """Return the elements of the ``-Fault`` list: one per chip and plane with codes, or raised for past ones."""
    elements = []
    for chip in state.ids:
        for plane, kind in _PLANES:
            entries = [entry for entry in state.book.chip(chip) if entry.plane == plane]
            raised = state.judge.upgrades.level(chip, plane)
            if entries or raised != NORMAL:
                codes = _codes_with_levels(state, chip, plane, entries)
                level = worst(raised, *(level for _, level in codes.values()))
                shown = codes if with_times else {code: (0, of_code) for code, (_, of_code) in codes.items()}
                elements.append(deviceinfo.fault_element(kind, state.name(chip), shown, level))
    return elements


def device_info(state: NodeState, now_ms: int) -> dict[str, Any]:
    """Return the ConfigMap ``mindx-dl-deviceinfo-<node>``."""
    machine = state.machine
    return deviceinfo.build(
        state.node,
        device_list=device_list(state, now_ms),
        update_time=now_ms // 1000,
        super_pod_id=machine.super_pod_id,
        server_index=machine.server_index,
        rack_id=rack_of(machine),
        manual=[state.name(chip) for chip in state.judge.upgrades.manual],
        upgrades=state.judge.upgrades.published(state.name),
    )


def device_signature(state: NodeState, now_ms: int) -> object:
    """Return the part of the device information whose change requires a write: all but times."""
    upgrades = state.judge.upgrades
    return device_list(state, now_ms, with_times=False), upgrades.manual, upgrades.published(state.name)


def agent_report(
    state: NodeState, done: Mapping[str, Done], orders_seen: int, errors: Sequence[str], stages: Mapping[str, str]
) -> AgentReport:
    """Return the report without its sequence number and times; two are equal when nothing has changed. `done` holds
    acts that have a result: to call a running one done would free its chips for placement. `stages`: what resets under
    jobs wait for.
    """
    chips = {}
    for chip in state.chips:
        act = done.get(state.name(chip.id), Done(0, ""))
        idle = state.idle.get(chip.id)
        chips[chip.id] = AgentChip(
            serial=chip.serial,
            processes=state.processes.get(chip.id, 0),
            idle_since_ms=idle[1] if idle else None,
            reset_epoch_done=act.epoch,
            reset_result=act.result,
            reset_stage=stages.get(state.name(chip.id), ""),
        )
    layout = done.get(LAYOUT, Done(0, ""))
    return AgentReport(
        node=state.node,
        boot="",
        seq=0,
        time_ms=0,
        orders_seen=orders_seen,
        chips=chips,
        vnpu_epoch_done=layout.epoch,
        vnpu_result=layout.result,
        vnpus=tuple(AgentVNPU(v.id, v.chip, v.template, state.users.vnpus.get(v.id, "")) for v in state.vnpus),
        errors=tuple(errors),
        reset_groups=state.reset_groups,
    )


def report_config_map(report: AgentReport, state: NodeState) -> dict[str, Any]:
    """Return the ConfigMap ``belay-report-<node>``."""
    driver = {"version": state.machine.driver_version, "chip": state.machine.chip_name}
    return orders.build_report(report, state.machine.prefix, driver)


def node_labels(state: NodeState, present: Mapping[str, str]) -> dict[str, str]:
    """Return the labels the device plugin writes; ``servertype`` only unless it is set already."""
    machine = state.machine
    labels = {
        ACCELERATOR_LABEL: machine.accelerator,
        CHIP_NAME: machine.chip_name,
        DRIVER_VERSION: machine.driver_version,
        **machine.labels,
    }
    if not machine.prefix.startswith("Ascend310"):
        labels[CHIP_MEMORY] = f"{machine.memory_gb}G"
    newest = machine.generation.unified_bus
    if newest or not present.get(SERVER_TYPE):
        labels[SERVER_TYPE] = machine.server_type
    if machine.super_pod_id >= 0:
        labels[TREE_SUPER_POD] = str(machine.super_pod_id)
        if newest and machine.server_index >= 0:
            labels[TREE_SERVER] = str(machine.server_index)
        if newest and (rack := rack_of(machine)) is not None:
            labels[TREE_RACK] = str(rack)
    return {key: value for key, value in sorted(labels.items()) if _LABEL.fullmatch(value)}


def node_annotations(state: NodeState) -> dict[str, str]:
    """Return the annotations the device plugin writes: addresses of the chips, place in the super pod."""
    machine = state.machine
    devices: dict[str, dict[str, Any]] = {}
    for chip in state.chips:
        entry: dict[str, Any] = {"IP": chip.ip}
        if chip.super_device_id >= 0:
            entry["SuperDeviceID"] = chip.super_device_id
        if machine.generation.logical_names:
            entry["DeviceID"] = chip.logic_id
        if levels := state.levels.get(chip.id):
            entry["levelList"] = list(levels)
        devices[state.name(chip.id)] = entry
    annotations = {BASE_DEVICES: json.dumps(devices, separators=(",", ":"), sort_keys=True)}
    annotations[RESET_INFO] = reset_info(state)
    if machine.super_pod_id >= 0:
        annotations |= {NODE_SUPER_POD: str(machine.super_pod_id), NODE_SERVER_INDEX: str(machine.server_index)}
    if (rack := rack_of(machine)) is not None:
        annotations[NODE_RACK] = str(rack)
    if kind := _server_kind(machine):
        annotations[NODE_SERVER_TYPE] = kind
    if machine.card_type:
        annotations[NODE_CARD_TYPE] = machine.card_type
    return annotations


def _server_kind(machine: Machine) -> str:
    """Annotation ``serverType``: ``A3``, ``npu``, or nothing for other products."""
    if machine.generation is Generation.ASCEND950:
        return "npu"
    return "A3" if machine.server_type.startswith("Ascend910A3-") else ""


def reset_info(state: NodeState) -> str:
    """Return annotation ``ResetInfo``: chips that the agent cannot reset itself, so that a tool or a person must.

    A chip at SeparateNPU or above needs a person; so does one whose reset failed, where nothing else can reset it, and
    one that is faulty again with no reset left. One whose product can be reset out of band is for a tool that can.
    Source: component/ascend-device-plugin
    (writeResetInfo in pkg/server/hot_reset_manager.go).
    """
    third: list[dict[str, int]] = []
    manual: list[dict[str, int]] = []
    for chip in state.chips:
        ordered = state.orders.isolate.get(chip.id, NORMAL) if state.orders is not None else NORMAL
        levels = [state.judge.level(e) for e in state.book.chip(chip.id) if e.plane == "chip"]
        level = worst(*levels)
        row = {
            "CardId": chip.card, "DeviceId": chip.die, "AssociatedCardId": chip.associated_card, "PhyID": chip.id,
            "LogicID": chip.logic_id,
        }  # fmt: skip
        if rank(level) >= rank(SEPARATE) or ordered == MANUALLY_SEPARATE:
            manual.append(row)
        elif level in RESETTABLE and chip.id in state.failed_resets:
            (third if state.third_party else manual).append(row)
        elif level in RESETTABLE and _exhausted(state, chip.id):
            manual.append(row)
    return go_json({"ThirdPartyResetDevs": third, "ManualResetDevs": manual})


def _exhausted(state: NodeState, chip: int) -> bool:
    """Whether the chip's last reset was the last that it had for now, and is over."""
    if chip in state.exhausted:
        return True
    order = state.orders.resets.get(chip) if state.orders is not None else None
    return order is not None and order.left == 0 and chip not in state.withdrawn | state.resetting


def stamped(report: AgentReport, boot: str, seq: int, now_ms: int) -> AgentReport:
    """Return the report as it is sent."""
    return msgspec.structs.replace(report, boot=boot, seq=seq, time_ms=now_ms)


def _codes_with_levels(
    state: NodeState, chip: int, plane: Plane, entries: Sequence[Present]
) -> dict[str, tuple[int, str]]:
    """The codes of a chip's plane with (time, level): present ones, and those whose upgrade lasts.

    Readers look a chip's level up by its codes, so an upgraded code stays, with that level, until its upgrade ends.
    """
    codes = {entry.code: (entry.since_ms, state.judge.level(entry)) for entry in entries}
    written = {code_key(code): code for code in codes}
    for reason in state.judge.upgrades.of_codes(chip, plane):
        code = written.get(reason.code, reason.code)
        since, level = codes.get(code, (reason.time_ms, NORMAL))
        codes[code] = (since, worst(level, reason.level))
    return codes


def _names(state: NodeState, chips: Any) -> str:
    """The chips' names in the order of text, as the device plugin lists them: 1, 10, 2."""
    return ",".join(sorted(state.name(chip) for chip in chips))
