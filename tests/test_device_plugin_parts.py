"""vNPUs and shares through the device plugin: static, cut on demand, counted shares, soft shares."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import ServerModel
from belay.agents.kubelet.slownode import settings_of
from tests.agent_world import FAULT
from tests.kubelet_world import Node

CORE = "huawei.com/npu-core"
PRO = SERVER_MODELS["atlas-300i-pro"]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_static_vnpus_are_resources_of_their_own_and_kubelets_choice_holds() -> None:
    async def scenario() -> None:
        node = Node(PRO)
        for template in ("vir04_3c", "vir01"):
            await node.driver.create_vnpu(0, template)
        async with node:
            sizes = "huawei.com/Ascend310P-4c.3cpu"
            await node.until(lambda: len(node.kubelet.devices) == 3)
            assert set(node.kubelet.devices[sizes]) == {"Ascend310P-4c.3cpu-100-0"}
            assert set(node.kubelet.devices["huawei.com/Ascend310P-1c"]) == {"Ascend310P-1c-101-0"}
            whole = node.kubelet.devices["huawei.com/Ascend310P"]
            assert "Ascend310P-0" not in whole and "Ascend310P-1" in whole
            body = node.pod("a", [], resource=sizes, count=1)
            answer = await node.kubelet.admit(body, sizes)
            assert dict(answer.envs) == {"ASCEND_VISIBLE_DEVICES": "100", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend310P-4c.3cpu-100-0")
            node.driver.inject(0, FAULT)
            await node.until(lambda: node.kubelet.free("huawei.com/Ascend310P-1c") == set())

    run(scenario)


def test_cores_are_cut_as_the_scheduler_chose_and_given_back_when_no_pod_has_them() -> None:
    async def scenario() -> None:
        node = Node(PRO, preset=False)
        leftover = await node.driver.create_vnpu(0, "vir01")
        async with node:
            assert node.kubelet.registered == [CORE]
            chips = node.driver.row.chips
            assert len(node.kubelet.devices[CORE]) == 8 * chips
            await node.until(lambda: leftover.id not in {v.id for v in node.driver._vnpus.values()})
            body = node.pod("a", ["0-vir04_3c"], resource=CORE, count=4)
            answer = await node.kubelet.admit(body, CORE)
            (vnpu,) = await node.driver.vnpus()
            assert (vnpu.chip, vnpu.template) == (0, "vir04_3c")
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == str(vnpu.id)
            assert answer.envs["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"
            assert (answer.envs["WORLD_SIZE"], answer.envs["LOCAL_RANK"]) == ("1", "0")
            real = f"Ascend310P-4c.3cpu-{vnpu.id}-0_0"  # with its vGroup
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == real)
            # whole chips by the same resource
            two = node.pod("b", ["1"], resource=CORE, count=8, time=2) if chips > 1 else None
            if two is not None:
                assert (await node.kubelet.admit(two, CORE)).envs["ASCEND_VISIBLE_DEVICES"] == "1"
            # a fault on the chip: the cores that are left of it are gone, those in use stay counted
            free = len(node.kubelet.free(CORE))
            node.driver.inject(0, FAULT)
            await node.until(lambda: len(node.kubelet.free(CORE)) == free - 4)
            node.driver.clear(0, FAULT)
            await node.until(lambda: len(node.kubelet.free(CORE)) == free)
            # the agent forgets everything: kubelet's answer says whose the vNPU is
            await node.crash()
            (node.root / "state" / "grants").unlink()
            await node.boot()
            await node.until(lambda: bool(node.plugin.allocator and node.plugin.allocator.grants))
            assert [v.id for v in await node.driver.vnpus()] == [vnpu.id]
            assert [g.real for g in node.plugin.allocator.grants if g.vdev] == [(real,)]  # type: ignore[union-attr]
            node.finish("a")
            node.delete("a")
            await node.until(lambda: not any(g.vdev for g in node.plugin.allocator.grants))  # type: ignore[union-attr]
            await node.kubelet.admit(node.pod("c", ["0-vir01"], resource=CORE, count=1, time=3), CORE)
            assert [v.template for v in await node.driver.vnpus()] == ["vir01"]

    run(scenario)


def test_the_names_of_vnpus_that_were_cut_end_in_their_vgroups() -> None:
    async def scenario() -> None:
        async with Node(PRO, preset=False) as node:
            # 310P: four groups of two cores and more; two vNPUs of one core share one
            wanted = {"a": ("vir01", 1, "1c", 0), "b": ("vir02_1c", 2, "2c.1cpu", 1), "c": ("vir01", 1, "1c", 0)}
            for time, (name, (template, cores, spec, group)) in enumerate(wanted.items(), start=1):
                body = node.pod(name, [f"0-{template}"], resource=CORE, count=cores, time=time)
                answer = await node.kubelet.admit(body, CORE)
                real = f"Ascend310P-{spec}-{answer.envs['ASCEND_VISIBLE_DEVICES']}-0_{group}"
                await node.until(lambda n=name, r=real: node.notes(n).get("huawei.com/AscendReal") == r)

    run(scenario)


def test_a_vnpu_that_cannot_be_cut_is_said_so() -> None:
    async def scenario() -> None:
        async with Node(PRO, preset=False) as node:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("a", ["0-vir03_1c_8g"], resource=CORE, count=3), CORE)
            assert "NPUSegmentFailed" in str(refusal.value.details())
            node.finish("a")

            async def fails(chip: int, template: str) -> None:
                raise DriverError("no")

            node.driver.create_vnpu = fails
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("b", ["0-vir01"], resource=CORE, count=1, time=2), CORE)
            assert "NPUSegmentFailed: Ascend310P-0 cannot be cut: no" in str(refusal.value.details())
            node.finish("b")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("c", ["0-vir02"], resource=CORE, count=4, time=3), CORE)
            assert "NoNPUResource" in str(refusal.value.details())

    run(scenario)


def test_counted_shares_of_a_chip() -> None:
    async def scenario() -> None:
        async with Node(PRO, share=3, volcano=False) as node:
            resource = "huawei.com/Ascend310P"
            ids = node.kubelet.devices[resource]
            assert len(ids) == 3 * node.driver.row.chips and "Ascend310P-0-2" in ids
            answer = await node.kubelet.admit(node.pod("a", ["x"], resource=resource), resource)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "0"
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend310P-0-0")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("b", ["x", "y"], resource=resource), resource)
            assert "a container may have one" in str(refusal.value.details())

    run(scenario)


def test_soft_shares_get_their_file_and_lie_on_the_chip_that_was_chosen() -> None:
    async def scenario() -> None:
        async with Node(ServerModel(), share=100, soft_share_dir="/run/shares") as node:
            resource = "huawei.com/Ascend910"
            assert len(node.kubelet.devices[resource]) == 800
            quota = {
                "huawei.com/scheduler.softShareDev.aicoreQuota": "30",
                "huawei.com/scheduler.softShareDev.hbmQuota": "1024",
                "huawei.com/scheduler.softShareDev.policy": "elastic",
            }
            body = node.pod("a", ["Ascend910-5"], resource=resource, count=30, **quota)
            answer = await node.kubelet.admit(body, resource)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "5"
            (mount,) = answer.mounts
            assert (mount.container_path, mount.read_only) == ("/etc/enpu/vcann-rt/", True)
            folder = node.root / "enpu" / "default.a" / "5_0"
            assert mount.host_path == str(folder)
            assert (folder / "npu_info.config").read_text() == (
                "physical-npu-id=5\nvirtual-npu-id=0\naicore-quota=30\nmemory-quota=1024\nscheduling-policy=2\n"
            )
            again = node.pod("b", ["Ascend910-5"], resource=resource, count=60, time=2, **quota)
            await node.kubelet.admit(again, resource)
            assert (node.root / "enpu" / "default.b" / "5_1").is_dir()
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(
                    node.pod("c", ["Ascend910-5"], resource=resource, count=20, time=3, **quota), resource
                )
            assert "Ascend910-5 is held by pod default/a" in str(refusal.value.details())
            assert len(node.kubelet.free(resource)) == 710
            node.finish("a")
            await node.until(lambda: not folder.parent.exists())

    run(scenario)


PERF = {"PERF_DUMP_PATH": "/perf", "PERF_DUMP_CONFIG": "step:true,group:true"}
DOCUMENTED = {"data": {"PerfDumpPath": "/perf", "PerfDumpConfig": "step:true,group:true"}}


def test_containers_get_the_settings_of_the_degradation_diagnosis_as_they_are_now() -> None:
    """With -enableSlowNode, from kube-system/steptime-dtpgroup in the documented form, without waiting for a poll."""

    async def scenario() -> None:
        node = Node(slow_node=True)
        async with node:
            given = (await node.kubelet.admit(node.pod("before", ["Ascend910-0"]))).envs
            assert not set(PERF) & set(given)
            metadata = {"namespace": "kube-system", "name": "steptime-dtpgroup"}
            node.cluster.set_map({"metadata": metadata, "data": {"any": json.dumps(DOCUMENTED)}})
            await node.until(lambda: node.plugin._slow_node.settings == PERF, seconds=20)
            given = (await node.kubelet.admit(node.pod("a", ["Ascend910-1"], time=2))).envs
            assert {name: given[name] for name in PERF} == PERF
            node.cluster.set_map(None, **metadata)
            await node.until(lambda: not node.plugin._slow_node.settings, seconds=20)
            given = (await node.kubelet.admit(node.pod("after", ["Ascend910-2"], time=3))).envs
            assert not set(PERF) & set(given)

    run(scenario)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({}, {}),
        ({"k": json.dumps(DOCUMENTED)}, PERF),
        (PERF, PERF),
        # the last key by name counts
        ({"a": json.dumps(DOCUMENTED), "b": '{"data": {"PerfDumpPath": "/b"}}'}, PERF | {"PERF_DUMP_PATH": "/b"}),
        ({"k": '{"data": {"PerfDumpPath": "", "PerfDumpConfig": 1}}'}, {}),
        ({"k": "not JSON"}, {}), ({"k": "[]"}, {}), ({"k": '{"data": []}'}, {}), ({"k": "[" * 100_000}, {}),
    ],
    ids=["none", "documented", "variables", "two keys", "other types", "no JSON", "list", "list inside", "deep"],
)  # fmt: skip
def test_settings_of_the_diagnosis_that_are_odd_end_nothing(data: dict[str, str], wanted: dict[str, str]) -> None:
    assert settings_of(data) == wanted
