"""Chips raised to a level because codes came too often or stayed too long: published, read back, ended by people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.base import Assertion, Code, Event
from belay.agents.node.faults import Present, PresentFaults
from belay.agents.node.policy import FaultLevels
from belay.agents.node.upgrades import Upgrades
from belay.engine.model.cluster import Upgrade
from belay.engine.model.faults import CodeRules, Duration, Frequency
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import FAULT, NODE, RULES, World, scenario

DEVICE = (DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)
HOUR = 3_600_000
TWICE = Frequency(2, 24 * HOUR, "ManuallySeparateNPU", 0, "twice")
SOFT = Frequency(2, 24 * HOUR, "SeparateNPU", HOUR, "soft")
LONG = Duration(20_000, 60_000, "PreSeparateNPU", "long")
MANUAL = CodeRules(table=RULES.table, frequency={FAULT: TWICE})


def data(world: World) -> dict[str, str]:
    return dict(world.cluster.maps[DEVICE]["data"])


def elements(world: World) -> list[dict[str, Any]]:
    cfg = json.loads(data(world)["DeviceInfoCfg"])
    found: list[dict[str, Any]] = json.loads(cfg["DeviceInfo"]["DeviceList"]["huawei.com/Ascend910-Fault"])
    return found


async def twice(world: World, chip: int = 3) -> int:
    """The code comes, goes, and comes and goes again. Returns when the chip was raised (ms)."""
    for _ in range(2):
        world.driver.inject(chip, FAULT)
        raised = world.clock.now_ms()
        await world.run(10)
        world.driver.clear(chip, FAULT)
        await world.run(10)
    return raised


def edit(world: World, manual: str) -> None:
    body = world.cluster.maps[DEVICE]
    world.cluster.set_map({**body, "data": {**body["data"], "ManuallySeparateNPU": manual}})


def test_a_code_that_comes_too_often_isolates_by_hand_and_is_published(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        assert (data(world)["ManuallySeparateNPU"], data(world)["UpgradeFaultReason"]) == ("", "{}")
        raised = await twice(world)
        assert data(world)["ManuallySeparateNPU"] == "Ascend910-3"
        assert data(world)["UpgradeFaultReason"] == (
            f'{{"Ascend910-3":[{{"upgrade_time":{raised},"fault_code":"{FAULT.lower()}",'
            '"fault_level":"ManuallySeparateNPU","upgrade_type":"FaultFrequency"}]}'
        )
        (element,) = elements(world)  # readers look the level up by the code, so it stays after its end
        assert (element["fault_code"], element["fault_level"]) == (FAULT, "ManuallySeparateNPU")
        assert element["fault_time_and_level_map"] == {
            FAULT: {"fault_time": raised, "fault_level": "ManuallySeparateNPU"}
        }
        assert world.device.unhealthy == 8 and world.device.manual == 8
        assert "ManuallySeparateNPU" in (world.agent.withheld(3) or "")

    scenario(tmp_path, story, rules=MANUAL)


def test_isolation_by_hand_survives_a_restart_and_a_lost_disk(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        await twice(world)
        before = data(world)["UpgradeFaultReason"]
        world.cluster.offline = True
        await world.restart()  # from the disk: the API server is away
        assert "ManuallySeparateNPU" in (world.agent.withheld(3) or "")
        world.cluster.offline = False
        await world.run(60)
        assert data(world)["UpgradeFaultReason"] == before
        await world.kill()
        (world.folder / "upgrades.json").unlink()
        await world.start(5)  # from the ConfigMap
        assert data(world)["UpgradeFaultReason"] == before and world.device.unhealthy == 8

    scenario(tmp_path, story, rules=MANUAL)


@pytest.mark.parametrize("while_away", [False, True])
def test_a_person_ends_it_by_taking_the_name_out(tmp_path: Path, while_away: bool) -> None:
    async def story(world: World) -> None:
        await world.start()
        await twice(world)
        if while_away:
            await world.kill()
        edit(world, "")
        if while_away:
            await world.start(5)
        else:
            await world.run(5)
        assert (data(world)["ManuallySeparateNPU"], data(world)["UpgradeFaultReason"]) == ("", "{}")
        assert world.device.unhealthy == 0 and elements(world) == [] and world.agent.withheld(3) is None
        told = [e for e in world.cluster.events if e["reason"] == "EventReleaseUpgradeFault"]
        assert len(told) == 1 and told[0]["action"] == "EventReleaseUpgradeFault" and told[0]["type"] == "Normal"
        assert ".EventReleaseUpgradeFault." in told[0]["metadata"]["name"]
        reasons = json.loads(told[0]["message"])
        assert [r["upgrade_type"] for r in reasons["Ascend910-3"]] == ["FaultFrequency"]
        await world.run(30)
        world.driver.inject(3, FAULT)  # the next upgrade needs as many new occurrences
        await world.run(10)
        assert data(world)["ManuallySeparateNPU"] == ""

    scenario(tmp_path, story, rules=MANUAL)


def test_adding_a_name_has_no_effect(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        await twice(world)
        edit(world, "Ascend910-3,Ascend910-5")
        await world.run(60)
        assert data(world)["ManuallySeparateNPU"] == "Ascend910-3"

    scenario(tmp_path, story, rules=MANUAL)


def test_a_name_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        await twice(world)
        edit(world, "what is this")
        await world.run(60)
        assert data(world)["ManuallySeparateNPU"] == "Ascend910-3" and world.device.unhealthy == 8

    scenario(tmp_path, story, rules=MANUAL)


def test_what_stands_there_before_the_first_agent_is_kept(tmp_path: Path) -> None:
    """A device plugin's isolation goes on under the agent that replaces it; one without a reason gets one."""

    async def story(world: World) -> None:
        body = {
            "metadata": {"namespace": DEVICE[0], "name": DEVICE[1]},
            "data": {"DeviceInfoCfg": "{}", "ManuallySeparateNPU": "Ascend910-1", "UpgradeFaultReason": ""},
        }
        world.cluster.set_map(body)
        await world.start(5)
        assert data(world)["ManuallySeparateNPU"] == "Ascend910-1"
        (reason,) = json.loads(data(world)["UpgradeFaultReason"])["Ascend910-1"]
        assert (reason["fault_code"], reason["upgrade_type"]) == ("AutofillFaultCode", "FaultAutofill")
        assert world.device.unhealthy == 2

    scenario(tmp_path, story, rules=MANUAL)


def test_a_lasting_fault_is_published_as_a_duration(tmp_path: Path) -> None:
    rules = CodeRules(table={"81078603": "NotHandleFault"}, duration={"81078603": LONG})

    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(2, "81078603", plane="network")
        raised = world.clock.now_ms()
        await world.run(15)
        assert world.device.network_unhealthy == 0 and data(world)["UpgradeFaultReason"] == "{}"
        await world.run(10)
        (reason,) = json.loads(data(world)["UpgradeFaultReason"])["Ascend910-2"]
        assert reason == {
            "upgrade_time": raised + 20_000, "fault_code": "81078603", "fault_level": "PreSeparateNPU",
            "upgrade_type": "FaultDuration",
        }  # fmt: skip
        assert world.device.network_unhealthy == 4 and world.device.unhealthy == 0
        lasting = {"81078603": {"fault_time": raised, "fault_level": "PreSeparateNPU"}}
        assert [e["fault_time_and_level_map"] for e in elements(world)] == [lasting]
        world.driver.clear(2, "81078603", plane="network")
        await world.run(30)
        assert world.device.network_unhealthy == 4  # a short absence does not clear it
        (element,) = elements(world)
        assert (element["fault_code"], element["fault_level"]) == ("81078603", "PreSeparateNPU")
        assert element["fault_time_and_level_map"]["81078603"]["fault_level"] == "PreSeparateNPU"
        await world.run(60)
        assert world.device.network_unhealthy == 0 and data(world)["UpgradeFaultReason"] == "{}"
        assert elements(world) == []

    scenario(tmp_path, story, rules=rules)


def seen(judge: FaultLevels, now_ms: int, *, there: bool) -> None:
    judge.observe({0: [Present(FAULT, "chip", now_ms)] if there else []}, now_ms)


def test_an_upgrade_is_dropped_its_release_window_after_the_recovery() -> None:
    judge = FaultLevels(NodePolicy("p", CodeRules(frequency={FAULT: SOFT})))
    for at in (0, 20_000):
        seen(judge, at, there=True)
        seen(judge, at + 10_000, there=False)
    assert judge.upgrades.level(0, "chip") == "SeparateNPU"
    seen(judge, 30_000 + HOUR, there=False)
    assert judge.upgrades.level(0, "chip") == "SeparateNPU"  # strictly later
    seen(judge, 30_001 + HOUR, there=False)
    assert judge.upgrades.level(0, "chip") == "NormalNPU" and [r.code for r in judge.upgrades.ended] == [FAULT]


def test_what_comes_while_it_is_raised_does_not_raise_it_again_once_a_person_ends_that() -> None:
    judge = FaultLevels(NodePolicy("p", CodeRules(frequency={FAULT: TWICE})))
    for at in range(0, 80_000, 20_000):  # twice, and twice more
        seen(judge, at, there=True)
        seen(judge, at + 10_000, there=False)
    assert judge.upgrades.manual == (0,)
    judge.upgrades.release([0])
    seen(judge, 90_000, there=False)
    assert judge.upgrades.manual == ()
    seen(judge, 100_000, there=True)
    assert judge.upgrades.manual == ()
    seen(judge, 110_000, there=False)
    seen(judge, 120_000, there=True)
    assert judge.upgrades.manual == (0,)


@pytest.mark.parametrize("assertion", ["occur", "once"])
@pytest.mark.parametrize(("gap", "raised"), [(200, True), (0, False)])
def test_every_event_of_a_code_counts_though_it_is_there(assertion: Assertion, gap: int, raised: bool) -> None:
    book, judge = PresentFaults(), FaultLevels(NodePolicy("p", CodeRules(frequency={FAULT: TWICE})))
    for at in (1_000_000_000_000, 1_000_000_000_000 + gap):  # one that is reported twice has not come twice
        book.event(Event(0, FAULT, assertion, time_ms=at), at)
    (shown,) = book.chip(0)
    assert shown.since_ms == 1_000_000_000_000
    judge.observe({0: book.chip(0)}, 1_000_000_001_000, book.again())
    assert bool(judge.upgrades.manual) == raised and book.again() == []


def test_a_rule_that_goes_takes_its_upgrade_but_not_an_isolation_by_hand() -> None:
    for rule, after in ((SOFT, "NormalNPU"), (TWICE, "ManuallySeparateNPU")):
        judge = FaultLevels(NodePolicy("p", CodeRules(frequency={FAULT: rule})))
        for at in (0, 20_000):
            seen(judge, at, there=True)
            seen(judge, at + 10_000, there=False)
        judge.policy = NodePolicy("p", CodeRules())
        seen(judge, 40_000, there=False)
        assert judge.upgrades.level(0, "chip") == after


@pytest.mark.parametrize(("rules", "kept"), [((SOFT,), False), ((SOFT, TWICE), True), ((), True)])
def test_a_chip_without_a_reason_goes_after_the_longest_window(rules: tuple[Frequency, ...], kept: bool) -> None:
    upgrades = Upgrades()
    upgrades.restore([], [4], 0)
    found = CodeRules(frequency={f"80000{i}": rule for i, rule in enumerate(rules)})
    upgrades.settle({}, found, HOUR)
    assert upgrades.manual == (4,)
    upgrades.settle({}, found, HOUR + 1)
    assert upgrades.manual == ((4,) if kept else ())


def test_what_is_restored() -> None:
    told = [
        Upgrade(0, "80E01801", "SeparateNPU", "FaultFrequency", 5),
        Upgrade(1, "80E01801", "ManuallySeparateNPU", "FaultFrequency", 6),
        Upgrade(2, "80E01801", "ManuallySeparateNPU", "FaultFrequency", 7),  # its name was taken out
        Upgrade(3, "81078603", "PreSeparateNPU", "FaultDuration", 8),  # computed again from what is present
        Upgrade(4, "AUTOFILLFAULTCODE", "ManuallySeparateNPU", "FaultAutofill", 9),
    ]
    upgrades = Upgrades()
    upgrades.restore(told, [1, 4], 10)
    assert upgrades.manual == (1, 4)
    assert upgrades.published(lambda chip: f"npu-{chip}") == {
        "npu-0": [{"upgrade_time": 5, "fault_code": "80e01801", "fault_level": "SeparateNPU",
                   "upgrade_type": "FaultFrequency"}],
        "npu-1": [{"upgrade_time": 6, "fault_code": "80e01801", "fault_level": "ManuallySeparateNPU",
                   "upgrade_type": "FaultFrequency"}],
        "npu-4": [{"upgrade_time": 9, "fault_code": "AutofillFaultCode", "fault_level": "ManuallySeparateNPU",
                   "upgrade_type": "FaultAutofill"}],
    }  # fmt: skip


def test_codes_are_matched_whatever_their_case_and_zeros() -> None:
    judge = FaultLevels(NodePolicy("p", CodeRules(duration={"20001002": LONG})))
    entry = Present("020001002", "network", 0)
    judge.observe({0: [entry]}, 0)
    judge.observe({0: [entry]}, 20_001)
    assert judge.upgrades.level(0, "network") == "PreSeparateNPU" and Code("020001002", 0).plane == "chip"
