"""Hardware alarms through IPMI: records by hand, then ipmitool and FreeIPMI against OpenIPMI's simulated controller."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.drivers.surroundings import Alarm
from belay.agents.node.detect import hardware
from belay.agents.node.hardware import ipmi
from belay.agents.node.hardware.bmc import Bmc, BmcAccess, BmcError
from belay.agents.node.shipped import shipped_policy
from tests import bmc as simulator
from tests.needs import lacking

pytestmark = pytest.mark.real_time

NODE_TABLE = dict(shipped_policy().rules.planes["node"])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := simulator.missing():
        lacking(why)
    return simulator.compiled(tmp_path_factory.mktemp("bmc"))


@pytest.fixture
def bmc(module: Path, tmp_path: Path) -> Iterator[simulator.Bmc]:
    found = simulator.Bmc(module, tmp_path)
    yield found
    found.close()


def reach(bmc: simulator.Bmc, tool: Any = "ipmitool", **change: Any) -> BmcAccess:
    given = {
        "tool": tool, "interface": "lanplus", "host": "127.0.0.1", "port": bmc.port, "user": simulator.USER,
        "password_file": str(bmc.password_file), "cipher": 3, "workarounds": "opensesspriv", "seconds": 10.0,
    }  # fmt: skip
    return msgspec.convert(given | change, BmcAccess)


def test_an_answer_is_read_from_its_completion_code_on() -> None:
    record = bytes([0x31, 0x00, 0x00, 0x2C, 9, 9, 9, 9, 2, 0x56, 7, 9, 9, 9, 9])
    answer = bytes.fromhex("00DB070001020100") + record
    assert ipmi.records(answer) == (0x0201, 1, [Alarm("NPU", 7, "2C000031")])
    # an area that is not a multiple of 15 is not read, its header is
    assert ipmi.records(answer[:-1]) == (0x0201, 1, [])
    with pytest.raises(BmcError, match="has 7 bytes"):
        ipmi.records(answer[:7])
    assert ipmi.request(0x1234).hex() == "db0700400034120eff"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0x00, "CPU"), (0x06, "RAID Card"), (0x07, "UNKNOWN"), (0x08, "PCIe Card"), (0x0C, "UNKNOWN"), (0x0D, "NIC"),
        (0x10, "Mainboard"), (0x1A, "BMC"), (0x20, "LED"), (0x2D, "M.2 Transfer Card"), (0x30, "PIC Card"),
        (0x3A, "Minisas HD channel"), (0x3F, "Interface Device"), (0x40, "xPU Board"), (0x4A, "LOM"), (0x50, "RMM"),
        (0x56, "NPU"), (0x5D, "ExpBoard"), (0x5E, "UNKNOWN"), (0xBF, "UNKNOWN"), (0xC0, "BCU"), (0xC4, "CLU"),
        (0xC5, "UNKNOWN"), (0xFF, "UNKNOWN"),
    ],
)  # fmt: skip
def test_device_types_have_their_names(number: int, name: str) -> None:
    assert ipmi.DEVICE_TYPES.get(number, "UNKNOWN") == name


@pytest.mark.parametrize("tool", ["ipmitool", "freeipmi"])
def test_alarms_come_page_by_page_from_the_controller(bmc: simulator.Bmc, tool: str) -> None:
    bmc.says([(0x2C000031, 2, 0, 1), (0x0100000D, 1, 0, 1), (0x0100000D, 1, 4, 3), (0x2C000031, 2, 0, 1),
              (0xFFFFFFFF, 3, 0xEE, 255)], per=2)  # fmt: skip
    found = run(ipmi.alarms(Bmc(reach(bmc, tool))))
    assert found == [
        Alarm("CPU", 1, "2C000031"), Alarm("CPU", 1, "0100000D"), Alarm("Fan", 3, "0100000D"),
        Alarm("UNKNOWN", 255, "FFFFFFFF"),
    ]  # fmt: skip
    devices, status = hardware(found, NODE_TABLE)
    assert [(d.device_type, d.device_id, d.level) for d in devices] == [
        ("CPU", 1, "SeparateFault"), ("Fan", 3, "NotHandleFault"),
    ]  # fmt: skip
    assert status == "UnHealthy"
    bmc.says()
    assert run(ipmi.alarms(Bmc(reach(bmc, tool)))) == []


def test_serial_number_or_else_the_manufacturer(bmc: simulator.Bmc) -> None:
    bmc.says(serial="2102312YXL10N5000001", manufacturer="Huawei")
    assert run(ipmi.serial_number(Bmc(reach(bmc)))) == "2102312YXL10N5000001"
    bmc.says(manufacturer="Huawei")
    assert run(ipmi.serial_number(Bmc(reach(bmc)))) == "Huawei"
    bmc.says()
    assert run(ipmi.serial_number(Bmc(reach(bmc)))) == ""


@pytest.mark.parametrize("tool", ["ipmitool", "freeipmi"])
def test_answers_cut_short_and_refusals_are_errors_not_health(bmc: simulator.Bmc, tool: str) -> None:
    bmc.says([(1, 1, 1, 1)], truncate=6)
    with pytest.raises(BmcError, match="has 6 bytes, 8 at least"):
        run(ipmi.alarms(Bmc(reach(bmc, tool))))
    bmc.says([(1, 1, 1, 1)], complete="c1")
    with pytest.raises(BmcError, match=r"(?i)invalid command|0xc1"):
        run(ipmi.alarms(Bmc(reach(bmc, tool))))
    # records that do not fit are dropped, the rest is read on
    bmc.says([(1, 1, 1, 1)], extra=3)
    assert run(ipmi.alarms(Bmc(reach(bmc, tool)))) == []


def test_a_controller_that_never_comes_to_an_end_is_asked_a_hundred_and_one_times_at_most(bmc: simulator.Bmc) -> None:
    class Counting(Bmc):
        asked = 0

        async def raw(self, function: int, command: int, data: bytes) -> bytes:
            self.asked += 1
            return await super().raw(function, command, data)

    bmc.says([(1, 1, 1, 1), (2, 1, 1, 1)], total=65535, per=1)
    endless = Counting(reach(bmc))
    assert run(ipmi.alarms(endless)) == [Alarm("Memory", 1, "00000001"), Alarm("Memory", 1, "00000002")]
    assert endless.asked == ipmi.ROUNDS + 1
    # promises, and answers nothing: one read is enough
    bmc.says(total=65535)
    silent = Counting(reach(bmc))
    assert run(ipmi.alarms(silent)) == []
    assert silent.asked == 1


def test_a_controller_that_hangs_costs_a_bounded_time_and_leaves_no_process(bmc: simulator.Bmc) -> None:
    bmc.says([(1, 1, 1, 1)], hang=30)
    begin = time.monotonic()
    with pytest.raises(BmcError, match="did not finish in 1 s and was killed"):
        run(ipmi.alarms(Bmc(reach(bmc, seconds=1.0))))
    assert time.monotonic() - begin < 25
    assert not _children("ipmitool", str(bmc.port))


def test_a_tool_that_writes_without_end_or_nonsense_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool = tmp_path / "ipmitool"
    for script, said in (
        ("while :; do echo 00 11 22 33 44 55 66 77; done", "wrote more than 65536 bytes and was killed"),
        ("echo hello", "not written in hexadecimal"),
        ("echo no such device >&2; exit 3", "failed with code 3: no such device"),
        ("sleep 60 & wait", "did not finish in 0.5 s"),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        with pytest.raises(BmcError, match=said):
            run(Bmc(BmcAccess(seconds=0.5 if "sleep" in script else 20.0)).raw(0x30, 0x94, b""))


@pytest.mark.parametrize("tool", ["ipmitool", "freeipmi"])
def test_the_password_is_no_argument_and_must_be_private(bmc: simulator.Bmc, tool: str, tmp_path: Path) -> None:
    spy = tmp_path / "bin"
    spy.mkdir()
    name = "ipmitool" if tool == "ipmitool" else "ipmi-raw"
    (spy / name).write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\nenv >> {tmp_path}/said\nexit 1\n')
    (spy / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{spy}:{os.environ['PATH']}")
        with pytest.raises(BmcError):
            run(Bmc(reach(bmc, tool)).raw(0x30, 0x94, b""))
    said = (tmp_path / "said").read_text()
    assert simulator.USER in said or tool == "freeipmi"
    assert simulator.PASSWORD not in said
    for mode in (0o644, 0o640, 0o620, 0o601):
        bmc.password_file.chmod(mode)
        with pytest.raises(BmcError, match=f"mode 0600 or less; it is {mode:04o}"):
            run(Bmc(reach(bmc, tool)).raw(0x30, 0x94, b""))
        assert stat.S_IMODE(bmc.password_file.stat().st_mode) == mode


def test_a_wrong_password_is_reported_and_not_repeated(bmc: simulator.Bmc) -> None:
    bmc.password_file.write_text("wrong-one\n")
    with pytest.raises(BmcError) as told:
        run(Bmc(reach(bmc, seconds=20)).raw(0x30, 0x94, b""))
    assert "wrong-one" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tool": "impi"}, "ipmitool or freeipmi"),
        ({"interface": "lan"}, "open or lanplus"),
        ({"interface": "lanplus"}, "needs the controller's host"),
        ({"interface": "lanplus", "host": "-oProxy"}, "'-oProxy' is none"),
        ({"interface": "lanplus", "host": "bmc", "user": "a"}, "needs a user and a password file"),
        ({"interface": "lanplus", "host": "b c"}, "'b c' is none"),
        ({"interface": "lanplus", "host": "bmc", "port": 0}, "port 0 is out of range"),
        ({"device": 256}, "device 256 is out of range"),
        ({"seconds": 0.0}, "0.1 to 60 s"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BmcAccess(**change)


def test_random_answers_never_break_the_reader() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        answer = chance.randbytes(chance.randrange(0, 80))
        try:
            total, count, found = ipmi.records(answer)
        except BmcError:
            assert len(answer) < 8
            continue
        assert 0 <= total <= 65535 and 0 <= count <= 255
        assert all(len(a.code) == 8 and a.code == a.code.upper() for a in found)


def _children(*words: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(line)
    return found
