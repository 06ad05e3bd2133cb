"""The device plugin against a kubelet of memory behind real sockets: who gets what, and what kubelet can still give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import msgspec
import pytest

from belay.agents.drivers.base import Chip
from belay.agents.drivers.server_models import machine
from belay.agents.drivers.simulated import ServerModel
from belay.agents.kubelet.cutting import Refused
from tests.agent_world import FAULT
from tests.kubelet_world import RESOURCE, Node

USED = "18446744073709551615"


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))


def chips(*numbers: int) -> list[str]:
    return [f"Ascend910-{n}" for n in numbers]


def test_a_pod_gets_the_chips_of_its_annotation_and_is_annotated_with_them() -> None:
    async def scenario() -> None:
        async with Node() as node:
            assert node.kubelet.registered == [RESOURCE]
            assert node.kubelet.devices[RESOURCE] == dict.fromkeys(chips(*range(8)), "Healthy")
            body = node.pod("a", chips(2, 5))
            answer = await node.kubelet.admit(body)
            assert dict(answer.envs) == {"ASCEND_VISIBLE_DEVICES": "2,5", "ASCEND_RUNTIME_OPTIONS": ""}
            assert not answer.devices
            await node.until(lambda: "huawei.com/kltDev" in node.notes("a"))
            notes = node.notes("a")
            assert notes["huawei.com/AscendReal"] == notes["huawei.com/kltDev"] == "Ascend910-2,Ascend910-5"
            assert notes["predicate-time"] == USED
            found = json.loads(notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"])
            assert (found["pod_name"], found["server_id"], found["host_ip"]) == ("a", "u-a", "10.0.0.9")
            assert [d["device_id"] for d in found["devices"]] == ["2", "5"]
            assert all(d["device_ip"].startswith("10.") for d in found["devices"])
            # outside super pods and racks, in the device plugin's words
            assert (found["super_pod_id"], found["server_index"], found["rack_id"]) == (-2, "-2", 0)
            assert [d["super_device_id"] for d in found["devices"]] == ["-2", "-2"]

    run(scenario)


def test_three_equal_pods_out_of_order_share_out_what_was_meant_for_them() -> None:
    async def scenario() -> None:
        async with Node() as node:
            bodies = [node.pod(name, chips(n), time=n + 1) for n, name in enumerate("abc")]
            given = {}
            for body in (bodies[2], bodies[0], bodies[1]):
                answer = await node.kubelet.admit(body)
                given[body["metadata"]["name"]] = answer.envs["ASCEND_VISIBLE_DEVICES"]
            assert given == {"c": "0", "a": "1", "b": "2"}
            await node.until(lambda: all("huawei.com/kltDev" in node.notes(n) for n in "abc"))
            real = {name: node.notes(name)["huawei.com/AscendReal"] for name in "abc"}
            assert real == {"c": "Ascend910-0", "a": "Ascend910-1", "b": "Ascend910-2"}
            assert node.kubelet.free() == set(chips(3, 4, 5, 6, 7))

    run(scenario)


def test_the_oldest_decision_with_the_same_size_is_served_first() -> None:
    async def scenario() -> None:
        async with Node() as node:
            node.pod("late", chips(4), time=50)
            two = node.pod("two", chips(0, 1), time=1)
            early = node.pod("early", chips(3), time=20)
            assert (await node.kubelet.admit(early)).envs["ASCEND_VISIBLE_DEVICES"] == "3"
            assert (await node.kubelet.admit(two)).envs["ASCEND_VISIBLE_DEVICES"] == "0,1"

    run(scenario)


def test_without_an_order_of_the_scheduler_a_pod_is_refused() -> None:
    async def scenario() -> None:
        async with Node() as node:
            body = node.pod("x", chips(1, 2), time=1)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(body, count=3)
            assert "NoNPUResource" in str(refusal.value.details())
            body["metadata"]["annotations"]["predicate-time"] = USED
            node.cluster.notify("pods")
            await node.until(lambda: node.plugin._pods.known["u-x"].predicate_time == int(USED))
            with pytest.raises(grpc.aio.AioRpcError):
                await node.kubelet.admit(body)

    run(scenario)


def test_a_fault_on_a_chip_held_under_another_id_leaves_the_rest_of_the_node_to_the_next_pod() -> None:
    async def scenario() -> None:
        async with Node() as node:
            # kubelet takes its own ids: 0 stands for chip 3 from now on
            await node.kubelet.admit(node.pod("a", chips(3)), prefer=False)
            await node.until(lambda: "huawei.com/kltDev" in node.notes("a"))
            assert node.notes("a")["huawei.com/kltDev"] == "Ascend910-0"
            assert node.notes("a")["huawei.com/AscendReal"] == "Ascend910-3"
            node.driver.inject(3, FAULT)
            await node.until(lambda: "Ascend910-3" in node.listed("Unhealthy"))
            # what kubelet can give is what the engine counts as free: all but the chip in use
            assert set(node.kubelet.devices[RESOURCE].values()) == {"Healthy"}
            assert len(node.kubelet.free()) == 7 == len(node.listed(""))
            rest = node.pod("b", chips(0, 1, 2, 4, 5, 6, 7), time=2)
            answer = await node.kubelet.admit(rest)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "0,1,2,4,5,6,7"
            # once the first has gone, its id stands for the chip that is still faulty
            node.finish("a")
            node.delete("a")
            await node.until(lambda: node.kubelet.devices[RESOURCE]["Ascend910-0"] == "Unhealthy")
            assert node.kubelet.free() == set()

    run(scenario)


def test_a_chip_that_another_live_pod_has_is_refused() -> None:
    async def scenario() -> None:
        async with Node() as node:
            await node.kubelet.admit(node.pod("a", chips(3)))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("b", chips(3, 4), time=2))
            assert "Ascend910-3 is held by pod default/a" in str(refusal.value.details())
            node.finish("b")
            node.finish("a", "Succeeded")
            await node.kubelet.admit(node.pod("c", chips(3, 4), time=3))

    run(scenario)


def test_an_answer_that_a_dying_kubelet_never_wrote_down_is_given_again() -> None:
    async def scenario() -> None:
        async with Node() as node:
            body = node.pod("a", chips(6))
            node.kubelet.forget_answer = True
            with pytest.raises(RuntimeError):
                await node.kubelet.admit(body)
            await node.until(lambda: node.notes("a")["predicate-time"] == USED)
            node.kubelet.forget_answer = False
            await node.kubelet.restart()
            await node.until(lambda: bool(node.kubelet.devices))
            assert (await node.kubelet.admit(body)).envs["ASCEND_VISIBLE_DEVICES"] == "6"
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend910-6")

    run(scenario)


@pytest.mark.parametrize("remembers", [True, False])
def test_a_restarted_agent_knows_which_pod_has_which_chips(remembers: bool) -> None:
    async def scenario() -> None:
        async with Node() as node:
            await node.kubelet.admit(node.pod("a", chips(3)), prefer=False)
            await node.crash()
            if not remembers:
                (node.root / "state" / "grants").unlink()
            await node.boot()
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend910-3")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("b", chips(3, 4), time=2))
            assert "held by pod default/a" in str(refusal.value.details())

    run(scenario)


def test_an_agent_that_dies_before_it_answers_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with Node() as node:
            body = node.pod("a", chips(2))
            await node.seen("a")
            assert node.plugin.allocator is not None
            # the decision is on the disk, kubelet never hears it
            await node.plugin.allocator.allocate(RESOURCE, chips(2))
            await node.crash()
            await node.boot()
            assert (await node.kubelet.admit(body)).envs["ASCEND_VISIBLE_DEVICES"] == "2"

    run(scenario)


def test_a_restarted_kubelet_is_registered_with_and_running_pods_keep_their_chips() -> None:
    async def scenario() -> None:
        async with Node() as node:
            await node.kubelet.admit(node.pod("a", chips(0)))
            await node.kubelet.restart()
            await node.until(lambda: len(node.kubelet.registered) == 2 and bool(node.kubelet.devices))
            await node.kubelet.admit(node.pod("b", chips(1, 2, 3, 4, 5, 6, 7), time=2))
            await node.until(lambda: "huawei.com/kltDev" in node.notes("b"))
            assert node.kubelet.free() == set()

    run(scenario)


def test_a_group_leaves_kubelet_before_it_is_reset_and_returns_afterwards() -> None:
    async def scenario() -> None:
        async with Node() as node:
            node.driver.inject(5, FAULT)
            await node.until(lambda: node.kubelet.devices[RESOURCE]["Ascend910-5"] == "Unhealthy")
            assert len(node.kubelet.free()) == 7
            await node.kubelet.admit(node.pod("a", chips(0)))
            node.order_reset(range(8), 1)
            await node.until(lambda: node.kubelet.free() == set())
            # kubelet may still ask for what it was offered a moment ago
            body = node.pod("b", chips(1), time=2)
            await node.seen("b")
            assert node.plugin.allocator is not None
            with pytest.raises(Refused, match="an order is about to act on it"):
                await node.plugin.allocator.allocate(RESOURCE, chips(1))
            assert node.driver.resets == []
            node.finish("b")
            node.delete("a")
            del body
            await node.until(lambda: node.driver.resets == [tuple(range(8))], 15)
            await node.until(lambda: len(node.kubelet.free()) == 8, 15)

    run(scenario)


def test_without_a_scheduler_kubelets_choice_is_used_as_it_is() -> None:
    async def scenario() -> None:
        async with Node(volcano=False, runtime=False) as node:
            body = node.pod("a", chips(9, 9))
            answer = await node.kubelet.admit(body, prefer=False)
            assert [d.container_path for d in answer.devices][:2] == ["/dev/davinci0", "/dev/davinci1"]
            assert not answer.envs
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend910-0,Ascend910-1")

    run(scenario)


def test_a_pod_that_takes_the_whole_node_needs_no_choice() -> None:
    async def scenario() -> None:
        async with Node() as node:
            body = node.pod("a", [], count=8)
            answer = await node.kubelet.admit(body)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
            await node.until(lambda: "huawei.com/kltDev" in node.notes("a"))

    run(scenario)


def test_an_init_containers_chips_go_on_to_the_container_after_it() -> None:
    async def scenario() -> None:
        async with Node() as node:
            body = node.pod("a", chips(4, 6))
            body["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {RESOURCE: "2"}}}]
            node.cluster.notify("pods")
            first = await node.kubelet.admit(body, container="i")
            again = await node.kubelet.admit(body, reuse=node.kubelet.taken["u-a", "i", RESOURCE])
            assert first.envs["ASCEND_VISIBLE_DEVICES"] == again.envs["ASCEND_VISIBLE_DEVICES"] == "4,6"
            await node.until(lambda: node.notes("a").get("huawei.com/kltDev") == "Ascend910-4,Ascend910-6")
            assert len(node.kubelet.free()) == 6

    run(scenario)


def test_the_api_server_is_not_needed_for_an_answer() -> None:
    async def scenario() -> None:
        async with Node() as node:
            body = node.pod("a", chips(2))
            await node.seen("a")
            node.cluster.offline = True
            assert (await node.kubelet.admit(body)).envs["ASCEND_VISIBLE_DEVICES"] == "2"
            # the same chips are not given twice, although nothing could be written on the pod
            with pytest.raises(grpc.aio.AioRpcError):
                await node.kubelet.admit(body)
            node.cluster.offline = False
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend910-2")

    run(scenario)


def test_a_pod_that_is_bound_while_kubelet_asks_is_waited_for() -> None:
    async def scenario() -> None:
        async with Node(pause=2.0) as node:
            body = node.pod("a", chips(2))
            node.cluster.pod_list.clear()
            asked = asyncio.create_task(node.kubelet.admit(body))
            await asyncio.sleep(0.1)
            node.cluster.set_pods([body])
            assert (await asked).envs["ASCEND_VISIBLE_DEVICES"] == "2"

    run(scenario)


def test_a_removed_socket_is_served_and_registered_again() -> None:
    async def scenario() -> None:
        async with Node() as node:
            (node.root / "k" / "Ascend910.sock").unlink()
            await node.until(
                lambda: len(node.kubelet.registered) == 2 and (node.root / "k" / "Ascend910.sock").exists()
            )
            assert (node.root / "k" / "Ascend910.sock").stat().st_mode & 0o777 == 0o600
            node.plugin.register_again()
            # kubelet hears of the devices a moment after the registration
            await node.until(lambda: len(node.kubelet.registered) == 3 and node.kubelet.free() != set())
            assert (await node.kubelet.admit(node.pod("a", chips(1)))).envs["ASCEND_VISIBLE_DEVICES"] == "1"

    run(scenario)


@pytest.mark.parametrize("ids", [["Ascend910-8"], ["Ascend910-0", "Ascend910-0"], [], ["Ascend910-0"] * 801])
def test_ids_that_make_no_sense_are_refused(ids: list[str]) -> None:
    async def scenario() -> None:
        async with Node() as node:
            assert node.plugin.allocator is not None
            with pytest.raises(Refused):
                await node.plugin.allocator.allocate(RESOURCE, ids)

    run(scenario)


def test_newer_servers_are_offered_by_logic_ids() -> None:
    async def scenario() -> None:
        row = ServerModel(
            machine=machine("huawei.com/npu", "Ascend950PR"), chips=4, reset_groups=((0,), (1,), (2,), (3,))
        )
        node = Node(row)
        listed = await node.driver.chips()

        async def swapped() -> list[Chip]:
            return [msgspec.structs.replace(chip, logic_id=3 - chip.id) for chip in listed]

        node.driver.chips = swapped
        async with node:
            resource = "huawei.com/npu"
            answer = await node.kubelet.admit(node.pod("a", ["npu-0"], resource=resource), resource)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "0"
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "npu-0")
            # kubelet's ids are the physical ones
            assert node.notes("a")["huawei.com/kltDev"] == "npu-3"
            found = json.loads(node.notes("a")["ascend.kubectl.kubernetes.io/ascend-npu-configuration"])
            assert [d["device_id"] for d in found["devices"]] == ["3"]

    run(scenario)


def test_a_pod_that_comes_back_under_its_name_is_not_taken_for_the_one_before() -> None:
    """Kubelet names holders, and may still name the pod before when the agent already sees the next one."""

    async def scenario() -> None:
        async with Node() as node:
            await node.kubelet.admit(node.pod("a", chips(0, 1)))
            await node.until(lambda: "huawei.com/kltDev" in node.notes("a"))
            again = json.loads(json.dumps(node.cluster.pod_list[0]))
            again["metadata"] |= {
                "uid": "u-again",
                "annotations": {RESOURCE: "Ascend910-1,Ascend910-4", "predicate-time": "2"},
            }
            node.cluster.set_pods([again])
            await node.until(lambda: "u-again" in (node.plugin._pods.known or {}))
            assert node.plugin.allocator is not None
            for _ in range(3):
                await node.plugin.allocator.reconcile()
            # what the pod before had stays taken as long as kubelet says so, and nothing is written on the new one
            assert [(g.uid, g.real) for g in node.plugin.allocator.grants] == [("u-a", tuple(chips(0, 1)))]
            assert not {"huawei.com/kltDev", "huawei.com/AscendReal"} & node.notes("a").keys()
            node.kubelet.remove("u-a")
            answer = await node.kubelet.admit(again)
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == "1,4"
            await node.until(lambda: "huawei.com/kltDev" in node.notes("a"))
            assert node.notes("a")["huawei.com/AscendReal"] == "Ascend910-1,Ascend910-4"

    run(scenario)
