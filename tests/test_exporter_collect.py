"""Collecting: which call becomes which metric on which product, and what failing calls leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.errors import TIMED_OUT, DcmiError
from belay.agents.drivers.dcmi.supervisor import Supervisor
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.exporter import collect
from belay.agents.exporter.chips import ChipList, Machine
from belay.agents.exporter.collect import Reader
from belay.agents.exporter.exporter import Exporter
from belay.agents.exporter.ports import Ports
from belay.agents.exporter.samples import FAILED, Value, checked
from belay.agents.exporter.schedule import Lane
from belay.agents.exporter.settings import parse
from belay.agents.exporter.source import DcmiSource
from belay.agents.exporter.table import BY_NAME, METRICS, UB_KEYS
from tests.exporter_world import Now, Recorded, Tool, chip, machine
from tests.test_hccn_tool import DEV_INFO, OPTICAL_950, SPEED_950

READINGS: dict[Any, Any] = {
    "temperature": 45, "power": 90.5, "card_power": 60.5, "voltage": 0.82, "frequency": 1000, "health": 0,
    "processes": [], "codes": [], "network": 0, "hbm": {
        "total": 65_536, "used": 3276, "frequency": 1600, "temperature": 46, "bandwidth": 3,
    },
    "ecc": {
        "enable_flag": 1, "single_bit_error_cnt": 2, "double_bit_error_cnt": 3, "total_single_bit_error_cnt": 4,
        "total_double_bit_error_cnt": 5, "single_bit_isolated_pages": 6, "double_bit_isolated_pages": 7,
    },
    ("utilisation", 2): 10, ("utilisation", 12): 30, ("utilisation", 6): 20,
    "utilisations": {"core": 11, "vector": 31, "cube": 51, "overall": 41},
    "ddr": {"total": 8192, "available": 8000, "frequency": 0, "utilisation": 2},
    "sio": {"tx": 1, "rx": 2},
    "hccs": {"tx": list(range(16)), "rx": list(range(100, 116)), "crc": [9] * 16, "retry": [0] * 16},
    "hccs_bandwidth": {"total_tx": 12.0, "total_rx": 13.0, "tx": [0.5] * 16, "rx": [1.5] * 16},
    "pcie_bandwidth": {
        name: [1, 9, 5] for name in ("tx_p_bw", "tx_np_bw", "tx_cpl_bw", "rx_p_bw", "rx_np_bw", "rx_cpl_bw")
    },
}  # fmt: skip


def read(group: str, here: Machine | None = None, **answers: Any) -> dict[str, Any] | None:
    here = here or machine()
    source = Recorded({**READINGS, **answers})
    found = asyncio.run(collect.COLLECTORS[group](Reader(source), here, here.chips[0]))
    return None if found is None else by_name(found)


def by_name(values: Sequence[Value]) -> dict[str, Any]:
    return {value.metric.removeprefix("npu_chip_info_") + value.suffix: value.value for value in values}


def test_basic_readings() -> None:
    assert read("npu", processes=[[41, 3 << 20], [42, 1 << 19]], codes=[0x80E01801, 0x80C98001]) == {
        "temperature": 45, "power": 90.5, "voltage": 0.82, "aicore_current_freq": 1000, "health_status": 1, "name": 1,
        "network_status": 1, "process_info_num": 2, "process_info_41": 3, "process_info_42": 0.5, "serial_number": 1,
        "error_code": 0x80E01801, "error_code_1": 0x80C98001,
    }  # fmt: skip


@pytest.mark.parametrize(("answer", "shown"), [(0, 1), (6, 1), (3, 0), (8, 0)])
def test_network_health(answer: int, shown: int) -> None:
    found = read("npu", network=answer)
    assert found is not None and found["network_status"] == shown


@pytest.mark.parametrize(("board", "has"), [(0x25, True), (0x03, True), (0x68, False), (0x6B, False), (0x6C, False)])
def test_an_ascend950_has_network_health_unless_it_is_a_card(board: int, has: bool) -> None:
    found = read("npu", machine("Ascend910A5", mainboard=board), network=3)
    assert found is not None and found.get("network_status") == (0 if has else None)


def test_what_fails_costs_only_itself() -> None:
    source = Recorded({"temperature": 45})
    found = asyncio.run(collect.npu(Reader(source), machine(), chip()))
    assert found is not None
    assert by_name(checked(found)) == {
        "temperature": 45, "health_status": -1, "name": 1, "network_status": -1, "process_info_num": 0,
        "process_info": 0, "serial_number": 1,
    }  # fmt: skip


def test_a_310p_gives_the_power_of_its_card_its_product_and_no_network() -> None:
    here = machine("Ascend310P", chips=[chip(product="Atlas 300I Duo")])
    found = read("npu", here)
    assert found is not None
    assert (found["power"], found["product_type"], "network_status" in found) == (60.5, 1, False)
    assert read("ddr", here) == {
        "total_memory": 8192, "used_memory": 192, "container_npu_total_memory": 8192, "container_npu_used_memory": 192,
    }  # fmt: skip
    assert read("utilization", here) == {"utilization": 10, "vector_utilization": 30, "container_npu_utilization": 10}


def test_utilisation_by_family() -> None:
    assert read("utilization") == {
        "utilization": 11, "vector_utilization": 31, "cube_utilization": 51, "overall_utilization": 41,
        "container_npu_utilization": 11,
    }  # fmt: skip
    assert read("utilization", machine("Ascend910")) == {"utilization": 10, "container_npu_utilization": 10}


def test_on_chip_memory() -> None:
    assert read("hbm") == {
        "hbm_total_memory": 65_536, "hbm_used_memory": 3276, "hbm_temperature": 46, "hbm_bandwidth_utilization": 3,
        "hbm_utilization": 20, "hbm_ecc_enable_flag": 1, "hbm_ecc_single_bit_error_cnt": 2,
        "hbm_ecc_double_bit_error_cnt": 3, "hbm_ecc_total_single_bit_error_cnt": 4,
        "hbm_ecc_total_double_bit_error_cnt": 5, "hbm_ecc_single_bit_isolated_pages_cnt": 6,
        "hbm_ecc_double_bit_isolated_pages_cnt": 7, "container_npu_total_memory": 65_536,
        "container_npu_used_memory": 3276,
    }  # fmt: skip
    # a 910 has DDR too, but its containers' memory is HBM
    assert read("ddr", machine("Ascend910")) == {"total_memory": 8192, "used_memory": 192}


@pytest.mark.parametrize(
    ("family", "mainboard", "first"),
    [("Ascend910B", 0, 1), ("Ascend910A3", 0x18, 1), ("Ascend910A3", 0x14, 1), ("Ascend910A3", 0x1C, 2),
     ("Ascend910A3", 0x1D, 2), ("Ascend910A3", 0x99, 0)],
)  # fmt: skip
def test_links_begin_where_the_board_has_them(family: str, mainboard: int, first: int) -> None:
    found = read("hccs", machine(family, mainboard=mainboard))
    assert found is not None
    numbers = sorted(int(name[-1]) for name in found if name.startswith("hccs_statistic_info_tx_cnt_"))
    assert numbers == list(range(first, 8))
    assert (found["hccs_statistic_info_tx_cnt_7"], found["hccs_statistic_info_rx_cnt_7"]) == (7, 107)
    assert (found["hccs_bandwidth_info_profiling_time"], found["hccs_bandwidth_info_total_tx"]) == (200, 12.0)


def test_links_that_cannot_be_read_are_minus_one() -> None:
    found = asyncio.run(collect.hccs(Reader(Recorded({})), machine(), chip()))
    assert found is not None
    values = by_name(checked(found))
    assert values.pop("hccs_bandwidth_info_profiling_time") == 200
    assert set(values.values()) == {-1} and len(values) == 7 * 5 + 2


def test_pcie_gives_average_least_and_most() -> None:
    found = read("pcie")
    assert found is not None and len(found) == 18
    assert [found[f"pcie_rx_p_bw_{kind}"] for kind in ("avgPcieBw", "minPcieBw", "maxPcieBw")] == [5, 1, 9]


def test_between_dies() -> None:
    assert read("sio") == {"sio_crc_tx_err_cnt": 1, "sio_crc_rx_err_cnt": 2}
    for group in ("sio", "ddr", "pcie", "hbm", "utilization"):
        here = machine()
        assert asyncio.run(collect.COLLECTORS[group](Reader(Recorded({})), here, here.chips[0])) is None


def ports(outputs: dict[str, str], answers: dict[Any, Any] | None = None) -> Ports:
    return Ports(HccnTool(Tool(outputs)), Recorded(answers or {}))


def test_network_of_a_training_card() -> None:
    work = ports({
        "-i 0 -link -g": "link status: UP", "-i 0 -speed -g": "Speed: 100000 Mb/s",
        "-i 0 -link_stat -g": "[device 0]link up count : 3",
        "-i 0 -bandwidth -g": "Bandwidth TX: 0.25 MB/sec\nBandwidth RX: 12.00 MB/sec",
    })  # fmt: skip
    found = asyncio.run(work.network(machine(), chip()))
    assert found is not None and by_name(found) == {
        "link_status": 1, "bandwidth_tx": 0.25, "bandwidth_rx": 12.0, "npu_chip_link_up_num": 3,
        "npu_chip_link_speed": 100_000,
    }  # fmt: skip
    silent = asyncio.run(ports({}).network(machine(), chip()))
    assert silent is not None and by_name(silent) == {"link_status": FAILED}


def test_roce_counters_that_are_not_printed_are_zero() -> None:
    work = ports({"-i 0 -stat -g": "mac_rx_mac_pause_num:5\nroce_ecn_db_num:6\nmac_rx_fcs_err_pkt_num:7\n"})
    found = asyncio.run(work.roce(machine(), chip()))
    assert found is not None and len(found) == 21
    values = {value.metric: value.value for value in found}
    assert values["npu_chip_mac_rx_pause_num"] == 5
    assert values["npu_chip_info_rx_ecn_num"] == 6 and values["npu_chip_info_rx_fcs_num"] == 7
    assert sum(values.values()) == 18
    assert asyncio.run(ports({}).roce(machine(), chip())) is None


@pytest.mark.parametrize(("present", "state"), [("present", 1), ("not present", 0), ("maybe", -1)])
def test_optical_module(present: str, state: int) -> None:
    text = f"present : {present}\nVcc : 3271.30 mV\ntemperature : 40 C\nTx Power0 : 1.5 mW\nRx Power3 : NA\n"
    found = asyncio.run(ports({"-i 0 -optical -g": text}).optical(machine(), chip()))
    assert found is not None and len(found) == 11
    values = {value.metric.removeprefix("npu_chip_optical_"): value.value for value in found}
    assert values["state"] == state and values["vcc"] == 3271.3 and values["temp"] == 40
    assert values["tx_power_0"] == 1.5 and values["rx_power_3"] == -1
    shown = {value.metric.removeprefix("npu_chip_optical_") for value in checked(found)}
    assert shown == {"vcc", "temp", "tx_power_0"} | ({"state"} if state >= 0 else set())


A5 = machine("Ascend910A5", mainboard=0x23, chips=[chip(logic=0)])


async def _learned(work: Ports, group: str) -> dict[str, Any]:
    await work.learn(A5)
    found = await getattr(work, group)(A5, A5.chips[0])
    return {} if found is None else by_name(found)


def test_ports_of_an_ascend_950() -> None:
    outputs = {
        "-g -dev_info -i 0": DEV_INFO,
        "-g -link -i 0 -u 1 -p 9": "link status: UP",
        "-g -speed -i 0 -u 1 -p 9": SPEED_950,
        "-g -bandwidth -i 0 -u 1 -p 9 -time 100": "Bandwidth TX: 1 MB/sec\nBandwidth RX: 2 MB/sec",
        "-g -optical -i 0 -u 1 -p 9": OPTICAL_950,
    }
    assert asyncio.run(_learned(ports(outputs), "network")) == {
        "link_status_0_4": FAILED, "link_status_0_5": FAILED, "link_status_1_9": 1, "bandwidth_tx_1_9": 1.0,
        "bandwidth_rx_1_9": 2.0, "link_speed_1_9": 200,
    }  # fmt: skip
    found = asyncio.run(_learned(ports(outputs), "optical"))
    assert found["optical_index_num_1_9"] == 2 and found["optical_rx_power_0_1_9"] == -2.5
    assert found["optical_tx_power_3_1_9"] == -1


def test_ub_counters_come_from_the_driver_else_from_the_tool() -> None:
    outputs = {
        "-g -dev_info -i 0": DEV_INFO,
        "-g -stat -i 0 -u 0 -p 4": "is_uboe_port:1\nretry_req_sum:5\n",
        "-g -stat -i 0 -u 0 -p 5": "retry_req_sum:6\n",
    }
    counters = list(range(48))
    found = asyncio.run(_learned(ports(outputs), "ub"))
    assert found["retry_req_sum_0_4"] == 5 and found["core_mib_rxpausepkts_0_4"] == 0
    assert found["retry_req_sum_0_5"] == 6 and "core_mib_rxpausepkts_0_5" not in found
    assert not any(name.endswith("_1_9") for name in found)
    driver = asyncio.run(_learned(ports(outputs, {"ub_port": {"mode": 0, "counters": counters}}), "ub"))
    assert len(driver) == 3 * 40
    assert driver["crc_error_sum_1_9"] == UB_KEYS.index("crc_error_sum")
    uboe = asyncio.run(_learned(ports(outputs, {"ub_port": {"mode": 1, "counters": counters}}), "ub"))
    assert len(uboe) == 3 * 48 and uboe["core_mib_txbadoctets_0_4"] == 47


def test_a_lane_reads_what_is_due_and_waits_for_the_next() -> None:
    from belay.agents.exporter.groups import Group

    now, done = Now(), []

    async def work(group: Group) -> None:
        done.append(group.name)
        if group.name == "npu" and len(done) < 4:
            raise RuntimeError("a bug")

    lane = Lane([Group("version", -1), Group("utilization", 1), Group("npu", 5)], work, now)
    asyncio.run(lane.turn())
    assert done == ["version", "utilization", "npu"] and lane.wait() == 1
    now.seconds += 1.5
    assert lane.wait() == 0.05 and lane.late() == 0.5
    asyncio.run(lane.turn())
    assert done[3:] == ["utilization"]
    now.seconds += 4
    asyncio.run(lane.turn())
    assert done[4:] == ["utilization", "npu"]
    once = Lane([Group("version", -1)], work, now)
    asyncio.run(once.turn())
    assert once.wait() == 60 and Lane([], work, now).wait() == 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dcmi"))


MACHINES: dict[str, dict[str, Any]] = {
    "A2": {"chips": 8},
    "A3": {"chips": 16, "chips_per_card": 2, "chip_name": "Ascend910-9382", "board": 0xB0, "mainboard": 0x18},
    "910": {"chips": 8, "chip_name": "910", "board": 0, "ddr_mb": 16_384},
    "310P": {"chips": 2, "chip_name": "310P3", "board": 0, "hbm_mb": 0, "ddr_mb": 24_576, "product": "Atlas 300I Pro",
             "templates": [("vir04", 4.0, 12_288)], "aicores": 8},
    "A5": {"chips": 4, "chip_name": "Ascend950PR", "board": 0, "mainboard": 0x6B, "v2": True},
}  # fmt: skip
GROUPS_OF = {
    "A2": {"version", "utilization", "npu", "hbm", "hccs", "pcie", "nodeBase", "roce", "optical", "network"},
    "A3": {"version", "utilization", "npu", "hbm", "hccs", "sio", "nodeBase", "roce", "optical", "network"},
    "910": {"version", "utilization", "npu", "hbm", "ddr", "nodeBase", "roce", "optical", "network"},
    "310P": {"version", "utilization", "npu", "ddr", "vnpu", "nodeBase"},
    "A5": {"version", "utilization", "npu", "hbm", "sio", "pcie", "nodeBase", "network", "ub"},
}
PRODUCT = {"A2": "A2T", "A3": "A3T", "910": "A1", "310P": "I310P", "A5": "A350"}


def recorded_tool(chips: int) -> Tool:
    outputs = {}
    for phy in range(chips):
        outputs.update({
            f"-i {phy} -link -g": "link status: UP", f"-i {phy} -speed -g": "Speed: 100000 Mb/s",
            f"-i {phy} -link_stat -g": "[device 0]link up count : 3",
            f"-i {phy} -bandwidth -g": "Bandwidth TX: 0.25 MB/sec\nBandwidth RX: 12.00 MB/sec",
            f"-i {phy} -stat -g": "mac_rx_mac_pause_num:5\n",
            f"-i {phy} -optical -g": "present : present\nVcc : 1 mV\ntemperature : 4 C\n" + "".join(
                f"{way} Power{lane} : 1.5 mW\n" for way in ("Tx", "Rx") for lane in range(4)
            ),
            f"-g -dev_info -i {phy}": DEV_INFO,
        })  # fmt: skip
        for die, port in ((0, 4), (0, 5), (1, 9)):
            where = f"-i {phy} -u {die} -p {port}"
            outputs[f"-g -link {where}"] = "link status: UP"
            outputs[f"-g -speed {where}"] = SPEED_950
            outputs[f"-g -bandwidth {where} -time 100"] = "Bandwidth TX: 1 MB/sec\nBandwidth RX: 2 MB/sec"
        outputs[f"-g -bandwidth -d bond{phy} -time 100"] = "Bandwidth TX: 1 MB/sec\nBandwidth RX: 2 MB/sec\n" * 2
    return Tool(outputs)


@pytest.mark.parametrize("name", MACHINES)
def test_every_metric_of_a_product_is_read_through_the_driver(library: Path, tmp_path: Path, name: str) -> None:
    standin = Standin.create(tmp_path / "state", **MACHINES[name])
    if name == "310P":
        standin.chip(0).vdevs[0].id, standin.chip(0).vdevs[0].name = 100, b"vir04"
    standin.processes(0, [4711])

    async def go() -> set[str]:
        supervisor = Supervisor(
            library, owners=frozenset({0, os.getuid()}), env={"BELAY_SIM_DCMI_STATE": str(standin.file)}
        )
        held = Held()
        exporter = Exporter(
            parse(["-ip=127.0.0.1", f"-configDir={tmp_path}", "-hccsBWProfilingTime=1", "-profilingTime=1"]),
            DcmiSource(supervisor, Now()), tool=HccnTool(recorded_tool(16)), containers=held,
        )  # fmt: skip
        running = asyncio.create_task(exporter.run())
        try:
            async with asyncio.timeout(20):
                while not (GROUPS_OF[name] <= set(exporter.cache.groups()) and held.reads):
                    assert not running.done(), running.exception()
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            page = exporter.page.plain().decode()
        finally:
            running.cancel()
            await supervisor.close()
        assert set(exporter.cache.groups()) == GROUPS_OF[name]
        return {line.split()[2] for line in page.splitlines() if line.startswith("# HELP")}

    shown = asyncio.run(go())
    product = PRODUCT[name]
    documented = {m.name for m in METRICS if product in m.products}
    absent = {
        # no fault is present; link 0 is not used by these boards
        *(m.name for m in METRICS if m.name.startswith("npu_chip_info_error_code")),
        *(m.name for m in METRICS if m.group == "hccs" and m.name.endswith("_0")),
        # only ports in UBOE mode
        *(m.name for m in METRICS if "core_mib" in m.name),
    }
    if name == "A5":
        # there are no cards and no RoCE port of a chip's own
        absent |= {"npu_chip_info_network_status", "machine_card_nums"}
    # what MindCluster's code exposes beside its documents
    beside = {"910": set(), "310P": {"container_npu_total_memory", "container_npu_used_memory"}}.get(name, set())
    assert documented - absent - shown == set()
    assert shown - documented == beside
    assert all(BY_NAME[metric] for metric in shown)


class Held:
    """Chips 0 and 1 and vNPU 100 are held by one container each."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self) -> Any:
        from tests.exporter_world import container

        self.reads += 1
        chips = {chip: [container(f"ns_pod-{chip}_main", chip, pids=[4711])] for chip in (0, 1)}
        return {**chips, 100: [container("ns_pod_main", 100)]}


def test_a_chip_that_hangs_is_left_alone_and_others_are_read(library: Path, tmp_path: Path) -> None:
    standin = Standin.create(tmp_path / "state", chips=2)
    standin.script("dcmi_get_device_temperature", delay_ms=60_000, phy=1)

    async def go() -> None:
        now = Now()
        supervisor = Supervisor(
            library, owners=frozenset({0, os.getuid()}), env={"BELAY_SIM_DCMI_STATE": str(standin.file)}
        )
        source = DcmiSource(supervisor, now)
        try:
            here = await ChipList(source).read()
            assert [c.serial for c in here.chips] == ["SIM0000", "SIM0001"]
            (late,) = await source.read(1, [("temperature", 1)], extra=-4.9)
            assert "timed out" in late.error
            (quick,) = await source.read(1, [("power", 1)])
            assert "did not answer before" in quick.error
            (other,) = await source.read(0, [("temperature", 0)])
            assert other.value == 40
            now.seconds += 31
            standin.unscript()
            (again,) = await source.read(1, [("temperature", 1)])
            assert again.value == 41
            (wrong,) = await source.read(0, [("reset", 0)])
            assert "is not a reading" in wrong.error and standin.chip(0).resets == 0
        finally:
            await supervisor.close()

    asyncio.run(asyncio.wait_for(go(), 60))


class CountedProcess:
    """A driver process that remembers its messages; ``hung`` chips do not answer in time."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        self.hung: set[int] = set()

    async def ask(self, call: str, argument: list[Any], *, timeout: float) -> Any:
        turns = argument if call == "turns" else [argument]
        phys = [turn[0][1] for turn in turns]
        self.asked.append((call, phys))
        await asyncio.sleep(0)
        if self.hung & set(phys):
            raise DcmiError(call, TIMED_OUT)
        answers = [[{"value": request[1]} for request in turn] for turn in turns]
        return answers if call == "turns" else answers[0]


def test_chips_that_are_read_together_are_one_message() -> None:
    """Utilization is read every second: eight messages a second were most of what an idle exporter cost."""
    process, now = CountedProcess(), Now()
    source = DcmiSource(cast(Supervisor, process), now)

    async def round_of(chips: Sequence[int]) -> list[Any]:
        found = await asyncio.gather(*(source.read(phy, [("utilisations", phy), ("health", phy)]) for phy in chips))
        return [[reading.value for reading in one] for one in found]

    async def go() -> None:
        everyone = list(range(8))
        assert await round_of(everyone) == [[phy, phy] for phy in everyone]
        assert process.asked == [("turns", everyone)]
        process.asked.clear()
        assert await round_of([3]) == [[3, 3]] and process.asked == [("several", [3])]

        process.asked.clear()
        process.hung = {5}
        found = await round_of(everyone)
        assert [row for row in found if row != [None, None]] == [[phy, phy] for phy in everyone if phy != 5]
        assert process.asked[0] == ("turns", everyone) and len(process.asked) == 9, "each on its own after that"
        process.asked.clear()
        await round_of(everyone)
        assert process.asked == [("turns", [phy for phy in everyone if phy != 5])], "one that hangs rests"
        now.seconds += 31
        process.asked.clear()
        await round_of(everyone)
        assert sorted(process.asked) == [("several", [5]), ("turns", [0, 1, 2, 3, 4, 6, 7])], "and is asked alone"
        now.seconds += 61
        process.hung.clear()
        assert await round_of(everyone) == [[phy, phy] for phy in everyone]
        process.asked.clear()
        await round_of(everyone)
        assert process.asked == [("turns", everyone)], "all together again"

    asyncio.run(go())


def test_configuration_is_followed_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from belay.agents.exporter import chips, exporter, groups

    monkeypatch.setattr(exporter, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(exporter, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(chips, "PERIOD", 0.05)
    info = {"name": "910B3", "type": "Ascend", "version": "V1"}
    facts = {"chip_info": info, "board": {"board": 0x30}, "mainboard": 0, "version": "25.0"}
    source = Recorded({**READINGS, **facts}, [(0, 0, 0, 0)])

    async def go() -> None:
        work = Exporter(parse(["-ip=127.0.0.1", f"-configDir={tmp_path}"]), source, tool=HccnTool(recorded_tool(2)))
        running = asyncio.create_task(work.run())

        async def until(wanted: set[str]) -> None:
            async with asyncio.timeout(10):
                while {name for name in work.cache.groups() if work.cache.of(name, 0)} != wanted:
                    assert not running.done(), running.exception()
                    await asyncio.sleep(0.01)

        await until(GROUPS_OF["A2"])
        assert work.trouble() == ""
        only = tmp_path / groups.METRICS_FILE
        only.write_text(json.dumps([{"metricsGroup": name, "state": "ON"} for name in ("hbm", "network")]))
        await until({"hbm", "network"})
        assert "npu_chip_info_temperature" not in work.page.plain().decode()
        # a chip that joins gets its loops too
        source._places = [(0, 0, 0, 0), (1, 1, 1, 0)]
        async with asyncio.timeout(10):
            while set(work.cache.of("network", 0)) != {0, 1}:
                await asyncio.sleep(0.01)
        only.unlink()
        await until(GROUPS_OF["A2"])
        running.cancel()

    asyncio.run(go())


def test_a_first_chip_that_says_nothing_does_not_keep_the_exporter_from_the_others() -> None:
    info = {"name": "910B3", "type": "Ascend", "version": "V1", "aicores": 20}
    places = ((0, 0, 0, 0), (1, 1, 1, 0))
    source = Recorded({("chip_info", 1): info, ("board", 1): {"board": 0x30}, "version": "25.0"}, places)
    here = asyncio.run(ChipList(source).read())
    assert (here.family, here.driver) == ("Ascend910B", "25.0")
    # it is listed all the same, with what is known of it
    assert [(chip.phy, chip.chip_name) for chip in here.chips] == [(0, ""), (1, "910B3")]
    with pytest.raises(DriverError, match="chip_info: no answer"):
        asyncio.run(ChipList(Recorded({}, places)).read())
