"""What a placement writes on a pod, and how what device plugins wrote is read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.engine.model.labels import CONFIGURATION_910, CONFIGURATION_NPU
from belay.engine.wire import podannotations as wire
from tests import worlds

RESOURCE = "huawei.com/Ascend910"


def write(**changes: Any) -> dict[str, str]:
    """The annotations of a pod on chips 0 and 5 of a healthy A2 server."""
    given: dict[str, Any] = {
        "pod": worlds.pod("p", count=2),
        "node": worlds.node("n1"),
        "chips": [5, 0],
        "prefix": "Ascend910-",
        "resource": RESOURCE,
        "now_ns": 1788249600000000001,
        "distributed": False,
        "is_operator_pod": False,
        "whole_node": False,
        "rank": None,
    }
    given |= changes
    told = {key: given.pop(key) for key in ("place", "devices") if key in given}
    seat = wire.chip_facts(given.pop("node"), given.pop("chips"), given.pop("prefix"), **told)
    return wire.allocation(given.pop("pod"), seat, **given)


def test_a_part_of_a_node_gets_the_least() -> None:
    assert write() == {
        "distributed-job": "false",
        RESOURCE: "Ascend910-0,Ascend910-5",
        "predicate-time": "1788249600000000001",
    }


def test_an_operators_pod_gets_its_configuration() -> None:
    notes = write(is_operator_pod=True, distributed=True, rank=3)
    assert notes["huawei.com/AscendReal"] == "Ascend910-0,Ascend910-5"
    assert notes["distributed-job"] == "true"
    assert notes["hccl/rankIndex"] == "3"
    body = json.loads(notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"])
    assert body == {
        "pod_name": "p",
        "server_id": "uid-train-p",
        "server_ip": "10.0.0.1",
        "host_ip": "10.0.0.1",
        "super_pod_id": -1,
        "rack_id": -1,
        "server_index": "",
        "devices": [
            {"device_id": "0", "device_ip": "192.168.0.1", "super_device_id": "0"},
            {"device_id": "5", "device_ip": "192.168.5.1", "super_device_id": "5"},
        ],
    }


def test_a_whole_node_does_too() -> None:
    notes = write(chips=range(8), whole_node=True)
    assert len(wire.chip_names(notes, RESOURCE)) == 8
    assert "ascend.kubectl.kubernetes.io/ascend-910-configuration" in notes


def test_without_base_devices_the_device_plugin_writes_it() -> None:
    assert "huawei.com/AscendReal" not in write(node=worlds.node("n1", base=False), is_operator_pod=True)


def test_super_pod_numbers_come_from_the_node() -> None:
    node = worlds.node("n1", annotations={"superPodID": "2", "rackID": "-1", "serverIndex": "4"})
    body = wire.configuration(write(node=node, is_operator_pod=True))
    assert body is not None
    assert (body.super_pod_id, body.rack_id, body.server_index) == (2, -1, "4")


def test_ascend950_offers_logical_ids() -> None:
    node = worlds.node("n1", chips=2, resource="huawei.com/npu", prefix="npu-")
    node.base_devices["npu-1"]["DeviceID"] = 7
    notes = write(node=node, chips=[1], prefix="npu-", resource="huawei.com/npu", is_operator_pod=True)
    assert notes["huawei.com/npu"] == "npu-7"
    body = json.loads(notes["ascend.kubectl.kubernetes.io/ascend-npu-configuration"])
    assert body["devices"][0]["device_id"] == "1"


@pytest.mark.parametrize("levels", [None, 3, "net", {"net": 1}])
def test_what_a_node_does_not_say_of_a_chip_stays_empty(levels: Any) -> None:
    node = worlds.node("n1")
    node.base_devices["Ascend910-0"] = {"IP": None, "SuperDeviceID": None, "levelList": levels}
    node.base_devices["odd"] = {}
    body = wire.configuration(write(node=node, chips=[0], is_operator_pod=True))
    assert body is not None and body.devices == (wire.Device("0"),)


@pytest.mark.parametrize(
    ("accelerator", "usage", "expected"),
    [
        ("module-910b-8", "infer", "800I-A2-32G"),
        ("module-a3-16", "infer", "800I-A3-32G"),
        ("module-910b-8", "train", ""),
        ("module", "infer", ""),
    ],
)
def test_hardware_type(accelerator: str, usage: str, expected: str) -> None:
    labels = {"accelerator-type": accelerator, "server-usage": usage, "mind-cluster/npu-chip-memory": "32G"}
    assert wire.hardware_type(labels) == expected


def test_names_prefer_what_is_really_mounted() -> None:
    notes = {RESOURCE: "Ascend910-0", "huawei.com/AscendReal": "Ascend910-1, Ascend910-3"}
    assert wire.chip_names(notes, RESOURCE) == ("Ascend910-1", "Ascend910-3")
    assert wire.chip_names({RESOURCE: "Ascend910-0"}, RESOURCE) == ("Ascend910-0",)
    assert wire.chip_names({}, "") == ()
    assert wire.chip_ids(("Ascend910-10", "Ascend910-2", "Ascend910-2c-100-1_0"), "Ascend910-") == (2, 10)


@pytest.mark.parametrize(("text", "rank"), [("3", 3), ("", None), ("-1", None), ("x", None), ("٣", None)])
def test_rank_index(text: str, rank: int | None) -> None:
    assert wire.rank_index({"hccl/rankIndex": text}) == rank


def test_a_device_plugins_configuration_is_read() -> None:
    text = (
        '{"pod_name":"p","server_id":"u","host_ip":"10.0.0.9","super_pod_id":1,"server_index":3,'
        '"devices":[{"device_id":"0","device_ip":"-1","levelList":[{"level":0,"info":{}}]}]}'
    )
    body = wire.configuration({CONFIGURATION_NPU: text})
    assert body is not None
    assert (body.host_ip, body.server_index, body.devices[0].device_ip) == ("10.0.0.9", "3", "-1")
    assert body.devices[0].level_list == ({"level": 0, "info": {}},)
    assert wire.configuration({CONFIGURATION_910: '{"devices":null}'}) == wire.Configuration()


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": 3}', '{"devices": [{}]}', '{"super_pod_id": "x"}'])
def test_a_broken_configuration_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="ascend-910-configuration cannot be read"):
        wire.configuration({CONFIGURATION_910: text})


def test_a_huge_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 262144"):
        wire.configuration({CONFIGURATION_910: " " * 300_000})


def test_allocated_pods() -> None:
    pod = worlds.pod("p", count=8)
    assert not wire.is_allocated(pod)
    placed = msgspec.structs.replace(pod, annotations={CONFIGURATION_910: "{}"})
    assert wire.is_allocated(placed)
    assert not wire.is_allocated(msgspec.structs.replace(placed, deleting=1.0))
    assert wire.is_allocated(worlds.pod("q", count=0))


def test_what_is_written_is_what_is_read() -> None:
    """Configurations are written from a struct of their own, whose fields are filled by position."""
    assert wire._Written.__struct_fields__ == wire.Configuration.__struct_fields__
