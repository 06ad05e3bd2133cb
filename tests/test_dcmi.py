"""The driver's C interface for real: layouts against the compiler, calls, events, hangs and reloads of the stand-in."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.drivers.base import BOOTED, CARD_DROP, DriverError
from belay.agents.drivers.dcmi import family, structs, supervisor
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.identity import Identity
from belay.agents.drivers.dcmi.interface import ChipLocation
from belay.agents.drivers.dcmi.library import find, trusted
from belay.agents.drivers.dcmi.supervisor import MAX_HUNG
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.standin.build import BuildError, build, place_hccn_tool
from belay.agents.drivers.standin.state import SimChip, SimState, Standin
from belay.agents.drivers.tools.command import Runner
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.kubelet.topology import single_dies
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX
from tests.agent_world import NODE
from tests.kubelet_world import Node

pytestmark = pytest.mark.real_time

ME = frozenset({0, os.getuid()})


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dcmi"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Standin]]:
    yield lambda **shape: Standin.create(tmp_path / "state", **shape)


@asynccontextmanager
async def driver(library: Path, standin: Standin) -> AsyncIterator[DcmiDriver]:
    found = DcmiDriver(
        library, sleep=asyncio.sleep, owners=ME,
        env={"BELAY_SIM_DCMI_STATE": str(standin.file)},
    )  # fmt: skip
    try:
        yield found
    finally:
        await found.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_the_start_waits_for_cards_that_are_not_back(
    library: Path, machine: Callable[..., Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belay.agents.drivers.dcmi.supervisor.BACKOFF", (0.0,))
    standin = machine()
    standin.state.chip[7].card = -1

    async def story(seconds: float, back: bool) -> list[int]:
        npu = DcmiDriver(
            library, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(standin.file)},
            cards_timeout=seconds,
        )  # fmt: skip
        try:
            if seconds:
                with pytest.raises(DriverError, match="1 cards are not back yet"):
                    await npu.machine()
            if back:
                standin.state.chip[7].card = 7
            return [chip.id for chip in await npu.chips()]
        finally:
            await npu.close()

    assert run(story(0.0, back=False)) == list(range(7)), "past the time it goes on without them"
    assert run(story(600.0, back=True)) == list(range(8))


def test_every_layout_has_the_compilers_size() -> None:
    assert {kind.__name__: ctypes.sizeof(kind) for kind in structs.SIZES} == {
        kind.__name__: size for kind, size in structs.SIZES.items()
    }


@pytest.mark.parametrize(
    ("structure", "field", "offset"),
    [
        (structs.ChipInfo, "aicore_cnt", 96),
        (structs.HbmInfo, "memory_usage", 16),
        (structs.HbmInfo, "bandwith_util_rate", 28),
        (structs.MemoryInfoV3, "hugepagesize", 24),
        (structs.MemoryInfoV3, "utiliza", 48),
        (structs.PcieBandwidth, "rx_cpl_bw", 76),
        (structs.ComputingResource, "memory_size", 24),
        (structs.ComputingResource, "vdev_aicore_utilization", 60),
        (structs.VdevQueryInfo, "base", 40),
        (structs.VdevQueryInfo, "computing", 104),
        (structs.VdevQueryInfo, "media", 200),
        (structs.SocTotal, "base", 144),
        (structs.SocFree, "computing", 72),
        (structs.DmsFaultEvent, "alarm_raised_time", 24),
        (structs.DmsFaultEvent, "additional_info", 288),
        (structs.FaultEvent, "dms", 8),
        (structs.HccsPingInfo, "dest_num", 3264),
        (structs.UbPingInfo, "occur_time", 3544),
        (structs.PortPackets, "reserved", 392),
    ],
)
def test_fields_lie_where_the_driver_puts_them(structure: Any, field: str, offset: int) -> None:
    assert getattr(structure, field).offset == offset


def test_other_callers_of_the_library_are_answered_too(library: Path, machine: Callable[..., Standin]) -> None:
    """MindCluster's programs pass a length of 0 for the CPUs beside a chip, and look for ``dcmi_get_card_num_list``."""
    program = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); assert lib.dcmi_init() == 0\n"
        "out, length = ctypes.create_string_buffer(256), ctypes.c_int(0)\n"
        "code = lib.dcmi_get_affinity_cpu_info_by_device_id(3, 0, out, ctypes.byref(length))\n"
        "number, cards = ctypes.c_int(), (ctypes.c_int * 64)()\n"
        "again = lib.dcmi_get_card_num_list(ctypes.byref(number), cards, 64)\n"
        "print(code, out.value.decode(), length.value, again, number.value, list(cards[:number.value]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(library)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "BELAY_SIM_DCMI_STATE": str(machine().file)},
    )  # fmt: skip
    assert found.stdout == "0 0-1 3 0 8 [0, 1, 2, 3, 4, 5, 6, 7]\n", found.stderr


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [("belay.agents.drivers.dcmi.child", "msgspec"), ("belay.agents.exporter.run", "belay.agents.drivers.simulated")],
)
def test_programs_of_every_node_load_nothing_that_they_do_not_need(program: str, unwanted: str) -> None:
    code = f"import sys, {program}; sys.exit({unwanted!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_stand_in_of_hccn_tool_answers_what_is_asked_of_it(tmp_path: Path) -> None:
    tool = HccnTool(Runner(str(place_hccn_tool(tmp_path))))
    (tmp_path / "hccn_tool.down").write_text("3\n")

    async def go() -> None:
        assert [await tool.link(phy) for phy in (2, 3)] == [True, False]
        assert (await tool.speed(0), await tool.link_ups(0)) == (100_000, 3)
        assert await tool.bandwidth(0) == (0.25, 12.0) and await tool.counters(0) == {"mac_rx_mac_pause_num": 5}
        assert (await tool.optical(0))["Vcc"] == "3271.30 mV"

    run(go())


def test_the_state_file_has_the_same_layout_on_both_sides(library: Path) -> None:
    lib = ctypes.CDLL(str(library))
    assert lib.belay_sim_state_size() == ctypes.sizeof(SimState)
    assert lib.belay_sim_chip_size() == ctypes.sizeof(SimChip)


def test_a_machine_is_described(library: Path, machine: Callable[..., Standin]) -> None:
    async def go() -> None:
        async with driver(library, machine()) as npu:
            described = await npu.machine()
            assert described.resource == "huawei.com/Ascend910"
            assert (described.chip_name, described.server_type) == ("910B3", "Ascend910B-20")
            assert (described.accelerator, described.memory_gb) == ("huawei-Ascend910", 64)
            assert (described.super_pod_id, described.server_index) == (-1, -1), "it says that it has none"
            chips = await npu.chips()
            assert [chip.id for chip in chips] == list(range(8))
            assert (chips[3].serial, chips[3].ip, chips[3].card) == ("SIM0003", "10.0.0.4", 3)
            assert list(await npu.reset_group(5)) == list(range(8))

    run(go())


def test_a_super_pod_knows_its_places(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine(
        chips=16, chips_per_card=2, chip_name="Ascend910-9382", board=0xB0, aicores=24, reset_group=0, super_pod=(3, 2)
    )
    for phy in range(16):
        standin.chip(phy).brother = standin.chip(phy).card ^ 1

    async def go() -> None:
        async with driver(library, standin) as npu:
            described = await npu.machine()
            assert (described.super_pod_id, described.server_index) == (3, 2)
            assert described.server_type == "Ascend910A3-24"
            assert [chip.super_device_id for chip in await npu.chips()] == [32 + phy for phy in range(16)]
            assert list(await npu.reset_group(5)) == [4, 5, 6, 7]
            await npu.reset([4, 5, 6, 7])
            assert [standin.chip(phy).resets for phy in range(8)] == [0, 0, 0, 0, 2, 2, 2, 2]

    run(go())


@pytest.mark.parametrize("dropped", [(5,), (4, 5), (4, 5, 6, 7)])
@pytest.mark.parametrize("known", [False, True])
def test_a_module_off_the_bus_still_resets_with_the_one_beside_it(
    library: Path, machine: Callable[..., Standin], dropped: tuple[int, ...], known: bool
) -> None:
    standin = machine(
        chips=16, chips_per_card=2, chip_name="Ascend910-9382", board=0xB0, aicores=24, reset_group=0, super_pod=(3, 2)
    )
    for phy in range(16):
        standin.chip(phy).brother = standin.chip(phy).card ^ 1

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            if known:
                assert {chip.associated_card for chip in await npu.chips() if chip.id in (4, 5)} == {3}
            for phy in dropped:
                standin.chip(phy).dropped = 1
            group = [4, 5, 6, 7] if known or len(dropped) < 4 else [4, 5]
            assert list(await npu.reset_group(5)) == group
            standin.script("dcmi_get_netdev_brother_device", result=-8009)
            with pytest.raises(DcmiError, match="ioctl failed"):
                await npu.reset_group(5)
            # what resets must be known for certain; the list of chips goes on without
            assert {chip.associated_card for chip in await npu.chips()} == {-1}

    run(go())


def test_the_second_generation_of_the_interface_serves_too(library: Path, machine: Callable[..., Standin]) -> None:
    async def go() -> None:
        async with driver(library, machine(chip_name="Ascend950PR", v2=True, super_pod=(1, 0))) as npu:
            described = await npu.machine()
            assert (described.resource, described.prefix) == ("huawei.com/npu", "npu-")
            assert described.server_type == "npu-20"
            assert [chip.card for chip in await npu.chips()] == [-1] * 8
            assert list(await npu.reset_group(5)) == [5]
            assert await npu.vnpus() == []

    run(go())


def test_faults_are_read_and_reported(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            assert {phy: list(codes) for phy, codes in (await npu.faults()).items()} == {n: [] for n in range(8)}
            standin.raise_code(3, "80E01801", severity=3)
            (event,) = await npu.events()
            assert (event.chip, event.code, event.assertion, event.severity) == (3, "80E01801", "occur", 3)
            first = (await npu.faults())[3][0]
            assert (first.code, first.plane) == ("80E01801", "chip")
            assert (await npu.faults())[3][0].time_ms == first.time_ms
            standin.clear_code(3, "80E01801")
            (event,) = await npu.events()
            assert event.assertion == "recover"
            assert list((await npu.faults())[3]) == []

    run(go())


def test_a_look_at_all_chips_is_few_messages_also_while_one_of_them_hangs(
    library: Path, machine: Callable[..., Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belay.agents.drivers.dcmi.driver.CALL_SECONDS", 0.3)
    standin = machine()
    for phy in (2, 3, 5):
        standin.raise_code(phy, "80E01801")

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()

            async def look() -> tuple[list[int], int]:
                before = npu.calls.sent
                found = await npu.faults()
                assert await npu.vnpus() == [] and await npu.processes() == {}
                return sorted(phy for phy, codes in found.items() if codes), npu.calls.sent - before

            assert await look() == ([2, 3, 5], 4)
            # the others do not wait for a chip that hangs but once, and are not forgotten for it
            standin.script("dcmi_get_device_errorcode_v2", delay_ms=60_000, phy=3, times=2)
            assert (await look())[0] == [2, 5]
            standin.unscript()
            assert (await look())[0] == [2, 3, 5]
            assert await look() == ([2, 3, 5], 4)

    run(go())


@pytest.mark.parametrize(
    ("code", "plane"), [("81078603", "network"), ("81078607", "network"), ("81B18603", "chip"), ("80E01801", "chip")]
)
def test_ports_of_the_network_are_a_plane_of_their_own_and_those_of_the_bus_are_the_chip_s(
    library: Path, machine: Callable[..., Standin], code: str, plane: str
) -> None:
    standin = machine(chip_name="Ascend950PR", v2=True)

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            standin.raise_code(1, code)
            assert [event.plane for event in await npu.events()] == [plane]
            assert [found.plane for found in (await npu.faults())[1]] == [plane]

    run(go())


def test_a_chip_off_the_bus_is_a_dropped_card(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            standin.chip(2).dropped = 1
            found = await npu.faults()
            assert [code.code for code in found[2]] == [CARD_DROP]
            assert list(found[3]) == []
            # nothing else that is asked about the node fails for it
            standin.processes(6, [4711])
            assert await npu.processes() == {6: 1}
            assert [chip.ip for chip in await npu.chips()][1:4] == ["10.0.0.2", "", "10.0.0.4"]
            assert await npu.vnpus() == []

    run(go())


def test_a_first_chip_off_the_bus_does_not_hide_what_the_machine_is(
    library: Path, machine: Callable[..., Standin]
) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.calls.ask("version", timeout=5)
            standin.chip(0).dropped = 1
            described = await npu.machine()
            assert (described.chip_name, described.memory_gb) == ("910B3", 64)
            assert [code.code for code in (await npu.faults())[0]] == [CARD_DROP]
            for phy in range(1, 8):
                standin.chip(phy).dropped = 1
            other = DcmiDriver(library, sleep=asyncio.sleep, owners=ME)
            other.calls = npu.calls
            with pytest.raises(DcmiError, match="not ready"):
                await other.machine()

    run(go())


def test_vnpus_of_a_chip_off_the_bus_are_those_it_had(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine(templates=[("vir05_1c_16g", 5.0, 16_384)])

    async def go() -> None:
        async with driver(library, standin) as npu:
            made = [await npu.create_vnpu(phy, "vir05_1c_16g") for phy in (2, 3)]
            assert await npu.vnpus() == sorted(made)
            standin.chip(2).dropped = 1
            assert await npu.vnpus() == sorted(made)
            await npu.destroy_vnpu(made[1].id)
            assert await npu.vnpus() == [made[0]]
            standin.chip(2).dropped = 0
            await npu.destroy_vnpu(made[0].id)
            assert await npu.vnpus() == []

    run(go())


def test_one_chip_that_cannot_be_read_costs_itself(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            standin.raise_code(5, "80E01801")
            before = (await npu.faults())[5][0].time_ms
            standin.script("dcmi_get_device_health", result=-8009, phy=3)
            found = await npu.faults()
            assert sorted(found) == [0, 1, 2, 4, 5, 6, 7] and found[5][0].time_ms == before
            # as long as it cannot be read its codes keep their time
            standin.script("dcmi_get_device_health", result=-8009, phy=5)
            assert 5 not in await npu.faults()
            standin.unscript()
            assert (await npu.faults())[5][0].time_ms == before
            standin.script("dcmi_get_device_health", result=-8009)
            with pytest.raises(DcmiError, match="ioctl failed"):
                await npu.faults()
            standin.unscript()
            # who uses a chip must be known before anything is reset: here one failure is everybody's
            standin.script("dcmi_get_device_resource_info", result=-8009, phy=3)
            with pytest.raises(DcmiError, match="ioctl failed"):
                await npu.processes()
            standin.script("dcmi_get_device_info", result=-8009, phy=3)
            assert await npu.vnpus() == []
            standin.script("dcmi_get_device_info", result=-8009)
            with pytest.raises(DcmiError, match="ioctl failed"):
                await npu.vnpus()
            standin.script("dcmi_get_device_boot_status", result=-8012, phy=4)
            assert await npu.boot_status(4) == 0

    run(go())


@pytest.mark.parametrize(("health", "codes"), [(0, []), (6, []), (3, ["81078603"])])
def test_the_network_has_a_plane_of_its_own(
    library: Path, machine: Callable[..., Standin], health: int, codes: list[str]
) -> None:
    standin = machine()
    standin.chip(1).network = health

    async def go() -> None:
        async with driver(library, standin) as npu:
            assert [(code.code, code.plane) for code in (await npu.faults())[1]] == [(c, "network") for c in codes]

    run(go())


def test_resets_are_refused_in_use_and_heal_afterwards(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine(reset_ms=3_600_000)

    async def go() -> None:
        async with driver(library, standin) as npu:
            standin.raise_code(3, "80E01801")
            standin.processes(6, [4711])
            assert await npu.processes() == {6: 1}
            with pytest.raises(DcmiError, match="resource busy"):
                await npu.reset(list(range(8)))
            standin.processes(6, [])
            await npu.reset(list(range(8)))
            assert await npu.boot_status(3) != BOOTED
            for phy in range(8):
                standin.chip(phy).boot_at_ms = 1
            assert await npu.boot_status(3) == BOOTED
            assert list((await npu.faults())[3]) == []
            assert [standin.chip(phy).resets for phy in range(8)] == [1] * 8

    run(go())


def test_a_module_that_refuses_is_reset_out_of_band(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine(
        chips=4, chips_per_card=2, chip_name="Ascend910-9382", board=0xB0, reset_group=0, super_pod=(0, 0)
    )
    standin.chip(0).reset_fails = 1

    async def go() -> None:
        async with driver(library, standin) as npu:
            paused: list[float] = []

            async def pause(seconds: float) -> None:
                paused.append(seconds)

            npu._sleep = pause
            with pytest.raises(DcmiError, match="reset failed"):
                await npu.reset([0, 1])
            standin.chip(0).reset_fails = 1
            standin.chip(0).outband = 1
            await npu.reset([0, 1])
            assert [standin.chip(phy).resets for phy in range(4)] == [1, 1, 0, 0]
            assert paused == [3.0], "the bus settles before the module is looked for again"

    run(go())


def test_modules_are_looked_for_again_card_by_card(library: Path, machine: Callable[..., Standin]) -> None:
    a3 = machine(chips=4, chips_per_card=2, chip_name="Ascend910-9382", board=0xB0, reset_group=0, super_pod=(0, 0))

    async def go() -> None:
        async with driver(library, a3) as npu:
            # the second die of a module is found with the first
            a3.script("dcmi_rescan_soc", result=-8020, phy=3)
            await npu.rescan([0, 1, 2, 3])
            a3.script("dcmi_rescan_soc", result=-8020, phy=2)
            with pytest.raises(DcmiError, match="dcmi_rescan_soc"):
                await npu.rescan([2, 3])

    run(go())


def test_vnpus_are_cut_used_and_given_back(library: Path, machine: Callable[..., Standin]) -> None:
    templates = [("vir05_1c_16g", 5.0, 16_384), ("vir10_3c_32g", 10.0, 32_768)]
    standin = machine(templates=templates)

    async def go() -> None:
        async with driver(library, standin) as npu:
            made = await npu.create_vnpu(2, "vir10_3c_32g")
            assert (made.chip, made.template, made.id, made.vgroup) == (2, "vir10_3c_32g", 132, None)
            await npu.create_vnpu(2, "vir05_1c_16g")
            with pytest.raises(DcmiError, match="partition mismatch"):
                await npu.create_vnpu(2, "vir10_3c_32g")
            with pytest.raises(DcmiError, match="bad parameter"):
                await npu.create_vnpu(3, "vir99")
            assert [(v.id, v.template) for v in await npu.vnpus()] == [(132, "vir10_3c_32g"), (133, "vir05_1c_16g")]
            standin.chip(2).vdevs[0].used = 1
            with pytest.raises(DcmiError, match="busy"):
                await npu.destroy_vnpu(132)
            standin.chip(2).vdevs[0].used = 0
            await npu.destroy_vnpu(132)
            assert [v.id for v in await npu.vnpus()] == [133]

    run(go())


def test_vgroups_are_as_the_driver_reports_them(library: Path, machine: Callable[..., Standin]) -> None:
    templates = [("vir01", 1.0, 3072), ("vir02", 2.0, 6144)]
    standin = machine(templates=templates, chip_name="Ascend310P3", aicores=8)

    async def go() -> None:
        async with driver(library, standin) as npu:
            made = [await npu.create_vnpu(0, name) for name in ("vir01", "vir02", "vir01", "vir02")]
            assert [vnpu.vgroup for vnpu in made] == [0, 1, 0, 2]
            assert await npu.vnpus() == made
            await npu.destroy_vnpu(made[1].id)
            assert (await npu.create_vnpu(0, "vir02")).vgroup == 1

    run(go())


def test_a_call_that_hangs_costs_itself_and_a_driver_that_hangs_is_started_again(
    library: Path, machine: Callable[..., Standin]
) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            standin.script("dcmi_get_device_temperature", delay_ms=60_000, phy=1)
            with pytest.raises(DcmiError, match="timed out"):
                await npu.calls.ask("temperature", 1, timeout=0.1)
            assert await npu.calls.ask("temperature", 2, timeout=5) == 42
            assert npu.calls.starts == 1
            for _ in range(MAX_HUNG - 1):
                with pytest.raises(DcmiError, match="timed out"):
                    await npu.calls.ask("temperature", 1, timeout=0.05)
            standin.unscript()
            assert await npu.calls.ask("temperature", 1, timeout=5) == 41
            assert npu.calls.starts == 2
            # events flow from the new process too
            standin.raise_code(1, "80E01801")
            assert (await npu.events())[0].chip == 1

    run(go())


def test_readings_are_in_the_units_that_they_say(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine()
    chip = standin.chip(1)
    chip.temperature, chip.power, chip.voltage = -3, 931, 87
    chip.frequency[7], chip.utilisation[12] = 1650, 44
    chip.hbm_total, chip.hbm_used, chip.hbm_temperature, chip.hbm_bandwidth = 65_536, 4_096, 51, 17

    async def go() -> None:
        async with driver(library, standin) as npu:

            async def ask(call: str, *arguments: int) -> Any:
                return await npu.calls.ask(call, 1, *arguments, timeout=5)

            assert (await ask("temperature"), await ask("power"), await ask("voltage")) == (-3, 93.1, 0.87)
            assert (await ask("frequency", 7), await ask("utilisation", 12)) == (1650, 44)
            hbm = await ask("hbm")
            assert (hbm["total"], hbm["used"], hbm["temperature"], hbm["bandwidth"]) == (65_536, 4_096, 51, 17)

    run(go())


def test_a_network_check_that_hangs_is_no_fault_and_one_that_fails_is_not_silence(
    library: Path, machine: Callable[..., Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belay.agents.drivers.dcmi.driver.NETWORK_SECONDS", 0.1)
    standin = machine(chips=2)

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            standin.raise_code(1, "80E01801")
            standin.script("dcmi_get_device_network_health", delay_ms=60_000, phy=1)
            assert [code.code for code in (await npu.faults())[1]] == ["80E01801"]
            standin.unscript()
            standin.script("dcmi_get_device_network_health", result=-8006)
            assert [code.code for code in (await npu.faults())[1]] == ["80E01801"]
            standin.script("dcmi_get_device_network_health", result=-8005, phy=1)
            assert sorted(await npu.faults()) == [0]

    run(go())


def test_more_than_so_many_calls_do_not_wait_for_a_driver(
    library: Path, machine: Callable[..., Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MAX_WAITING", 3)
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            standin.script("dcmi_get_device_temperature", delay_ms=60_000)
            waiting = [asyncio.create_task(npu.calls.ask("temperature", 1, timeout=30)) for _ in range(3)]
            while len(npu.calls._waiting) < 3:
                await asyncio.sleep(0)
            with pytest.raises(DriverError, match="3 calls to the driver wait already"):
                await npu.calls.ask("power", 1, timeout=5)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert await npu.calls.ask("power", 2, timeout=5) > 0

    run(go())


class Addresses:
    """A library that knows addresses of one kind only."""

    def __init__(self, kind: int, raw: bytes) -> None:
        self.kind, self.raw = kind, raw

    def has(self, name: str) -> bool:
        return True

    def call(self, name: str, *arguments: Any) -> None:
        if name == "dcmi_get_device_ip":
            address = arguments[4]._obj
            if address.ip_type != self.kind:
                raise DcmiError(name, -8255)
            address.address[: len(self.raw)] = self.raw


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        (0, bytes([10, 0, 0, 7]), "10.0.0.7"),
        (0, bytes(4), ""),
        (1, bytes.fromhex("20010db8000000000000000000000005"), "2001:db8::5"),
        (1, bytes(16), ""),
    ],
)
def test_an_address_may_be_of_either_kind(kind: int, raw: bytes, text: str) -> None:
    found = Identity.__new__(Identity)
    found.library, found.v2, found.places = Addresses(kind, raw), False, (ChipLocation(0, 0, 0, 0),)  # type: ignore[assignment]
    assert found.ip(0) == text


def test_a_subscriber_that_was_answered_misses_no_event(library: Path, machine: Callable[..., Standin]) -> None:
    """An event that comes and goes at once stands in no list: polling would never find it."""
    standin = machine()
    standin.script("dcmi_subscribe_fault_event", delay_ms=150, times=1)

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.calls.ask("temperature", 1, timeout=5)
            standin.raise_code(1, "80E01801")
            standin.clear_code(1, "80E01801")
            heard = [event.assertion for event in await npu.events()]
            while len(heard) < 2:
                heard += [event.assertion for event in await npu.events()]
            assert heard == ["occur", "recover"]

    run(go())


@pytest.mark.parametrize(
    ("result", "times", "heard"), [(-8005, 2, True), (-8005, 3, False), (-8255, 1, False)], ids=["third", "", "never"]
)
def test_events_are_asked_for_three_times(
    library: Path,
    machine: Callable[..., Standin],
    monkeypatch: pytest.MonkeyPatch,
    result: int,
    times: int,
    heard: bool,
) -> None:
    monkeypatch.setattr(supervisor, "SUBSCRIBE_PAUSE", 0.01)
    standin = machine()
    standin.script("dcmi_subscribe_fault_event", result=result, times=times)

    async def go() -> None:
        async with driver(library, standin) as npu:
            assert await npu.calls.ask("temperature", 1, timeout=5) == 41
            standin.raise_code(1, "80E01801")
            # without events codes are polled
            assert [code.code for code in (await npu.faults())[1]] == ["80E01801"]
            # and the chip's own health says how bad they are
            standin.chip(1).health = 2
            assert [code.severity for code in (await npu.faults())[1]] == [None if heard else 2]
            if heard:
                assert (await npu.events())[0].chip == 1
            else:
                assert standin.state.overrides[0].remaining == 0 and npu.calls.events.empty()

    run(go())


def test_a_subscription_that_hangs_keeps_no_caller_from_the_driver(
    library: Path, machine: Callable[..., Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SUBSCRIBE_SECONDS", 0.05)
    standin = machine()
    standin.script("dcmi_subscribe_fault_event", delay_ms=60_000)

    async def go() -> None:
        async with driver(library, standin) as npu:
            assert await npu.calls.ask("temperature", 1, timeout=5) == 41
            assert len(await npu.chips()) == 8 and npu.calls.starts == 1

    run(go())


@pytest.mark.parametrize("turns", [False, True])
def test_a_reloaded_driver_is_opened_again(
    library: Path, machine: Callable[..., Standin], monkeypatch: pytest.MonkeyPatch, turns: bool
) -> None:
    """The library goes on answering, with errors only: what it had opened is gone."""
    monkeypatch.setattr(supervisor, "STALE_SECONDS", (0.0, 0.0))
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:

            async def ask(chip: int) -> int:
                if not turns:
                    return int(await npu.calls.ask("temperature", chip, timeout=5))
                turn = [["temperature", chip], ["temperature", chip]]
                answers = await npu.calls.ask("several", turn, timeout=5)
                if "value" not in answers[1]:
                    raise DcmiError(answers[1]["function"], answers[1]["code"])
                return int(answers[1]["value"])

            async def fails(times: int) -> None:
                for _ in range(times):
                    with pytest.raises(DcmiError):
                        await ask(1)

            assert await ask(1) == 41
            # a chip that is lost while others answer, and chips that say what they are, are no reload
            standin.script("dcmi_get_device_temperature", result=-8009, phy=1)
            for _ in range(3):
                await fails(supervisor.STALE_CALLS - 1)
                assert await ask(2) == 42
            standin.script("dcmi_get_device_temperature", result=-8012)
            await fails(supervisor.STALE_CALLS + 1)
            assert npu.calls.starts == 1
            # what the driver does not support it says without one: that is no sign of life
            standin.script("dcmi_get_device_temperature", result=-8009)
            await fails(supervisor.STALE_CALLS - 1)
            standin.script("dcmi_get_device_temperature", result=-8255)
            await fails(1)
            standin.script("dcmi_get_device_temperature", result=-8009)
            await fails(1)
            standin.unscript()
            assert await ask(1) == 41 and npu.calls.starts == 2
            standin.raise_code(1, "80E01801")
            assert (await npu.events())[0].chip == 1

    run(go())


def test_a_driver_that_stumbles_is_not_reopened_at_once_nor_more_and_more_often(
    library: Path, machine: Callable[..., Standin]
) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            await npu.machine()
            standin.script("dcmi_get_device_temperature", result=-8009)
            for _ in range(3 * supervisor.STALE_CALLS):
                with pytest.raises(DcmiError):
                    await npu.calls.ask("temperature", 1, timeout=5)
            assert npu.calls.starts == 1 and npu.calls._patience == 15.0
            for patience in (30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
                npu.calls._stale, npu.calls._stale_since = supervisor.STALE_CALLS, float("-inf")
                with pytest.raises(DcmiError):
                    await npu.calls.ask("temperature", 1, timeout=5)
                assert npu.calls._patience == patience
            standin.unscript()
            assert await npu.calls.ask("temperature", 1, timeout=5) == 41 and npu.calls._patience == 15.0
            assert npu.calls.starts == 8

    run(go())


def test_a_driver_process_that_dies_is_replaced(library: Path, machine: Callable[..., Standin]) -> None:
    async def go() -> None:
        async with driver(library, machine()) as npu:
            await npu.machine()
            assert npu.calls._process is not None
            npu.calls._process.kill()
            await npu.calls._process.wait()
            assert len(await npu.chips()) == 8
            assert npu.calls.starts == 2

    run(go())


def test_the_log_speaks_of_another_driver_process_only_where_one_follows(
    library: Path, machine: Callable[..., Standin], caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with driver(library, machine()) as npu:
            await npu.machine()
        assert "started again" not in caplog.text
        async with driver(library, machine()) as npu:
            await npu.machine()
            await npu.calls._end("it hangs")
        assert "started again" in caplog.text

    run(go())


def test_bad_values_of_a_driver_are_refused_by_name(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine()
    standin.state.chip[5].phy = 300

    async def go() -> None:
        async with driver(library, standin) as npu:
            with pytest.raises(DriverError, match="physical id 300 is beyond 255"):
                await npu.machine()

    run(go())


@pytest.mark.parametrize("call", ["dcmi_init", "dcmi_get_device_chip_info_v2", "dcmi_get_device_board_info"])
def test_a_driver_that_fails_says_which_call(library: Path, machine: Callable[..., Standin], call: str) -> None:
    standin = machine()
    standin.script(call, result=-8005)

    async def go() -> None:
        async with driver(library, standin) as npu:
            with pytest.raises(DriverError, match=rf"{call}: internal error \(-8005\)"):
                await npu.machine()

    run(go())


def test_a_library_that_others_may_write_is_not_loaded(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir(mode=0o755)
    copy = folder / "libdcmi.so"
    copy.write_bytes(library.read_bytes())
    copy.chmod(0o666)
    with pytest.raises(DriverError, match="mode 0666 lets others write"):
        trusted(copy, ME)
    copy.chmod(0o664)
    with pytest.raises(DriverError, match="mode 0664 lets others write"):
        trusted(copy, ME)
    copy.chmod(0o644)
    with pytest.raises(DriverError, match="belongs to user"):
        trusted(copy, frozenset({os.getuid() + 1}))
    folder.chmod(0o775)
    with pytest.raises(DriverError, match="lib: mode 0775 lets others write"):
        trusted(copy, ME)


def test_the_library_is_looked_for_where_loaders_look(library: Path, tmp_path: Path) -> None:
    assert find(f"/nowhere::{library.parent}") == library
    assert find("/nowhere", cache=lambda: f"\tlibdcmi.so (libc6,x86-64) => {library}\n") == library
    with pytest.raises(DriverError, match="is the NPU driver installed"):
        find(str(tmp_path), cache=lambda: "\tlibother.so (libc6) => /lib/libother.so\n")
    with pytest.raises(DriverError, match="longer than 1024"):
        find("x" * 1025)


@pytest.mark.parametrize(
    ("name", "board", "wanted"),
    [
        ("910B3", 0x30, "Ascend910B"), ("910", 0x10, "Ascend910"), ("910A", 0x10, "Ascend910"),
        ("Ascend910-9382", 0xB0, "Ascend910A3"), ("910B3", 0xD1, "Ascend910A3"), ("Ascend950PR", 0x10, "Ascend910A5"),
        ("310P3", 0x10, "Ascend310P"), ("I2", 0x10, "Ascend310P"), ("310B1", 0x10, "Ascend310B"),
        ("310", 0x10, "Ascend310"), ("A2G3", 0x10, "Ascend910B"),
    ],
)  # fmt: skip
def test_families_follow_board_and_name(name: str, board: int, wanted: str) -> None:
    assert family.family(name, board) == wanted


def test_an_unknown_chip_is_named() -> None:
    with pytest.raises(DriverError, match="'H100'"):
        family.family("H100", 1)


@pytest.mark.parametrize(
    ("kind", "board", "mainboard", "product", "per_card", "chips", "brother", "wanted"),
    [
        (family.A1, 0, 0, "", 1, 8, None, [4, 5, 6, 7]),
        (family.A2, 0x30, 0, "", 1, 8, None, list(range(8))),
        (family.A2, 0x30, 0, "", 1, 16, None, list(range(16))),
        (family.A2, 0x28, 0, "", 1, 8, None, [5]),
        (family.A3, 0xB0, 0x18, "", 2, 16, 3, [4, 5, 6, 7]),
        (family.A3, 0xB0, 0x1C, "", 2, 16, 3, [4, 5]),
        (family.A5, 0, 0x23, "", 1, 8, None, [5]),
        (family.P310, 0, 0, family.DUO, 2, 8, None, [4, 5]),
        (family.P310, 0, 0, "", 1, 8, None, [5]),
    ],
)
def test_what_resets_together(
    kind: str, board: int, mainboard: int, product: str, per_card: int, chips: int, brother: int | None,
    wanted: list[int],
) -> None:  # fmt: skip
    cards = {chip: chip // per_card for chip in range(chips)}
    assert list(family.reset_group(kind, board, mainboard, product, 5, cards, brother)) == wanted


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no-such-compiler"):
        build(tmp_path, "no-such-compiler")


def test_the_library_is_only_writable_by_its_owner(library: Path) -> None:
    assert stat.S_IMODE(library.stat().st_mode) == 0o755


def test_dies_are_given_out_one_by_one_where_it_is_asked_for(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine(chips=4, chips_per_card=2, chip_name="Ascend910-9382", board=0xB0, super_pod=(0, 0))

    async def go() -> None:
        async with driver(library, standin) as npu:
            assert await npu.calls.ask("die_policy", timeout=5) == 0
            assert (
                await single_dies(npu, await npu.machine()) == "" and await npu.calls.ask("die_policy", timeout=5) == 1
            )
            with pytest.raises(DcmiError, match="bad parameter"):
                await npu.calls.ask("set_die_policy", 2, timeout=5)

    run(go())


def test_a_driver_that_keeps_dies_together_is_reported(library: Path, machine: Callable[..., Standin]) -> None:
    standin = machine()

    class Old:
        async def ask(self, call: str, *_: object, timeout: float) -> int:
            raise DcmiError("dcmi_get_multi_die_policy", -99998)

    async def go() -> None:
        async with driver(library, standin) as npu:
            found = await npu.machine()
            npu.calls, calls = Old(), npu.calls  # type: ignore[assignment]
            assert await single_dies(npu, found) == "", "it is asked of A3 servers only"
            newer = msgspec.structs.replace(found, server_type="Ascend910A3-24")
            assert "given out together: dcmi_get_multi_die_policy: the library lacks" in await single_dies(npu, newer)
            npu.calls = calls

    run(go())


def codes_told(node: Node) -> dict[str, str]:
    """Chip → codes, as the device report lists them."""
    body = node.cluster.maps[DEVICE_NAMESPACE, DEVICE_PREFIX + NODE]
    lists = json.loads(body["data"]["DeviceInfoCfg"])["DeviceInfo"]["DeviceList"]
    return {one["npu_name"]: one["fault_code"] for one in json.loads(lists["huawei.com/Ascend910-Fault"])}


def test_an_agent_reports_a_chip_off_the_bus_and_goes_on_with_the_others(
    library: Path, machine: Callable[..., Standin]
) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu, Node(driver=npu) as node:
            standin.chip(0).dropped = 1
            await node.until(lambda: codes_told(node) == {"Ascend910-0": CARD_DROP}, 20)
            await node.until(lambda: len(node.kubelet.free()) == 7, 20)
            standin.raise_code(5, "80E01801")
            await node.until(lambda: codes_told(node).get("Ascend910-5") == "80E01801", 20)
            # an agent that starts now knows as much
            await node.crash()
            await node.boot()
            await node.until(lambda: len(codes_told(node)) == 2 and len(node.kubelet.free()) == 6, 20)
            standin.chip(0).dropped = 0
            await node.until(lambda: "Ascend910-0" in node.kubelet.free(), 20)

    run(go())


def test_a_chip_that_answers_nothing_keeps_no_node_from_work_and_nothing_is_reset_meanwhile(
    library: Path, machine: Callable[..., Standin]
) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            for call in ("dcmi_get_device_health", "dcmi_get_device_resource_info", "dcmi_get_device_info"):
                standin.script(call, result=-8006, phy=3)
            async with Node(driver=npu) as node:
                state = node.agent.state
                assert state is not None
                await node.until(lambda: len(node.kubelet.free()) == 7, 20)
                await node.kubelet.admit(node.pod("a", ["Ascend910-1"]))
                standin.raise_code(5, "80E01801")
                await node.until(lambda: codes_told(node).get("Ascend910-5") == "80E01801", 20)
                node.delete("a")
                node.kubelet.remove("u-a")
                node.driver.row = SERVER_MODELS["atlas-800t-a2"]
                node.order_reset(range(8), 1)
                await node.until(lambda: "waits" in state.problems.get("order", ""), 20)
                assert [standin.chip(phy).resets for phy in range(8)] == [0] * 8
                standin.unscript()
                await node.until(lambda: standin.chip(5).resets == 1, 20)

    run(go())


def test_a_chip_that_was_never_read_is_not_allocated_and_one_that_was_stays_as_it_was(
    library: Path, machine: Callable[..., Standin]
) -> None:
    standin = machine()

    async def go() -> None:
        async with driver(library, standin) as npu:
            standin.script("dcmi_get_device_health", result=-8009, phy=3)
            async with Node(driver=npu) as node:
                state = node.agent.state
                assert state is not None
                await node.until(lambda: len(node.kubelet.free()) == 7, 20)
                assert state.withheld(3) == "its codes cannot be read" and not state.healthy(3)
                assert "the codes of Ascend910-3 cannot be read" in state.problems["codes"]
                standin.unscript()
                await node.until(lambda: len(node.kubelet.free()) == 8 and "codes" not in state.problems, 20)
                standin.raise_code(2, "80E01801")
                await node.until(lambda: len(node.kubelet.free()) == 7, 20)
                standin.script("dcmi_get_device_health", result=-8009, phy=2)
                standin.clear_code(2, "80E01801")
                await node.until(lambda: "Ascend910-2" in state.problems.get("codes", ""), 20)
                assert [code.code for code in state.book.chip(2)] == ["80E01801"] and state.unread == set()

    run(go())
