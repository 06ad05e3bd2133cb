"""`belay server` writes `super-pod-<id>`, and agents read it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.agents.node.hardware import pinglist
from belay.engine.kube import CONFIGMAP, POD, Conflict
from belay.engine.observe.observed import observe
from belay.engine.serve.grpc import super_pods
from belay.engine.serve.grpc.ping_lists import ping_lists
from belay.engine.serve.grpc.super_pods import SuperPods
from belay.engine.wire import deviceinfo, superpods
from tests.grpc_world import World, play, until
from tests.worlds import NOW


async def config(world: World, activate: str) -> None:
    await world.kube.apply({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "pingmesh-config", "namespace": "cluster-system", "labels": {"app": "pingmesh"}},
        "data": {"global": json.dumps({"activate": activate, "task_interval": 5})},
    })  # fmt: skip


async def written(world: World) -> dict[str, Any]:
    live = await world.kube.get(CONFIGMAP, "super-pod-3", "cluster-system")
    return dict((live or {}).get("data") or {})


def test_the_chips_of_a_super_pod_are_written_once_pings_are_wanted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(super_pods, "PERIOD", 0.05)

    async def scenario(world: World) -> None:
        for name in ("n0", "n1", "n2"):
            await world.node(name)
            await world.report(name, super_pod=3 if name != "n2" else -2)
        async with world.server() as server:
            await config(world, "off")
            await until(lambda: len(server.cluster.observed.reports) == 3, "the nodes are observed")
            assert not await written(world)
            await config(world, "on")
            await until(lambda: written(world), "the super pod is written")
            found = pinglist.members(await written(world), "n0", 3)
            assert sorted(found) == ["n0", "n1"] and found["n1"] == {chip: str(chip) for chip in range(8)}
            await world.report("n1", super_pod=-2)

            async def alone() -> bool:
                return list(pinglist.members(await written(world), "n0", 3)) == ["n0"]

            await until(alone, "the node that left is taken out")

    play(tmp_path, scenario)


def test_beside_a_clusterd_nothing_is_written(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.node("n0")
        await world.report("n0", super_pod=3)
        await config(world, "on")
        await world.kube.create(POD, {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "clusterd-0", "namespace": "mindx-dl", "labels": {"app": "clusterd"}},
            "spec": {"containers": [{"name": "c", "image": "c"}], "nodeName": "n0"},
        })  # fmt: skip
        await world.kube.patch_status(POD, "clusterd-0", {"status": {"phase": "Running"}}, "mindx-dl")
        async with world.server() as server:
            await until(
                lambda: (
                    any(pod.phase == "Running" for pod in server.cluster.observed.pods.values())
                    and server.cluster.observed.reports
                ),
                "ClusterD is observed",
            )
            await server.super_pods.step()
            assert not await written(world)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"global": '{"activate":"on","task_interval":1}'}, True),
        ({"global": '{"activate":"off"}', "3": '{"activate":"on"}'}, True),
        ({"global": "{", "x": "[]"}, False),
        ({}, False),
    ],
)
def test_pings_are_wanted_where_any_super_pod_activates_them(data: dict[str, str], wanted: bool) -> None:
    assert superpods.pings_wanted({"data": data}) is wanted


def eid(rack: int, node: int, chip: int, plane: int, layer: int = 1) -> str:
    return f"{rack:04x}{node:04x}{chip:04x}{plane:04x}{layer:016x}"


def server950(rack: int, node: int, chips: int = 2, index: int | None = None) -> list[dict[str, Any]]:
    """A node of Ascend950 with its report; ``index`` is its number in the super pod."""
    name = f"r{rack}-n{node}"
    devices = {}
    for chip in range(chips):
        rows = [
            {"addr_type": "EID", "addr": eid(rack, node, chip, plane), "ports": ["0/1"], "plane_id": str(plane)}
            for plane in range(2)
        ]
        near = [{"addr_type": "EID", "addr": eid(rack, node, chip, 0, 0), "ports": ["1/1"], "plane_id": "1"}]
        devices[f"npu-{chip}"] = {
            "SuperDeviceID": rack << 22 | node << 8 | chip,
            "levelList": [
                {"level": 0, "info": {"UB": {"net_layer": 0, "rank_addr_list": near}}},
                {"level": 1, "info": {"UB": {"net_layer": 1, "rank_addr_list": rows}}},
            ],
        }
    notes = {"baseDeviceInfos": json.dumps(devices), "rackID": str(rack), "serverType": "npu"}
    labels = {"accelerator": "huawei-npu", "accelerator-type": "950-SuperPod-Atlas-8"}
    lists = {"huawei.com/npu": ",".join(devices), "huawei.com/npu-Fault": "[]", "huawei.com/npu-Unhealthy": "",
             "huawei.com/npu-NetworkUnhealthy": "", "huawei.com/npu-Recovering": ""}  # fmt: skip
    number = 10 * rack + node if index is None else index
    report = deviceinfo.build(name, device_list=lists, update_time=int(NOW), super_pod_id=7, server_index=number)
    node_body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": notes}}
    return [node_body, report]


def test_servers_of_ascend950_get_their_super_pod_and_a_ping_list_each() -> None:
    seen = observe([one for rack in range(3) for node in range(4) for one in server950(rack, node)])
    (body,) = super_pods.super_pod_maps(seen)
    found = json.loads(body["data"]["superPodDevice"])
    assert (found["Version"], found["SuperPodID"], found["AcceleratorType"]) == ("npu", "7", "950-SuperPod-Atlas-8")
    own = found["NodeDeviceMap"]["r1-n2"]
    assert (own["ServerID"], own["RackID"], set(own["DeviceMap"])) == ("12", "1", {"0", "1"})
    lists = {one["metadata"]["name"]: one["data"]["pingList"] for one in super_pods.ping_list_maps(seen)}
    assert set(lists) == {f"super-pod-7-pings-{10 * rack + node}" for rack in range(3) for node in range(4)}
    tasks = pinglist.listed(lists["super-pod-7-pings-12"], per_source=True)
    pairs = {(row.src, row.dst) for task in tasks.values() for row in task[0]}
    assert set(tasks) == {0, 1} and {row.src_type for task in tasks.values() for row in task[0]} == {2}
    for chip in range(2):
        for plane in range(2):
            targets = {dst for src, dst in pairs if src == eid(1, 2, chip, plane)}
            near = {eid(1, node, chip, plane) for node in (0, 1, 3)}
            assert targets == near | {eid(rack, 2, chip, plane) for rack in (0, 2)}, "its plane, near and far"


def test_servers_that_form_no_super_pod_are_left_out() -> None:
    node, report = server950(0, 0)
    node["metadata"]["labels"]["accelerator-type"] = "850-Atlas-8p-8"
    assert super_pods.super_pod_maps(observe([node, report])) == []


def test_a_server_of_unknown_number_has_no_ping_list() -> None:
    rows = [*server950(0, 0), *server950(0, 1, index=-1), *server950(0, 2, index=-2), *server950(0, 3)]
    names = [one["metadata"]["name"] for one in super_pods.ping_list_maps(observe(rows))]
    assert names == ["super-pod-7-pings-0", "super-pod-7-pings-3"]


class Maps:
    """The ConfigMaps of an API server. ``refused`` is a name whose next write is in conflict."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {"pingmesh-config": {"data": {"global": '{"activate": "on"}'}}}
        self.refused = ""
        self.written: list[str] = []

    async def get(self, resource: Any, name: str, namespace: str) -> Any:
        return self.held.get(name)

    async def create(self, resource: Any, body: Any) -> None:
        name = body["metadata"]["name"]
        if name == self.refused:
            self.refused = ""
            raise Conflict("changed meanwhile")
        self.written.append(name)
        self.held[name] = body

    async def replace(self, resource: Any, body: Any) -> None:
        await self.create(resource, body)


def test_ping_lists_are_made_beside_the_loop_and_only_when_addresses_change(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, made = Maps(), []

    def counted(ends: Any) -> Any:
        for node, rows in ping_lists(ends):
            made.append((node, threading.current_thread() is threading.main_thread()))
            yield node, rows

    monkeypatch.setattr(super_pods, "ping_lists", counted)
    nodes = ["r0-n0", "r0-n1", "r0-n2"]
    cluster = SimpleNamespace(observed=observe([one for at in range(3) for one in server950(0, at)]), synced=True)
    writer = SuperPods(kube, cluster, lambda: True)  # type: ignore[arg-type]

    async def scenario() -> None:
        kube.refused = "super-pod-7-pings-1"
        await writer.step()
        assert made == [(name, False) for name in nodes]
        assert kube.written == ["super-pod-7", "super-pod-7-pings-0", "super-pod-7-pings-2"]
        await writer.step()
        assert kube.written[3:] == ["super-pod-7-pings-1"], "what was refused is written by the next look"
        made.clear()
        await writer.step()
        assert not made and len(kube.written) == 4, "nothing has changed"
        assert sum(map(len, writer._written.values())) <= 64, "the lists themselves are not kept"
        cluster.observed = observe([one for at in range(4) for one in server950(0, at)])
        await writer.step()
        assert len(made) == 4 and "super-pod-7-pings-3" in kube.held
        made.clear()
        kube.held["pingmesh-config"] = None
        await writer.step()
        kube.held = {"pingmesh-config": {"data": {"global": '{"activate": "on"}'}}}
        await writer.step()
        assert len(kube.held) == 6, "written once more when pings are wanted again"

    asyncio.run(scenario())
