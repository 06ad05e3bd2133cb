"""An agent without an engine: its own resets follow the device plugin, and stops when an engine shows itself."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.agents.drivers.server_models import ServerModel
from belay.agents.node.engine_presence import ABSENT_SECONDS
from belay.agents.node.own_resets import TOKENS, WINDOW
from belay.agents.node.settings import Settings
from belay.engine.model.faults import CodeRules
from belay.engine.wire import faultconfig
from belay.engine.wire.names import SYNC, SYSTEM
from belay.engine.wire.policy import NodePolicy, build_policy
from tests.agent_world import FAULT, NODE, ORDERS_KEY, RULES, World, journal_lines, pod, scenario
from tests.test_agent_refusals import Kubelet

ALONE = Settings(own_resets=True, cluster_tables=True)
ALL = tuple(range(8))
RINGS = msgspec.structs.replace(ServerModel(), reset_groups=((0, 1, 2, 3), (4, 5, 6, 7)))
PRESENT = {"metadata": {"namespace": SYSTEM, "name": SYNC}, "data": {}}


def device_tables(**data: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": faultconfig.DEVICE[0], "name": faultconfig.DEVICE[1]},
        "data": {key.replace("__", "."): json.dumps(value) for key, value in data.items()},
    }


def manual(world: World) -> list[int]:
    info = json.loads(world.cluster.nodes[NODE]["metadata"]["annotations"]["ResetInfo"])
    return [row["PhyID"] for row in info["ManualResetDevs"]]


async def alone(world: World) -> None:
    """Up for so long that the engine counts as absent."""
    await world.start()
    await world.run(ABSENT_SECONDS + 5)


def test_without_an_engine_an_idle_faulty_ring_is_reset_and_journalled(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        world.driver.inject(6, FAULT)
        await world.run(15)
        world.driver.clear(6, FAULT)  # it heals: nothing is reset for it
        world.driver.inject(2, FAULT)
        await world.run(50)
        assert world.driver.resets == [], "a fault may heal for a minute"
        await world.run(20)
        assert world.driver.resets == [(0, 1, 2, 3)] and world.device.unhealthy == 0b1111, "the others were not touched"
        await world.run(40)
        assert world.device.unhealthy == 0
        assert world.result(2) == (1, "ok") and world.result(4) == (0, "")
        assert [line["kind"] for line in journal_lines(world)][-2:] == ["begin", "end"]
        assert not world.report.errors

    scenario(tmp_path, story, settings=ALONE, row=RINGS)


def test_no_engine_for_a_moment_is_no_absence(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(2, FAULT)
        await world.run(ABSENT_SECONDS - 30)
        assert world.driver.resets == []
        world.cluster.set_map(PRESENT)
        await world.run(60)
        world.cluster.set_map(None, SYSTEM, SYNC)
        await world.run(ABSENT_SECONDS - 30)
        assert world.driver.resets == []
        await world.run(60)
        assert world.driver.resets == [ALL]

    scenario(tmp_path, story, settings=ALONE)


def test_an_agent_that_without_the_flag_never_resets(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        world.driver.inject(2, FAULT)
        await world.run(600)
        assert world.driver.resets == []

    scenario(tmp_path, story, settings=Settings(cluster_tables=True))


def test_every_sign_of_an_engine_stops_it(tmp_path: Path) -> None:
    for sign in (PRESENT, build_policy(NodePolicy("default", RULES)), "orders"):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))

        async def story(world: World, sign: Any = sign) -> None:
            await alone(world)
            if sign == "orders":
                world.order()
            else:
                world.cluster.set_map(sign)
            world.driver.inject(2, FAULT)
            await world.run(900)
            assert world.driver.resets == []

        scenario(folder, story, settings=ALONE)


def test_an_engine_that_no_watch_has_shown_yet_is_seen_before_the_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        world.cluster.stale = {"maps"}
        world.order({2: 9})
        world.driver.inject(2, FAULT)
        await world.run(300)
        assert world.driver.resets == []
        assert any("an engine decides: ConfigMap belay-system/belay-orders-node-a" in e for e in world.report.errors)

    scenario(tmp_path, story, settings=ALONE)


def test_an_order_that_comes_during_its_own_reset_waits_and_resets_nothing_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        world.driver.inject(2, FAULT)
        await world.run(66)
        assert world.driver.resets == [ALL] and world.device.recovering
        world.order({2: 5})
        await world.run(200)
        assert world.driver.resets == [ALL]
        assert world.result(2) == (5, "refused: no fault of the group is left")
        world.driver.inject(2, FAULT)
        await world.run(400)
        assert world.driver.resets == [ALL], "from now on only the engine decides"
        world.order({2: 6})
        await world.run(100)
        assert world.driver.resets == [ALL, ALL] and world.result(2) == (6, "ok")

    scenario(tmp_path, story, settings=ALONE)


def test_a_chip_in_use_is_not_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        kubelet = Kubelet()
        world.witnesses.append(kubelet)
        await alone(world)
        world.cluster.set_pods([pod("train", ["Ascend910-7"])])
        world.driver.inject(2, FAULT)
        await world.run(300)
        assert world.driver.resets == [] and world.agent.withheld(5) is None
        world.cluster.set_pods([])
        world.driver.occupy(6, 1)
        await world.run(300)
        assert world.driver.resets == []
        world.driver.occupy(6, 0)
        kubelet.held = {5: "train/hidden-0"}
        await world.run(300)
        assert world.driver.resets == [] and world.agent.withheld(5) is None, "what waits withholds nothing"
        assert any("in use by train/hidden-0 (kubelet pod resources)" in error for error in world.report.errors)
        kubelet.held = {}
        await world.run(60)
        assert world.driver.resets == [ALL]
        await world.run(60)
        assert not world.report.errors

    scenario(tmp_path, story, settings=ALONE)


def test_beside_the_old_device_plugin_it_resets_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        other = pod("ascend-device-plugin-daemonset-x7k2p", [], resource="cpu")
        other["metadata"]["labels"] = {"name": "ascend-device-plugin-ds"}
        world.cluster.set_pods([other])
        world.driver.inject(2, FAULT)
        await world.run(300)
        assert world.driver.resets == []
        assert any("another device plugin, is on the node" in error for error in world.report.errors)

    scenario(tmp_path, story, settings=ALONE)


def test_three_resets_in_six_hours_then_a_person_is_asked_also_after_a_restart(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        world.driver.fail_resets(99)
        world.driver.inject(2, FAULT)
        await world.run(1500)
        assert len(world.driver.resets) == TOKENS and manual(world) == [2]
        await world.restart()
        await world.run(ABSENT_SECONDS + 600)
        assert len(world.driver.resets) == TOKENS and manual(world) == [2]
        world.driver.fail_resets(0)
        await world.run(WINDOW)
        assert len(world.driver.resets) == TOKENS + 1 and world.device.unhealthy == 0
        await world.run(400)
        assert manual(world) == []

    scenario(tmp_path, story, settings=msgspec.structs.replace(ALONE, poll=30.0))


def test_past_resets_that_cannot_be_read_count_as_used(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        await world.kill()
        (world.folder / "own-resets").write_bytes(b"0 {}\n")
        await alone(world)
        world.driver.inject(2, FAULT)
        await world.run(600)
        assert world.driver.resets == []

    scenario(tmp_path, story, settings=ALONE)


def test_codes_that_a_reset_does_not_heal_are_left_to_people(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await alone(world)
        world.driver.inject(2, "80E18000")  # PreSeparateNPU
        world.driver.inject(3, "20000100")  # SubHealthFault
        world.driver.inject(4, "DEADBEEF")  # unlisted: SeparateNPU
        await world.run(700)
        assert world.driver.resets == [] and manual(world) == [4]

    scenario(tmp_path, story, settings=ALONE)


def test_the_clusters_fault_table_counts_at_once_until_an_engine_gives_a_policy(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.cluster.set_map(device_tables(faultCode__json={"SeparateNPUCodes": [FAULT]}))
        await world.start(5)
        world.driver.inject(2, FAULT)
        await world.run(10)
        assert world.agent.withheld(2) == "faulty: SeparateNPU"
        world.cluster.set_map(device_tables(faultCode__json={"SubHealthFaultCodes": [FAULT]}))
        await world.run(10)
        assert world.agent.withheld(2) is None
        world.cluster.set_map(device_tables(faultCode__json={"SubHealthFaultCodes": FAULT}))
        await world.run(10)
        assert world.agent.withheld(2) == "faulty: RestartNPU", "a table that cannot be read leaves the shipped one"
        await world.run(60)
        assert any("data.faultCode.json.SubHealthFaultCodes" in error for error in world.report.errors)
        world.cluster.set_map(build_policy(NodePolicy("default", CodeRules(table={FAULT: "PreSeparateNPU"}))))
        await world.run(10)
        assert world.agent.withheld(2) == "faulty: PreSeparateNPU"
        world.cluster.set_map(None, SYSTEM, "belay-policy-default")
        await world.run(ABSENT_SECONDS - 30)
        assert world.agent.withheld(2) == "faulty: PreSeparateNPU", "the last policy holds while its engine may be away"
        await world.run(60)
        assert world.agent.withheld(2) == "faulty: RestartNPU"
        world.cluster.set_map(None, *faultconfig.DEVICE)
        await world.run(60)
        assert not any("faultCode" in error for error in world.report.errors)

    scenario(tmp_path, story, settings=Settings(cluster_tables=True))


def test_the_clusters_tables_survive_a_restart_without_the_api_server(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rule = {"EventId": [FAULT], "TimeWindow": 600, "Times": 2, "FaultHandling": "ManuallySeparateNPU"}
        tables = device_tables(
            faultCode__json={"SubHealthFaultCodes": [FAULT]}, faultCustomization__json={"FaultFrequency": [rule]}
        )
        world.cluster.set_map(tables)
        await world.start(5)
        world.cluster.offline = True
        await world.restart(10)
        world.driver.inject(2, FAULT)
        await world.run(10)
        assert world.agent.withheld(2) is None
        world.driver.clear(2, FAULT)
        await world.run(10)
        world.driver.inject(2, FAULT)
        await world.run(10)
        assert world.agent.withheld(2) == "faulty: ManuallySeparateNPU", "twice in ten minutes"

    scenario(tmp_path, story, settings=Settings(cluster_tables=True))


def test_noded_s_table_decides_about_the_hardware(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        body = {"FaultTypeCode": {"SeparateFaultCodes": ["0100000d"], "NotHandleFaultCodes": ["2c000031"]}}
        name = {"namespace": faultconfig.NODE[0], "name": faultconfig.NODE[1]}
        world.cluster.set_map({"metadata": name, "data": {faultconfig.NODE_NAME: json.dumps(body)}})
        await world.start(5)
        assert world.agent.state is not None
        planes = world.agent.state.judge.rules.planes
        assert planes["node"] == {"0100000D": "SeparateFault", "2C000031": "NotHandleFault"}

    scenario(tmp_path, story, settings=Settings(cluster_tables=True))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_while_engines_come_and_go_no_ring_is_reset_by_two(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history(Path(folder), random.Random(seed))


def test_in_one_history_the_agent_and_the_engine_both_decide(tmp_path: Path) -> None:
    """The histories above are not empty: here the agent resets on its own, and the engine by orders."""
    whose = [own for seed in (4, 7) for own in history(tmp_path / str(seed), random.Random(seed))]
    by_agent, by_engine = sum(whose), len(whose) - sum(whose)
    assert by_agent >= 1, "no reset was the agent's own"
    assert by_engine >= 1, "no reset was ordered"


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(0.0, 12.0), st.booleans(), st.booleans())
def test_an_order_at_any_moment_around_an_own_reset_resets_the_group_once(delay: float, lag: bool, sync: bool) -> None:
    """The order of an engine that comes before, during or after the agent's own reset: the fault is reset once, by one
    of them, also when no watch has shown the order yet."""
    with tempfile.TemporaryDirectory() as folder:
        begun: list[tuple[float, bool]] = []

        async def story(world: World) -> None:
            running: list[bool] = []
            real = world.driver.reset

            async def watched(chips: Any, **how: Any) -> None:
                line = [line for line in journal_lines(world) if line["kind"] == "begin"][-1]
                assert not running, "two resets at once"
                begun.append((world.clock.mono, line["epoch"] == 50))
                running.append(True)
                try:
                    await real(chips, **how)
                    await world.clock.sleep(2)
                finally:
                    running.pop()

            world.driver.reset = watched  # type: ignore[method-assign]
            await alone(world)
            world.driver.inject(2, FAULT)
            await world.run(delay)
            if lag:
                world.cluster.stale = {"maps"}
            if sync:
                world.cluster.set_map(PRESENT)
            world.order({2: 50})
            came = world.clock.mono
            await world.run(30)
            world.cluster.stale = set()
            world.cluster.notify()
            await world.run(200)
            assert len(begun) == 1, begun
            moment, ordered = begun[0]
            assert ordered or moment <= came + 1, "it decided although the order was there"
            assert world.device.unhealthy == 0

        scenario(Path(folder), story, settings=ALONE)


def history(folder: Path, chance: random.Random) -> list[bool]:
    """A random history; whether the agent decided itself, for each reset.

    At each reset the group was idle and in no other reset, an order asked for it where an engine was there, and its
    epoch ran for the first time; the agent's own resets stay within their budget."""
    seen: list[tuple[float, int, bool]] = []
    wrong: list[str] = []
    resetting: list[bool] = []

    async def story(world: World) -> None:
        busy: set[int] = set()
        ordered: set[int] = set()
        came = 0.0
        real = world.driver.reset

        async def watched(chips: Any, **how: Any) -> None:
            begun = [line for line in journal_lines(world) if line["kind"] == "begin"][-1]
            if busy & set(chips):
                wrong.append("a chip in use was reset")
            if resetting:
                wrong.append("two resets at once")
            own = begun["epoch"] not in ordered
            there = {ORDERS_KEY, (SYSTEM, SYNC)} & set(world.cluster.maps)
            if own and there and world.clock.mono - came > 1:
                wrong.append("it decided although an engine was there")
            seen.append((world.clock.mono, begun["epoch"], own))
            resetting.append(True)
            try:
                await real(chips, **how)
                await world.clock.sleep(1)
            finally:
                resetting.pop()

        world.driver.reset = watched  # type: ignore[method-assign]
        await alone(world)
        for _ in range(chance.randint(6, 14)):
            world.driver.inject(chance.randrange(8), FAULT)
            what = chance.choice(("come", "order", "go", "go", "restart", "use", "free", "away", "back", "back", "lag"))
            if what in ("come", "order"):
                came = world.clock.mono
            if what == "come":
                world.cluster.set_map(PRESENT)
            elif what == "order":
                epoch = max([0, *ordered, *(epoch for _, epoch, _ in seen)]) + 1
                ordered.add(epoch)
                world.order({chance.randrange(8): epoch})
            elif what == "go":
                world.cluster.set_map(None, *ORDERS_KEY)
                world.cluster.set_map(None, SYSTEM, SYNC)
            elif what == "restart":
                await world.restart()
            elif what == "use":
                busy.add(0)
                world.driver.occupy(0, 1)
            elif what == "free":
                busy.clear()
                world.driver.occupy(0, 0)
            elif what == "away":
                world.cluster.offline = True
            elif what == "lag":
                world.cluster.stale = {"maps"}
            elif what == "back":
                world.cluster.offline, world.cluster.stale = False, set()
                world.cluster.notify()
            await world.run(chance.choice((1, 5, 30, 100, 400)))

    scenario(folder, story, settings=ALONE)
    assert wrong == []
    epochs = [epoch for _, epoch, _ in seen]
    assert len(epochs) == len(set(epochs)), "an epoch ran twice"
    mine = [moment for moment, _, own in seen if own]
    assert all(sum(1 for other in mine if 0 <= moment - other < WINDOW) <= TOKENS for moment in mine)
    return [own for _, _, own in seen]
