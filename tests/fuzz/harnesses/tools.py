"""What programs and files of the host say: npu-smi, hccn_tool, the board controller, state files, lists of pings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.tools import command, hccn, npu_smi
from belay.agents.node import fabric
from belay.agents.node.hardware import bmc, ipmi, pinglist, storage, superpod
from belay.agents.rdma import cards
from belay.agents.rdma.config import ConfigError, fault_codes, parsed
from tests.fuzz.harness import Form, Harness, scratch, text
from tests.fuzz.harnesses.loops import run

_TABLE_WORDS: Final = (
    b"+---+\n",
    b"| 0     910B1 | OK |\n",
    b"  : \n",
    b"NPU ID : 0\n",
    b"\x1b[31m",
    b"|",
    b"0x",
    b"NA",
    b"-",
    b"nan",
    b"inf",
    b"1e400",
)
_DRIVER: Final = (DriverError,)


def _each(
    *parsers: Callable[[str], object], errors: tuple[type[Exception], ...] = _DRIVER
) -> Callable[[bytes], object]:
    """A feed that gives the input to each of several parsers."""

    def feed(found: str) -> None:
        for parse in parsers:
            try:
                parse(found)
            except errors as error:
                assert len(str(error)) < 1000, error

    return text(feed)


def _facts(found: str) -> None:
    facts = npu_smi.Facts(found)
    facts.text("Health", "NPU ID")
    facts.number("Temperature(C)", "NPU Real-time Power(W)")


class _Tool:
    """A program that answers every question with the same text."""

    program = "npu-smi"

    def __init__(self, said: str) -> None:
        self._said = said

    async def run(self, arguments: Any) -> str:
        return self._said


def _hccn_tool(found: str) -> None:
    tool = hccn.HccnTool(_Tool(found))
    for ask in (
        lambda: tool.link(0),
        lambda: tool.speed(0),
        lambda: tool.link_ups(0),
        lambda: tool.counters(0),
        lambda: tool.optical(0),
        lambda: tool.bandwidth(0),
        lambda: tool.ports(0),
        lambda: tool.port_link(0, 0, 0),
        lambda: tool.port_speed(0, 0, 0),
        lambda: tool.port_optical(0, 0, 0),
        lambda: tool.port_counters(0, 0, 0),
        lambda: tool.port_bandwidth(0, hccn.Port(0, 0, "", "")),
    ):
        try:
            run(ask())  # type: ignore[arg-type]
        except DriverError as error:
            assert len(str(error)) < 1000


class _Board:
    """A controller whose every answer is the same bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def raw(self, *_: object) -> bytes:
        return self._data


def _rdma(data: bytes) -> None:
    try:
        parsed(data, "config.json")
    finally:
        fault_codes(data, "fault_code.json")


def _rdma_cards(found: str) -> None:
    cards.interfaces(found), cards.count(found), cards.widths(found), cards.expected(found)


def _alarms(data: bytes) -> None:
    for ask in (
        lambda: ipmi.records(data),
        lambda: run(ipmi.alarms(_Board(data))),
        lambda: run(ipmi.serial_number(_Board(data))),
    ):  # type: ignore[arg-type]
        try:
            ask()
        except bmc.BmcError as error:
            assert len(str(error)) < 1000


def _printed(data: bytes) -> None:
    bmc._bytes(data)


def _clients(found: str) -> None:
    for kind in (storage.DPC, storage.DTFS):
        try:
            storage.parse(kind, found)
        except storage.StorageError as error:
            assert len(str(error)) < 1000


def _pings(data: bytes) -> None:
    for per_source in (False, True):
        try:
            pinglist.listed(data, per_source=per_source)
        except pinglist.PingError as error:
            assert len(str(error)) < 1000


def _ping_config(data: bytes) -> None:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    found = body.get("data") if isinstance(body, dict) else None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return
    for ask in (
        lambda: pinglist.config(found, 0),
        lambda: pinglist.roce_config(found),
        lambda: _mesh(found),
    ):
        try:
            ask()
        except pinglist.PingError as error:
            assert len(str(error)) < 1000
    superpod.wanted(found, "node-1")


def _mesh(found: Any) -> None:
    members = pinglist.members(found, "node-1", 0)
    pinglist.full_mesh("node-1", members)


def _eid(found: str) -> None:
    fabric.parse_eid(found)


def _nics(data: bytes) -> None:
    fabric.Nics(scratch(data), lambda name: "10.0.0.1").addresses()


HARNESSES: Final = (
    Harness(
        "npu-smi",
        _each(command.pairs, command.tables, npu_smi.places, npu_smi.processes, npu_smi.vnpus, npu_smi.done, _facts),
        ("agents/drivers/tools/npu_smi.py", "agents/drivers/tools/command.py"),
        form=Form.TEXT,
        words=_TABLE_WORDS,
    ),
    Harness("hccn-tool", text(_hccn_tool), ("agents/drivers/tools/hccn.py",), form=Form.TEXT, words=_TABLE_WORDS),
    Harness("rdma-config", _rdma, ("agents/rdma/config.py",), (ConfigError,)),
    Harness("rdma-cards", text(_rdma_cards), ("agents/rdma/cards.py",), form=Form.TEXT, words=_TABLE_WORDS),
    Harness("ipmi-alarms", _alarms, ("agents/node/hardware/ipmi.py",), form=Form.BYTES),
    Harness("ipmi-output", _printed, ("agents/node/hardware/bmc.py",), (bmc.BmcError,), Form.TEXT),
    Harness("storage-state", text(_clients), ("agents/node/hardware/storage.py",), form=Form.TEXT),
    Harness("ping-list", _pings, ("agents/node/hardware/pinglist.py",)),
    Harness("ping-config", _ping_config, ("agents/node/hardware/pinglist.py", "agents/node/hardware/superpod.py")),
    Harness("eid", text(_eid), ("agents/node/fabric.py",), (ValueError,), Form.TEXT),
    Harness("nics", _nics, ("agents/node/fabric.py",)),
)
