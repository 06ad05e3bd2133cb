"""The bus switch's library through real FFI: a compiled stand-in, its events, and what the node reports of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi import structs
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.dcmi.library import Library
from belay.agents.drivers.dcmi.switch import READ_EVERY, Switch, assembled
from belay.agents.drivers.standin.build import build, build_switch
from belay.agents.drivers.standin.state import Standin
from belay.agents.drivers.surroundings import SwitchFault
from belay.agents.node.hardware.part import NodeSurroundings
from tests.test_dcmi import ME

LINK_DOWN = "0x08520003 0xFFFFFFFF 1 3 2 17 1700000000000"
CHIP = "0x00f103b0 155649 0xFFFF 6 4 0xFFFF 1700000000500"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_switch(tmp_path_factory.mktemp("lingqu"))


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ((0x00F1FF09, 155912, 0, 5), "[0x00f1ff09,155912,cpu,na]"),
        ((0x08520003, 0xFFFFFFFF, 1, 5), "[0x08520003,na,npu,na]"),
        ((0x08520003, 0xFFFFFFFF, 2, 5), "[0x08520003,na,L2,na]"),
        ((0x00F103B0, 155649, 0, 0xFFFFFFFF), "[0x00f103b0,155649,na,na]"),
        ((0x00F103B0, 155649, 0, 0xFFFF), "[0x00f103b0,155649,na,na]"),
        ((0x00F103B0, 155649, 9, 1), "[0x00f103b0,155649,na,na]"),
    ],
)
def test_codes_as_text(event: tuple[int, int, int, int], code: str) -> None:
    assert assembled(*event) == code


def test_layouts() -> None:
    event = structs.SwitchEvent
    offsets = [event.peer_device, event.port, event.severity, event.event_serial, event.raised, event.additional]
    assert [field.offset for field in offsets] == [8, 14, 16, 24, 32, 40]
    assert structs.SwitchFilter.chip.offset == 16


def test_faults_are_read_whole_and_heard_of(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, now = tmp_path / "switch", [0.0]
    monkeypatch.setenv("BELAY_SIM_SWITCH_STATE", str(state))
    state.write_text(f"{LINK_DOWN}\n")
    switch = Switch(Library(library), monotonic=lambda: now[0])
    first = ("[0x08520003,na,npu,na]", 2, 17, 3, 1_700_000_000_000, 2)
    assert switch.faults() == [first]

    async def story() -> None:
        put(state, LINK_DOWN, CHIP)
        await until(lambda: len(switch.faults()) == 2)
        assert switch.faults()[0][:3] == ("[0x00f103b0,155649,na,na]", 4, 0xFFFF)
        put(state, CHIP)
        await until(lambda: [one.chip for one in switch.faults()] == [4])
        # an event that got lost is made good by the next whole reading
        put(state, "mute", LINK_DOWN)
        await asyncio.sleep(0.1)
        assert [one.chip for one in switch.faults()] == [4]
        now[0] = READ_EVERY
        assert switch.faults() == [first]
        now[0] = 2 * READ_EVERY
        put(state, "mute", "result -5")
        with pytest.raises(DriverError, match=r"lq_dcmi_get_fault_info.*-5"):
            switch.faults()

    asyncio.run(story())


@pytest.mark.parametrize(("before", "after"), [(LINK_DOWN, CHIP), (CHIP, LINK_DOWN)])
def test_faults_reported_while_the_library_is_read_are_not_lost(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    state, now, heard = tmp_path / "switch", [0.0], threading.Semaphore(0)
    monkeypatch.setenv("BELAY_SIM_SWITCH_STATE", str(state))
    state.write_text(f"{before}\n")

    class Slow(Library):
        """Whose answer is old by the time that it arrives."""

        def call(self, name: str, *arguments: Any) -> None:
            super().call(name, *arguments)
            if name == "lq_dcmi_get_fault_info" and now[0]:
                put(state, after)
                assert heard.acquire(timeout=10) and heard.acquire(timeout=10), "one came and one went"

    class Listening(Switch):
        def _receive(self, pointer: Any) -> None:
            super()._receive(pointer)
            heard.release()

    switch = Listening(Slow(library), monotonic=lambda: now[0])
    chip = {LINK_DOWN: 2, CHIP: 4}
    # the stand-in's thread looks for the first time now or a little later
    time.sleep(0.1)
    assert [one.chip for one in switch.faults()] == [chip[before]]
    now[0] = READ_EVERY
    assert [one.chip for one in switch.faults()] == [chip[after]]
    assert [one.chip for one in switch.faults()] == [chip[after]]


ALONE = """
import gc, os, sys, time
from pathlib import Path
from belay.agents.drivers.dcmi.library import Library
from belay.agents.drivers.dcmi.switch import Switch

switch = Switch(Library(Path(sys.argv[1])))
assert len(switch.faults()) == 1
del switch
gc.collect()
Path(os.environ["BELAY_SIM_SWITCH_STATE"]).unlink()
for round in range(200):
    for name in range(400):
        os.environ[f"BELAY_TEST_{round}_{name}"] = "x"
    for name in range(400):
        del os.environ[f"BELAY_TEST_{round}_{name}"]
time.sleep(0.2)
print("alive")
"""


def test_the_library_calls_back_when_its_subscriber_is_gone_and_the_environment_changes(
    library: Path, tmp_path: Path
) -> None:
    """The library's thread lives on: a callback that was freed, or an environment that moved, ended the process."""
    state = tmp_path / "switch"
    state.write_text(f"{CHIP}\n")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(library)],
        env=os.environ | {"BELAY_SIM_SWITCH_STATE": str(state)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def put(state: Path, *lines: str) -> None:
    """Replace the state in one step, or the stand-in would see half of it."""
    fresh = state.with_name("fresh")
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(state)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.02)


def test_the_driver_process_holds_it(library: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    dcmi = build(tmp_path_factory.mktemp("dcmi"))
    state = tmp_path / "switch"
    state.write_text(f"{CHIP}\n")

    def driver(**shape: object) -> DcmiDriver:
        standin = Standin.create(tmp_path / "state", **shape)  # type: ignore[arg-type]
        env = {"BELAY_SIM_DCMI_STATE": str(standin.file), "BELAY_SIM_SWITCH_STATE": str(state)}
        return DcmiDriver(dcmi, sleep=asyncio.sleep, owners=ME, env=env, switch_library=library)

    async def story() -> None:
        npu = driver(chips=4, chips_per_card=2, chip_name="Ascend910-9382", board=0xB0, super_pod=(0, 0))
        try:
            around = NodeSurroundings(None, None, switch=npu.switch)
            assert await around.switch() == [
                SwitchFault("[0x00f103b0,155649,na,na]", 4, 0xFFFF, 1_700_000_000_500, 6, 2)
            ]
            assert npu.calls._process is not None
            npu.calls._process.kill()
            await npu.calls._process.wait()
            # a new driver process opens it again
            async with asyncio.timeout(20):
                while True:
                    try:
                        assert json.dumps([one.chip for one in await around.switch() or ()]) == "[4]"
                        break
                    except DriverError:
                        await asyncio.sleep(0.05)
        finally:
            await npu.close()
        npu = driver()
        try:
            assert await npu.switch() is None, "an A2 server has no such switch"
        finally:
            await npu.close()

    asyncio.run(story())
