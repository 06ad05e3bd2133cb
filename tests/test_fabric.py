"""Addresses of Ascend950 chips by network level: EIDs decoded, scenes, annotations, the driver's own calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.drivers.base import Chip, Machine
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.node import reporting
from belay.agents.node.fabric import Nics, _ipv6, level_lists, npus_per_node, parse_eid
from belay.agents.node.policy import FaultLevels
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.state import NodeState
from tests.test_dcmi import ME


def eid(die: int, entity: int, port: int, *, ip: str = "", tail: int = 0) -> str:
    """An EID by the layout of the driver's documentation."""
    raw = bytearray(16)
    raw[5], raw[6] = die << 6 | port, entity
    raw[14:16] = tail.to_bytes(2, "big")
    if ip:
        first, *rest = map(int, ip.split("."))
        raw[6], raw[7], raw[12:15] = first, 0xC0, bytes(rest)
    return raw.hex()


MACHINE = Machine(
    resource="huawei.com/npu", prefix="npu-", chip_name="Ascend950PR", accelerator="huawei-npu",
    server_type="npu-32", driver_version="25", memory_gb=128, super_pod_id=7, server_index=3, rack_id=2,
    super_pod_type=0, mainboard=0x25,
)  # fmt: skip
URMA = (
    (eid(0, 1, 4), eid(0, 1, 0x3F)),
    (eid(1, 1, 4), eid(1, 1, 5), eid(1, 1, 0x3F)),
    (eid(1, 2, 6), eid(1, 2, 0x3F)),
    (eid(0, 2, 8), eid(0, 2, 0x3F)),
    (eid(0, 3, 0x3F),),
    (eid(1, 0, 0x3F, ip="254.1.2.3"), eid(0, 0, 1, ip="10.20.30.40")),
)


def chips(count: int = 8, urma: tuple[tuple[str, ...], ...] = URMA) -> list[Chip]:
    return [Chip(id=n, logic_id=n, card=n, urma=urma) for n in range(count)]


def levels(machine: Machine, chip: int = 0, nics: Any = None, **more: Any) -> dict[int, tuple[str, str, list[Any]]]:
    """Level → kind, instance, (address, ports, plane) of one chip."""
    found = level_lists(machine, chips(**more), "10.0.0.9", {chip: ["192.168.1.1"]} if nics is None else nics)
    out = {}
    for level in found.get(chip, ()):
        ((kind, body),) = level["info"].items()
        assert body["net_layer"] == level["level"] and body["net_attr"] == ""
        assert body["net_type"] == ("TOPO_FILE_DESC" if level["level"] == 0 else "CLOS")
        rows = [(row["addr"], row["ports"], row["plane_id"]) for row in body["rank_addr_list"]]
        out[level["level"]] = (kind, body["net_instance_id"], rows)
    return out


def test_an_eid_names_where_it_leads() -> None:
    found = parse_eid(eid(1, 5, 0x12))
    assert (found.die, found.entity, found.port, found.ethernet, found.ip) == (1, 5, 0x12, False, "")
    assert parse_eid(eid(0, 0, 0, ip="10.20.30.40"))[4:] == (True, "10.20.30.40")
    assert parse_eid(eid(0, 0, 0, ip="254.0.0.1"))[4:] == (True, ""), "link-local"
    for wrong in ("", "00" * 15, "0" * 31 + "g", "F" * 32):
        with pytest.raises(ValueError, match="is not an EID"):
            parse_eid(wrong)


def test_a_server_in_a_super_pod() -> None:
    assert levels(MACHINE) == {
        0: ("UB", "7_3", [(eid(1, 2, 6), ["1/6"], "1")]),
        1: ("UB", "7", [(eid(0, 3, 0x3F), [f"0/{n}" for n in range(1, 9)], "0")]),
        2: ("UBOE", "CLUSTER1", [("10.20.30.40", ["1/8"], "0")]),
        3: ("ROCE", "CLUSTER1", [("192.168.1.1", ["d2h"], "0")]),
    }


def test_a_server_alone_has_no_super_pod() -> None:
    alone = msgspec.structs.replace(MACHINE, super_pod_id=-1)
    assert {number: row[:2] for number, row in levels(alone).items()} == {
        0: ("UB", "10.0.0.9"), 2: ("UBOE", "CLUSTER1"), 3: ("ROCE", "CLUSTER1"),
    }  # fmt: skip
    whole = msgspec.structs.replace(MACHINE, super_pod_type=3)
    assert sorted(levels(whole)) == [0, 2, 3] and levels(whole)[0][1] == "10.0.0.9"


@pytest.mark.parametrize(
    ("chip", "mesh", "groups"),
    [
        (3, (eid(0, 2, 8), ["0/8"], "0"), {"0": ["1/0", "1/1", "1/2", "1/3", "1/5", "1/6"], "1": ["0/1", "0/2"]}),
        (4, (eid(1, 2, 6), ["1/6"], "1"), {"0": [f"0/{n}" for n in range(6)], "1": ["1/1", "1/2"]}),
    ],
)
def test_a_rack_meshes_by_halves(chip: int, mesh: Any, groups: dict[str, list[str]]) -> None:
    rack = msgspec.structs.replace(MACHINE, super_pod_type=2, mainboard=0x03)
    urma = tuple(eids for eids in URMA if parse_eid(eids[0]).entity != 3)
    found = levels(rack, chip, nics={}, urma=urma)
    assert found[0] == ("UB", "7_3", [mesh]) and found[1][:2] == ("UB", "7")
    assert {plane: ports for _, ports, plane in found[1][2]} == groups
    assert [plane for _, _, plane in found[1][2]] == ["0", "1"], "the group of six ports is first, and number 0"
    assert sorted(found) == [0, 1]


def test_cards() -> None:
    urma = ((eid(0, 0, 0, tail=0x0428), eid(0, 0, 0, tail=0x0828), eid(0, 0, 0, tail=0x0068), eid(0, 1, 0)),)
    four = msgspec.structs.replace(MACHINE, card_type="300I-Atlas350-4p", super_pod_id=-1)
    assert levels(four, urma=urma) == {
        0: ("UB", "10.0.0.9", [(eid(0, 0, 0, tail=0x0428), ["1/5"], "0")]),
        3: ("ROCE", "CLUSTER1", [("192.168.1.1", ["d2h"], "0")]),
    }
    alone = msgspec.structs.replace(MACHINE, card_type="300I-Atlas350")
    assert list(levels(alone, urma=urma)) == [3]


@pytest.mark.parametrize(
    ("last", "plane"), [(0x00, "0"), (0x01, "0"), (0x09, "0"), (0x0A, "1"), (0x12, "1"), (0x13, "0"), (0x28, "0")]
)
def test_the_plane_of_an_address_between_cards_follows_from_its_last_byte(last: int, plane: str) -> None:
    four = msgspec.structs.replace(MACHINE, card_type="300I-Atlas350-4p", super_pod_id=-1)
    ((_, _, found),) = levels(four, urma=((eid(0, 0, 0, tail=last),),), nics={})[0][2]
    assert found == plane


@pytest.mark.parametrize(("board", "npus"), [(0x25, 8), (0x44, 16), (0x46, 4), (0x48, 4)])
def test_the_npus_of_a_node_follow_from_its_main_board(board: int, npus: int) -> None:
    server = msgspec.structs.replace(MACHINE, mainboard=board)
    nics = {n: [f"192.168.1.{n}"] for n in range(16)}
    assert npus_per_node(server) == npus
    assert levels(server, npus + 1, nics=nics, count=npus + 2)[3][2] == [("192.168.1.1", ["d2h"], "0")]


def test_a_card_with_ipv6_only(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000042acfffe110002 05 40 20 80     eth7\n"
        "20010db8000000000000000000000007 05 40 00 80     eth7\n"
    )
    assert _ipv6("eth7", table) == "2001:db8::7"
    assert _ipv6("lo", table) == "" and _ipv6("eth7", tmp_path / "none") == ""
    found = level_lists(MACHINE, chips(), "", {0: ["2001:db8::7"]})[0][-1]["info"]["ROCE"]["rank_addr_list"]
    assert found == [{"addr_type": "IPV6", "addr": "2001:db8::7", "ports": ["d2h"], "plane_id": "0"}]


@pytest.mark.parametrize(("kind", "rack"), [(0, None), (1, "2"), (2, "2"), (3, None)])
def test_the_rack_is_named_in_racks_only(kind: int, rack: str | None) -> None:
    machine = msgspec.structs.replace(MACHINE, super_pod_type=kind)
    state = NodeState("n", machine, chips(1), FaultLevels(shipped_policy("n")))
    assert reporting.node_annotations(state).get("rackID") == rack
    assert reporting.node_labels(state, {}).get("huawei.com/topotree.rackid") == rack
    body = json.loads(reporting.device_info(state, 0)["data"]["DeviceInfoCfg"])
    assert body.get("RackID") == (int(rack) if rack else None)


def test_other_products_have_none() -> None:
    assert level_lists(msgspec.structs.replace(MACHINE, prefix="Ascend910-"), chips(), "", {0: ["1.2.3.4"]}) == {}
    assert levels(MACHINE, urma=(("nonsense",),), nics={}) == {}


def test_the_map_of_network_cards(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    known = {"eth1": "", "eth2": "192.168.2.2", "eth3": "192.168.3.3"}
    assert Nics(file, known.__getitem__).addresses() == {}
    file.write_text(json.dumps({"npuNics": [{"npuId": 0, "nicNames": ["eth1", "eth2", "eth3"]}]}))
    nics = Nics(file, known.__getitem__)
    assert nics.addresses() == {0: ["192.168.2.2"]}
    file.write_text("[]")
    assert nics.addresses() == {0: ["192.168.2.2"]}, "read at start only"
    assert Nics(file, known.__getitem__).addresses() == {}
    assert levels(MACHINE, 8, nics={0: ["192.168.2.2"]}, count=9)[3][2] == [("192.168.2.2", ["d2h"], "0")]


def test_annotations_through_the_drivers_own_calls(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = build(tmp_path_factory.mktemp("dcmi"))
    standin = Standin.create(
        tmp_path / "state", chips=4, chip_name="Ascend950PR", board=0x1B, mainboard=0x6C, v2=True, super_pod=(7, 3)
    )
    text = eid(0, 0, 0, tail=0x0428)
    for n in range(4):
        chip = standin.chip(n)
        chip.urma_count = 1
        chip.eid_count[0] = 1
        chip.eid[0][0][:] = bytes.fromhex(text)

    async def read() -> tuple[Machine, Any]:
        npu = DcmiDriver(library, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(standin.file)})
        try:
            return await npu.machine(), await npu.chips()
        finally:
            await npu.close()

    machine, found = asyncio.run(read())
    assert found[2].urma == ((text,),) and machine.card_type == "300I-Atlas350-4p"
    state = NodeState("n", machine, found, FaultLevels(shipped_policy("n")))
    assert "levelList" not in reporting.node_annotations(state)["baseDeviceInfos"]
    state.levels = level_lists(machine, found, "10.0.0.9", {})
    annotations = reporting.node_annotations(state)
    assert annotations["cardType"] == "300I-Atlas350-4p" and annotations["serverType"] == "npu"
    first = json.loads(annotations["baseDeviceInfos"])["npu-0"]
    assert first["levelList"][0]["info"]["UB"]["rank_addr_list"][0]["addr"] == text
