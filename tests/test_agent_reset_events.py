"""Events of resets (HotResetStart, HotResetComplete, HotResetFailed): exact, off by default, bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.drivers.base import Chip
from belay.agents.drivers.server_models import machine
from belay.agents.drivers.simulated import ServerModel
from belay.agents.node.fault_events import MAX_WAITING, PER_MINUTE, FaultEvents, event
from belay.agents.node.notices import Notice, reset_ended, reset_started
from belay.agents.node.plugins import OUT_OF_BAND, RECORD, ResetPlugins
from belay.agents.node.reporting import reset_info
from belay.engine.wire.orders import build_orders, parse_orders
from tests.agent_world import FAULT, NODE, ORDERS_KEY, World, scenario

RING = [Chip(id=chip, logic_id=chip + 1, card=chip) for chip in (4, 5)]
AT = 1_788_249_600_000
ON = '[{"pluginName": "resetRecord", "state": "ON"}]'


@pytest.mark.parametrize(
    ("notice", "kind", "reason", "name", "message"),
    [
        (reset_started("n1", RING, [5], 2, AT), "Warning", "HotResetStart", f"n1.{AT}.reset.start",
         "hot reset start, nodeName:n1, ringDevs:5,6, faultDev:6, tokensLeft:2, time:{time}"),
        (reset_started("n1", RING, [], -1, AT), "Warning", "HotResetStart", f"n1.{AT}.reset.start",
         "hot reset start, nodeName:n1, ringDevs:5,6, faultDev:-1, tokensLeft:-1, time:{time}"),
        (reset_ended("n1", RING, "ok", AT), "Normal", "HotResetComplete", f"n1.{AT}.reset.end",
         "hot reset complete, nodeName:n1, devices:5,6, time:{time}"),
        (reset_ended("n1", RING, "failed: the chip sleeps", AT), "Warning", "HotResetFailed", f"n1.{AT}.reset.end",
         "hot reset failed, nodeName:n1, devices:5,6, time:{time}, err:the chip sleeps"),
    ],
)  # fmt: skip
def test_name_type_reason_and_message(notice: Notice, kind: str, reason: str, name: str, message: str) -> None:
    body = event(notice, "n1", "belay-agent-x", "Ascend910-", AT + 1)
    from datetime import datetime

    time = datetime.fromtimestamp(AT / 1000).strftime("%Y-%m-%d %H:%M:%S")
    assert (body["type"], body["reason"], body["action"]) == (kind, reason, reason)
    assert body["message"] == message.format(time=time)
    assert body["metadata"] == {"name": name, "namespace": "kube-system"}
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    assert (body["reportingComponent"], body["reportingInstance"]) == ("device-plugin", "n1")
    assert body["source"] == {"component": "device-plugin", "host": "n1"}


def told(world: World) -> list[str]:
    return [e["reason"] for e in world.cluster.events if e["reason"].startswith("HotReset")]


async def fail_and_heal(world: World) -> None:
    world.driver.inject(3, FAULT)
    world.order({0: 1})
    await world.run(200)


@pytest.mark.parametrize("text", [None, "[]", '[{"pluginName": "resetRecord", "state": "OFF"}]', "{no list"])
def test_resets_are_not_reported_unless_switched_on(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "plugins.json"
    if text is not None:
        file.write_text(text)

    async def story(world: World) -> None:
        world.plugins = file
        await world.start()
        await fail_and_heal(world)
        assert world.result() == (1, "ok") and told(world) == []
        assert (text == "{no list") == any("plugins.json" in error for error in world.report.errors)

    scenario(tmp_path, story)


def test_a_reset_is_reported_at_its_start_and_its_end(tmp_path: Path) -> None:
    file = tmp_path / "plugins.json"

    async def story(world: World) -> None:
        world.plugins = file
        await world.start()
        file.write_text(ON)  # read again before every reset
        await fail_and_heal(world)
        assert told(world) == ["HotResetStart", "HotResetComplete"]
        start = next(e for e in world.cluster.events if e["reason"] == "HotResetStart")
        assert f"nodeName:{NODE}, ringDevs:0,1,2,3,4,5,6,7, faultDev:3, tokensLeft:-1" in start["message"]
        world.driver.fail_resets(1)
        world.driver.inject(3, FAULT)
        world.order({0: 2})
        await world.run(200)
        assert told(world)[2:] == ["HotResetStart", "HotResetFailed"]
        failed = next(e for e in world.cluster.events if e["reason"] == "HotResetFailed")
        assert failed["message"].endswith("err:the driver returned -8020: reset failed")

    scenario(tmp_path, story)


def test_a_refused_order_is_no_reset(tmp_path: Path) -> None:
    file = tmp_path / "plugins.json"
    file.write_text(ON)

    async def story(world: World) -> None:
        world.plugins = file
        await world.start()
        world.order({0: 1})  # nothing is faulty
        await world.run(10)
        assert world.result()[1].startswith("refused") and told(world) == []

    scenario(tmp_path, story)


def test_events_are_bounded_in_a_minute_and_in_waiting() -> None:
    events = FaultEvents()
    for number in range(1000):
        events.add(Notice(f"{number}", "HotResetStart", "m", "Node"))
    written = 0
    while events.due(AT) is not None:
        written += 1
    assert written == PER_MINUTE and events.wait(AT) == 60.0
    while events.wait(AT) != float("inf"):
        AT_later = AT + 60_000 * (written // PER_MINUTE)
        written += events.due(AT_later) is not None
    assert written == MAX_WAITING


def test_plugins(tmp_path: Path) -> None:
    file = tmp_path / "plugins.json"
    plugins = ResetPlugins(file)
    plugins.read()
    assert plugins.on(OUT_OF_BAND) and not plugins.on(RECORD) and not plugins.on("other")
    file.write_text('[{"pluginName": "outbandReset", "state": "OFF"}, {"pluginName": "resetRecord", "state": "ON"}]')
    plugins.read()
    assert not plugins.on(OUT_OF_BAND) and plugins.on(RECORD)
    file.write_text('[{"pluginName": "outbandReset", "state": "maybe"}]')
    plugins.read()
    assert not plugins.on(OUT_OF_BAND) and "plugins.json" in plugins.problem
    file.unlink()
    plugins.read()
    assert plugins.on(OUT_OF_BAND) and not plugins.on(RECORD) and not plugins.problem


def test_the_resets_left_travel_with_the_order(tmp_path: Path) -> None:
    file = tmp_path / "plugins.json"
    file.write_text(ON)

    async def story(world: World) -> None:
        world.plugins = file
        await world.start()
        world.driver.inject(3, FAULT)
        world.order({0: 1})
        orders = parse_orders(world.cluster.maps[ORDERS_KEY])
        resets = {chip: msgspec.structs.replace(reset, left=2) for chip, reset in orders.resets.items()}
        world.cluster.set_map(build_orders(msgspec.structs.replace(orders, resets=resets), "Ascend910-"))
        await world.run(200)
        start = next(e for e in world.cluster.events if e["reason"] == "HotResetStart")
        assert "tokensLeft:2" in start["message"]

    scenario(tmp_path, story)


A3 = ServerModel(
    machine=machine("huawei.com/Ascend910", "Ascend910-9362", super_pod_id=1, server_index=0),
    chips=16,
    chips_per_card=2,
    reset_groups=tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4)),
)


@pytest.mark.parametrize("switch", ["ON", "OFF"])
def test_a_module_that_does_not_boot_is_reset_by_its_board_controller(tmp_path: Path, switch: str) -> None:
    file = tmp_path / "plugins.json"
    file.write_text(f'[{{"pluginName": "outbandReset", "state": "{switch}"}}]')

    async def story(world: World) -> None:
        world.plugins = file
        await world.start()
        world.driver.stall_boots(1)
        world.driver.inject(5, FAULT)
        world.order({4: 1}, group=range(4, 8))
        await world.run(70 + 150)
        assert world.driver.resets == [(4, 5, 6, 7)]
        await world.run(90)
        if switch == "ON":
            assert world.driver.resets == [(4, 5, 6, 7)] * 2 and world.result(4) == (1, "ok")
        else:
            assert world.driver.resets == [(4, 5, 6, 7)]
            assert world.result(4) == (1, "failed: the driver or the chips did not come back in time")

    scenario(tmp_path, story, row=A3)


def test_without_a_board_controller_a_chip_that_does_not_boot_has_failed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.stall_boots(1)
        world.driver.inject(5, FAULT)
        world.order({4: 1})
        await world.run(300)
        assert world.result(4) == (1, "failed: the driver or the chips did not come back in time")

    scenario(tmp_path, story)


def test_the_card_beside_an_a3_module_is_named(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(5, "DEADBEEF", severity=3)
        await world.run(5)
        assert world.agent.state is not None
        rows = json.loads(reset_info(world.agent.state))["ManualResetDevs"]
        assert rows == [{"CardId": 2, "DeviceId": 1, "AssociatedCardId": 3, "PhyID": 5, "LogicID": 5}]

    scenario(tmp_path, story, row=A3)


def test_other_servers_have_no_card_beside(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(5, "DEADBEEF", severity=3)
        await world.run(5)
        assert world.agent.state is not None
        (row,) = json.loads(reset_info(world.agent.state))["ManualResetDevs"]
        assert row["AssociatedCardId"] == -1

    scenario(tmp_path, story)


def reset_info_of(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.cluster.nodes[NODE]["metadata"]["annotations"]["ResetInfo"])
    return found


def test_the_need_for_a_person_is_reported_at_once_and_until_it_ends(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(20)
        assert reset_info_of(world) == {"ThirdPartyResetDevs": [], "ManualResetDevs": []}
        world.driver.inject(5, "DEADBEEF", severity=3)
        await world.run(12)
        assert [row["PhyID"] for row in reset_info_of(world)["ManualResetDevs"]] == [5]
        world.driver.clear(5, "DEADBEEF")
        await world.run(12)
        assert reset_info_of(world)["ManualResetDevs"] == []

    scenario(tmp_path, story)


def test_a_chip_without_a_reset_left_needs_a_person(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(3, FAULT)
        world.order(dict.fromkeys(range(8), 1))
        orders = parse_orders(world.cluster.maps[ORDERS_KEY])
        resets = {chip: msgspec.structs.replace(reset, left=0) for chip, reset in orders.resets.items()}
        world.cluster.set_map(build_orders(msgspec.structs.replace(orders, resets=resets), "Ascend910-"))
        await world.run(30)
        assert reset_info_of(world)["ManualResetDevs"] == []  # its last one is still to come
        await world.run(120)
        assert world.result() == (1, "ok") and reset_info_of(world)["ManualResetDevs"] == []
        world.driver.inject(3, FAULT)
        await world.run(12)
        assert [row["PhyID"] for row in reset_info_of(world)["ManualResetDevs"]] == [3]

    scenario(tmp_path, story)
