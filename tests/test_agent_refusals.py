"""What else keeps an agent from resetting a chip, and what it reports of faults: witnesses, Events, ``ResetInfo``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.drivers.base import Chip, DriverError
from belay.agents.drivers.server_models import ServerModel
from belay.agents.node.fault_events import OCCUR, RECOVERY, Change, FaultEvents, event
from belay.agents.node.faults import Present
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState
from belay.agents.node.witness import WitnessError
from tests.agent_world import FAULT, NODE, World, pod
from tests.test_agent_orders import ALL, faulty, scenario

RINGS = msgspec.structs.replace(ServerModel(), reset_groups=((0, 1, 2, 3), (4, 5, 6, 7)))
SUPER_POD = msgspec.structs.replace(
    ServerModel(), machine=msgspec.structs.replace(ServerModel().machine, super_pod_id=1, server_index=0)
)


class Kubelet:
    """A witness with answers that the test sets."""

    name = "kubelet pod resources"

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self.silent = False
        self.asked: list[tuple[int, ...]] = []

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        self.asked.append(tuple(chips))
        if self.silent:
            raise WitnessError("the socket is gone")
        return self.held


def with_kubelet(folder: Path, story: Callable[[World, Kubelet], Awaitable[None]], **options: Any) -> None:
    async def told(world: World) -> None:
        kubelet = Kubelet()
        world.witnesses.append(kubelet)
        await story(world, kubelet)

    scenario(folder, told, **options)


def test_a_witness_is_asked_right_before_the_reset(tmp_path: Path) -> None:
    async def story(world: World, kubelet: Kubelet) -> None:
        await faulty(world)
        assert kubelet.asked == []
        world.order({3: 7})
        await world.run(30)
        assert kubelet.asked == [tuple(ALL)] and world.driver.resets == [tuple(ALL)]

    with_kubelet(tmp_path, story)


def test_the_report_names_what_resets_together_as_the_driver_says(tmp_path: Path) -> None:
    """So that the engine orders groups that the agent does not refuse. What the driver says last counts."""
    crossed = tuple((c, c + 1, c + 4, c + 5) for c in (0, 2))

    async def story(world: World, kubelet: Kubelet) -> None:
        await faulty(world)
        assert world.report.reset_groups == RINGS.reset_groups
        world.driver.row = msgspec.structs.replace(RINGS, reset_groups=crossed)
        world.order({3: 7}, group=(0, 1, 2, 3))
        await world.run(30)
        assert world.result(3)[1].startswith("refused: ") and "resets together with" in world.result(3)[1]
        assert world.report.reset_groups == crossed

    with_kubelet(tmp_path, story, row=RINGS)


def test_a_driver_that_does_not_say_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World, kubelet: Kubelet) -> None:
        monkeypatch.setattr(world.driver, "reset_group", failing)
        await faulty(world)
        assert world.report.reset_groups == ()
        monkeypatch.undo()
        await world.run(120)
        assert world.report.reset_groups == RINGS.reset_groups

    async def failing(chip: int) -> Sequence[int]:
        raise DriverError("not now")

    with_kubelet(tmp_path, story, row=RINGS)


def test_a_holder_that_only_the_witness_knows_stops_the_reset(tmp_path: Path) -> None:
    async def story(world: World, kubelet: Kubelet) -> None:
        kubelet.held = {5: "train/hidden-0"}
        await faulty(world)
        world.order({3: 7})
        await world.run(30)
        assert world.driver.resets == []
        assert world.result() == (7, "refused: Ascend910-5 is in use by train/hidden-0 (kubelet pod resources)")

    with_kubelet(tmp_path, story)


def test_a_holder_that_lets_go_in_its_grace_stops_nothing(tmp_path: Path) -> None:
    async def story(world: World, kubelet: Kubelet) -> None:
        kubelet.held = {5: "train/going-0"}
        await faulty(world)
        world.order({3: 7})
        await world.run(2)
        assert world.driver.resets == [] and world.report.chips[3].reset_epoch_done == 0
        kubelet.held = {}
        await world.run(30)
        assert world.driver.resets == [tuple(ALL)]

    with_kubelet(tmp_path, story)


def test_a_witness_that_cannot_say_is_waited_for_and_the_order_expires(tmp_path: Path) -> None:
    async def story(world: World, kubelet: Kubelet) -> None:
        kubelet.silent = True
        await faulty(world)
        world.order({3: 7}, life=120)
        await world.run(60)
        assert world.driver.resets == [] and world.report.chips[3].reset_epoch_done == 0
        assert any("kubelet pod resources cannot be asked" in e for e in world.report.errors)
        await world.run(120)
        assert world.driver.resets == [] and world.result() == (7, "refused: the order has expired")

    with_kubelet(tmp_path, story)


def test_a_holder_of_other_chips_stops_nothing(tmp_path: Path) -> None:
    async def story(world: World, kubelet: Kubelet) -> None:
        kubelet.held = {6: "train/other"}
        await faulty(world, 1)
        world.order({1: 7}, group=range(4))
        await world.run(30)
        assert world.driver.resets == [(0, 1, 2, 3)]

    with_kubelet(tmp_path, story, row=RINGS)


# ---- Events


def message(body: Mapping[str, Any]) -> dict[str, str]:
    head, *parts = body["message"].split(", ")
    assert head == "device fault"
    return dict(part.split(":", 1) for part in parts)


def test_faults_are_reported_as_events_in_the_device_plugin_s_words(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(3, FAULT)
        await world.run(10)
        world.driver.clear(3, FAULT)
        await world.run(10)
        first, last = world.cluster.events
        assert (first["type"], first["reason"], last["type"], last["reason"]) == (
            "Warning", "Occur", "Normal", "Recovery",
        )  # fmt: skip
        assert first["metadata"]["namespace"] == "kube-system" and first["action"] == "RestartNPU"
        assert first["involvedObject"] == {
            "apiVersion": "v1", "kind": "Pod", "namespace": "kube-system", "name": "agent-pod",
        }  # fmt: skip
        told = message(first)
        assert list(told) == [
            "nodeName", "assertion", "cardID", "deviceID", "faultCodes", "faultLevelName", "alarmRaisedTime",
        ]  # fmt: skip
        written = told.pop("alarmRaisedTime")
        assert datetime.strptime(written, "%Y-%m-%d %H:%M:%S")
        assert told == {
            "nodeName": NODE, "assertion": "Occur", "cardID": "3", "deviceID": "0", "faultCodes": FAULT,
            "faultLevelName": "RestartNPU",
        }  # fmt: skip
        assert first["metadata"]["name"].startswith("agent-pod.") and first["metadata"]["name"].endswith("3")

    scenario(tmp_path, story, settings=Settings(pod="agent-pod"))


def test_at_most_ten_events_a_minute_and_a_hundred_wait(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        for chip in ALL:
            world.driver.inject(chip, FAULT)
            world.driver.inject(chip, "80E01801")
        await world.run(30)
        assert len(world.cluster.events) == 10
        await world.run(60)
        assert len(world.cluster.events) == 16

    scenario(tmp_path, story)


def test_an_api_server_that_is_away_costs_the_event_only(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.cluster.offline = True
        world.driver.inject(3, FAULT)
        await world.run(10)
        world.cluster.offline = False
        world.cluster.notify()
        world.driver.clear(3, FAULT)
        await world.run(10)
        assert [e["reason"] for e in world.cluster.events] == ["Recovery"]
        assert world.device.unhealthy == 0

    scenario(tmp_path, story)


def test_a5_names_the_logic_id_and_once_events_are_notices() -> None:
    chip = Chip(id=6, logic_id=1, card=0)
    body = event(Change(chip, "81B18603", "NotHandleFault", "Notice"), "n", "p", "npu-", 1_700_000_000_123)
    assert list(message(body))[2] == "logicID" and message(body)["logicID"] == "1"
    assert (body["type"], body["reason"]) == ("Normal", "Notice")
    assert body["metadata"]["name"] == "p.17000000001231"
    assert body["eventTime"] == "2023-11-14T22:13:20.123000Z"


def test_a_code_that_stays_is_reported_once() -> None:
    events = FaultEvents()

    class FaultLevels:
        def level(self, entry: Present) -> str:
            return "RestartNPU"

    state = NodeState("n", ServerModel().machine, [Chip(id=0, logic_id=0, card=0)], FaultLevels())  # type: ignore[arg-type]
    state.book._present[0] = {("chip", FAULT): Present(FAULT, "chip", 1)}
    assert events.refresh(state) and not events.refresh(state)
    change = events.due(0)
    assert change is not None and change.assertion == OCCUR and events.due(0) is None
    state.book._present.clear()
    assert events.refresh(state)
    change = events.due(0)
    assert change is not None and change.assertion == RECOVERY


# ---- ResetInfo


@pytest.mark.parametrize(
    ("code", "manual"),
    [("A8028801", [3]), (FAULT, []), ("80818C05", [3])],
)
def test_chips_that_need_a_person_are_listed_on_the_node(tmp_path: Path, code: str, manual: list[int]) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(3, code)
        await world.run(400)
        told = json.loads(world.cluster.nodes[NODE]["metadata"]["annotations"]["ResetInfo"])
        assert list(told) == ["ThirdPartyResetDevs", "ManualResetDevs"] and told["ThirdPartyResetDevs"] == []
        assert [row["PhyID"] for row in told["ManualResetDevs"]] == manual
        if manual:
            assert told["ManualResetDevs"][0] == {
                "CardId": 3, "DeviceId": 0, "AssociatedCardId": -1, "PhyID": 3, "LogicID": 3,
            }  # fmt: skip

    scenario(tmp_path, story)


@pytest.mark.parametrize(("row", "key"), [(ServerModel(), "ManualResetDevs"), (SUPER_POD, "ThirdPartyResetDevs")])
def test_a_failed_reset_is_left_to_another_tool(tmp_path: Path, row: ServerModel, key: str) -> None:
    async def story(world: World) -> None:
        world.driver.fail_resets(1)
        await faulty(world, 0)
        world.order({0: 7})
        await world.run(400)
        assert world.result()[1].startswith("failed")
        told = json.loads(world.cluster.nodes[NODE]["metadata"]["annotations"]["ResetInfo"])
        assert [row["PhyID"] for row in told[key]] == [0]
        await world.restart()
        await world.run(400)
        assert json.loads(world.cluster.nodes[NODE]["metadata"]["annotations"]["ResetInfo"]) == told

    scenario(tmp_path, story, row=row)


def told_of(world: World) -> list[int]:
    told = json.loads(world.cluster.nodes[NODE]["metadata"]["annotations"]["ResetInfo"])
    return [row["PhyID"] for row in told["ThirdPartyResetDevs"]]


@pytest.mark.parametrize("delay", [0.0, 40.0, 300.0])
def test_what_a_tool_outside_has_reset_is_looked_for_after_the_delay(tmp_path: Path, delay: float) -> None:
    async def story(world: World) -> None:
        world.driver.fail_resets(1)
        await faulty(world, 0)
        world.order({0: 7})
        await world.run(15)
        assert world.result()[1].startswith("failed")
        world.driver.reset_outside([0])
        if delay:
            await world.run(delay - 30)
            assert world.driver.rescans == [] and told_of(world) == [0]
        await world.run(60)
        assert world.driver.rescans == [tuple(ALL)] or not delay
        await world.run(400)
        # once for each reset that failed, and the chip is on the list only where it had not been reset by then
        assert world.driver.rescans == [tuple(ALL)] and told_of(world) == ([] if delay else [0])

    settings = Settings(third_party_delay=delay)
    scenario(tmp_path, story, row=SUPER_POD, settings=settings)


def test_chips_that_are_not_well_are_looked_for_again_only_when_idle_and_on_super_pods(tmp_path: Path) -> None:
    async def failed(world: World) -> None:
        world.driver.fail_resets(1)
        await faulty(world, 0)
        world.order({0: 7})
        await world.run(100)
        assert world.result()[1].startswith("failed")

    async def unwell(world: World) -> None:
        await failed(world)
        await world.restart()  # a new agent remembers what failed
        await world.run(400)
        assert world.driver.rescans == [tuple(ALL)] and told_of(world) == [0]

    async def used(world: World) -> None:
        await failed(world)
        world.driver.occupy(0, 1)
        world.driver.reset_outside([0])
        await world.run(400)
        assert world.driver.rescans == [tuple(ALL[1:])] and told_of(world) == [0]

    async def server(world: World) -> None:
        await failed(world)
        await world.run(400)
        assert world.driver.rescans == []

    scenario(tmp_path / "a", unwell, row=SUPER_POD)
    scenario(tmp_path / "b", used, row=SUPER_POD)
    scenario(tmp_path / "c", server)


def test_pods_that_hold_chips_are_named_in_a_refusal(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.cluster.set_pods([pod("late", ["Ascend910-5"])])
        world.order({3: 7})
        await world.run(30)
        assert world.driver.resets == [] and "in use by" in world.result()[1]

    scenario(tmp_path, story)


def test_an_order_for_a_chip_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7, 12: 7}, group=[3, 12])
        await world.run(30)
        assert world.driver.resets == []
        assert world.result(3) == (7, "refused: there is no chip Ascend910-12")

    scenario(tmp_path, story)
