"""What hccn_tool prints, in the forms that releases print it, and programs that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.tools import hccn
from belay.agents.drivers.tools.command import Runner, pairs, tables
from belay.agents.drivers.tools.hccn import HccnTool, Port
from tests.exporter_world import Tool

DEV_INFO = """\
+--------+--------+--------+----------+-------------+------------+
| UdieID | PortID | Speed  | PortType | Link Status | Media Type |
+--------+--------+--------+----------+-------------+------------+
| 1      | 9      | 200    | UB       | UP          | Optical    |
| 0      | 4      | 200    | ETH      | DOWN        | Electrical |
| 0      | 5      | 200    | ETH      | UP          | Electrical |
| ab     | 4      | 200    | ETH      | DOWN        | Electrical |
+--------+--------+--------+----------+-------------+------------+
Total: 3
"""

OPTICAL_950 = """\
+-------+--------+
| Udie  | Port   |
+-------+--------+
| 0     | 4      |
+-------+--------+

+-----+-----+-----+--------------------+-------+------+-------+-----+----+-----------+
|     |     |     | Items              | Value | High | Low   | -   | -  | Index     |
+-----+-----+-----+--------------------+-------+------+-------+-----+----+-----------+
|     |     |     | TxPower Lane0(dBm) | 1.20  | 5.0  | -6.0  | -   | -  | optical_0 |
|     |     |     | TxPower Lane1(dBm) | 1.31  | 5.0  | -6.0  | -   | -  | optical_0 |
|     |     |     | RxPower Lane0(dBm) | -2.50 | 5.0  | -6.0  | -   | -  | optical_1 |
|     |     |     | RxPower Lane1(dBm) | -     | 5.0  | -6.0  | -   | -  | optical_1 |
|     |     |     | Bias Lane0(mA)     | 55    | 90   | 5     | -   | -  |           |
+-----+-----+-----+--------------------+-------+------+-------+-----+----+-----------+
"""

SPEED_950 = """\
+--------+--------+--------+---------+
| UdieID | PortID | Type   | Speed   |
+--------+--------+--------+---------+
| 0      | 4      | UB     | 200 G   |
+--------+--------+--------+---------+
"""

Ask = Callable[[HccnTool], Awaitable[Any]]

ANSWERS: list[tuple[str, str, Ask, Any]] = [
    ("-i 3 -link -g", "link status: UP\n", lambda t: t.link(3), True),
    ("-i 3 -link -g", "link status: DOWN\n", lambda t: t.link(3), False),
    ("-i 3 -link -g", "[device 3]\nLink Status : UP (200G)\n", lambda t: t.link(3), True),
    ("-i 3 -speed -g", "Speed: 100000 Mb/s\n", lambda t: t.speed(3), 100_000),
    ("-i 3 -speed -g", "speed : 200000Mb/s", lambda t: t.speed(3), 200_000),
    (
        "-i 3 -link_stat -g",
        "[device 3]current time        : Mon Jan  1 00:00:00 2024\n[device 3]link up count       : 7\n"
        "[device 3]link change records :\n[device 3]    Mon Jan  1 00:00:00 2024 LINK UP\n",
        lambda t: t.link_ups(3),
        7,
    ),
    (
        "-i 3 -stat -g",
        "packet statistics:\nmac_tx_mac_pause_num:0\nmac_rx_mac_pause_num:12\nroce_new_pkt_rty_num: 4\nodd:x\n",
        lambda t: t.counters(3),
        {"mac_tx_mac_pause_num": 0, "mac_rx_mac_pause_num": 12, "roce_new_pkt_rty_num": 4},
    ),
    (
        "-i 3 -optical -g",
        "optical info:\n  present           : present\n  Vcc               : 3271.30 mV\n  Tx Power0      : 1.2 mW\n",
        lambda t: t.optical(3),
        {"optical_info": "", "present": "present", "Vcc": "3271.30 mV", "Tx_Power0": "1.2 mW"},
    ),
    (
        "-i 3 -bandwidth -g",
        "Bandwidth TX: 0.25 MB/sec\nBandwidth RX: 12.00 MB/sec\n",
        lambda t: t.bandwidth(3),
        (0.25, 12.0),
    ),
    ("-g -dev_info -i 0", DEV_INFO, lambda t: t.ports(0), [
        Port(0, 4, "ETH", False), Port(0, 5, "ETH", True), Port(1, 9, "UB", True),
    ]),
    ("-g -link -i 0 -u 1 -p 9", "link status: UP\n", lambda t: t.port_link(0, 1, 9), True),
    (
        "-g -bandwidth -i 0 -u 1 -p 9 -time 100",
        "Bandwidth TX: 1.00 MB/sec\nBandwidth RX: 2.00 MB/sec\n",
        lambda t: t.port_bandwidth(0, Port(1, 9, "UB", True)),
        (1.0, 2.0),
    ),
    (
        "-g -bandwidth -d bond0 -time 100",
        "Bandwidth TX: 1.00 MB/sec\nBandwidth RX: 2.00 MB/sec\nBandwidth TX: 3.00 MB/sec\nBandwidth RX: 4.00 MB/sec\n",
        lambda t: t.port_bandwidth(0, Port(0, 5, "ETH", True)),
        (3.0, 4.0),
    ),
    (
        "-g -bandwidth -d bond0 -time 100",
        "Bandwidth TX: 1.00 MB/sec\nBandwidth RX: 2.00 MB/sec\nBandwidth TX: 3.00 MB/sec\nBandwidth RX: 4.00 MB/sec\n",
        lambda t: t.port_bandwidth(0, Port(0, 4, "ETH", True)),
        (1.0, 2.0),
    ),
    ("-g -speed -i 0 -u 0 -p 4", SPEED_950, lambda t: t.port_speed(0, 0, 4), 200),
    ("-g -optical -i 0 -u 0 -p 4", OPTICAL_950, lambda t: t.port_optical(0, 0, 4), {
        "TxPower Lane0(dBm)": "1.20", "TxPower Lane1(dBm)": "1.31", "RxPower Lane0(dBm)": "-2.50", "optical_index": "2",
    }),
    ("-g -stat -i 0 -u 0 -p 4", "is_uboe_port:1\nretry_req_sum : 5\n", lambda t: t.port_counters(0, 0, 4), {
        "is_uboe_port": 1, "retry_req_sum": 5,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("line", "output", "ask", "wanted"), ANSWERS)
def test_what_it_prints_is_understood(line: str, output: str, ask: Ask, wanted: Any) -> None:
    tool = Tool({line: output})
    assert asyncio.run(_ask(ask, tool)) == wanted
    assert tool.asked == [line]


async def _ask(ask: Ask, tool: Tool) -> Any:
    return await ask(HccnTool(tool))


@pytest.mark.parametrize(
    ("parse", "output"),
    [
        (hccn.link, "device not found"), (hccn.speed, "Speed: Unknown!"), (hccn.link_ups, "link down count : 3"),
        (hccn.counters, "no data"), (hccn.optical, ""), (hccn.bandwidth, "Bandwidth TX: 0.25 MB/sec"),
        (hccn.ports, "+--+\n| x |\n+--+"), (hccn.port_speed, SPEED_950.replace("200 G", "NA")),
        (hccn.port_optical, "+--+\n| no module |\n+--+"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_never_guessed(parse: Callable[[str], Any], output: str) -> None:
    with pytest.raises(DriverError, match="hccn_tool"):
        parse(output)


def test_numbers() -> None:
    texts = ("3271.30 mV", "", None, "NA", "not supported", "12", "1 2 3", "x mV")
    assert [hccn.measured(text) for text in texts] == [3271.3, -1, -1, -1, -1, -1, -1, -1]
    assert [hccn.bare(text) for text in ("-2.50", "", "NA", "1.2 dBm")] == [-2.5, -1, -1, -1]


def test_pairs_and_tables() -> None:
    assert pairs("a : 1\nnone\na: 2\n b:x:y\n: 3") == {"a": "1", "b": "x:y"}
    assert tables("+-+\n| a | b |\n+-+\n| 1 | 2 |\n+-+\ntext\n| c |\n") == [[["a", "b"], ["1", "2"]], [["c"]]]


def script(folder: Path, body: str) -> str:
    file = folder / "tool"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def test_a_program_sees_two_variables_only(tmp_path: Path) -> None:
    runner = Runner(script(tmp_path, "env | cut -d= -f1 | sort"), env={"PATH": "/usr/bin:/bin", "SECRET": "x"})
    assert set(asyncio.run(runner.run([])).split()) <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("echo 'no such device'; exit 3", "exit code 3: no such device"),
        ("sleep 60", "no answer in 0.3 s"),
        ("yes", "printed more than 4096 bytes"),
    ],
)
def test_a_program_that_fails_hangs_or_never_ends_is_stopped(tmp_path: Path, body: str, text: str) -> None:
    runner = Runner(script(tmp_path, body), seconds=0.3, limit=4096)
    with pytest.raises(DriverError, match=text):
        asyncio.run(runner.run(["-i", "0"]))


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="cannot be run: No such file"):
        asyncio.run(Runner(str(tmp_path / "none")).run([]))
