"""Pings in a super pod: destinations, the driver's C interface, files, and a chip that reaches no other."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.drivers.surroundings import Ping
from belay.agents.node import detect
from belay.agents.node.hardware import pinglist
from belay.agents.node.hardware.pinglist import Config, PingError, Target, address
from belay.agents.node.hardware.pingmesh import PingMesh
from belay.agents.node.hardware.pingresults import COLUMNS, PingFiles, loss
from tests.agent_world import VirtualClock
from tests.test_dcmi import ME

SDIDS = {chip: str((5 << 22) + (chip % 2 << 16) + chip) for chip in range(4)}


@pytest.mark.parametrize(
    ("number", "wanted"),
    [("0", "192.0.2.199"), (str((5 << 22) + (1 << 16) + 3), "192.5.3.196"), (str(1023 << 22), "192.1023.2.199"),
     ("10.0.0.1", "10.0.0.1"), ("", "")],
)  # fmt: skip
def test_addresses_of_super_devices(number: str, wanted: str) -> None:
    assert address(number) == wanted


def test_the_super_pods_own_configuration_comes_first() -> None:
    data = {"global": '{"activate":"on","task_interval":5}', "3": '{"activate":"off","task_interval":60}'}
    assert pinglist.config(data, 3) == Config(False, 60)
    assert pinglist.config(data, 4) == Config(True, 5)
    assert pinglist.config({}, 4) is None


@pytest.mark.parametrize(
    "value",
    ["", "[]", '{"activate":"yes","task_interval":5}', '{"activate":"on","task_interval":0}',
     '{"activate":"on","task_interval":61}', '{"activate":"on","task_interval":"5"}', '{"activate":"on"}'],
)  # fmt: skip
def test_a_bad_configuration_is_refused_whole(value: str) -> None:
    with pytest.raises(PingError):
        pinglist.config({"global": value}, 1)


def devices(**nodes: dict[int, str]) -> dict[str, str]:
    body = {
        "SuperPodID": "2",
        "NodeDeviceMap": {
            n: {"NodeName": n, "DeviceMap": {str(c): s for c, s in chips.items()}} for n, chips in nodes.items()
        },
    }
    return {"superPodDevice": json.dumps(body)}


def test_members_must_be_of_this_super_pod_and_node() -> None:
    data = devices(n0=SDIDS, n1={0: "9"})
    assert pinglist.members(data, "n0", 2) == {"n0": SDIDS, "n1": {0: "9"}}
    for node, pod in (("n2", 2), ("n0", 3)):
        with pytest.raises(PingError):
            pinglist.members(data, node, pod)
    with pytest.raises(PingError, match="JSON object"):
        pinglist.members({}, "n0", 2)


def test_everybody_pings_its_node_and_its_equals_beyond() -> None:
    tasks = pinglist.full_mesh("n0", {"n0": SDIDS, "n1": {0: "90", 1: "91"}, "n2": {0: "92"}})
    assert [t.dst for t in tasks[0][0]] == sorted((SDIDS[1], SDIDS[2], SDIDS[3]), key=address)
    assert {t.dst for t in tasks[0][1]} == {"90", "92"}
    assert 1 not in tasks[2]
    many = pinglist.full_mesh("n0", {f"n{n}": {0: str(n)} for n in range(100)})
    assert list(many[0]) == [1] and len(many[0][1]) == pinglist.MAX_TARGETS


def ping_list(*rows: tuple[int, str, str]) -> str:
    body = [
        {"srcType": 0, "dstType": 0, "pktSize": 28, "srcCardPhyId": chip, "srcAddr": src, "dstAddr": dst}
        for chip, src, dst in rows
    ]
    return json.dumps([{"taskId": "t", "pingList": body}])


def test_a_ping_list_groups_by_source_chip() -> None:
    text = ping_list((1, "1", "30"), (0, "0", "20"), (1, "1", "10"))
    assert pinglist.listed(text) == {
        0: {0: (Target(0, "0", 0, "20"),)}, 1: {0: (Target(0, "1", 0, "30"), Target(0, "1", 0, "10"))},
    }  # fmt: skip
    for bad in ("{", "[]", "[1]", "[{},{}]", '[{"pingList": [{"srcType": 0}]}]', '[{"pingList": 5}]'):
        with pytest.raises(PingError):
            pinglist.listed(bad)


@pytest.mark.parametrize(("ok", "lost", "rate"), [(10, 0, "0.000"), (0, 10, "1.000"), (2, 1, "0.333"), (0, 0, "0.000")])
def test_loss_rates(ok: int, lost: int, rate: str) -> None:
    assert loss(ok, lost) == rate


class Nothing:
    """An API server that returns nothing."""

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        yield None


class World:
    """A super-pod node with the stand-in driver; nodes n0 (this one) and n1."""

    def __init__(self, tmp_path: Path, library: Path, *, folder: Path | None = None, by_eid: bool = False) -> None:
        self.clock = VirtualClock()
        shape: dict[str, Any] = {"chip_name": "Ascend950PR", "board": 0x10, "v2": True} if by_eid else {}
        self.kind = "ub_ping" if by_eid else "ping"
        self.standin = Standin.create(tmp_path / "state", chips=4, super_pod=(2, 5), **shape)
        self.driver = DcmiDriver(
            library, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(self.standin.file)}
        )
        self.log = tmp_path / "log" / "n0.log"
        self.files = PingFiles(self.log, folder, 5, 7)
        self.mesh = PingMesh(
            "n0", 2, 5, range(4), Nothing(), self.driver.calls.ask, self.clock, self.files, folder, by_eid=by_eid
        )  # fmt: skip

    def says(self, name: str, data: dict[str, str], app: str = "pingmesh") -> None:
        metadata = {"name": name, "namespace": "cluster-system", "labels": {"app": app}}
        self.mesh.receive(name, {"metadata": metadata, "data": data})

    def configure(self, active: str = "on", interval: int = 1) -> None:
        self.says("pingmesh-config", {"global": json.dumps({"activate": active, "task_interval": interval})})

    async def running(self) -> list[tuple[int, int]]:
        return [
            (chip, task) for chip in range(4) for task in (0, 1)
            if await self.driver.calls.ask(f"{self.kind}_state", chip, task, timeout=5)
        ]  # fmt: skip

    async def after(self, seconds: float) -> None:
        self.clock._move(seconds)
        await self.mesh.step()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dcmi"))


def lives(world: World, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        try:
            await story(world)
        finally:
            await world.driver.close()
            world.files.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_chips_ping_while_the_configuration_says_so(tmp_path: Path, library: Path) -> None:
    async def story(w: World) -> None:
        await w.mesh.step()
        assert await w.mesh.results() is None and await w.running() == []
        w.says("super-pod-2", devices(n0=SDIDS, n1={0: "90"}))
        w.configure()
        await w.mesh.step()
        assert await w.running() == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]
        await w.after(10)
        found = await w.mesh.results()
        assert found is not None and found[0] == [Ping(10, 1)] * 4 and found[1] == [Ping(10, 1)] * 3
        # a chip without network reaches no other, and is the only one reported
        w.standin.chip(3).network = 3
        await w.after(10)
        found = await w.mesh.results()
        assert found is not None
        assert {chip: detect.ping_faulty(pings) for chip, pings in found.items()} == {
            0: False, 1: False, 2: False, 3: True,
        }  # fmt: skip
        # a task that a reset ended is started again
        await w.driver.calls.ask("ping_stop", 2, 0, timeout=5)
        await w.after(10)
        assert (2, 0) in await w.running()
        # an answer that is not labelled or cannot be read changes nothing
        w.says("pingmesh-config", {"global": '{"activate":"off","task_interval":1}'}, app="other")
        await w.after(5)
        w.says("pingmesh-config", {"global": '{"activate":"off","task_interval":99}'})
        await w.after(5)
        assert len(await w.running()) == 5
        w.configure("off")
        await w.after(5)
        assert await w.running() == [] and await w.mesh.results() == {}

    lives(World(tmp_path, library), story)


def test_results_become_a_log_and_a_table(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "cluster" / "super-pod-2"
    folder.mkdir(parents=True)

    async def story(w: World) -> None:
        w.says("super-pod-2", devices(n0=SDIDS))
        w.configure()
        await w.mesh.step()
        assert await w.running() == []
        (folder / "ping_list_5.json").write_text(ping_list((0, SDIDS[0], SDIDS[1]), (1, SDIDS[1], "10.1.1.1")))
        await w.after(5)
        assert await w.running() == [(0, 0), (1, 0)]
        await w.after(10)
        table = folder / "ping_result_5.csv"
        rows = list(csv.reader(table.open()))
        now = str(w.clock.now_ms())
        assert rows == [
            list(COLUMNS),
            ["0", "0", SDIDS[0], "0", SDIDS[1], "10", "90", "40", "0.000", "0.000", "0.000", now],
            ["0", "0", SDIDS[1], "0", "10.1.1.1", "10", "90", "40", "0.000", "0.000", "0.000", now],
        ]
        assert table.stat().st_mode & 0o777 == 0o644
        await w.after(10)
        assert len(list(csv.reader(table.open()))) == 5
        await w.after(45)
        assert len(list(csv.reader(table.open()))) == 3
        assert len(list(csv.reader((folder / "ping_result_5.csv-bak").open()))) == 5
        lines = [line.split(" ", 2)[2] for line in w.log.read_text().splitlines()]
        assert lines[0].startswith("uid: ") and "physicID: 0, taskID: 0, DestNum: 1" in lines
        record = json.loads(next(line for line in lines if line.startswith("{")))
        assert record == {
            "source_addr": "192.5.2.199", "target_addr": "192.5.3.198", "suc_pkt_num": 10, "fail_pkt_num": 0,
            "max_time": 90, "min_time": 10, "avg_time": 40, "tp95_time": 80, "reply_stat_num": 1,
            "ping_total_num": 10,
        }  # fmt: skip
        # the same list is not restarted, another one is, ten minutes on at the latest
        uid = w.mesh._uid
        (folder / "ping_list_5.json").write_text(ping_list((2, SDIDS[2], SDIDS[3])))
        await w.after(100)
        assert w.mesh._uid == uid
        await w.after(600)
        assert await w.running() == [(2, 0)]

    lives(World(tmp_path, library, folder=folder), story)


def test_a_driver_without_pings_ends_the_part(tmp_path: Path, library: Path) -> None:
    async def story(w: World) -> None:
        w.standin.script("dcmi_get_hccsping_mesh_state", result=-8255)
        await asyncio.wait_for(w.mesh.run(), 20)

    lives(World(tmp_path, library), story)


def test_chips_with_eids_ping_from_each_of_them(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "cluster" / "super-pod-2"
    folder.mkdir(parents=True)
    eids = [f"{n:032x}" for n in range(0xA0, 0xA6)]

    async def story(w: World) -> None:
        w.says("super-pod-2", devices(n0=SDIDS))
        w.configure()
        rows = [(0, eids[0], eids[2].upper()), (0, eids[1], eids[2]), (0, eids[1], eids[3]), (3, eids[4], eids[5])]
        (folder / "ping_list_5.json").write_text(ping_list(*rows))
        await w.mesh.step()
        assert await w.running() == [(0, 0), (3, 0)]
        w.standin.chip(3).network = 3
        await w.after(10)
        found = await w.mesh.results()
        assert found is not None and found[0] == [Ping(10, 1)] * 3 and detect.ping_faulty(found[3])
        table = list(csv.reader((folder / "ping_result_5.csv").open()))[1:]
        assert [(row[2], row[4], row[8]) for row in table] == [
            (eids[0], eids[2].upper(), "0.000"), (eids[1], eids[2], "0.000"), (eids[1], eids[3], "0.000"),
            (eids[4], eids[5], "1.000"),
        ]  # fmt: skip
        w.configure("off")
        await w.after(5)
        assert await w.running() == []

    lives(World(tmp_path, library, folder=folder, by_eid=True), story)


def test_each_source_may_have_48_destinations() -> None:
    rows = [(0, f"{s:032x}", f"{d:032x}") for s in range(40) for d in range(50)]
    found = pinglist.listed(ping_list(*rows), per_source=True)[0][0]
    assert len(found) == 32 * 48 and {len(d) for d in pinglist.by_source(found).values()} == {48}


def test_chips_with_eids_follow_the_servers_list_where_no_folder_is_shared(tmp_path: Path, library: Path) -> None:
    eids = [f"{n:032x}" for n in range(0xA0, 0xA6)]
    seen: list[tuple[Config, Any, Any]] = []

    async def story(w: World) -> None:
        w.mesh = PingMesh(
            "n0", 2, 5, range(4), Nothing(), w.driver.calls.ask, w.clock, w.files, by_eid=True,
            rounds=lambda *round_: seen.append(round_),
        )  # fmt: skip
        w.says("super-pod-2", devices(n0=SDIDS))
        w.configure()
        await w.mesh.step()
        assert await w.running() == [], "no list, no pings"
        w.says("super-pod-2-pings-5", {"pingList": ping_list((0, eids[0], eids[2]), (1, eids[1], eids[3]))})
        await w.after(5)
        assert await w.running() == [(0, 0), (1, 0)]
        await w.after(10)
        chosen, tasks, results = seen[-1]
        assert chosen == Config(True, 1) and set(tasks) == set(results) == {0, 1}
        w.says("super-pod-2-pings-5", {"pingList": "{"})
        await w.after(5)
        assert await w.running() == [(0, 0), (1, 0)], "the last good list stays"
        w.says("super-pod-2-pings-5", {"pingList": ping_list((2, eids[4], eids[5]))})
        await w.after(5)
        assert await w.running() == [(2, 0)]

    lives(World(tmp_path, library, by_eid=True), story)
