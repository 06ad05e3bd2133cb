"""Nodes and reports of waiting jobs, and what device plugins do to them: cut vNPUs, follow labels, report again."""

from __future__ import annotations

import json

from belay.engine.wire import names
from belay.engine.wire.gojson import check_code, go_json
from tests.listing import Item, node, report

CORE = "huawei.com/npu-core"
SHARE_LABEL = "huawei.com/scheduler.chip1softsharedev.enable"
MEMORY_LABEL = "mind-cluster/npu-chip-memory"
SERVER_TYPE = "servertype"
#: Labels whose value only people know, as they would fill them in.
FILLED_IN = {
    MEMORY_LABEL: "64G",
    "super-pod-size": "64",
    "resource-level-config": '{"default":{"level1":{"label":"accelerator"}}}',
}
#: AI cores of a chip of 310P3.
CORES = 8


def cut_on_demand(name: str, chips: int = 1, server_type: str = "Ascend310P-8") -> list[Item]:
    """An inference server whose chips are cut as pods ask for AI cores."""
    labels = {SERVER_TYPE: server_type, "node.kubernetes.io/npu.chip.name": "310P3"}
    made = node(name, kind="Ascend310P", chips=chips, labels=labels, sizes={CORE: str(CORES * chips)})
    of_size(made, "huawei.com/Ascend310P", "0")
    return [made, report(name, kind="Ascend310P", chips=chips, network=None)]


def of_size(item: Item, resource: str, amount: str) -> Item:
    """A node that offers so much of a resource; anything else as it is."""
    if item["kind"] == "Node":
        item["status"]["allocatable"] = {**item["status"]["allocatable"], resource: amount}
        item["status"]["capacity"] = {**item["status"]["capacity"], resource: amount}
    return item


def follow_share_label(item: Item) -> None:
    """The device plugin offers each chip as a hundred shares where the label says so, else whole."""
    chips = len(json.loads(item["metadata"]["annotations"]["baseDeviceInfos"]))
    each = 100 if item["metadata"]["labels"].get(SHARE_LABEL) == "true" else 1
    of_size(item, "huawei.com/Ascend910", str(chips * each))


def is_of_node(item: Item, name: str) -> bool:
    """Whether an object is the node itself or its device report."""
    return item["metadata"]["name"] in (name, names.DEVICE_PREFIX + name)


def is_slice_of(item: Item, name: str) -> bool:
    """Whether an object is the node's list of devices for claims."""
    return item["kind"] == "ResourceSlice" and item["spec"]["nodeName"] == name


def is_leaving(item: Item) -> bool:
    """Whether an object goes with time: it is being deleted, or it is a volume that is being detached."""
    return "deletionTimestamp" in item["metadata"] or item["kind"] == "VolumeAttachment"


def make_vnpu(pod: Item) -> None:
    """The device plugin has cut the vNPU that a bound pod asked for."""
    notes = pod["metadata"]["annotations"]
    if CORE in notes and pod["spec"].get("nodeName"):
        chip, _, template = notes[CORE].partition("-")
        notes.setdefault("huawei.com/AscendReal", f"Ascend310P-{template or 'whole'}-100-{chip}_0")


def restamp(item: Item, now: float) -> None:
    """The same report, written now."""
    outer = json.loads(item["data"]["DeviceInfoCfg"])
    outer["DeviceInfo"]["UpdateTime"] = int(now) - 2
    outer["CheckCode"] = check_code(outer["DeviceInfo"])
    item["data"] = {**item["data"], "DeviceInfoCfg": go_json(outer)}
