"""What an agent says.

MindCluster's device information, Belay's report, node labels; how often; and what it does alone.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.drivers.base import CARD_DROP, RESET_FINISHED, Code, Event
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from belay.agents.node.faults import PresentFaults
from belay.agents.node.policy import FaultLevels
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy
from belay.engine.model.faults import CodeRules, Duration, Frequency
from belay.engine.wire.deviceinfo import parse
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, POLICY_PREFIX, SYSTEM
from belay.engine.wire.policy import NodePolicy, build_policy, parse_policy
from tests.agent_world import FAULT, NODE, NOW, RULES, World, play, pod, scenario

PRE_SEPARATE = "80E18000"
DEVICE = (DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)


def faults_of(world: World) -> list[dict[str, Any]]:
    cfg = json.loads(world.cluster.maps[DEVICE]["data"]["DeviceInfoCfg"])
    elements: list[dict[str, Any]] = json.loads(cfg["DeviceInfo"]["DeviceList"]["huawei.com/Ascend910-Fault"])
    return elements


def test_a_healthy_node_reports_in_mindclusters_format(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        body = world.cluster.maps[DEVICE]
        assert body["metadata"]["labels"] == {"mx-consumer-cim": "true"}
        cfg = json.loads(body["data"]["DeviceInfoCfg"])
        names = ",".join(f"Ascend910-{c}" for c in range(8))
        assert cfg["DeviceInfo"]["DeviceList"] == {
            "huawei.com/Ascend910": names,
            "huawei.com/Ascend910-Fault": "[]",
            "huawei.com/Ascend910-NetworkUnhealthy": "",
            "huawei.com/Ascend910-Recovering": "",
            "huawei.com/Ascend910-Unhealthy": "",
        }
        assert (cfg["SuperPodID"], cfg["ServerIndex"]) == (-2, -2)
        assert abs(cfg["DeviceInfo"]["UpdateTime"] - NOW) <= 2
        assert parse(body).free == 0xFF  # the CheckCode is right

    scenario(tmp_path, story)


def test_a_310p_node_reports_its_own_keys(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(2, FAULT)
        await world.run(2)
        cfg = json.loads(world.cluster.maps[DEVICE]["data"]["DeviceInfoCfg"])
        assert set(cfg["DeviceInfo"]["DeviceList"]) == {
            f"huawei.com/Ascend310P{s}" for s in ("", "-Unhealthy", "-Fault")
        }
        assert world.device.unhealthy == 4 and world.device.network_unhealthy is None
        await world.run(5)
        labels = world.cluster.nodes[NODE]["metadata"]["labels"]
        assert labels["accelerator"] == "huawei-Ascend310P" and "mind-cluster/npu-chip-memory" not in labels

    scenario(tmp_path, story, row=SERVER_MODELS["atlas-300i-pro"])


def test_chips_are_listed_in_the_order_of_text(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        cfg = json.loads(world.cluster.maps[DEVICE]["data"]["DeviceInfoCfg"])
        names = cfg["DeviceInfo"]["DeviceList"]["huawei.com/Ascend910"].split(",")
        assert names[:3] == ["Ascend910-0", "Ascend910-1", "Ascend910-10"] and names == sorted(names)

    scenario(tmp_path, story, row=ServerModel(chips=16, reset_groups=(tuple(range(16)),)))


def test_a_310_node_reports_faults_under_the_key_of_the_device_plugin(tmp_path: Path) -> None:
    row = SERVER_MODELS["atlas-300i-pro"]
    machine = msgspec.structs.replace(row.machine, prefix="Ascend310-", resource="huawei.com/Ascend310")

    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(2, FAULT)
        await world.run(2)
        cfg = json.loads(world.cluster.maps[DEVICE]["data"]["DeviceInfoCfg"])
        lists = cfg["DeviceInfo"]["DeviceList"]
        assert set(lists) == {"huawei.com/Ascend310", "huawei.com/Ascend310-Unhealthy", "huawei.com/Ascend310P-Fault"}
        assert [fault["npu_name"] for fault in json.loads(lists["huawei.com/Ascend310P-Fault"])] == ["Ascend310-2"]
        # and Belay's own engine finds them there
        assert world.device.unhealthy == 4 and [fault.chip for fault in world.device.faults] == [2]

    scenario(tmp_path, story, row=msgspec.structs.replace(row, machine=machine))


@pytest.mark.parametrize("version", ["25.0 (B080)", "-25.0", "25.0\n", "v" * 64, "25/0"])
def test_a_value_that_no_label_may_have_costs_only_itself(tmp_path: Path, version: str) -> None:
    row = SERVER_MODELS["atlas-300i-pro"]
    machine = msgspec.structs.replace(row.machine, driver_version=version)

    async def story(world: World) -> None:
        await world.start(5)
        labels = world.cluster.nodes[NODE]["metadata"]["labels"]
        assert labels["accelerator"] == "huawei-Ascend310P" and "huawei.com/driver.version" not in labels

    scenario(tmp_path, story, row=msgspec.structs.replace(row, machine=machine))


def test_a_fault_is_reported_within_a_second_with_code_level_and_time(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(10)
        world.driver.inject(3, FAULT)
        world.driver.inject(3, "81078603")
        raised = world.clock.now_ms()
        await world.run(1)
        (element,) = faults_of(world)
        assert element["npu_name"] == "Ascend910-3" and element["fault_type"] == "CardUnhealthy"
        assert element["fault_code"].split(",") == [FAULT, "81078603"] or set(element["fault_code"].split(",")) == {
            FAULT,
            "81078603",
        }
        assert {element[k] for k in ("fault_level", "fault_handling", "large_model_fault_level")} == {"RestartNPU"}
        assert element["fault_time_and_level_map"] == {
            FAULT: {"fault_time": raised, "fault_level": "RestartNPU"},
            "81078603": {"fault_time": raised, "fault_level": "NotHandleFault"},
        }
        assert world.device.unhealthy == 8 and world.device.free == 0xFF & ~8
        world.driver.clear(3, FAULT)
        world.driver.clear(3, "81078603")
        await world.run(3)
        assert faults_of(world) == [] and world.device.free == 0xFF

    scenario(tmp_path, story)


def test_planes_are_reported_apart(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.driver.inject(1, FAULT, plane="network")
        world.driver.inject(2, "20000100")
        world.driver.inject(4, "DEADBEEF", severity=1)
        world.driver.inject(5, "DEADBEEF", severity=3)
        world.driver.inject(6, "DEADBEEF")
        await world.run(2)
        kinds = {e["npu_name"]: (e["fault_type"], e["fault_level"]) for e in faults_of(world)}
        assert kinds == {
            "Ascend910-1": ("CardNetworkUnhealthy", "NotHandleFault"),  # a chip level that the plane does not know
            "Ascend910-2": ("CardUnhealthy", "SubHealthFault"),
            "Ascend910-4": ("CardUnhealthy", "NotHandleFault"),
            "Ascend910-5": ("CardUnhealthy", "SeparateNPU"),
            "Ascend910-6": ("CardUnhealthy", "SeparateNPU"),
        }
        assert world.device.unhealthy == 1 << 5 | 1 << 6 and world.device.network_unhealthy == 0
        world.driver.inject(1, "ABCD", plane="network")
        await world.run(2)
        assert world.device.network_unhealthy == 2 and world.device.unhealthy == 1 << 5 | 1 << 6

    scenario(tmp_path, story)


def test_pre_separate_spares_a_running_pod_and_refuses_new_ones(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.cluster.set_pods([pod("job", ["Ascend910-3"])])
        await world.start(5)
        world.driver.inject(3, PRE_SEPARATE)
        await world.run(2)
        assert world.device.unhealthy == 0 and (world.agent.withheld(3) or "").startswith("faulty")
        world.cluster.set_pods([])
        await world.run(2)
        assert world.device.unhealthy == 8

    scenario(tmp_path, story)


def test_a_dropped_card_is_a_fault_of_its_own(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.driver.drop(2)
        await world.run(7)
        assert [f.code for f in world.device.faults] == ["40F84E00"] and world.device.unhealthy == 4
        world.driver.drop(2, False)
        await world.run(7)
        assert world.device.faults == ()

    scenario(tmp_path, story)


def test_an_event_that_happens_once_is_in_exactly_one_report(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(10)
        before = len(world.writes(DEVICE_PREFIX))
        seen: list[int] = []
        real = world.cluster.put_config_map

        async def put(body: Any) -> None:
            if body["metadata"]["name"].startswith(DEVICE_PREFIX):
                seen.append(len(parse(body).faults))
            await real(body)

        world.cluster.put_config_map = put  # type: ignore[method-assign]
        world.driver.once(2, FAULT)
        world.agent._cluster = world.cluster
        await world.restart(4)
        world.driver.once(2, FAULT)
        await world.run(20)
        assert seen.count(1) == 1 and seen[-1] == 0 and len(world.writes(DEVICE_PREFIX)) > before

    scenario(tmp_path, story)


def test_a_recovery_is_believed_only_when_the_driver_agrees(tmp_path: Path) -> None:
    book = PresentFaults()
    assert not book.event(Event(1, FAULT, "occur", 5), 5)
    assert book.event(Event(1, FAULT, "recover", 6), 6) and [e.code for e in book.chip(1)] == [FAULT]
    book.poll({1: [Code(FAULT, 9)]}, 9)
    assert book.chip(1)[0].since_ms == 5
    book.poll({1: []}, 10)
    assert book.chip(1) == ()
    assert book.event(Event(1, RESET_FINISHED, "once", 7), 7) and book.chip(1) == ()
    assert not book.event(Event(1, "0", "occur", 7), 7) and book.chip(1) == ()
    flooded = [book.event(Event(1, f"{n:08X}", "occur", 1), 60_000) for n in range(1, 1100)]
    assert flooded.count(True) == 99 and len(book.chip(1)) <= 128


@pytest.mark.parametrize("polled_first", [False, True])
def test_the_severity_of_an_unlisted_code_stays_as_its_event_said(polled_first: bool) -> None:
    book, judge, unlisted = PresentFaults(), FaultLevels(NodePolicy("p", CodeRules())), "12345678"
    if polled_first:
        book.poll({1: [Code(unlisted, 1)]}, 1)
        assert judge.level(book.chip(1)[0]) == "SeparateNPU", "nothing says how bad it is"
    book.event(Event(1, unlisted, "occur", 5, severity=1), 5)
    for now in (8, 11):
        assert judge.level(book.chip(1)[0]) == "NotHandleFault"
        book.poll({1: [Code(unlisted, now)]}, now)
    book.poll({1: []}, 20)
    book.poll({1: [Code(unlisted, 30)]}, 30)
    assert book.chip(1)[0].severity is None, "it is another fault"


def test_a_chip_off_the_bus_keeps_the_level_of_its_other_codes() -> None:
    book, judge = PresentFaults(), FaultLevels(NodePolicy("p", CodeRules(table={"80E3A201": "SeparateNPU"})))
    book.poll({1: [Code("80E3A201", 1)]}, 1)
    book.poll({1: [Code(CARD_DROP, 9)]}, 9)
    assert [entry.code for entry in book.chip(1)] == [CARD_DROP, "80E3A201"]
    assert judge.local_level(1, book.chip(1)) == "SeparateNPU", "a reset would not heal it"
    book.poll({1: []}, 12)
    assert book.chip(1) == ()


def test_device_information_is_written_on_change_and_every_five_minutes(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        first = len(world.writes(DEVICE_PREFIX))
        await world.run(280)
        assert len(world.writes(DEVICE_PREFIX)) == first
        await world.run(320)
        assert len(world.writes(DEVICE_PREFIX)) == first + 2
        for number in range(40):
            world.driver.inject(number % 8, f"{number:08X}")
            await world.run(0.1)
        moments = world.writes(DEVICE_PREFIX)[first + 2 :]
        assert 3 <= len(moments) <= 6
        # two may follow each other at once, three may not
        assert all(c - a >= 1.0 for a, c in zip(moments, moments[2:], strict=False))

    scenario(tmp_path, story)


def test_a_changed_fault_time_alone_is_no_change(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.driver.inject(1, FAULT)
        await world.run(3)
        count = len(world.writes(DEVICE_PREFIX))
        world.driver.clear(1, FAULT)
        world.driver.inject(1, FAULT)
        await world.run(10)
        assert len(world.writes(DEVICE_PREFIX)) == count

    scenario(tmp_path, story)


def test_the_report_is_written_on_change_and_as_a_heartbeat_of_a_minute_give_or_take_a_fifth(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(10)
        first = world.report
        assert first.chips[0].serial and first.chips[0].idle_since_ms and first.boot
        await world.run(1200)
        moments = world.writes("belay-report-")[1:]
        gaps = [b - a for a, b in itertools.pairwise(moments)]
        assert 15 <= len(gaps) <= 25 and all(47 <= gap <= 73 for gap in gaps) and len({round(g) for g in gaps}) > 3
        last = world.report
        assert last.seq > first.seq and last.time_ms > first.time_ms and last.boot == first.boot
        count = len(world.writes("belay-report-"))
        world.driver.occupy(3, 2)
        await world.run(7)
        assert len(world.writes("belay-report-")) == count + 1 and world.report.chips[3].processes == 2
        assert world.report.chips[3].idle_since_ms is None

    scenario(tmp_path, story)


def test_a_scale_shortens_heartbeats_and_reports(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        await world.run(60)
        assert 8 <= len(world.writes("belay-report-")) <= 15
        assert 2 <= len(world.writes(DEVICE_PREFIX)) <= 4

    scenario(tmp_path, story, settings=Settings(scale=0.1))


def test_an_outage_is_survived_with_few_attempts_and_the_newest_content_is_sent(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        attempts = 0
        real = world.cluster.put_config_map

        async def put(body: Any) -> None:
            nonlocal attempts
            attempts += 1
            await real(body)

        world.cluster.put_config_map = put  # type: ignore[method-assign]
        await world.restart(5)
        attempts = 0
        world.cluster.refuse_writes = True
        world.driver.inject(1, FAULT)
        await world.run(600)
        assert 10 <= attempts <= 120
        world.driver.inject(2, FAULT)
        world.cluster.refuse_writes = False
        await world.run(70)
        assert world.device.unhealthy == 6

    scenario(tmp_path, story)


def test_labels_and_annotations_are_the_device_plugins_and_are_kept(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.cluster.nodes[NODE]["metadata"]["labels"] = {"servertype": "mine", "mine": "too"}
        await world.start(5)
        labels, annotations = (world.cluster.nodes[NODE]["metadata"][k] for k in ("labels", "annotations"))
        assert labels == {
            "servertype": "mine",
            "mine": "too",
            "accelerator": "huawei-Ascend910",
            "node.kubernetes.io/npu.chip.name": "910B3",
            "mind-cluster/npu-chip-memory": "64G",
            "huawei.com/driver.version": "25.0.rc1",
        }
        devices = json.loads(annotations["baseDeviceInfos"])
        assert set(devices) == {f"Ascend910-{c}" for c in range(8)} and devices["Ascend910-0"]["IP"]
        del labels["accelerator"]
        await world.run(400)
        assert world.cluster.nodes[NODE]["metadata"]["labels"]["accelerator"] == "huawei-Ascend910"

    scenario(tmp_path, story)


def test_a_policy_from_the_cluster_changes_levels_at_once_and_survives_a_restart_alone(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.driver.inject(3, FAULT)
        await world.run(2)
        policy = NodePolicy("default", CodeRules(overrides={FAULT: ("NotHandleFault", "mine")}, table=RULES.table))
        world.cluster.set_map(build_policy(policy))
        await world.run(2)
        assert world.device.unhealthy == 0 and world.device.faults[0].level == "NotHandleFault"
        await world.kill()
        world.cluster.offline = True
        await world.start(5)
        assert world.agent.withheld(3) is None
        world.cluster.offline = False
        bad = build_policy(policy)
        world.cluster.set_map({**bad, "data": {"policy.json": '{"pool": "other"}'}})
        await world.run(70)
        assert world.device.unhealthy == 0 and any("policy is ignored" in e for e in world.report.errors)

    scenario(tmp_path, story)


def test_the_orders_label_chooses_the_pool(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.driver.inject(3, FAULT)
        policy = NodePolicy("special", CodeRules(overrides={FAULT: ("NotHandleFault", "mine")}))
        world.cluster.set_map(build_policy(policy))
        await world.run(3)
        assert world.device.unhealthy == 8
        world.order()
        body = next(b for (ns, n), b in world.cluster.maps.items() if n.startswith("belay-orders-"))
        body["metadata"]["labels"]["belay.dev/pool"] = "special"
        world.cluster.set_map(body)
        await world.run(3)
        assert world.device.unhealthy == 0

    scenario(tmp_path, story)


def test_alone_the_agent_still_withholds_what_fails_too_often_or_too_long(tmp_path: Path) -> None:
    rules = CodeRules(
        table={"AAAA0001": "NotHandleFault", "AAAA0002": "NotHandleFault"},
        frequency={"AAAA0001": Frequency(3, 3_600_000, "ManuallySeparateNPU", 600_000)},
        duration={"AAAA0002": Duration(20_000, 60_000, "PreSeparateNPU")},
    )

    async def story(world: World) -> None:
        await world.start(5)
        world.cluster.offline = True
        for _ in range(3):
            assert world.agent.withheld(1) is None
            world.driver.inject(1, "AAAA0001")
            await world.run(10)
            world.driver.clear(1, "AAAA0001")
            await world.run(10)
        world.driver.inject(2, "AAAA0002")
        await world.run(10)
        assert world.agent.withheld(2) is None
        await world.run(20)
        assert "PreSeparateNPU" in (world.agent.withheld(2) or "") and "ManuallySeparate" in (
            world.agent.withheld(1) or ""
        )
        world.driver.clear(2, "AAAA0002")
        await world.run(30)
        assert world.agent.withheld(2)
        await world.run(60)
        assert world.agent.withheld(2) is None and world.agent.withheld(1)
        await world.run(600)
        assert world.agent.withheld(1) is None

    scenario(tmp_path, story, rules=rules)


def test_a_hanging_driver_does_not_stop_reports(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(10)
        world.driver.hang = True
        await world.run(200)
        assert any("driver" in e for e in world.report.errors)
        assert world.clock.now_ms() - world.report.time_ms < 80_000
        world.driver.hang = False
        world.driver.inject(1, FAULT)
        await world.run(8)
        assert world.device.unhealthy == 2 and not world.report.errors

    scenario(tmp_path, story)


def test_the_injected_description_is_followed_as_a_whole(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.driver.apply({"Ascend910-3": {"codes": [FAULT], "network": ["ABCD"]}, "processes": {"Ascend910-0": 2}})
        await world.run(7)
        assert (
            world.device.unhealthy == 8 and world.device.network_unhealthy == 8 and world.report.chips[0].processes == 2
        )
        for bad in (
            {"Ascend910-9": {}},
            {"Ascend910-1": {"code": []}},
            {"hang": 1},
            {"resetFails": -1},
            {"processes": {"x": 1}},
        ):
            with pytest.raises(ValueError):
                world.driver.apply(bad)
        assert [c.code for c in (await world.driver.faults())[3]] == [FAULT, "ABCD"]
        world.driver.apply({"Ascend910-4": {"drop": True}})
        await world.run(7)
        assert (
            world.device.unhealthy == 16
            and world.device.network_unhealthy == 0
            and world.report.chips[0].processes == 0
        )

    scenario(tmp_path, story)


def test_the_shipped_fault_table_is_what_agents_start_with() -> None:
    policy = shipped_policy("gold")
    judge = FaultLevels(policy)
    assert policy.pool == "gold" and len(policy.rules.table) > 500
    assert policy.rules.table["80C98001"] == "RestartNPU" and policy.rules.table["40F84E00"] == "RestartNPU"
    assert policy.rules.duration["81078603"] == Duration(20_000, 60_000, "PreSeparateNPU", "shipped")
    assert (
        policy.rules.frequency["80E18005"].times == 3 and policy.rules.frequency["81078603"].release_ms == 172_800_000
    )
    assert judge.policy.digest == shipped_policy("gold").digest != shipped_policy("default").digest
    assert parse_policy(build_policy(policy)) == policy
    assert len(build_policy(policy)["data"]["policy.json"]) < 200_000


def test_policy_names_are_of_the_system_namespace() -> None:
    body = build_policy(NodePolicy("p"))
    assert (body["metadata"]["namespace"], body["metadata"]["name"]) == (SYSTEM, POLICY_PREFIX + "p")


def test_reading_the_simulated_node_is_repeatable() -> None:
    async def story() -> None:
        def driver(seed: int) -> SimulatedDriver:
            return SimulatedDriver("n", seed=seed, now_ms=lambda: 0, sleep=lambda s: None)

        assert await driver(1).chips() == await driver(1).chips() != await driver(2).chips()

    play(story)
