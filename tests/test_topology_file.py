"""`topo_<I>.json` of Ascend950 servers in the shared folder of the slow-network feature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belay.agents.daemon.server_topology import TopologyFile
from belay.agents.drivers.base import Machine
from tests.agent_world import VirtualClock

EDGES = {"version": "2.0", "hardware_type": "Atlas 950 SuperPod 1D", "edge_list": []}


def machine(kind: int = 1, rack: int | None = 3) -> Machine:
    return Machine(
        resource="huawei.com/npu", prefix="npu-", chip_name="Ascend950PR", accelerator="", server_type="",
        driver_version="", memory_gb=0, super_pod_id=7, server_index=5, super_pod_type=kind, rack_id=rack,
    )  # fmt: skip


def test_the_drivers_file_is_put_there_once_the_super_pods_folder_is_and_follows_changes(tmp_path: Path) -> None:
    driver, root = tmp_path / "atlas_950_1.json", tmp_path / "ras"
    driver.write_text(json.dumps(EDGES))
    file = TopologyFile(machine(), root, VirtualClock(), driver)
    file.step()
    assert not root.exists(), "nothing asked for it yet"
    pod = root / "cluster" / "super-pod-7"
    pod.mkdir(parents=True)
    file.step()
    written = pod / "rack-3" / "topo_5.json"
    assert json.loads(written.read_text()) == EDGES
    assert (written.stat().st_mode & 0o777, written.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    before = written.stat().st_ino
    file.step()
    assert written.stat().st_ino == before, "an equal file is left alone"
    driver.write_text(json.dumps(EDGES | {"peer_count": 8}))
    file.step()
    assert json.loads(written.read_text())["peer_count"] == 8
    assert [one.name for one in written.parent.iterdir()] == ["topo_5.json"]


@pytest.mark.parametrize("content", ["{", "", "x" * (11 << 20)], ids=["half", "empty", "huge"])
def test_a_file_that_cannot_be_read_is_not_passed_on(tmp_path: Path, content: str) -> None:
    driver, pod = tmp_path / "atlas_950_1.json", tmp_path / "ras" / "cluster" / "super-pod-7"
    pod.mkdir(parents=True)
    driver.write_text(content)
    TopologyFile(machine(), tmp_path / "ras", VirtualClock(), driver).step()
    assert not list(pod.iterdir())


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    driver, pod = tmp_path / "atlas_950_1.json", tmp_path / "ras" / "cluster" / "super-pod-7"
    pod.mkdir(parents=True)
    driver.write_text(json.dumps(EDGES))
    (tmp_path / "elsewhere").mkdir()
    (pod / "rack-3").symlink_to(tmp_path / "elsewhere")
    TopologyFile(machine(), tmp_path / "ras", VirtualClock(), driver).step()
    assert not list((tmp_path / "elsewhere").iterdir())
    (pod / "rack-3").unlink()
    (pod / "rack-3").mkdir()
    (pod / "rack-3" / "topo_5.json").symlink_to(tmp_path / "victim")
    TopologyFile(machine(), tmp_path / "ras", VirtualClock(), driver).step()
    assert not (tmp_path / "victim").exists() and not (pod / "rack-3" / "topo_5.json").is_symlink()
