"""A chip healed under its job: what the agent waits for, what it refuses, and that nothing happens twice."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.node.in_place_recovery import CODES, HEALING, PROCESSES, RESETTING, InPlaceRecovery, Step
from belay.engine.model.cluster import InPlaceReset
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX
from belay.engine.wire.orders import build_orders, parse_orders
from tests import agent_world
from tests.agent_world import FAULT, NODE, ORDERS_KEY, World, journal_lines, pod

RING = [f"Ascend910-{chip}" for chip in range(8)]
REQUEST, BUSINESS = "80818C00", "80E20207"
LEVELS = {FAULT: "RestartNPU", REQUEST: "RestartRequest", BUSINESS: "RestartBusiness"}


def scenario(folder: Path, story: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def graded(world: World) -> None:
        world.policy = msgspec.structs.replace(
            world.policy, rules=msgspec.structs.replace(world.policy.rules, table=world.policy.rules.table | LEVELS)
        )
        await story(world)

    agent_world.scenario(folder, graded, **options)


def order(world: World, policy: str, epoch: int = 1, *, uid: str = "u-job", read: float = 30.0) -> None:
    """An order to heal the ring under pod ``job``, whose managers have ``read`` seconds to hear of it."""
    world.order({0: epoch}, not_before=world.clock.wall + read)
    orders = parse_orders(world.cluster.maps[ORDERS_KEY])
    online = InPlaceReset("default/job", uid, policy)
    resets = {chip: msgspec.structs.replace(reset, online=online) for chip, reset in orders.resets.items()}
    world.cluster.set_map(build_orders(msgspec.structs.replace(orders, resets=resets), "Ascend910-"))


async def busy(world: World, code: str = FAULT, *, processes: int = 1) -> None:
    """A job on the whole ring, with processes on every chip, and a fault on chip 3."""
    world.cluster.set_pods([pod("job", RING)])
    for chip in range(8):
        world.driver.occupy(chip, processes)
    await world.start(10)
    world.driver.inject(3, code)
    await world.run(6)


def stop(world: World) -> None:
    for chip in range(8):
        world.driver.occupy(chip, 0)


def stage(world: World) -> str:
    return world.report.chips[0].reset_stage


def lists(world: World) -> dict[str, str]:
    data: Mapping[str, str] = world.cluster.maps[(DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)]["data"]
    found: dict[str, str] = json.loads(data["DeviceInfoCfg"])["DeviceInfo"]["DeviceList"]
    return {key.removeprefix("huawei.com/Ascend910"): value for key, value in found.items()}


def test_the_ring_is_reset_once_its_processes_have_ended(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        assert lists(world)["-Unhealthy"] == "Ascend910-3"
        order(world, "reset")
        await world.run(20)
        assert world.driver.resets == [] and world.agent.withheld(0)  # managers are still reading
        assert lists(world)["-Unhealthy"] == ""  # the planner is not to move the job meanwhile
        await world.run(30)
        assert world.driver.resets == [] and stage(world) == PROCESSES and world.result()[0] == 0
        stop(world)
        await world.run(10)
        assert world.driver.resets == [tuple(range(8))]
        assert (lists(world)["-Unhealthy"], lists(world)["-Recovering"]) == ("", "")
        await world.run(25)
        assert world.result()[0] == 0  # booted, and not yet ready for the job
        await world.run(40)
        assert [world.result(chip) for chip in range(8)] == [(1, "ok")] * 8 and stage(world) == ""
        assert world.agent.withheld(0) is None and lists(world)["-Unhealthy"] == ""

    scenario(tmp_path, story)


def test_processes_that_do_not_end_fail_it_and_nothing_was_touched(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        order(world, "reset")
        await world.run(30 + 58)
        assert world.result()[0] == 0
        await world.run(10)
        assert world.result() == (1, "failed: 8 processes did not end in 60 s")
        assert world.driver.resets == [] and lists(world)["-Unhealthy"] == "Ascend910-3"
        assert not any(line["kind"] == "begin" for line in journal_lines(world))

    scenario(tmp_path, story)


def test_a_request_fault_that_clears_needs_no_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world, REQUEST)
        order(world, "restart_request")
        await world.run(40)
        assert stage(world) == CODES
        world.driver.clear(3, REQUEST)
        await world.run(8)
        assert world.result() == (1, "ok") and world.driver.resets == []

    scenario(tmp_path, story)


def test_a_request_fault_that_stays_is_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world, REQUEST)
        order(world, "restart_request")
        await world.run(30 + 32)
        assert stage(world) == PROCESSES
        stop(world)
        await world.run(120)
        assert world.result() == (1, "ok") and world.driver.resets == [tuple(range(8))]

    scenario(tmp_path, story)


@pytest.mark.parametrize("heals", [True, False])
def test_a_business_fault_has_a_moment_to_heal_without_processes(tmp_path: Path, heals: bool) -> None:
    async def story(world: World) -> None:
        await busy(world, BUSINESS)
        order(world, "restart")
        await world.run(32)
        stop(world)
        await world.run(8)
        assert stage(world) == HEALING
        if heals:
            world.driver.clear(3, BUSINESS)
        await world.run(120)
        assert world.result() == (1, "ok")
        assert world.driver.resets == ([] if heals else [tuple(range(8))])

    scenario(tmp_path, story)


def test_a_chip_that_comes_back_faulty_has_failed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        stop(world)
        world.driver.fail_resets(1)
        order(world, "reset")
        await world.run(120)
        assert world.result() == (1, "failed: the driver returned -8020: reset failed")
        await world.run(900)
        assert len(world.driver.resets) == 1  # no second reset without an order

    scenario(tmp_path, story)


STRANGERS: dict[str, tuple[Sequence[dict[str, Any]], str]] = {
    "another pod on the ring": ([pod("job", RING[:4]), pod("other", RING[4:])], "in use by default/other"),
    "the pod is gone": ([], "pod default/job is gone or going"),
    "the pod is going": ([pod("job", RING, deleting=True)], "pod default/job is gone or going"),
    "the pod has ended": ([pod("job", RING, phase="Succeeded")], "pod default/job is gone or going"),
}


@pytest.mark.parametrize("case", STRANGERS, ids=str)
def test_only_the_named_pod_may_be_on_the_ring(tmp_path: Path, case: str) -> None:
    pods, why = STRANGERS[case]

    async def story(world: World) -> None:
        await busy(world)
        order(world, "reset")
        await world.run(10)
        stop(world)
        world.cluster.set_pods(pods)
        await world.run(120)
        assert world.result() == (1, f"refused: {why}") and world.driver.resets == []

    scenario(tmp_path, story)


def test_a_pod_recreated_under_the_same_name_is_another(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        stop(world)
        order(world, "reset", uid="u-before")
        await world.run(60)
        assert world.result()[1].startswith("refused: pod default/job") and world.driver.resets == []

    scenario(tmp_path, story)


class Books:
    """Kubelet's books, as a witness reads them."""

    name = "kubelet pod resources"

    def __init__(self, who: str) -> None:
        self.who = who

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        return dict.fromkeys(chips, self.who)


@pytest.mark.parametrize(
    ("who", "result"),
    [
        ("pod default/job", "ok"),
        ("pod u-job", "ok"),
        ("pod default/ghost", "refused: Ascend910-0 is in use by pod default/ghost (kubelet pod resources)"),
    ],
)
def test_kubelets_books_may_name_that_pod_only(tmp_path: Path, who: str, result: str) -> None:
    async def story(world: World) -> None:
        world.witnesses = [Books(who)]
        await busy(world)
        stop(world)
        order(world, "reset")
        await world.run(150)
        assert world.result() == (1, result) and bool(world.driver.resets) is (result == "ok")

    scenario(tmp_path, story)


def test_an_epoch_never_runs_twice_whatever_happens(tmp_path: Path) -> None:
    """The agent dies between journal and answer: the episode has failed, and the order is never taken again."""

    async def story(world: World) -> None:
        await busy(world)
        stop(world)
        order(world, "reset", read=5)
        await world.run(12)
        assert len(world.driver.resets) == 1 and world.result()[0] == 0
        await world.restart(60)
        assert world.result() == (1, "failed: interrupted")
        order(world, "reset", read=5)  # the same epoch once more
        await world.run(120)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_a_restart_before_the_reset_restarts_the_wait(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        order(world, "reset")
        await world.run(60)
        await world.restart(20)
        assert world.result()[0] == 0 and world.driver.resets == []
        stop(world)
        await world.run(120)
        assert world.result() == (1, "ok") and len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_a_withdrawn_order_gives_the_ring_back_to_its_job(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        order(world, "reset")
        await world.run(40)
        assert stage(world) == PROCESSES
        world.withdraw()
        await world.run(5)
        assert stage(world) == "" and world.report.orders_seen == world.generation
        stop(world)
        await world.run(200)
        assert world.driver.resets == [] and lists(world)["-Unhealthy"] == "Ascend910-3"

    scenario(tmp_path, story)


def test_an_order_past_its_time_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await busy(world)
        stop(world)
        await world.kill()
        order(world, "reset")
        await world.clock.advance(1000)
        await world.start(30)
        assert world.result() == (1, "refused: the order has expired") and world.driver.resets == []

    scenario(tmp_path, story)


def test_nothing_happens_where_resets_are_off(tmp_path: Path) -> None:
    from belay.agents.node.settings import Settings

    async def story(world: World) -> None:
        await busy(world)
        stop(world)
        order(world, "reset")
        await world.run(60)
        assert world.result()[1].startswith("refused: resets are switched off") and world.driver.resets == []

    scenario(tmp_path, story, settings=Settings(resets=False))


# ---- the waiting itself


@pytest.mark.parametrize(
    ("policy", "looks"),
    [
        ("reset", [(0, 2, True, PROCESSES), (60, 2, True, "failed"), ]),
        ("reset", [(0, 0, True, "go")]),
        ("reset", [(0, 0, False, "ok")]),
        ("restart_request", [(0, 9, True, CODES), (29, 9, False, "ok")]),
        ("restart_request", [(30, 9, True, PROCESSES), (89, 9, True, PROCESSES), (90, 9, True, "failed")]),
        ("restart_request", [(30, 0, True, "go")]),
        ("restart", [(5, 0, True, HEALING), (19, 0, True, HEALING), (20, 0, True, "go")]),
        ("restart", [(5, 0, True, HEALING), (20, 0, False, "ok")]),
        ("restart", [(5, 0, True, HEALING), (9, 1, True, PROCESSES), (70, 1, True, "failed")]),
    ],
)  # fmt: skip
def test_stages(policy: str, looks: list[tuple[float, int, bool, str]]) -> None:
    watch = InPlaceRecovery(InPlaceReset("ns/p", "u", policy), 0.0)
    for now, processes, faulty, wanted in looks:
        step = watch.next_step(now, processes, faulty)
        if wanted == "go":
            assert step == Step() and watch.stage == RESETTING
        elif wanted in ("ok", "failed"):
            assert step.result.startswith(wanted)
        else:
            assert (step.stage, step.result) == (wanted, "") and step.wait > 0
