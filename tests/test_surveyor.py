"""What surrounds a node's chips, from what is there to what is reported of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from belay.agents.common.client import ApiError
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.drivers.surroundings import Alarm, Client, Ping, SimulatedSurroundings, SwitchFault, Use
from belay.agents.node import detect
from belay.agents.node.detect import HangWatch, StorageWatch, hardware, ping_faulty, switch_info
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.surroundings_monitor import SurroundingsMonitor, default_tables
from belay.engine.model.cluster import NodeDevice
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import observe
from belay.engine.plan.rules import fault_tables
from belay.engine.wire import deviceinfo, nodeinfo, publicinfo
from tests.agent_world import NOW, VirtualClock
from tests.worlds import decide, desired, node, observed

PLANES = shipped_policy().rules.planes
NODE_TABLE, SWITCH_TABLE = default_tables(PLANES["node"], PLANES["switch"])()
MS = int(NOW * 1000)
LINK = "[0x08520003,na,L2,na]"


@pytest.mark.parametrize(("code", "level"), sorted(PLANES["node"].items()))
def test_every_node_code_is_reported_with_its_level_and_status(code: str, level: str) -> None:
    devices, status = hardware([Alarm("CPU", 1, code.lower())], NODE_TABLE)
    assert devices == [NodeDevice("CPU", 1, (code,), level)]
    assert status == {"NotHandleFault": "Healthy", "PreSeparateFault": "PreSeparate"}.get(level, "UnHealthy")


def test_devices_are_grouped_the_worst_counts_and_unlisted_alarms_are_dropped() -> None:
    alarms = [Alarm("CPU", 1, "0100000D"), Alarm("CPU", 1, "2C000031"), Alarm("Fan", 0, "0100000D")]
    devices, status = hardware([*alarms, Alarm("Disk", 3, "FFFFFFFF")], NODE_TABLE)
    assert [(d.device_type, d.codes, d.level) for d in devices] == [
        ("CPU", ("0100000D", "2C000031"), "SeparateFault"), ("Fan", ("0100000D",), "NotHandleFault"),
    ]  # fmt: skip
    assert status == "UnHealthy"
    assert hardware([Alarm("Disk", 3, "FFFFFFFF")], NODE_TABLE) == ([], "Healthy")


WORDS = {
    "NotHandleFault": ("NotHandle", "Healthy"), "SubHealthFault": ("SubHealthFault", "SubHealthy"),
    "RestartRequestFault": ("RestartRequest", "UnHealthy"), "SeparateFault": ("Separate", "UnHealthy"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "level"), sorted(PLANES["switch"].items()))
def test_every_switch_code_is_reported_in_the_words_of_the_report(code: str, level: str) -> None:
    body = switch_info([SwitchFault(code, 1, 2, MS)], SWITCH_TABLE, MS // 1000)
    assert (body["FaultLevel"], body["NodeStatus"]) == WORDS[level]
    assert body["FaultTimeAndLevelMap"] == {f"{code}_1_2": {"fault_time": MS, "fault_level": WORDS[level][0]}}
    listed = deviceinfo.build("n0", device_list={}, update_time=MS // 1000, switch=body)
    parsed = deviceinfo.parse(listed).switch
    assert parsed is not None and parsed.codes == (code,) and parsed.level == WORDS[level][0]


def test_a_switch_fault_is_reported_with_all_fields_of_the_library() -> None:
    body = switch_info([SwitchFault(LINK, 3, 17, MS, peer_port=9, severity=2)], SWITCH_TABLE, MS // 1000)
    assert [json.loads(text) for text in body["FaultCode"]] == [
        {
            "EventType": 0x08520003, "AssembledFaultCode": LINK, "PeerPortDevice": 2, "PeerPortId": 9,
            "SwitchChipId": 3, "SwitchPortId": 17, "Severity": 2, "Assertion": 1, "AlarmRaisedTime": MS,
        },
    ]  # fmt: skip


def test_a_switch_without_faults_unlisted_ones_floods_and_resets() -> None:
    assert switch_info([], SWITCH_TABLE, 5) == {
        "FaultCode": [], "FaultLevel": "", "UpdateTime": 5, "NodeStatus": "Healthy",
        "FaultTimeAndLevelMap": {},
    }  # fmt: skip
    assert switch_info([SwitchFault("[0xffffffff,na,na,na]")], SWITCH_TABLE, 5)["FaultCode"] == []
    many = [SwitchFault(LINK, 100 + i, 0, i) for i in range(300)]
    kept = switch_info(many, SWITCH_TABLE, 5)["FaultTimeAndLevelMap"]
    assert len(kept) == 128 and f"{LINK}_399_0" in kept and f"{LINK}_171_0" not in kept
    bad = [SwitchFault("[0x00f103b0,155907,na,na]", 0, 0, MS)]
    assert switch_info(bad, SWITCH_TABLE, 5)["NodeStatus"] == "UnHealthy"
    during = switch_info(bad, SWITCH_TABLE, 5, resetting=True)
    assert (during["FaultLevel"], during["NodeStatus"]) == ("NotHandle", "Healthy")


def test_a_switch_chip_without_any_uplink_is_separated() -> None:
    ports = [SwitchFault(LINK, 3, port, MS) for port in range(16)]
    assert switch_info(ports[:15], SWITCH_TABLE, 5)["FaultLevel"] == "NotHandle"
    cut = switch_info(ports, SWITCH_TABLE, 5)
    assert (cut["FaultLevel"], cut["NodeStatus"]) == ("Separate", "UnHealthy")
    assert {row["fault_level"] for row in cut["FaultTimeAndLevelMap"].values()} == {"NotHandle"}, "each keeps its own"
    spread = [SwitchFault(LINK, port % 2, port, MS) for port in range(16)]
    assert switch_info(spread, SWITCH_TABLE, 5)["FaultLevel"] == "NotHandle"


def test_a_storage_client_is_reported_at_once_and_its_memory_after_ten_minutes() -> None:
    watch = StorageWatch()
    both = {"dpc": Client(process=True, memory=True)}
    assert [f.code for f in watch.update("n0", both, 8, 0)] == ["110001020"]
    assert [f.code for f in watch.update("n0", both, 8, 599_999)] == ["110001020"]
    found = watch.update("n0", both, 8, 600_000)
    assert [(f.sender, f.code, f.chips) for f in found] == [
        ("dpcStorage", "110001020", tuple(range(8))), ("dpcStorage", "110001021", tuple(range(8))),
    ]  # fmt: skip
    # the process is well at once, memory only after ten good minutes
    assert [f.code for f in watch.update("n0", {}, 8, 700_000)] == ["110001021"]
    assert [f.code for f in watch.update("n0", both, 8, 800_000)] == ["110001020", "110001021"]
    assert [f.code for f in watch.update("n0", {}, 8, 1_399_999)] == ["110001021"]
    assert watch.update("n0", {}, 8, 1_400_000) == []
    assert [f.code for f in watch.update("n0", both, 8, 1_500_000)] == ["110001020"]
    dtfs = watch.update("n0", {"dtfs": Client(process=True, memory=True)}, 8, 0)
    assert [(f.sender, f.code) for f in dtfs] == [("dtfsStorage", "110001022"), ("dtfsStorage", "110001023")]


def test_ten_minutes_are_counted_for_each_instance() -> None:
    watch = StorageWatch()
    for minute in range(30):
        turns = Client(memory=True, short=(str(minute // 6 % 2),))
        assert watch.update("n0", {"dpc": turns}, 8, minute * 60_000) == []
    for minute in range(30, 40):
        watch.update("n0", {"dpc": Client(memory=True, short=("1", "3"))}, 8, minute * 60_000)
    assert [f.code for f in watch.update("n0", {"dpc": Client(memory=True, short=("3",))}, 8, 2_400_000)] == [
        "110001021"
    ]


def test_a_card_is_lost_only_when_none_answers_and_all_were_asked() -> None:
    ok, lost, unknown = Ping(10, 10), Ping(0, 10), Ping(0, 0)
    assert ping_faulty([lost, lost]) is True
    assert ping_faulty([lost, ok]) is False
    assert ping_faulty([lost, unknown]) is None
    assert ping_faulty([]) is None


def use(step: int, **change: Any) -> Use:
    given = {"cores": 0.0, "memory": 50.0, "packets": step, "cpu_seconds": 0.0, "processes": frozenset({7})} | change
    return Use(**given)


@pytest.mark.parametrize(
    "work",
    [
        {"cores": 5.0}, {"memory": 50.5}, {"packets": 10_000}, {"cpu_seconds": 5.0}, {"processes": frozenset({8})},
        {"processes": frozenset()},
    ],
)  # fmt: skip
def test_a_chip_hangs_after_five_idle_checks_and_any_work_restarts_the_count(work: dict[str, Any]) -> None:
    watch = HangWatch()
    for step in range(5):
        assert watch.update({3: use(step)}) == set()
    assert watch.update({3: use(5)}) == {3}
    assert watch.update({3: use(6, **work)}) == set()
    for step in range(7, 11):
        assert watch.update({3: use(step + 20_000)}) == set()


class Api:
    """ConfigMaps in a dict; keys of one ConfigMap are merged, as a merge patch does."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[str, Any]] = {}
        self.writes = 0
        self.down = False
        self.by_name = False

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self.maps.get(f"{namespace}/{name}")

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        if self.down:
            raise ApiError(503, "down")
        self.writes += 1
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        data = (self.maps.get(key) or {}).get("data") or {}
        self.maps[key] = {**body, "data": {**data, **body["data"]}}

    async def delete_config_map(self, namespace: str, name: str) -> None:
        if self.by_name:
            raise ApiError(403, "may not delete")
        self.maps.pop(f"{namespace}/{name}", None)


class Survey:
    """A surveyor on a virtual clock."""

    def __init__(self, api: Api | None = None, *, super_pod: bool = True) -> None:
        self.clock, self.api = VirtualClock(), api or Api()
        self.around = SimulatedSurroundings(8, super_pod=super_pod)
        self.hanging: set[int] = set()
        self.surveyor = SurroundingsMonitor(
            "n0", 8, self.around, self.api, lambda: (NODE_TABLE, SWITCH_TABLE), Settings(), self.clock,
            hang=self._hang, chance=random.Random(1),
        )  # fmt: skip

    def _hang(self, chips: set[int]) -> None:
        self.hanging = set(chips)

    def lives(self, story: Any) -> Any:
        async def main() -> None:
            task = asyncio.create_task(self.surveyor.run())
            try:
                await story(self)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())


def test_hardware_is_reported_again_after_half_an_hour_and_deleted_when_well() -> None:
    async def story(s: Survey) -> None:
        await s.clock.advance(61)
        assert "mindx-dl/mindx-dl-nodeinfo-n0" not in s.api.maps
        s.around.apply({"hardware": [{"device_type": "CPU", "device_id": 1, "code": "2C000031"}]})
        await s.clock.advance(61)
        report = nodeinfo.parse(s.api.maps["mindx-dl/mindx-dl-nodeinfo-n0"])
        assert (report.status, report.devices[0].codes) == ("UnHealthy", ("2C000031",))
        before = s.api.writes
        await s.clock.advance(1700)
        assert s.api.writes == before
        await s.clock.advance(200)
        assert s.api.writes == before + 1
        s.around.apply({})
        await s.clock.advance(61)
        assert "mindx-dl/mindx-dl-nodeinfo-n0" not in s.api.maps

    Survey(super_pod=False).lives(story)


def test_an_agent_that_may_not_delete_its_report_says_that_all_is_well() -> None:
    """Where RBAC alone bounds names, a deleted report could not be made again at the next alarm."""

    async def story(s: Survey) -> None:
        s.api.by_name = True
        s.around.apply({"hardware": [{"device_type": "CPU", "device_id": 1, "code": "2C000031"}]})
        await s.clock.advance(61)
        s.around.apply({})
        await s.clock.advance(61)
        report = nodeinfo.parse(s.api.maps["mindx-dl/mindx-dl-nodeinfo-n0"])
        assert (report.status, report.devices) == ("Healthy", ())

    Survey(super_pod=False).lives(story)


def test_the_switch_joins_the_device_report_once_there_is_one() -> None:
    async def story(s: Survey) -> None:
        s.around.apply({"switch": [{"code": "[0x00f103b0,155907,na,na]", "chip": 1, "port": 2, "timeMs": MS}]})
        await s.clock.advance(6)
        assert not s.api.maps
        await s.api.put_config_map(deviceinfo.build("n0", device_list={}, update_time=int(NOW)))
        await s.clock.advance(6)
        report = deviceinfo.parse(s.api.maps["kube-system/mindx-dl-deviceinfo-n0"])
        assert report.switch is not None and report.switch.node_status == "UnHealthy"
        s.around.apply({})
        await s.clock.advance(6)
        report = deviceinfo.parse(s.api.maps["kube-system/mindx-dl-deviceinfo-n0"])
        assert report.switch is not None and report.switch.node_status == "Healthy"

    Survey().lives(story)


def levels(api: Api, history: Any = None) -> dict[str, str]:
    """What the engine makes of the public faults that were written, with its memory."""
    public = observe(api.maps.values()).public
    device = deviceinfo.parse(deviceinfo.build("n0", device_list={
        "huawei.com/Ascend910": ",".join(f"Ascend910-{i}" for i in range(8))}, update_time=int(NOW)))  # fmt: skip
    scope = decide(observed([node("n0")], [device], public=public, history=history), desired())
    return {c.chip: c.level for c in scope.chips}


def test_pings_and_storage_become_public_faults_and_recover() -> None:
    async def story(s: Survey) -> None:
        s.around.apply({"chips": {"3": {"ping": "lost"}}, "storage": {"dpc": {"process": True}}})
        await s.clock.advance(11)
        assert set(s.api.maps) == {"cluster-system/pingmesh-fault-n0", "cluster-system/dpcstorage-fault-n0"}
        assert levels(s.api) == {f"Ascend910-{i}": "SubHealthFault" for i in range(8)} | {"Ascend910-3": "SeparateNPU"}
        s.around.apply({"chips": {"3": {"ping": "unknown"}}})
        await s.clock.advance(11)
        assert levels(s.api) == {"Ascend910-3": "SeparateNPU"}
        s.around.apply({"chips": {"3": {"ping": "ok"}}})
        await s.clock.advance(11)
        assert levels(s.api) == {}

    Survey().lives(story)


def test_a_restarted_agent_takes_back_what_its_earlier_life_said() -> None:
    api = Api()

    async def before(s: Survey) -> None:
        s.around.apply({"chips": {"3": {"ping": "lost"}}})
        await s.clock.advance(11)
        assert levels(s.api) == {"Ascend910-3": "SeparateNPU"}

    async def after(s: Survey) -> None:
        await s.clock.advance(11)
        assert levels(s.api) == {}

    Survey(api).lives(before)
    Survey(api).lives(after)


def test_a_standing_storage_fault_is_sent_again_every_minute_and_an_outage_loses_nothing() -> None:
    async def story(s: Survey) -> None:
        s.api.down = True
        s.around.apply({"storage": {"dtfs": {"process": True}}})
        await s.clock.advance(120)
        assert not s.api.maps
        s.api.down = False
        await s.clock.advance(6)
        (message,) = publicinfo.parse(s.api.maps["cluster-system/dtfsstorage-fault-n0"]).messages
        await s.clock.advance(66)
        (again,) = publicinfo.parse(s.api.maps["cluster-system/dtfsstorage-fault-n0"]).messages
        assert again.timestamp > message.timestamp
        assert again.faults[0].time_ms == message.faults[0].time_ms
        assert again.faults[0].id == hashlib.sha256(b"n0/DTFS_PROCESS").hexdigest(), "as NodeD makes it"

    Survey().lives(story)


def test_hanging_processes_are_found_within_six_minutes() -> None:
    async def story(s: Survey) -> None:
        s.around.apply({"chips": {"2": {"hang": True}, "4": {}}})
        await s.clock.advance(290)
        assert s.hanging == set()
        await s.clock.advance(80)
        assert s.hanging == {2}
        s.around.apply({"chips": {"2": {}, "4": {}}})
        await s.clock.advance(61)
        assert s.hanging == set()

    Survey().lives(story)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"hardware": [{"code": "x"}]}, "device_type"), ({"chips": {"9": {}}}, "'9' is not a chip"),
        ({"chips": {"1": {"ping": "maybe"}}}, "ok, lost, unknown"), ({"storage": {"nfs": {}}}, "dpc and dtfs"),
        ({"other": 1}, "other"), ({"silent": "yes"}, "bool"),
    ],
)  # fmt: skip
def test_descriptions_that_do_not_fit_are_refused_and_change_nothing(spec: dict[str, Any], problem: str) -> None:
    around = SimulatedSurroundings(8, super_pod=False)
    around.apply({"silent": True})
    with pytest.raises(ValueError, match=problem):
        around.apply(spec)
    assert around.silent


def test_agents_judge_by_the_tables_that_the_cluster_lays_over_the_shipped_ones() -> None:
    from belay.engine.plan.rules.fault_rules import FaultRules
    from tests.test_faultconfig import NODE, config_map

    table = config_map(NODE, NodeDConfiguration__json={"FaultTypeCode": {"SeparateFaultCodes": ["0100000D"]}})
    world = observed([node("n0")], objects=[table])
    planes = (
        FaultRules(fault_tables.tables_in_force(desired(), world, PlanCache()), ()).for_pool("default", "").rules.planes
    )
    assert planes["node"] == {"0100000D": "SeparateFault"} and len(planes["switch"]) == 30
    assert hardware([Alarm("CPU", 1, "0100000D")], default_tables(planes["node"], {})()[0])[1] == "UnHealthy"


def test_the_simulated_driver_takes_hangs_as_codes_of_the_chip() -> None:
    async def main() -> None:
        clock = VirtualClock()
        driver = SimulatedDriver("n0", now_ms=clock.now_ms, sleep=clock.sleep)
        driver.inject(2, detect.HANG_CODE)
        assert [code.code for code in (await driver.faults())[2]] == ["200001002"]

    asyncio.run(main())


def test_the_recovery_of_a_switch_that_the_product_lacks_is_reported_too() -> None:
    async def story(s: Survey) -> None:
        await s.api.put_config_map(deviceinfo.build("n0", device_list={}, update_time=int(NOW)))
        await s.clock.advance(6)
        report = deviceinfo.parse(s.api.maps["kube-system/mindx-dl-deviceinfo-n0"])
        assert report.switch is None
        for listed, status in (([{"code": "[0x00f103b0,155907,na,na]"}], "UnHealthy"), ([], "Healthy")):
            s.around.apply({"switch": listed})
            await s.clock.advance(6)
            report = deviceinfo.parse(s.api.maps["kube-system/mindx-dl-deviceinfo-n0"])
            assert report.switch is not None and report.switch.node_status == status

    Survey(super_pod=False).lives(story)
