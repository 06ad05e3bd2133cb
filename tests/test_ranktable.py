"""Rank tables against the published vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from belay.engine.wire.podannotations import Configuration, Device
from belay.engine.wire.ranktable import RankTablePod, TableError, build, logical_super_pod, version_of


def member(
    rank: int, node: str, *, chips: int = 2, ip: str = "10.1.0.{}", levels: Iterable[Any] = (), **more: Any
) -> RankTablePod:
    devices = tuple(
        Device(str(i), ip.format(i), super_device_id=str(100 + i), level_list=tuple(levels)) for i in range(chips)
    )
    own = Configuration(pod_name=f"p{rank}", server_id=f"uid{rank}", host_ip=f"host-{node}", devices=devices)
    return RankTablePod(f"ns/p{rank}", node, f"172.16.0.{rank}", rank, own, **more)


@pytest.mark.parametrize(
    ("resources", "annotations", "selector", "version"),
    [
        (["huawei.com/npu"], {"huawei.com/schedule_policy": "chip2-node16-sp"}, {}, "2.0"),
        (["huawei.com/Ascend910"], {"huawei.com/schedule_policy": "chip2-node16-sp"}, {}, "1.2"),
        (["huawei.com/Ascend910"], {"huawei.com/schedule_policy": "chip2-node8-sp"}, {}, "1.2"),
        (["huawei.com/Ascend910"], {"huawei.com/schedule_policy": "multilevel"}, {}, "1.2"),
        (["huawei.com/Ascend910"], {"huawei.com/schedule_policy": "chip8-node8", "sp-block": "16"}, {}, "1.0"),
        (["huawei.com/Ascend910"], {"sp-block": "16"}, {}, "1.2"),
        (["huawei.com/Ascend910"], {}, {"accelerator-type": "module-a3-16-super-pod"}, "1.2"),
        (["huawei.com/Ascend910"], {}, {"accelerator-type": "module-a3-8-super-pod"}, "1.2"),
        (["huawei.com/Ascend910"], {}, {"accelerator-type": "module-910b-8"}, "1.0"),
    ],
)
def test_version(resources: list[str], annotations: dict[str, str], selector: dict[str, str], version: str) -> None:
    assert version_of(resources=resources, annotations=annotations, node_selectors=[selector]) == version


def test_two_pods_on_two_nodes() -> None:
    table = build("1.0", [member(1, "b"), member(0, "a")])
    assert list(table) == ["status", "server_list", "server_count", "version"]
    assert table["server_count"] == "2"
    assert [s["server_id"] for s in table["server_list"]] == ["host-a", "host-b"]
    assert [[d["rank_id"] for d in s["device"]] for s in table["server_list"]] == [["0", "1"], ["2", "3"]]
    assert list(table["server_list"][0]) == ["device", "server_id", "host_ip", "container_ip"]


def test_two_pods_on_one_node_keep_their_own_server_ids() -> None:
    table = build("1.0", [member(0, "a"), member(1, "a")])
    assert [s["server_id"] for s in table["server_list"]] == ["uid0", "uid1"]


def test_super_pods_of_four_servers() -> None:
    table = build("1.2", [member(i, str(i), chips=16) for i in range(4)], sp_block=32)
    assert list(table) == ["status", "server_list", "server_count", "version", "super_pod_list"]
    assert table["super_pod_list"] == [
        {"super_pod_id": "0", "server_list": [{"server_id": "host-0"}, {"server_id": "host-1"}]},
        {"super_pod_id": "1", "server_list": [{"server_id": "host-2"}, {"server_id": "host-3"}]},
    ]
    assert table["server_list"][0]["device"][0]["super_device_id"] == "100"


def test_a_block_smaller_than_a_server_makes_one_super_pod_each() -> None:
    assert [logical_super_pod(i, 8, 16) for i in range(3)] == [0, 1, 2]
    assert [logical_super_pod(i, 0, 16) for i in range(3)] == [0, 0, 0]


def test_soft_and_inference_super_pods_are_named_by_the_scheduler() -> None:
    members = [member(i, str(i), super_pod_rank=str(1 - i), super_pod_id="7") for i in range(2)]
    soft = build("1.2", members, sp_block=2, soft=True)
    assert [p["super_pod_id"] for p in soft["super_pod_list"]] == ["0", "1"]
    assert soft["super_pod_list"][0]["server_list"] == [{"server_id": "host-1"}]
    real = build("1.2", members, inference=True)
    assert [p["super_pod_id"] for p in real["super_pod_list"]] == ["7"]


def test_hardware_type_of_inference_jobs() -> None:
    table = build("1.0", [member(0, "a", hardware_type="800I-A2-32G")])
    assert table["server_list"][0]["hardware_type"] == "800I-A2-32G"


@pytest.mark.parametrize(
    ("version", "block", "ok"), [("1.0", 0, False), ("1.2", 4, True), ("1.2", 2, False), ("1.2", 0, True)]
)
def test_a_missing_device_ip(version: Any, block: int, ok: bool) -> None:
    members = [member(0, "a", ip="-1"), member(1, "b", ip="-1")]
    if ok:
        assert build(version, members, sp_block=block)["server_count"] == "2"
    else:
        with pytest.raises(TableError, match="chip 0 has no device IP"):
            build(version, members, sp_block=block)


def test_a_missing_pod_ip() -> None:
    with pytest.raises(TableError, match="pod ns/p0 has no IP yet"):
        build("1.0", [RankTablePod("ns/p0", "a", "", 0, Configuration())])


def level(number: int, *kinds: str) -> dict[str, Any]:
    return {"level": number, "info": {kind: {"net_layer": number, "net_instance_id": kind} for kind in kinds}}


LEVELS = (level(0, "MESH"), level(1, "MESH"), level(2, "UBOE", "UBG"), level(3, "ROCE"))


@pytest.mark.parametrize(
    ("scaleout", "layers"),
    [("", [(0, "MESH"), (1, "MESH"), (3, "ROCE")]), ("UBOE", [(0, "MESH"), (1, "MESH"), (2, "UBOE")])],
)
def test_version_2_levels(scaleout: str, layers: list[tuple[int, str]]) -> None:
    table = build("2.0", [member(0, "a", levels=LEVELS), member(1, "b", levels=LEVELS)], scaleout=scaleout)
    assert table["rank_count"] == 4
    assert [r["rank_id"] for r in table["rank_list"]] == [0, 1, 2, 3]
    assert [(e["net_layer"], e["net_instance_id"]) for e in table["rank_list"][0]["level_list"]] == layers


def test_version_2_fills_a_missing_level() -> None:
    table = build("2.0", [member(0, "a", levels=(level(0, "MESH"), level(3, "ROCE")), ip="-1")], scaleout="UBOE")
    assert table["rank_list"][0]["level_list"][-1] == {
        "net_layer": 2,
        "net_instance_id": "CLUSTER1",
        "net_type": "CLOS",
        "net_attr": "",
        "rank_addr_list": [],
    }


def test_version_2_refuses_an_unknown_scaleout() -> None:
    with pytest.raises(TableError, match="scaleout-type is invalid"):
        build("2.0", [member(0, "a", levels=LEVELS)], scaleout="FIBRE")
