"""What the device plugin watches beside kubelet: hangs, containers on one chip, witnesses, pods of kubelet."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.drivers.base import Chip, DriverError
from belay.agents.drivers.server_models import machine
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.kubelet import flags
from belay.agents.kubelet.duplicates import Duplicates, chips_of, majors
from belay.agents.kubelet.hangs import Flits, Hangs, all_packets, limits
from belay.agents.kubelet.kubeletpods import KubeletPods
from belay.agents.kubelet.pods import facts
from belay.agents.kubelet.softshare import ShareError, content, prepare
from belay.agents.kubelet.witness import KubeletWitness
from belay.agents.node.detect import HangLimits
from belay.agents.node.policy import FaultLevels
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState
from belay.agents.node.witness import WitnessError
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import FAULT, RULES, VirtualClock, World, play
from tests.kubelet_world import Node


def state(chips: int = 2) -> NodeState:
    found = NodeState(
        "n", machine("huawei.com/Ascend910", "910B3"), [Chip(id=n, logic_id=n, card=n) for n in range(chips)],
        FaultLevels(NodePolicy("default", RULES)),
    )  # fmt: skip
    found.users.chips.update({n: (f"default/p{n}",) for n in range(chips)})
    return found


class Calls:
    """The driver's calls about use, as a test sets them."""

    def __init__(self) -> None:
        self.pids = [(7, 1)]
        self.cores, self.used, self.packets, self.ticks = 0, 100, 1000, 0
        self.broken = False

    async def ask(self, call: str, *arguments: Any, timeout: float) -> Any:
        if self.broken:
            raise DriverError("away")
        return {"processes": self.pids, "utilisation": self.cores, "hbm": {"used": self.used, "total": 65536}}[call]

    async def counted(self, chip: int) -> int:
        return self.packets


def hangs(tmp_path: Path, calls: Calls, known: NodeState, woken: list[int], found: HangLimits | None = None) -> Hangs:
    (tmp_path / "7").mkdir(exist_ok=True)
    (tmp_path / "7" / "stat").write_text(f"7 (a b) c) S 1 1 1 1 1 1 1 1 1 1 {calls.ticks} 0 0 0 0")
    return Hangs(
        known, calls.ask, calls.counted, found or HangLimits(), VirtualClock(), lambda: woken.append(1), proc=tmp_path
    )


def test_processes_that_stand_still_for_five_minutes_are_a_fault_until_they_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        calls, known, woken = Calls(), state(1), []
        watch = hangs(tmp_path, calls, known, woken)
        for _ in range(5):
            await watch.check()
        assert not known.found
        await watch.check()
        assert [code.code for code in known.found[0]] == ["200001002"] and woken == [1]
        calls.packets += 100
        await watch.check()
        assert not known.found and woken == [1, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("sign", ["cores", "memory", "packets", "cpu", "pids", "nobody"])
def test_any_sign_of_work_is_no_hang(tmp_path: Path, sign: str) -> None:
    async def scenario() -> None:
        calls, known = Calls(), state(1)
        watch = hangs(tmp_path, calls, known, [])
        for number in range(12):
            calls.cores = 5 if sign == "cores" else 0
            calls.used += sign == "memory"
            calls.packets += 100 if sign == "packets" else 99
            calls.ticks += 500 if sign == "cpu" else 499
            if sign == "pids":
                calls.pids = [(7, 1), (8 + number, 1)]
            if sign == "nobody":
                known.users.chips.clear()
            hangs(tmp_path, calls, known, [])
            await watch.check()
        assert not known.found

    asyncio.run(scenario())


def test_a_hang_reaches_the_device_report(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node() as node:
            known = node.agent.state
            assert known is not None
            await node.kubelet.admit(node.pod("a", ["Ascend910-4"]))
            await node.until(lambda: bool(known.users.chips.get(4)))
            watch = hangs(tmp_path, Calls(), known, [], HangLimits(checks=1))
            for _ in range(2):
                await watch.check()
            node.agent.refresh_soon()
            await node.until(lambda: any(e.code == "200001002" for e in known.book.chip(4)))

    asyncio.run(scenario())


def test_a_driver_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        calls, known = Calls(), state(1)
        calls.broken = True
        await hangs(tmp_path, calls, known, []).check()
        assert "Ascend910-0 is not known: away" in known.problems["hangs"]

    asyncio.run(scenario())


def test_limits_are_read_from_the_originals_file(tmp_path: Path) -> None:
    path = tmp_path / "hang.json"
    assert limits(path) == HangLimits()
    path.write_text('{"HangDetection": {"Enabled": true, "Threshold": {"AICoreUtilization": 9, "DetectDuration": 2}}}')
    assert limits(path) == HangLimits(cores=9, checks=2)
    path.write_text('{"HangDetection": {"Enabled": false}}')
    assert limits(path) is None
    for bad in ("{", '{"HangDetection": {"Threshold": {"DetectDuration": 0}}}', "[]"):
        path.write_text(bad)
        with pytest.raises(ValueError, match=r"hang\.json"):
            limits(path)


def test_packets_are_those_of_both_directions() -> None:
    async def counters(chip: int) -> dict[str, int]:
        return {"roce_rx_all_pkt_num": 3, "roce_tx_all_pkt_num": 4, "mac_rx_total_pkt_num": 100}

    assert asyncio.run(all_packets(counters, 0)) == 7


PORTS = """+--------+--------+-------+----------+-------------+-------+
| UdieID | PortID | Speed | PortType | Link Status | Media |
+--------+--------+-------+----------+-------------+-------+
| 0      | 1      | 400G  | UB       | UP          | CU    |
| 1      | 4      | 400G  | UB       | UP          | CU    |
+--------+--------+-------+----------+-------------+-------+
"""


@pytest.mark.parametrize("driver", [True, False])
def test_flits_are_those_of_all_ports_of_an_ascend950_chip(driver: bool) -> None:
    mute: set[int] = set()
    carried = {1: 10, 4: 20}
    asked = []

    class Tool:
        async def run(self, arguments: list[str]) -> str:
            asked.append(arguments)
            if "-dev_info" in arguments:
                return PORTS
            port = int(arguments[arguments.index("-p") + 1])
            if port in mute:
                raise DriverError("away")
            assert arguments[arguments.index("-i") + 1] == "12"
            return f"rx_busi_flit_num:{carried[port]}\ntx_busi_flit_num:1\nrx_send_ack_flit:500\n"

    async def ask(call: str, chip: int, die: int, port: int, *, timeout: float) -> Any:
        assert (call, chip) == ("ub_port", 2)
        if not driver or port in mute:
            raise DriverError("unknown")
        counters = [0] * 48
        # the 20th of 21 received ones, the 15th of 16 sent ones; the others are no work of the chip
        counters[19], counters[35], counters[20] = carried[port], 1, 500
        return {"mode": 0, "counters": counters}

    async def scenario() -> None:
        flits = Flits(ask, HccnTool(Tool()), {2: 12}.__getitem__)
        assert await flits.count(2) == 32
        carried[1] += 100
        assert await flits.count(2) == 132
        mute.add(4)
        carried[1] += 1
        assert await flits.count(2) == 133
        assert sum("-dev_info" in arguments for arguments in asked) == 1
        if driver:
            mute.clear()
            await flits.count(2)
            assert all("-dev_info" in a or a[a.index("-p") + 1] == "4" for a in asked)

    asyncio.run(scenario())


# ---- duplicates


def bundle(folder: Path, name: str, env: list[str], devices: list[dict[str, Any]] | None = None) -> Path:
    path = folder / "io.containerd.runtime.v2.task" / "k8s.io" / name / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"process": {"env": env}, "linux": {"resources": {"devices": devices or []}}}))
    return path


def test_containers_on_one_chip_are_reported_until_they_end(tmp_path: Path) -> None:
    known = state()
    bundle(tmp_path, "a", ["ASCEND_VISIBLE_DEVICES=0-2,5"])
    gone = bundle(
        tmp_path, "b", [], [{"allow": True, "major": 236, "minor": 2}, {"allow": True, "major": 1, "minor": 5}]
    )
    bundle(tmp_path, "c", ["ASCEND_VISIBLE_DEVICES=0", "ASCEND_RUNTIME_OPTIONS=VIRTUAL"])
    bundle(tmp_path, "d", ["PATH=/"])
    watch = Duplicates(known, Clock(), folders=[tmp_path], driver=frozenset({236}))
    assert watch.check() == {"2": ["k8s.io/a", "k8s.io/b"]}
    assert known.problems["duplicates"] == "device 2 is in several containers: k8s.io/a, k8s.io/b"
    gone.unlink()
    assert watch.check() == {} and "duplicates" not in known.problems


@pytest.mark.parametrize(
    ("value", "found"),
    [("Ascend910-3,Ascend910-10", {"3", "10"}), ("0,x,7", {"0", "7"}), ("3-1", set()), ("void", set()),
     ("0-99999", set())],
)  # fmt: skip
def test_devices_in_an_environment(value: str, found: set[str]) -> None:
    assert chips_of({"process": {"env": [f"ASCEND_VISIBLE_DEVICES={value}"]}}, frozenset()) == found


def test_majors_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text(
        "Character devices:\n  1 mem\n236 devdrv-cdev\n237 vdevdrv-cdev\n\nBlock devices:\n"
    )
    assert majors(tmp_path / "devices") == {236, 237}


# ---- before a reset


def witness(node: Node, source: str) -> KubeletWitness:
    """A witness after kubelet was informed."""

    def parts() -> Any:
        return node.plugin.allocator, node.plugin._books, lambda chips: True

    return KubeletWitness(source, source, parts)


def test_kubelet_is_a_witness_of_whom_only_it_knows() -> None:
    async def scenario() -> None:
        async with Node() as node:
            socket, checkpoint = witness(node, "socket"), witness(node, "checkpoint")
            assert await socket.holders([0, 1]) == {} == await checkpoint.holders([0, 1])
            await node.kubelet.admit(node.pod("a", ["Ascend910-1"]))
            assert await socket.holders(range(8)) == {1: "pod default/a"} == await checkpoint.holders(range(8))
            assert await socket.holders([0]) == {}
            # kubelet alone: the ledger has forgotten
            await node.crash()
            (node.root / "state" / "grants").unlink()
            await node.boot()
            await node.seen("a")
            assert (await socket.holders([1]))[1].startswith("pod ")
            node.finish("a")
            node.delete("a")
            await node.until(lambda: not node.plugin.allocator.live_uids())  # type: ignore[union-attr]
            await node.until(lambda: not node.plugin.allocator.grants)  # type: ignore[union-attr]
            assert await checkpoint.holders([1]) == {}
            await node.kubelet.stop()
            with pytest.raises(WitnessError):
                await socket.holders([1])
            await node.kubelet.start()

    asyncio.run(scenario())


def test_a_chip_that_kubelet_still_offers_is_no_chip_to_reset() -> None:
    async def scenario() -> None:
        async with Node() as node:
            found = node.plugin.witnesses
            assert [one.name for one in found] == ["kubelet pod resources", "kubelet checkpoint"]
            await node.until(lambda: not node.plugin._withdrawal_reported([0]))
            with pytest.raises(WitnessError, match="has not received"):
                await found[0].holders([0])

    asyncio.run(scenario())


def test_a_witness_that_has_not_started_cannot_say() -> None:
    async def scenario() -> None:
        node = Node()
        await node.kubelet.start()
        await node.boot(wait=False)
        with pytest.raises(WitnessError, match="has not started"):
            await node.plugin.witnesses[0].holders([0])
        await node.crash()
        await node.kubelet.stop()

    asyncio.run(scenario())


# ---- shares and pods


def share(**notes: str) -> Any:
    body = {"metadata": {"name": "p-0", "namespace": "d", "uid": "u", "annotations": notes,
                         "ownerReferences": [{"name": "job", "controller": True}]}}  # fmt: skip
    return facts(body)


def test_numbers_of_shares_are_the_smallest_free_ones(tmp_path: Path) -> None:
    for number in (0, 1):
        prepare(tmp_path, share(), 3, "D1", "/run/s/")
        assert (tmp_path / "d.job" / f"3_{number}" / "npu_info.config").exists()
    mounts = prepare(tmp_path, share(), 4, "D1", "/run/s/")
    assert mounts == [
        ("/run/s/4/D1", "/dev/shm/D1", False),
        (str(tmp_path / "d.job" / "4_0"), "/etc/enpu/vcann-rt/", True),
    ]


def test_what_a_pod_says_of_its_share_is_not_trusted() -> None:
    with pytest.raises(ShareError, match="memory-quota"):
        content(share(**{"huawei.com/scheduler.softShareDev.hbmQuota": "1\nx=y"}), 0, 0, "")


def test_pods_are_read_from_kubelet_with_the_token() -> None:
    async def scenario() -> None:
        seen, status = [], [200]

        async def pods(request: web.Request) -> web.Response:
            seen.append(request.headers.get("Authorization"))
            # a refusal is JSON too, without items: it must not look like a node without pods
            body = {"items": [{"metadata": {"name": "a"}}, 3]} if status == [200] else {"kind": "Status", "code": 401}
            return web.json_response(body, status=status[0])

        app = web.Application()
        app.router.add_get("/pods", pods)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        reader = KubeletPods("127.0.0.1", port, lambda: {"Authorization": "Bearer t"}, scheme="http")
        assert await reader.read() == [{"metadata": {"name": "a"}}]
        assert seen == ["Bearer t"]
        status[0] = 401
        with pytest.raises(ApiError, match="401"):
            await reader.read()
        await runner.cleanup()
        with pytest.raises(ApiError):
            await reader.read()
        await reader.close()

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="HOST_IP"):
        KubeletPods("", 10250, dict)


def test_with_resets_switched_off_an_order_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, settings=Settings(resets=False))
        world.driver.inject(0, FAULT)
        await world.start()
        world.order({0: 1})
        await world.run(120)
        assert world.result() == (1, "refused: resets are switched off on this node (-hotReset=-1)")
        assert world.driver.resets == []
        await world.kill()

    play(scenario)


def test_a_log_file_is_kept_as_the_original_keeps_it(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    flags.add(parser)
    path = tmp_path / "log" / "devicePlugin.log"
    path.parent.mkdir()
    old, young = (path.with_name(f"devicePlugin.log.{number}") for number in (1, 2))
    for file in (old, young):
        file.touch()
    os.utime(old, (1, 1))
    (handler,) = flags.log_handlers(parser.parse_args([f"-logFile={path}", "-maxBackups=3"]))
    assert isinstance(handler, RotatingFileHandler)
    assert (handler.maxBytes, handler.backupCount) == (20 << 20, 3)
    assert not old.exists() and young.exists()
    assert path.stat().st_mode & 0o777 == 0o640
    handler.close()
    assert flags.log_handlers(parser.parse_args([])) == []
