"""What befalls a device plugin in the middle of its work: kubelet hangs, the disk is full, the agent is ended, a chip
breaks while it is being cut, words arrive late."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.agents.common import linefile
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import ServerModel
from belay.agents.kubelet import device_holdings as kubelets_books
from belay.agents.kubelet.device_holdings import DeviceHoldings, Holding, HoldingsError, _joined
from belay.agents.kubelet.holders import reconcile_grants
from belay.agents.kubelet.ledger import Grant
from belay.agents.kubelet.pods import PodFacts
from tests.agent_world import FAULT
from tests.kubelet_world import RESOURCE, Node

pytestmark = pytest.mark.real_time

CORE = "huawei.com/npu-core"
PRO = SERVER_MODELS["atlas-300i-pro"]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def chips(*numbers: int) -> list[str]:
    return [f"Ascend910-{number}" for number in numbers]


def pod(uid: str, *, running: bool = False, time: str = "7") -> PodFacts:
    return PodFacts(
        uid, "default", uid, "Pending", "", False, {RESOURCE: "Ascend910-1", "predicate-time": time}, {},
        {RESOURCE: 1}, {}, uid, frozenset(), running,
    )  # fmt: skip


def test_a_kubelet_that_hangs_keeps_no_call_waiting_beyond_its_limit() -> None:
    async def scenario() -> None:
        async with Node(ask_timeout=0.2) as node:
            await node.kubelet.admit(node.pod("a", chips(0)))
            await node.until(lambda: node.notes("a").get("huawei.com/AscendReal") == "Ascend910-0")
            node.kubelet.silent = True
            assert node.plugin.allocator is not None
            # the checkpoint goes on naming holders: pods are served, and none gets the chips of another
            await node.kubelet.admit(node.pod("b", chips(1), time=2))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("c", chips(0), time=3))
            assert "Ascend910-0 is held by pod default/a" in str(refusal.value.details())
            # with both gone nothing is dropped, and it is said
            (node.root / "k" / "kubelet_internal_checkpoint").write_bytes(b"{")
            await node.until(lambda: "kubelet's books" in node.plugin.allocator.problem)
            assert {grant.name for grant in node.plugin.allocator.grants} == {"a", "b"}
            assert "DEADLINE_EXCEEDED" in node.plugin.allocator.problem
            node.kubelet.silent = False
            await node.until(lambda: node.plugin.allocator.problem == "")

    run(scenario)


def test_a_kubelet_that_does_not_answer_a_registration_is_reported_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("belay.agents.kubelet.server.REGISTER_SECONDS", 0.1)

    async def scenario() -> None:
        node = Node()
        node.kubelet.silent = True
        await node.kubelet.start()
        await node.boot(wait=False)
        state = lambda: node.agent.state  # noqa: E731
        await node.until(lambda: state() is not None and "does not register" in state().problems.get("kubelet", ""), 10)
        node.kubelet.silent = False
        await node.until(lambda: len(node.kubelet.free()) == 8, 30)
        await node.until(lambda: "kubelet" not in state().problems)
        await node.crash()
        await node.kubelet.stop()

    run(scenario)


def test_an_answer_that_the_disk_does_not_take_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with Node() as node:
            write = linefile._write

            def full(descriptor: int, data: bytes) -> None:
                os.write(descriptor, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(linefile, "_write", full)
            body = node.pod("a", chips(3))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(body)
            assert "cannot be kept on the disk: No space left on device" in str(refusal.value.details())
            assert node.plugin.allocator is not None and node.plugin.allocator.grants == []
            monkeypatch.setattr(linefile, "_write", write)
            # half a line was left behind and is cut off: what comes after it can be read by the next agent
            assert (await node.kubelet.admit(body)).envs["ASCEND_VISIBLE_DEVICES"] == "3"
            await node.crash()
            await node.boot()
            assert [grant.chips for grant in node.plugin.allocator.grants] == [((3, 1),)]
            assert not (node.root / "state" / "grants.damaged").exists()

    run(scenario)


def test_an_agent_that_is_ended_while_it_cuts_leaves_no_vnpu_behind_and_serves_the_pod_again() -> None:
    async def scenario() -> None:
        async with Node(PRO, preset=False) as node:
            create, begun = node.driver.create_vnpu, asyncio.Event()

            async def slow(chip: int, template: str) -> Any:
                made = await create(chip, template)
                begun.set()
                await asyncio.sleep(3600)
                return made

            node.driver.create_vnpu = slow
            body = node.pod("a", ["0-vir04_3c"], resource=CORE, count=4)
            asking = asyncio.create_task(node.kubelet.admit(body, CORE))
            await begun.wait()
            await node.crash()
            assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], grpc.aio.AioRpcError)
            assert len(await node.driver.vnpus()) == 1
            node.driver.create_vnpu = create
            await node.boot()
            answer = await node.kubelet.admit(body, CORE)
            (vnpu,) = await node.driver.vnpus()
            assert answer.envs["ASCEND_VISIBLE_DEVICES"] == str(vnpu.id) and vnpu.template == "vir04_3c"

    run(scenario)


def test_what_is_cut_while_unused_vnpus_are_looked_for_is_not_taken_for_one() -> None:
    async def scenario() -> None:
        async with Node(PRO, preset=False) as node:
            allocator = node.plugin.allocator
            assert allocator is not None
            await node.until(lambda: not allocator._lock.locked())
            real, asked, go_on = node.driver.vnpus, asyncio.Event(), asyncio.Event()

            async def slow() -> Any:
                node.driver.vnpus = real
                asked.set()
                await go_on.wait()
                return await real()

            node.driver.vnpus = slow
            looking = asyncio.create_task(allocator.tidy())
            await asked.wait()
            body = node.pod("a", ["0-vir04_3c"], resource=CORE, count=4)
            giving = asyncio.create_task(node.kubelet.admit(body, CORE))
            # without a turn for each it would be given now, and be gone in a moment
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(giving), 0.3)
            go_on.set()
            await looking
            answer = await giving
            assert [str(vnpu.id) for vnpu in await real()] == [answer.envs["ASCEND_VISIBLE_DEVICES"]]

    run(scenario)


def test_a_chip_that_breaks_while_it_is_cut_is_not_given() -> None:
    async def scenario() -> None:
        async with Node(PRO, preset=False) as node:
            create = node.driver.create_vnpu

            async def breaks(chip: int, template: str) -> Any:
                made = await create(chip, template)
                node.driver.inject(chip, FAULT)
                assert node.agent.state is not None
                await node.until(lambda: not node.agent.state.healthy(chip))
                return made

            node.driver.create_vnpu = breaks
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await node.kubelet.admit(node.pod("a", ["0-vir04_3c"], resource=CORE, count=4), CORE)
            assert "Ascend310P-0 is not given" in str(refusal.value.details())
            assert node.plugin.allocator is not None and node.plugin.allocator.grants == []
            node.driver.create_vnpu = create
            node.finish("a")
            # the vNPU that no container got is given back before the next one is cut
            await node.kubelet.admit(node.pod("b", ["1-vir01"], resource=CORE, count=1, time=2), CORE)
            assert [vnpu.chip for vnpu in await node.driver.vnpus()] == [1]

    run(scenario)


def test_a_share_of_everything_is_still_the_share_that_the_scheduler_chose() -> None:
    """All hundred parts of the only chip are no whole node: the share's file needs the pod that it is for."""

    async def scenario() -> None:
        async with Node(ServerModel(chips=1), share=100, soft_share_dir="/run/shares") as node:
            quota = {
                "huawei.com/scheduler.softShareDev.aicoreQuota": "100",
                "huawei.com/scheduler.softShareDev.hbmQuota": "64",
                "huawei.com/scheduler.softShareDev.policy": "fixed-share",
            }
            await node.kubelet.admit(node.pod("a", chips(0), count=100, **quota))
            config = node.root / "enpu" / "default.a" / "0_0" / "npu_info.config"
            assert "aicore-quota=100" in config.read_text()

    run(scenario)


def test_what_kubelet_said_earlier_does_not_undo_what_it_said_later() -> None:
    async def scenario() -> None:
        async with Node() as node:
            allocator = node.plugin.allocator
            assert allocator is not None
            real, late = allocator._books.all, asyncio.Event()

            async def slow(uids: Any) -> Any:
                # what kubelet says before the pod is there, delivered only after it
                before = await real(uids)
                await late.wait()
                return before

            allocator._books.all = slow  # type: ignore[method-assign]
            asking = asyncio.create_task(allocator.reconcile(allocating=True))
            await asyncio.sleep(0)
            await node.until(lambda: allocator._asked > allocator._applied)
            allocator._books.all = real  # type: ignore[method-assign]
            await node.kubelet.admit(node.pod("a", chips(2)))
            await node.until(lambda: bool(node.notes("a").get("huawei.com/AscendReal")))
            late.set()
            await asking
            assert [(grant.name, grant.ids) for grant in allocator.grants] == [("a", ("Ascend910-2",))]

    run(scenario)


def test_a_socket_that_is_not_ours_any_more_is_left_to_its_owner() -> None:
    """A successor may listen by the name already when this one ends."""

    async def scenario() -> None:
        async with Node() as node:
            own = node.root / "k" / "Ascend910.sock"
            (server,) = node.plugin._registrar.servers.values()
            own.unlink()
            own.write_text("the successor's")
            await server.stop()
            assert own.read_text() == "the successor's"

    run(scenario)


@pytest.mark.parametrize(("running", "again"), [(False, True), (True, False)])
def test_chips_are_given_again_only_to_a_pod_that_waits(running: bool, again: bool) -> None:
    lost = Grant(1, RESOURCE, ("Ascend910-1",), ("Ascend910-1",), ((1, 1),), uid="u", meant="u", predicate="7")
    found = reconcile_grants([lost], [], {"u": pod("u", running=running)}, lambda grant: True)
    assert [grant.lost for grant in found.put] == ([True] if again else []) and found.drop == ([] if again else [1])


def test_of_two_pods_of_one_name_the_live_ones_entry_counts() -> None:
    """The checkpoint still holds the pod that is gone; its answer named other chips."""
    heard = Holding("", "default", "a", "c", RESOURCE, ("Ascend910-1",))
    written = [
        Holding("new", "", "", "c", RESOURCE, ("Ascend910-1",), ("5",)),
        Holding("old", "", "", "c", RESOURCE, ("Ascend910-1",), ("1",)),
    ]
    for order in (written, written[::-1]):
        found = _joined(heard, order, "new")
        assert (found.uid, found.visible) == ("new", ("5",))


def test_a_checkpoint_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelets_books, "MAX_CHECKPOINT", 1 << 20)
    path = tmp_path / "checkpoint"
    with path.open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(HoldingsError, match="larger than 1 MiB"):
        DeviceHoldings(tmp_path / "none", path, 1.0).checkpoint()


@pytest.mark.parametrize("what", ["kubelet.sock", ""])
def test_a_link_in_the_place_of_kubelets_socket_is_not_followed(what: str) -> None:
    """A program that could put a link there could have the chips registered with another server."""

    async def scenario() -> None:
        async with Node() as node:
            folder = node.root / "k"
            path = folder / what if what else folder
            elsewhere = node.root / "elsewhere"
            before = len(node.kubelet.registered)
            path.rename(elsewhere)
            path.symlink_to(elsewhere)
            assert node.agent.state is not None
            problems = node.agent.state.problems
            await node.until(lambda: problems.get("kubelet", "").endswith("is a symbolic link"))
            assert len(node.kubelet.registered) == before
            path.unlink()
            elsewhere.rename(path)
            await node.until(lambda: len(node.kubelet.free()) == 8 and "kubelet" not in problems, 10)

    run(scenario)


def test_a_kubelet_that_registers_and_never_listens_ends_the_agent_for_a_new_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("belay.agents.kubelet.registrar.LISTENS", 0.0)

    async def scenario() -> None:
        node = Node()
        ended = asyncio.Event()

        async def deaf(resource: str, channel: Any) -> None:
            """It takes the registration, and that is all."""

        node.kubelet._listen = deaf  # type: ignore[method-assign]
        await node.kubelet.start()
        await node.boot(wait=False)
        node.plugin._registrar._end = ended.set
        await asyncio.wait_for(ended.wait(), 30)
        assert len(node.kubelet.registered) >= 15
        await node.crash()
        await node.kubelet.stop()

    run(scenario)
