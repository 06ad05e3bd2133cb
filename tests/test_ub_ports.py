"""Ports of Ascend950 chips that are down: which faults follow, and when the ports are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from belay.agents.drivers.base import Code, DriverError
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.node.policy import FaultLevels
from belay.agents.node.port_faults import UB_DOWN, UBOE_DOWN, PortsDown, derived
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.state import NodeState
from belay.agents.node.ub_ports import EVERY, UbPorts
from tests.agent_world import VirtualClock, play
from tests.test_fabric import MACHINE, chips

HEAD = "+--+--+--+--+--+--+\n| UdieID | PortID | Speed | PortType | Link Status | Media Type |\n+--+--+--+--+--+--+\n"


class Ports:
    """hccn_tool with ports per chip: (die, port, kind, link); ``unwired`` are not enabled."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[int, int, str, str]]] = {}
        self.unwired: set[tuple[int, int]] = set()
        self.broken = False
        self.asked: list[int] = []

    async def run(self, arguments: list[str]) -> str:
        if self.broken:
            raise DriverError("hccn_tool: no answer")
        if "-port_info" in arguments:
            die, port = int(arguments[-3]), int(arguments[-1])
            return f"port_enable : {'off' if (die, port) in self.unwired else 'on'}\nspeed : 200\n"
        logic = int(arguments[-1])
        self.asked.append(logic)
        return HEAD + "".join(
            f"| {die} | {port} | 200 | {kind} | {link} | Electrical |\n"
            for die, port, kind, link in self.rows.get(logic, [])
        )


@pytest.mark.parametrize(
    ("known", "down", "board", "found"),
    [
        ({}, {}, 0x25, {}),
        # one bonded port, both; a board without UBOE is asked only when the driver names a code
        ({0: UBOE_DOWN}, {0: (1, 0)}, 0x07, {0: ["110000002"]}),
        ({0: UBOE_DOWN}, {0: (2, 0)}, 0x07, {0: ["110001024"]}),
        ({0: UBOE_DOWN}, {0: (0, 0)}, 0x25, {}),
        ({0: UBOE_DOWN}, {}, 0x25, {}),
        ({}, {0: (1, 0)}, 0x25, {0: [UBOE_DOWN, "110000002"]}),
        ({}, {0: (1, 0)}, 0x07, {}),
        # UB ports of one chip, of all
        ({0: UB_DOWN}, {}, 0x25, {0: ["020001002"]}),
        ({}, {1: (0, 3)}, 0x25, {1: [UB_DOWN, "020001002"]}),
        ({0: UB_DOWN, 1: UB_DOWN}, {}, 0x25, {0: ["020000002"], 1: ["020000002"]}),
        ({0: UB_DOWN}, {1: (0, 1)}, 0x25, {0: ["020000002"], 1: [UB_DOWN, "020000002"]}),
    ],
)
def test_what_follows_from_ports_that_are_down(
    known: Mapping[int, str], down: Mapping[int, tuple[int, int]], board: int, found: Mapping[int, list[str]]
) -> None:
    named = {chip: frozenset(known.get(chip, "").split()) for chip in (0, 1)}
    rows = derived(named, {chip: PortsDown(*numbers) for chip, numbers in down.items()}, board)
    assert {chip: [code.code for code in made] for chip, made in rows.items()} == found
    assert all(code.plane == ("network" if code.code in (UBOE_DOWN, "110000002", "110001024") else "chip")
               for made in rows.values() for code in made)  # fmt: skip


def node(count: int = 2) -> NodeState:
    state = NodeState("n", MACHINE, chips(count), FaultLevels(shipped_policy("n")))
    state.take_codes(dict.fromkeys(state.ids, ()), 1000)
    state.polled = True
    return state


def test_the_levels_are_those_of_the_shipped_table() -> None:
    state = node()
    state.take_codes({0: (Code(UB_DOWN, 5),), 1: ()}, 2000)
    assert state.judge.local_level(0, state.book.chip(0)) == "SeparateNPU"
    state.take_codes({0: (Code(UB_DOWN, 5),)}, 3000)  # chip 1 cannot be read: what it had counts
    assert {entry.code for entry in state.book.chip(0)} == {UB_DOWN, "020001002"}
    state.take_codes({0: (Code(UB_DOWN, 5),), 1: (Code(UB_DOWN, 6),)}, 4000)
    assert state.judge.local_level(0, state.book.chip(0)) == "SubHealthFault"
    state.take_codes({0: (), 1: ()}, 5000)
    assert state.book.chip(0) == ()
    state.ports_down[1] = PortsDown(2, 0)
    state.take_codes({0: (), 1: ()}, 6000)
    assert not state.network_healthy(1) and state.network_healthy(0)
    other = NodeState("n", msgspec.structs.replace(MACHINE, prefix="Ascend910-"), chips(1), state.judge)
    other.take_codes({0: (Code(UB_DOWN, 5),)}, 1)
    assert [entry.code for entry in other.book.chip(0)] == [UB_DOWN]


def test_ports_are_read_at_the_start_on_news_and_after_a_reset(tmp_path: Path) -> None:
    async def story() -> None:
        clock, tool, state, news = VirtualClock(), Ports(), node(), []
        bonded = [(0, 4, "ETH", "DOWN"), (0, 5, "ETH", "UP")]
        tool.rows = {0: [*bonded, (1, 1, "UB", "DOWN"), (1, 2, "UB", "DOWN"), (1, 3, "UB", "NA")]}
        tool.unwired = {(1, 2)}
        ports = UbPorts(HccnTool(tool), lambda: state, clock, lambda: news.append(clock.mono))
        task = asyncio.create_task(ports.run())
        await clock.advance(1)
        assert state.ports_down == {0: PortsDown(1, 1), 1: PortsDown(0, 0)} and len(news) == 2
        await clock.advance(60)
        assert tool.asked == [0, 1], "nothing changed"
        state.take_codes({0: (Code(UBOE_DOWN, 1, "network"),), 1: ()}, 1)
        tool.rows[0][1] = (0, 5, "ETH", "DOWN")
        await clock.advance(6)
        assert tool.asked == [0, 1, 0] and state.ports_down[0] == PortsDown(2, 1)
        state.resetting = {0}
        await clock.advance(6)
        assert 0 not in state.ports_down, "before the reset says nothing about after it"
        tool.rows, state.resetting = {}, set()
        await clock.advance(6)
        assert state.ports_down[0] == PortsDown(0, 0)
        tool.broken = True
        await clock.advance(2 * EVERY)
        assert state.ports_down[0] == PortsDown(0, 0) and not task.done()

    play(story)


def test_other_products_have_no_such_ports() -> None:
    async def story() -> None:
        state = NodeState(
            "n", msgspec.structs.replace(MACHINE, prefix="Ascend910-"), chips(1), FaultLevels(shipped_policy("n"))
        )
        await UbPorts(HccnTool(Ports()), lambda: state, VirtualClock(), lambda: None).run()

    asyncio.run(asyncio.wait_for(story(), 60))
