"""Slow and lossy parts of the network: found from pings with their figures, reported by `belay server`, ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.agents.node.hardware.pinglist import Config, Target
from belay.agents.node.hardware.pingwindows import PingWindows
from belay.engine.cli.explanation import explain
from belay.engine.kube import CONFIGMAP, NODE
from belay.engine.load import load
from belay.engine.model import public_faults
from belay.engine.model.pings import NetworkFinding, NetworkPart, NetworkProblem, NodePings, PathEnd, PathWindow
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.serve.grpc import slow_networks
from belay.engine.slowness.blame import Element, crossed
from belay.engine.slowness.network import NetworkDetector
from belay.engine.slowness.paths import PingSample
from belay.engine.wire import deviceinfo, pings, slownetwork, slownode
from belay.engine.wire.errors import WireError
from belay.engine.wire.superpods import addresses
from tests.agent_world import VirtualClock
from tests.grpc_world import Time, World, play, until
from tests.ping_fleet import Injected, a3, rack950, windows
from tests.worlds import A2_LABELS, NOW, device_report

A3 = a3(4, 4)
RACKS = rack950(2, 3, 4)
BEGIN = 12


def judged(
    paths: Sequence[tuple[PathEnd, PathEnd]],
    injected: Iterable[Injected],
    count: int = 22,
    seed: int = 5,
    detector: NetworkDetector | None = None,
) -> list[tuple[NetworkFinding, ...]]:
    """The findings after each window."""
    found, judge = [], detector or NetworkDetector()
    for number, samples in enumerate(windows(paths, count, seed, tuple(injected))):
        judge.add("all", number, samples)
        judge.judge(1)
        found.append(judge.findings)
    return found


def elements(paths: Sequence[tuple[PathEnd, PathEnd]], part: NetworkPart) -> list[Element]:
    return sorted({one for path in paths for one in crossed(*path) if one.part is part})


@pytest.mark.parametrize("problem", ["delay", "loss"])
@pytest.mark.parametrize(
    ("paths", "part"),
    [
        *(
            pytest.param(A3, part, id=f"a3-{part.name}")
            for part in (NetworkPart.LINK, NetworkPart.CHIP, NetworkPart.NODE, NetworkPart.MESH)
        ),
        *(pytest.param(RACKS, part, id=f"950-{part.name}") for part in NetworkPart),
    ],
)
def test_five_percent_in_any_part_is_found_as_that_part_and_as_nothing_else(
    paths: list[tuple[PathEnd, PathEnd]], part: NetworkPart, problem: str
) -> None:
    element = elements(paths, part)[-1]
    found = judged(paths, [Injected(element, BEGIN, **{problem: 0.05})])
    assert not any(found[:BEGIN]), "nothing is wrong yet"
    assert {(one.part, one.name) for each in found for one in each} == {(element.part, element.name)}
    (last,) = found[-1]
    assert last.problem is (NetworkProblem.DELAY if problem == "delay" else NetworkProblem.LOSS)
    assert 0.03 < last.excess < 0.07 and last.since <= BEGIN + 1


def test_a_finding_ends_when_the_network_is_as_usual_again() -> None:
    element = Element(NetworkPart.CHIP, "node-1/2")
    found = judged(A3, [Injected(element, BEGIN, delay=0.05, end=BEGIN + 6)], BEGIN + 14)
    assert found[BEGIN + 5] and not found[-1]


def test_what_slows_all_paths_alike_and_a_quiet_network_are_no_finding() -> None:
    everywhere = [Injected(element, BEGIN, delay=0.2) for element in elements(A3, NetworkPart.CHIP)]
    assert not any(judged(A3, everywhere))
    assert not any(judged(RACKS, [], 60))


def test_a_path_without_answers_is_disconnected_and_a_whole_switch_may_be() -> None:
    (last,) = judged(A3, [Injected(Element(NetworkPart.LINK, "node-0/1 - node-2/1"), BEGIN, loss=1.0)])[-1]
    assert (last.part, last.problem, last.value) == (NetworkPart.LINK, NetworkProblem.DISCONNECTED, 1.0)
    (last,) = judged(A3, [Injected(Element(NetworkPart.SUPER_POD_SWITCH, "0 plane 0"), BEGIN, loss=0.9)])[-1]
    assert (last.part, last.problem) == (NetworkPart.SUPER_POD_SWITCH, NetworkProblem.DISCONNECTED)


def test_two_faults_at_once_are_two_findings() -> None:
    chip, node = Element(NetworkPart.CHIP, "node-1/2"), Element(NetworkPart.NODE, "node-3")
    found = judged(a3(6, 4), [Injected(chip, BEGIN, delay=0.08), Injected(node, BEGIN, delay=0.08)])
    assert {(one.part, one.name) for one in found[-1]} == {chip, node}


def test_what_was_slow_before_anything_is_known_is_found_only_when_gross() -> None:
    element = Element(NetworkPart.CHIP, "node-1/2")
    assert {one.name for one in judged(A3, [Injected(element, 0, delay=0.6)])[-1]} == {"node-1/2"}
    assert not judged(A3, [Injected(element, 0, delay=0.1)])[-1]


def test_another_server_goes_on_with_what_stands_while_it_learns() -> None:
    bad = [Injected(Element(NetworkPart.CHIP, "node-1/2"), 0, delay=0.1)]
    before = judged(A3, [Injected(bad[0].element, BEGIN, delay=0.1)])[-1]
    rows = slownetwork.faults(before, {"node-1"})
    after = judged(A3, bad, detector=NetworkDetector(known=slownetwork.recorded_delays(rows)))[-1]
    assert [one.key for one in after] == [one.key for one in before]


@pytest.mark.parametrize("missing", [range(3, 5), range(4), range(1, 8, 2)], ids=["away", "late", "in-turns"])
def test_windows_with_few_paths_alike_teach_nothing(missing: range) -> None:
    few = a3(3, 1)  # six paths between nodes, and two without node-2
    link = Element(NetworkPart.LINK, "node-0/0 - node-1/0")
    detector, found = NetworkDetector(), []
    for number, samples in enumerate(windows(few, 34, 5, [Injected(link, 26, delay=0.2)], differ=0.02)):
        gone = "node-2" if number in missing else ""
        detector.add("all", number, [one for one in samples if gone not in (one.source.node, one.target.node)])
        detector.judge(1)
        found.append(detector.findings)
    assert not any(found[:26]), "a healthy link is no fault"
    assert [(one.part, one.name) for one in found[-1]] == [link], "and is judged"
    assert 10 < found[-1][0].usual < 20, "microseconds"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_reports_changes_nothing(order: tuple[int, ...]) -> None:
    chip = Injected(Element(NetworkPart.CHIP, "node-1/2"), 6, delay=0.1)
    rows = list(windows(A3, 12, 5, [chip]))
    nodes = sorted({source.node for source, _ in A3})
    straight, shuffled = NetworkDetector(), NetworkDetector()
    for begin in range(0, 12, 3):
        for number in range(begin, begin + 3):
            for node in nodes:
                straight.add(node, number, [one for one in rows[number] if one.source.node == node])
            straight.judge(len(nodes))
        for at in order:
            for node in reversed(nodes):
                own = [one for one in rows[begin + at] if one.source.node == node]
                shuffled.add(node, begin + at, own)
                shuffled.add(node, begin + at, own)
        shuffled.judge(len(nodes))
    assert straight.findings and shuffled.findings == straight.findings


def sample(delay: int, lost: int = 0) -> PathWindow:
    return PathWindow(3, "12", "90", 7, 10, delay, 100, lost)


def test_reports_come_back_as_they_were_written() -> None:
    report = NodePings("n0", 100, (sample(12_500), PathWindow(3, "12", "91", 7, 10, 0, 100, 100)))
    assert pings.parse_pings(pings.pings_map(report, 5)) == (5, report)
    many = NodePings("n0", 100, tuple(PathWindow(0, f"{at:032x}", "90", 7, 10, 1, 1, 0) for at in range(10_000)))
    _, read = pings.parse_pings(pings.pings_map(many, 5))
    assert 2000 < len(read.windows) <= pings.MAX_PATHS


@pytest.mark.parametrize(
    "change",
    [
        {"node": "n1"}, {"seconds": 0}, {"paths": [{"chip": 0, "source": "a b", "target": "1", "windows": []}]},
        {"paths": [{"chip": -1, "source": "1", "target": "1", "windows": []}]},
        {"paths": [{"chip": 0, "source": "1", "target": "1", "windows": [[1, 1, 1, 1, 2]]}]},
        {"paths": [{"chip": 0, "source": "1", "target": "1", "windows": [[1, 1, 1, 1, 0]] * 5}]},
    ],
)  # fmt: skip
def test_a_report_out_of_shape_is_refused_with_its_place(change: dict[str, Any]) -> None:
    body = pings.pings_map(NodePings("n0", 100, (sample(1),)), 5)
    body["data"]["pings.json"] = json.dumps(json.loads(body["data"]["pings.json"]) | change)
    with pytest.raises(WireError, match="belay-pings-n0"):
        pings.parse_pings(body)


class Nothing:
    """An API server that takes everything."""

    async def put_config_map(self, body: Any) -> None:
        """Take it."""


def test_an_agent_makes_windows_of_its_rounds_by_the_clock() -> None:
    clock = VirtualClock()
    node = PingWindows("n0", Nothing(), clock)  # type: ignore[arg-type]
    tasks = {3: {1: (Target(0, "12", 0, "90"),)}}
    begin = clock.now_ms() // 100_000
    for at in range(25):
        # one slow and one fast round of each window count for nothing
        average = 900 if at % 10 == 4 else 1 if at % 10 == 5 else 20 + at % 2
        answer = {"target": "192.0.2.109", "ok": 9, "lost": 1, "average": average}
        node.add(Config(True, 1), tasks, {3: {1: [answer]}})
        clock._move(10)
    done = node.pings()
    assert {one.number - begin for one in done.windows} <= {0, 1, 2} and done.windows
    whole = [one for one in done.windows if one.rounds == 10]
    assert whole and all((one.sent, one.lost, one.source, one.target) == (100, 10, "12", "90") for one in whole)
    assert all(20_000 <= one.delay <= 21_000 for one in whole)
    node.add(Config(True, 2), tasks, {})
    assert node.pings() == NodePings("n0", 200, ())


def test_addresses_of_chips_come_from_what_nodes_publish() -> None:
    assert list(addresses({"IP": "10.0.0.1", "SuperDeviceID": 7})) == [("7", -1, -1)]
    row = {"addr_type": "EID", "addr": "AB" * 16, "ports": ["0/1"], "plane_id": "1"}
    level = {"level": 1, "info": {"UB": {"net_layer": 1, "rank_addr_list": [row]}}}
    assert list(addresses({"SuperDeviceID": 7, "levelList": [level]})) == [("ab" * 16, 1, 1)]
    for bad in ({}, {"SuperDeviceID": -2}, {"levelList": "x"}, {"levelList": [1]}, {"levelList": [{"info": 1}]},
                {"levelList": [{"info": {"UB": {"rank_addr_list": [5]}}}]}):  # fmt: skip
        assert list(addresses(bad)) == []


def finding(part: NetworkPart, name: str, chips: tuple[tuple[str, int], ...]) -> NetworkFinding:
    return NetworkFinding(part, name, NetworkProblem.DELAY, 0.051, 14.7, 14.0, 0.03, 20, 3, chips)


@pytest.mark.parametrize(
    ("part", "chips", "code"),
    [
        (NetworkPart.LINK, (("n0", 1), ("n0", 2)), "200001010"),
        (NetworkPart.LINK, (("n0", 1), ("n1", 1)), "200001011"),
        (NetworkPart.CHIP, (("n0", 1),), "200001010"),
        (NetworkPart.NODE, (("n0", 1), ("n0", 2)), "200001012"),
        (NetworkPart.RACK_SWITCH, (("n0", 1), ("n1", 2)), "200001012"),
        (NetworkPart.SUPER_POD_SWITCH, (("n0", 1), ("n1", 2)), "200001012"),
    ],
)
def test_faults_have_mindclusters_codes_and_pass_the_inbox(
    part: NetworkPart, chips: tuple[tuple[str, int], ...], code: str
) -> None:
    rows = slownetwork.faults([finding(part, "é" * 300, chips)], {"n0", "n1"})
    (row,) = rows.values()
    assert row["code"] == code
    body = slownode.message("slow-networks-1800000000000-0", 1_800_000_000_000, [
        slownode.claim(row, "occur", 1_800_000_000_000)
    ])  # fmt: skip
    assert public_faults.read(body)[1] == ()
    assert slownode.recorded(slownode.record(rows)) == rows
    assert not slownetwork.faults([finding(part, "x", chips)], {"other"})


def test_explain_says_what_is_slow_in_the_network_with_its_figures() -> None:
    rows = slownetwork.faults([finding(NetworkPart.CHIP, "n0/5", (("n0", 5),))], {"n0"})
    notes = {"baseDeviceInfos": json.dumps({f"Ascend910-{chip}": {"IP": "", "SuperDeviceID": 0} for chip in range(8)})}
    server = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "labels": A2_LABELS, "annotations": notes}}
    record = slownode.record(rows, "belay-slow-networks", "slow-networks")
    seen = observe([server, device_report("n0", 8, {}, int(NOW)), record])
    made = plan(load({}).desired, seen, NOW)
    (text,) = explain("chip", "n0/5", made, seen)["slow"]
    assert text == (
        "200001010 chip n0/5: 20 paths take 14.7 us, usually 14.0 us: 5.1% more (limit 3.0%)"
    )  # fmt: skip
    assert "slow" not in explain("chip", "n0/4", made, seen)


def _reports(rows: Sequence[Sequence[PingSample]], first: int) -> dict[str, NodePings]:
    """What the agents of the fleet would write; windows of 100 s from number ``first``."""
    found: dict[str, list[PathWindow]] = {}
    for at, samples in enumerate(rows):
        for one in samples:
            source, target = one.source, one.target
            row = PathWindow(source.chip, source.address, target.address, first + at, 10, one.delay, one.sent, one.lost)
            found.setdefault(source.node, []).append(row)
    return {node: NodePings(node, 100, tuple(windows)) for node, windows in found.items()}


def test_the_server_reports_a_slow_chip_and_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_networks, "PERIOD", 0.02)
    numbers = {f"node-{n}": {c: str((n << 22) + c) for c in range(4)} for n in range(4)}
    paths = [
        (
            PathEnd(numbers[source.node][source.chip], source.node, source.chip, 3),
            PathEnd(numbers[target.node][target.chip], target.node, target.chip, 3),
        )
        for source, target in A3
    ]
    chip = Element(NetworkPart.CHIP, "node-1/2")
    rows = list(windows(paths, 30, 5, [Injected(chip, 10, delay=0.1, end=20)]))
    first = int(time.time()) // 100 - 30

    async def node(world: World, name: str) -> None:
        devices = {f"Ascend910-{c}": {"IP": "", "SuperDeviceID": int(one)} for c, one in numbers[name].items()}
        await world.node(name, 4)
        notes = {"metadata": {"annotations": {"baseDeviceInfos": json.dumps(devices)}}}
        await world.kube.patch(NODE, name, notes)
        await world.report(name, 4, super_pod=3)

    async def recorded(world: World) -> dict[str, Any]:
        live = await world.kube.get(CONFIGMAP, "belay-slow-networks", "belay-system")
        return {key: json.loads(text) for key, text in ((live or {}).get("data") or {}).items()}

    async def scenario(world: World) -> None:
        for name in numbers:
            await node(world, name)
        async with world.server() as server:
            await until(
                lambda: len(slow_networks.ends_by_address(server.cluster.observed)) == 16, "the chips are observed"
            )

            async def feed(begin: int, end: int) -> None:
                for at in range(begin, end):
                    for report in _reports(rows[at : at + 1], first + at).values():
                        body = pings.pings_map(report, int(time.time() * 1000))
                        await world.kube.apply(body, field_manager="agent")
                    await until(lambda at=at: server.slow_networks.newest >= first + at, f"window {at} is judged")  # type: ignore[misc]

            await feed(0, 14)
            await until(lambda: recorded(world), "the slow chip is recorded")
            (row,) = (await recorded(world)).values()
            assert (row["code"], row["nodes"]) == ("200001010", {"node-1": [2]})
            assert row["text"].startswith("chip node-1/2: ") and "% more (limit 3.0%)" in row["text"]
            await feed(14, 28)

            async def none() -> bool:
                return not await recorded(world)

            await until(none, "the fault has ended")
            live = await world.kube.get(CONFIGMAP, "belay-public-faults", "belay-system")
            sent = [json.loads(text) for text in ((live or {}).get("data") or {}).values()]
            sent.sort(key=lambda body: body["timestamp"])
            said = [(fault["faultCode"], fault["assertion"]) for body in sent for fault in body["faults"]]
            assert said == [("200001010", "occur"), ("200001010", "recover")]
            assert all(fault["faultLocation"]["srcType"] == "0" for body in sent for fault in body["faults"])

    play(tmp_path, scenario)


def test_an_agent_speaks_for_its_own_chips_and_for_the_past_only() -> None:
    own, other = PathEnd("1", "n0", 0, 3), PathEnd("2", "n1", 0, 3)
    ends = {(3, "1"): own, (3, "2"): other}
    detector = NetworkDetector()
    lies = (
        PathWindow(0, "2", "1", 5, 10, 9_999_999, 100, 0),
        PathWindow(0, "1", "2", 900, 10, 9_999_999, 100, 0),
        PathWindow(0, "unknown", "2", 5, 10, 9_999_999, 100, 0),
    )
    slow_networks._judge(detector, [NodePings("n0", 100, lies)], ends, 10)
    assert detector.newest == -1
    slow_networks._judge(detector, [NodePings("n0", 100, (PathWindow(0, "1", "2", 5, 10, 9, 100, 0),))], ends, 10)
    assert detector.newest == 5


def test_super_pods_with_equal_device_ids_are_judged_each() -> None:
    def in_super_pod(end: PathEnd, super_pod: int) -> PathEnd:
        return PathEnd(end.address, f"{end.node}-of-{super_pod}", end.chip, super_pod)

    paths = [(in_super_pod(one, pod), in_super_pod(other, pod)) for pod in (3, 4) for one, other in A3]
    ends = {(end.super_pod, end.address): end for path in paths for end in path}
    assert len(ends) == 32 and len({address for _, address in ends}) == 16
    bad = Injected(Element(NetworkPart.CHIP, "node-1-of-4/2"), BEGIN, delay=0.1)
    detector = NetworkDetector()
    for number, samples in enumerate(windows(paths, BEGIN + 8, 5, [bad], differ=0.1)):
        slow_networks._judge(detector, list(_reports([samples], number).values()), ends, number)
        assert detector.newest == number, "no node is waited for"
    assert [(one.part, one.name) for one in detector.findings] == [bad.element]


def test_addresses_are_those_of_their_super_pod() -> None:
    objects: list[dict[str, Any]] = []
    for name, super_pod in (("a", 1), ("b", 2)):
        notes = {"baseDeviceInfos": json.dumps({"Ascend910-0": {"IP": "", "SuperDeviceID": 7}})}
        objects.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes}})
        lists = {f"huawei.com/Ascend910{kind}": "" for kind in ("-Unhealthy", "-NetworkUnhealthy", "-Recovering")}
        lists |= {"huawei.com/Ascend910": "Ascend910-0", "huawei.com/Ascend910-Fault": "[]"}
        objects.append(deviceinfo.build(name, device_list=lists, update_time=int(NOW), super_pod_id=super_pod))
    found = slow_networks.ends_by_address(observe(objects))
    assert {key: end.node for key, end in found.items()} == {(1, "7"): "a", (2, "7"): "b"}


def test_a_node_whose_rows_are_left_out_is_not_waited_for() -> None:
    detector = NetworkDetector()
    good = NodePings("n0", 100, (PathWindow(0, "1", "2", 5, 10, 9, 100, 0),))
    other = NodePings("n1", 100, (PathWindow(0, "unknown", "2", 5, 10, 9, 100, 0),))
    slow_networks._judge(detector, [good, other], {(3, "1"): PathEnd("1", "n0", 0, 3)}, 10)
    assert detector.newest == 5


class Kept:
    """What is reported as standing."""

    async def load(self) -> dict[str, Any]:
        return {}

    async def report(self, wanted: Any, unjudged: Any) -> None:
        """Take it."""


def test_the_server_judges_on_after_the_clock_was_set_back() -> None:
    clock = Time()
    notes = {"baseDeviceInfos": json.dumps({"Ascend910-0": {"IP": "", "SuperDeviceID": 7}})}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "annotations": notes}}
    cluster = SimpleNamespace(observed=observe([node, device_report("n0", 1, {}, int(NOW))]), synced=True)
    server = slow_networks.SlowNetworks(None, cluster, None, lambda: True, clock=clock)  # type: ignore[arg-type]
    server._faults = Kept()  # type: ignore[assignment]

    async def scenario() -> None:
        for step in (0, 100, -7200, 100, 100):
            clock.pass_by(step)
            number = clock.now // 100_000
            report = NodePings("n0", 100, (PathWindow(0, "7", "8", number, 10, 9_000, 100, 0),))
            server._reports["belay-pings-n0"] = (clock.now, report)
            await server.step()
            assert server.newest == number

    asyncio.run(scenario())


def test_an_agent_publishes_the_windows_of_now_after_its_clock_was_set_back() -> None:
    clock = VirtualClock()
    node = PingWindows("n0", Nothing(), clock)  # type: ignore[arg-type]
    tasks = {3: {1: (Target(0, "12", 0, "90"),)}}
    answer = {"target": "192.0.2.109", "ok": 10, "lost": 0, "average": 20}

    def rounds(count: int) -> None:
        for _ in range(count):
            node.add(Config(True, 1), tasks, {3: {1: [answer]}})
            clock._move(10)

    rounds(45)
    clock._move(-7200)
    begin = clock.now_ms() // 100_000
    rounds(35)
    assert {one.number - begin for one in node.pings().windows} <= {0, 1, 2, 3} and node.pings().windows
