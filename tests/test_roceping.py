"""Pings between super pods over network cards: real echoes on this host, and the effect of lists that say who pings."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from belay.agents.node.hardware.pingresults import COLUMNS, PingFiles
from belay.agents.node.hardware.roceping import LOOK_EVERY, RocePings, ping, tp95
from tests.agent_world import VirtualClock
from tests.needs import required


@pytest.mark.skipif(os.geteuid() != 0 and not required(), reason="raw sockets need root")
def test_real_echoes() -> None:
    async def main() -> None:
        found = await ping("127.0.0.1", "127.0.0.2")
        assert found is not None and 0 <= found < 1_000_000
        assert await ping("192.0.2.1", "127.0.0.2") is None, "not an address of this host"
        several = await asyncio.gather(*(ping("127.0.0.1", f"127.0.0.{n}") for n in range(2, 18)))
        assert None not in several

    asyncio.run(main())


def test_tp95() -> None:
    assert [tp95([]), tp95([7]), tp95(list(range(10))), tp95(list(range(100)))] == [-1, 7, 9, 95]


class Cluster:
    """A node with a label."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        return {"metadata": {"labels": {"accelerator-type": self.kind}}}

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        yield None
        await asyncio.Event().wait()


class World:
    """Server 5 of super pod 2; a table says how long an echo takes."""

    def __init__(self, tmp_path: Path, kind: str = "950-superpod-atlas-8") -> None:
        self.folder = tmp_path / "super-pod-roce"
        self.folder.mkdir()
        self.clock = VirtualClock()
        self.asked: list[tuple[str, str]] = []
        self.takes: dict[str, int] = {}
        self.files = PingFiles(tmp_path / "log", self.folder, "2_5", 7)
        self.pings = RocePings(
            "n0", 2, 5, Cluster(kind), self.clock, self.files, self.folder, self.echo
        )  # fmt: skip

    async def echo(self, source: str, target: str) -> int | None:
        self.asked.append((source, target))
        return self.takes.get(target)

    def says(self, text: str, app: str = "pingmesh") -> None:
        self.pings.receive({"metadata": {"labels": {"app": app}}, "data": {"roce": text}})

    def members(self, **pods: list[str]) -> None:
        (self.folder / "ping_list_range.json").write_text(json.dumps({k.strip("p"): v for k, v in pods.items()}))

    def lists(self, *rows: tuple[str, str]) -> None:
        body = [
            {"srcType": 1, "dstType": 1, "pktSize": 64, "srcCardPhyId": 0, "srcAddr": src, "dstAddr": dst}
            for src, dst in rows
        ]
        (self.folder / "ping_list_2_5.json").write_text(json.dumps([{"pingList": body}]))

    async def ticks(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.clock._move(seconds)
            await self.pings.step()


ON = '{"activate":"on","task_interval":2}'


def test_listed_destinations_are_pinged_and_reported(tmp_path: Path) -> None:
    async def main() -> None:
        w = World(tmp_path)
        w.takes = {"10.0.1.1": 400}
        await w.ticks(2)
        w.members(p2=["5", "6"])
        w.lists(("10.0.0.1", "10.0.1.1"), ("10.0.0.2", "10.0.1.2"))
        await w.ticks(1)
        assert w.asked == [], "no list asks for it"
        w.says('{"activate":"on","task_interval":0}')
        w.says(ON, app="other")
        await w.ticks(1)
        assert w.asked == []
        w.says(ON)
        await w.ticks(10)
        assert w.asked == 10 * [("10.0.0.1", "10.0.1.1"), ("10.0.0.2", "10.0.1.2")]
        now = str(w.clock.now_ms())
        assert list(csv.reader((w.folder / "ping_result_2_5.csv").open())) == [
            list(COLUMNS),
            ["0", "1", "10.0.0.1", "1", "10.0.1.1", "400", "400", "400", "0.000", "0.000", "0.000", now],
            ["0", "1", "10.0.0.2", "1", "10.0.1.2", "-1", "-1", "-1", "1.000", "1.000", "1.000", now],
        ]
        # a new list is taken with the next look, a broken one leaves the old in force
        w.lists(("10.0.0.1", "10.0.1.9"))
        await w.ticks(1, LOOK_EVERY)
        assert w.asked[-1] == ("10.0.0.1", "10.0.1.9")
        w.lists(("10.0.0.1", "no address"))
        await w.ticks(1, LOOK_EVERY)
        assert w.asked[-1] == ("10.0.0.1", "10.0.1.9")
        w.says('{"activate":"off","task_interval":2}')
        before = len(w.asked)
        await w.ticks(3)
        assert len(w.asked) == before
        w.files.close()

    asyncio.run(main())


def test_an_unlisted_server_pings_no_address_and_no_list_is_endless(tmp_path: Path) -> None:
    async def main() -> None:
        w = World(tmp_path)
        w.members(p2=["6"], p3=["5"])
        w.lists(*(("10.0.0.1", f"10.0.1.{n}") for n in range(1, 41)))
        w.says(ON)
        await w.ticks(1)
        assert w.asked == []
        w.members(p2=["5"])
        await w.ticks(1, LOOK_EVERY)
        assert len(w.asked) == 16

    asyncio.run(main())


def test_other_servers_have_no_such_pings(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(World(tmp_path, "module-a3-16-super-pod").pings.run(), 5))
