"""RDMA cards: the configuration, what is found on the buses, what kubelet gets, which faults are reported."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.base import DriverError
from belay.agents.node.state import NodeState
from belay.agents.rdma import cards as output
from belay.agents.rdma import report
from belay.agents.rdma.config import (
    FAULT_CODES,
    MAX_ENTRIES,
    ConfigError,
    RdmaSettings,
    chosen,
    fault_codes,
    number,
    parsed,
    tool,
)
from belay.agents.rdma.devices import cards, selected
from belay.agents.rdma.faults import Checks
from belay.agents.rdma.plugin import RdmaPart
from belay.agents.rdma.report import DpuReport
from tests.kubelet_world import Kubelet, WallClock

CONFIG = {
    "periodicUpdateInterval": 300,
    "faultDetectPeriod": 5,
    "configList": [
        {
            "resourcePrefix": "huawei.com",
            "resourceName": "ub_rdma",
            "rdmaHcaMax": 8,
            "selectors": {"buses": ["ub"], "vendors": ["0xcc08"], "deviceIDs": ["0x8200"]},
        }
    ],
}
INFO = """Card num: 2
    Card       UB Entity
|---- hinic0(CAL_2X400G_UB_EXE)
      |------- 0000f(NIC:ens0p0)
      |------- 0000f(NIC:ens0p1)
|---- hinic1(CAL_2X400G_UB_EXE)
      |------- 0000f(NIC:ens1p0)
"""
TOPO = """socket 0 core 0 port 0x1
   link: width:(cap 0x4,cur 0x{first})
socket 0 core 1 port 0x2
   link: width:(cap 0x4,cur 0x{second})
"""


class Host:
    """A sysfs of its own."""

    def __init__(self, folder: Path) -> None:
        self.sys = folder / "sys"
        (self.sys / "class/misc/rdma_cm").mkdir(parents=True)
        self._cards = 0

    def write(self, path: str, text: str) -> None:
        (self.sys / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sys / path).write_text(text + "\n")

    def card(self, name: str, interface: str, bus: str = "ub", vendor: str = "0xcc08", device: str = "0x8200") -> str:
        hca, place = f"hrn5_{self._cards}", f"bus/{bus}/devices/{name}"
        self.write(f"{place}/vendor", vendor)
        self.write(f"{place}/device", device)
        (self.sys / place / "infiniband" / hca).mkdir(parents=True)
        (self.sys / place / "net" / interface).mkdir(parents=True)
        (self.sys / place / "driver").symlink_to("../../../../bus/drivers/hinic5")
        self.write(f"class/infiniband_verbs/uverbs{self._cards}/ibdev", hca)
        self.write(f"class/infiniband_mad/umad{self._cards}/ibdev", hca)
        self.write(f"class/infiniband/{hca}/ports/1/state", "4: ACTIVE")
        self.write(f"class/infiniband/{hca}/ports/1/phys_state", "5: LinkUp")
        self.write(f"class/net/{interface}/type", "1")
        self.write(f"class/net/{interface}/operstate", "up")
        self.write(f"class/net/{interface}/carrier", "1")
        self._cards += 1
        return hca


class Hinicadm:
    """hinicadm5 with recorded answers."""

    def __init__(self, first: int = 4, second: int = 4, info: str = INFO) -> None:
        self.first, self.second, self.info, self.broken = first, second, info, False

    async def run(self, arguments: list[str]) -> str:
        if self.broken:
            raise DriverError("hinicadm5: cannot be run: No such file or directory")
        return self.info if arguments == ["info"] else TOPO.format(first=self.first, second=self.second)


def found(host: Host, tool: Hinicadm) -> list[tuple[str, str]]:
    faults = asyncio.run(Checks(host.sys, tool, FAULT_CODES).run(cards(host.sys, "ub")))
    return [(fault.hca, fault.code.code) for fault in faults]


def test_the_shipped_configuration_of_mindcluster_is_understood() -> None:
    settings = parsed(json.dumps(CONFIG).encode(), "config.json")
    (one,) = settings.resources
    assert (one.name, one.shares, one.bus) == ("huawei.com/ub_rdma", 8, "ub")
    assert (one.vendors, one.device_ids) == ({"cc08"}, {"8200"})
    assert (settings.update, settings.faults) == (300, 5)


def test_what_is_left_out_gets_mindclusters_defaults() -> None:
    entry = {"resourceName": "rdma_a", "rdmaHcaMax": 1, "devices": ["ib0"]}
    settings = parsed(json.dumps({"configList": [entry]}).encode(), "c")
    (one,) = settings.resources
    assert (one.name, one.bus, one.interfaces) == ("rdma/rdma_a", "pci", {"ib0"})
    assert (settings.update, settings.faults) == (60, 0)


def changed(**fields: Any) -> Mapping[str, Any]:
    return {**CONFIG, "configList": [{**CONFIG["configList"][0], **fields}]}  # type: ignore[index]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "is not a JSON object"),
        ({}, "configList is a list of 1"),
        ({"configList": [1] * (MAX_ENTRIES + 1)}, "configList is a list of 1"),
        ({"configList": [1]}, r"configList\[0\] is not an object"),
        (changed(resourceName="a-b"), "resourceName 'a-b': use letters"),
        (changed(resourcePrefix="Huawei"), "not a DNS name"),
        (changed(rdmaHcaMax=-1), "rdmaHcaMax -1"),
        (changed(rdmaHcaMax=True), "rdmaHcaMax True"),
        (changed(selectors={}), "needs selectors, or devices"),
        (changed(devices=["ib0"]), "and not both"),
        (changed(selectors={"vendors": "0xcc08"}), "selectors.vendors is a list"),
        ({**CONFIG, "configList": CONFIG["configList"] * 2}, "stands twice"),  # type: ignore[operator]
        ({**CONFIG, "faultDetectPeriod": 1.5}, "faultDetectPeriod 1.5"),
        ({**CONFIG, "periodicUpdateInterval": -1}, "periodicUpdateInterval -1"),
    ],
)
def test_a_wrong_configuration_is_named_with_its_field(body: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        parsed(json.dumps(body).encode(), "/etc/config.json")
    assert str(error.value).startswith("/etc/config.json")


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b""])
def test_text_that_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        parsed(text, "c")


def test_a_table_of_faults_replaces_the_shipped_one_and_a_wrong_one_is_named() -> None:
    row = {"faultcode": "1", "faultlevel": "X", "description": "d", "check_method": "check_hca_port", "name": "n"}
    (one,) = fault_codes(json.dumps({"faults": [row]}).encode(), "t")
    assert (one.code, one.level, one.check) == ("1", "X", "check_hca_port")
    for wrong, text in (({**row, "check_method": "rm -rf"}, "is none of check_ub_port"), ({}, "are texts of 1")):
        with pytest.raises(ConfigError, match=text):
            fault_codes(json.dumps({"faults": [wrong]}).encode(), "t")


def test_options_without_a_file_or_with_a_wrong_one_say_so(tmp_path: Path) -> None:
    class Options:
        rdma_config, rdma_fault_codes = "", "codes.json"

    with pytest.raises(ConfigError, match="needs --rdma-config"):
        chosen(Options)  # type: ignore[arg-type]
    os.mkfifo(tmp_path / "pipe")
    Options.rdma_config = str(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a file"):
        chosen(Options)  # type: ignore[arg-type]


def test_cards_are_found_with_their_device_nodes_and_chosen_by_selectors(tmp_path: Path) -> None:
    host = Host(tmp_path)
    first, _ = host.card("00001", "ens0p0"), host.card("00002", "ens1p0", device="0x9999")
    host.card("0000:01:00.0", "ib0", bus="pci", vendor="0x15b3")
    both = cards(host.sys, "ub")
    assert [card.hca for card in both] == ["hrn5_0", "hrn5_1"]
    (one,) = selected(both, parsed(json.dumps(CONFIG).encode(), "c").resources[0])
    assert (one.hca, one.interface, one.driver, one.link_type) == (first, "ens0p0", "hinic5", "ether")
    assert one.nodes == ("/dev/infiniband/umad0", "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")
    assert [card.hca for card in cards(host.sys, "pci")] == ["hrn5_2"]
    assert cards(tmp_path / "nothing", "ub") == []


def test_a_card_without_what_containers_need_is_left_out(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.card("00001", "ens0p0")
    (host.sys / "class/misc/rdma_cm").rmdir()
    assert cards(host.sys, "ub") == []


def test_ids_are_compared_without_their_prefix() -> None:
    assert number("0xCC08\n") == number("cc08") == "cc08"


def test_a_healthy_host_has_no_fault(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.card("00001", "ens0p0")
    host.write("class/net/ens0p0/card_type", "A5Pod200G_x")
    assert found(host, Hinicadm()) == []


@pytest.mark.parametrize(
    ("change", "tool", "expected"),
    [
        ({"class/infiniband/hrn5_0/ports/1/state": "1: DOWN"}, Hinicadm(), [("hrn5_0", "21000024")]),
        ({"class/infiniband/hrn5_0/ports/1/phys_state": "3: Disabled"}, Hinicadm(), [("hrn5_0", "21000024")]),
        ({}, Hinicadm(0, 0), [("hrn5_0", "21000022")]),
        ({}, Hinicadm(0, 4), []),
        ({}, Hinicadm(4, 2), [("hrn5_0", "21000023")]),
        ({"class/net/ens0p1/master": "", "class/net/ens0p1/operstate": "down"}, Hinicadm(), [("hrn5_0", "22000025")]),
        ({"class/net/ens0p1/operstate": "down"}, Hinicadm(), []),
        ({"class/net/ens0p0/card_type": "A5Server"}, Hinicadm(), [("", "22000026")]),
        ({"class/net/ens0p0/device/card_type": "A5Pod400G_1"}, Hinicadm(), [("", "22000026")]),
        ({"class/net/ens0p0/card_type": "unknown"}, Hinicadm(), []),
    ],
)  # fmt: skip
def test_each_check_finds_its_fault_and_no_other(
    tmp_path: Path, change: dict[str, str], tool: Hinicadm, expected: list[tuple[str, str]]
) -> None:
    host = Host(tmp_path)
    host.card("00001", "ens0p0")
    for path, text in change.items():
        host.write(path, text)
    assert found(host, tool) == expected


def test_without_the_tool_ports_are_still_checked_and_the_reason_is_kept(tmp_path: Path) -> None:
    host, tool = Host(tmp_path), Hinicadm()
    host.card("00001", "ens0p0")
    host.write("class/infiniband/hrn5_0/ports/1/state", "1: DOWN")
    tool.broken = True
    checks = Checks(host.sys, tool, FAULT_CODES)
    (fault,) = asyncio.run(checks.run(cards(host.sys, "ub")))
    assert fault.code.code == "21000024" and "hinicadm5" in checks.problem


def test_the_tools_output_is_read() -> None:
    assert output.interfaces(INFO) == {"hinic0": ["ens0p0", "ens0p1"], "hinic1": ["ens1p0"]}
    assert output.count(INFO) == 2 and output.count("nothing") is None
    assert output.widths(TOPO.format(first=4, second=0)) == [("0x1", 4, 4), ("0x2", 4, 0)]
    assert [output.expected(kind) for kind in ("A5Server", "A5Pod200G_a", "A5ServerX")] == [4, 2, None]


def test_the_report_is_written_on_change_and_every_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "address_of", lambda interface: "10.0.0.7")
    host = Host(tmp_path)
    host.card("00001", "ens0p0")
    host.write("class/infiniband/hrn5_0/ports/1/state", "1: DOWN")
    there = cards(host.sys, "ub")
    faults = asyncio.run(Checks(host.sys, Hinicadm(), FAULT_CODES).run(there))
    one = DpuReport("node-a")
    body = one.due(there, faults, 0.0, 1000.0)
    assert body is not None and body["metadata"] == {
        "namespace": "kube-system", "name": "dpuinfo-node-a", "labels": {"huawei.com/consumer.clusterd": "true"},
    }  # fmt: skip
    content = json.loads(body["data"]["DpuInfoCfg"])
    assert content["UpdateTime"] == 1_000_000 and content["DPUInfo"]["NodeEvent"] == {
        "NodeName": "node-a", "FaultList": [],
    }  # fmt: skip
    (item,) = content["DPUInfo"]["DPUList"]
    (fault,) = item.pop("FaultList")
    assert item == {
        "HcaName": "hrn5_0", "EthName": "ens0p0", "IpAddr": "10.0.0.7", "DeviceID": "0x8200", "VendorID": "0xcc08",
    }  # fmt: skip
    assert (fault["FaultCode"], fault["FaultLevel"], fault["Time"]) == ("21000024", "SeparateDPU", 1_000_000)
    # not written yet: due again, with the time of its first sight
    again = one.due(there, faults, 5.0, 1005.0)
    assert again is not None and '"Time":1000000' in again["data"]["DpuInfoCfg"]
    one.written()
    assert one.due(there, faults, 10.0, 1010.0) is None
    assert one.due(there, faults, 306.0, 1306.0) is not None
    gone = one.due(there, [], 307.0, 1307.0)
    assert gone is not None and '"FaultList":[]' in gone["data"]["DpuInfoCfg"]


def test_the_tool_is_that_of_the_image_or_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, image = tmp_path / "host", tmp_path / "image"
    monkeypatch.setenv("PATH", str(image))
    assert tool(programs) == "hinicadm5"
    programs.mkdir()
    # also before the host has it: a driver may bring it later
    assert tool(programs) == f"{programs}/hinicadm5"
    image.mkdir()
    (image / "hinicadm5").touch(mode=0o755)
    assert tool(programs) == "hinicadm5"


class Cluster:
    def __init__(self) -> None:
        self.written: dict[str, Mapping[str, Any]] = {}

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        self.written[body["metadata"]["name"]] = body


def test_kubelet_offers_the_shares_while_a_card_is_there_and_containers_get_all_its_nodes(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for index in range(2):
        host.card(f"0000{index}", f"ens{index}p0")
    settings = parsed(json.dumps(CONFIG).encode(), "c")
    settings = RdmaSettings(
        resources=settings.resources, update=0.02, faults=1.0, folder=tmp_path / "plugins", sys=host.sys
    )

    async def story() -> None:
        kubelet, cluster, state = Kubelet(settings.folder), Cluster(), NodeState.__new__(NodeState)
        state.problems = {}
        await kubelet.start()
        part = RdmaPart("node-a", cluster, settings, WallClock(), lambda: state, lambda: None, Hinicadm())
        task = asyncio.create_task(part.run())

        async def until(truth: Any) -> None:
            async with asyncio.timeout(20):
                while not truth():
                    await asyncio.sleep(0.01)

        try:
            await until(lambda: len(kubelet.free("huawei.com/ub_rdma")) == 8)
            body = {
                "metadata": {"uid": "u", "namespace": "d", "name": "p"},
                "spec": {"containers": [{"resources": {"limits": {"huawei.com/ub_rdma": "1"}}}]},
            }
            answer = await kubelet.admit(body, "huawei.com/ub_rdma")
            nodes = [(one.host_path, one.container_path, one.permissions) for one in answer.devices]
            names = ["rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1"]
            assert nodes == [(f"/dev/infiniband/{name}", f"/dev/infiniband/{name}", "rwm") for name in names]
            assert len(kubelet.free("huawei.com/ub_rdma")) == 7
            await until(lambda: "dpuinfo-node-a" in cluster.written)
            # interfaces of a made-up sysfs cannot be switched on, and that is said
            assert "ens0p0 was not switched on" in state.problems["rdma cards"]
            for index in range(2):
                (host.sys / f"bus/ub/devices/0000{index}/driver").unlink()
            await until(lambda: not kubelet.devices["huawei.com/ub_rdma"])
            assert "no card fits the selectors of huawei.com/ub_rdma" in state.problems["rdma cards"]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await kubelet.stop()

    asyncio.run(story())
