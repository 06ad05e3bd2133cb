"""What npu-smi prints in different releases, and the driver made of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.base import BOOTED, DriverError
from belay.agents.drivers.choice import make_driver
from belay.agents.drivers.tools import npu_smi
from belay.agents.drivers.tools.driver import SmiDriver
from belay.agents.drivers.tools.npu_smi import Facts, NpuSmiChip
from belay.agents.exporter.exporter import Exporter
from belay.agents.exporter.settings import parse
from belay.agents.exporter.smi import SmiSource
from tests.exporter_world import Tool

MAP_OLD = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              0                              Ascend 910B3
\t0                              1                              -                              Mcu
\t1                              0                              1                              Ascend 910B3
\t1                              1                              -                              Mcu
"""
MAP_NEW = """\
    NPU ID       Chip ID      Chip Logic ID     Chip Phy-ID     Chip Name
    0            0            0                 4               Ascend910-9382
    0            1            1                 5               Ascend910-9382
    0            2            -                 -               Mcu
"""
OVERVIEW = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 97.6        45                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4711          | python                   | 1024                    |
| 0       0                 | 4712          | 7                        | 12                      |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
BOARD = """\
        NPU ID                         : 0
        Product Name                   : NA
        Model                          : NA
        Manufacturer                   : Huawei
        Serial Number                  : 033ABC10P1000001
        Software Version               : 24.1.rc2
        Firmware Version               : 7.3.0.1.231
        Board ID                       : 0x30
        PCIe Bus Info                  : 0000:C1:00.0
        Chip Count                     : 1
"""
HEALTH_OK = "\tHealth Status                  : OK\n\tError Code                     : NA\n"
HEALTH_BAD = (
    "\tHealth                         : Alarm\n\tError Code                     : 0x80E01801, 80c98001\n"
    "\tError Information              : node type=soc, hbm multi-bit error\n"
)
COMMON = """\
        NPU ID                         : 0
        Chip ID                        : 0
        Memory Usage Rate(%)           : NA
        HBM Usage Rate(%)              : 5
        Aicore Usage Rate(%)           : 0
        Aicore Freq(MHZ)               : 1800
        Aicore curFreq(MHZ)            : 800
        Aicore Count                   : 20
        Temperature(C)                 : 45
        NPU Real-time Power(W)         : 97.6
"""
USAGES = """\
        NPU ID                         : 0
        Chip Count                     : 1

        HBM Capacity(MB)               : 65536
        HBM Usage Rate(%)              : 5
        Aicore Usage Rate(%)           : 63
        Aivector Usage Rate(%)         : 12
        Ctrlcpu Usage Rate(%)          : 1
        HBM Bandwidth Usage Rate(%)    : 7
        Chip ID                        : 0
"""
ECC = """\
        HBM Single Bit Error Count                : 1
        HBM Double Bit Error Count                : 0
        HBM Single Bit Aggregate Total Err Cnt    : 9
        HBM Double Bit Aggregate Total Err Cnt    : 2
        HBM Single Bit Isolated Pages Count       : 0
        HBM Double Bit Isolated Pages Count       : 1
"""
VNPU = """\
+-------------------------------------------------------------------------------+
| NPU resource static info as follow:                                           |
| Format:Free/Total                   NA: Currently, query is not supported.    |
| AICORE    Memory    AICPU    VPC    VENC    VDEC    JPEGD    JPEGE    PNGD    |
|===============================================================================|
| 4/8       11/21     4/7      6/12   1/3     6/12    8/16     4/8      NA/NA   |
+-------------------------------------------------------------------------------+
| Total number of vnpu: 1                                                       |
+-------------------------------------------------------------------------------+
|  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name         |
+-------------------------------------------------------------------------------+
|  100      |  0             |  000000000000  |  0       |  vir04                 |
+-------------------------------------------------------------------------------+
"""
MORE = VNPU.replace(
    "|  100      |", "|  101      |  1             |  000000000000  |  0       |  vir02     |\n|  100      |"
)
DONE = "\tStatus                         : OK\n\tMessage                        : The vnpu is created\n"
FAILED = "\tStatus                         : Failed\n\tMessage                        : resource is not enough\n"


def node(**changes: str) -> Tool:
    return Tool({
        "info -m": MAP_OLD, "info": OVERVIEW, **{f"info -t board -i {card}": BOARD for card in (0, 1)},
        **{f"info -t health -i {card} -c 0": HEALTH_OK for card in (0, 1)},
        **{f"info -t common -i {card} -c 0": COMMON for card in (0, 1)},
        **{f"info -t usages -i {card} -c 0": USAGES for card in (0, 1)},
        **{f"info -t ecc -i {card} -c 0": ECC for card in (0, 1)},
        **{f"info -t info-vnpu -i {card} -c 0": "no vnpu\n" for card in (0, 1)},
        **{key.replace("_", " "): text for key, text in changes.items()},
    })  # fmt: skip


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_chips_by_the_columns_that_a_release_has() -> None:
    assert npu_smi.places(MAP_OLD) == [NpuSmiChip(0, 0, 0, 0, "910B3"), NpuSmiChip(1, 1, 1, 0, "910B3")]
    assert npu_smi.places(MAP_NEW) == [
        NpuSmiChip(4, 0, 0, 0, "Ascend910-9382"),
        NpuSmiChip(5, 1, 0, 1, "Ascend910-9382"),
    ]
    for printed, name in (("Ascend 310P3", "310P3"), ("Ascend910", "910"), ("Ascend950PR", "Ascend950PR")):
        assert npu_smi.places(MAP_OLD.replace("Ascend 910B3", printed))[0].name == name
    with pytest.raises(DriverError, match="no chips in 'dcmi module"):
        npu_smi.places("dcmi module initialize failed. ret is -8005")


def test_processes_and_vnpus() -> None:
    assert npu_smi.processes(OVERVIEW) == {(0, 0): [(4711, 1024), (4712, 12)]}
    assert npu_smi.processes(OVERVIEW.split("| NPU     Chip")[0]) == {}
    assert npu_smi.vnpus(VNPU) == [(100, "vir04")]
    assert npu_smi.vnpus("This device does not support querying vnpu.") == []


def test_keys_are_found_in_any_case_and_with_any_unit() -> None:
    facts = Facts("  NPU Real-time Power (W) : 97.6\nTEMPERATURE(C): 45 C\nOdd : NA\n")
    assert facts.number("NPU Real-time Power(W)") == 97.6 and facts.number("None", "Temperature") == 45
    assert facts.text("Odd") == ""
    with pytest.raises(DriverError, match="no Voltage in"):
        facts.number("Voltage")


def test_the_driver_describes_its_node() -> None:
    async def go() -> None:
        driver = SmiDriver(node())
        machine = await driver.machine()
        assert (machine.resource, machine.chip_name, machine.server_type) == (
            "huawei.com/Ascend910", "910B3", "Ascend910B-20",
        )  # fmt: skip
        assert (machine.driver_version, machine.memory_gb) == ("24.1.rc2", 64)
        assert [(chip.id, chip.card, chip.serial) for chip in await driver.chips()] == [
            (0, 0, "033ABC10P1000001"), (1, 1, "033ABC10P1000001"),
        ]  # fmt: skip
        assert await driver.processes() == {0: 2}
        assert list(await driver.reset_group(1)) == [0, 1]
        assert await driver.boot_status(0) == BOOTED and await driver.healthy(0)
        with pytest.raises(DriverError, match="--driver dcmi"):
            await driver.reset([0])
        with pytest.raises(DriverError, match="no chip 7"):
            await driver.boot_status(7)

    run(go())


def test_faults_come_stay_and_go() -> None:
    async def go() -> None:
        tool, clock = node(), [1000]
        driver = SmiDriver(tool, now_ms=lambda: clock[0])
        assert {chip: list(codes) for chip, codes in (await driver.faults()).items()} == {0: [], 1: []}
        tool.outputs["info -t health -i 1 -c 0"] = HEALTH_BAD
        first = (await driver.faults())[1]
        clock[0] = 2000
        assert (await driver.faults())[1] == first
        assert [(code.code, code.time_ms) for code in first] == [("80C98001", 1000), ("80E01801", 1000)]
        assert not await driver.healthy(1)
        # a chip that cannot be read costs itself, and its codes keep their time
        del tool.outputs["info -t health -i 1 -c 0"]
        assert list(await driver.faults()) == [0]
        tool.outputs["info -t health -i 1 -c 0"] = HEALTH_BAD
        assert (await driver.faults())[1] == first
        tool.outputs["info -t health -i 1 -c 0"] = HEALTH_OK
        assert list((await driver.faults())[1]) == []
        del tool.outputs["info -t health -i 1 -c 0"], tool.outputs["info -t health -i 0 -c 0"]
        with pytest.raises(DriverError):
            await driver.faults()

    run(go())


def test_vnpus_are_cut_and_given_back() -> None:
    async def go() -> None:
        tool = node()
        driver = SmiDriver(tool)
        where = "info -t info-vnpu -i 0 -c 0"
        tool.outputs[where] = VNPU
        assert [(v.id, v.chip, v.template) for v in await driver.vnpus()] == [(100, 0, "vir04")]

        class Cutting(Tool):
            async def run(self, arguments: list[str]) -> str:
                if "create-vnpu" in arguments:
                    self.outputs[where] = MORE
                return await super().run(arguments)

        cutting = Cutting({**tool.outputs, "set -t create-vnpu -i 0 -c 0 -f vir02": DONE,
                           "set -t destroy-vnpu -i 0 -c 0 -v 101": DONE,
                           "set -t create-vnpu -i 1 -c 0 -f vir02": FAILED})  # fmt: skip
        driver = SmiDriver(cutting)
        made = await driver.create_vnpu(0, "vir02")
        assert (made.id, made.chip, made.template) == (101, 0, "vir02")
        await driver.destroy_vnpu(101)
        assert cutting.asked[-1] == "set -t destroy-vnpu -i 0 -c 0 -v 101"
        with pytest.raises(DriverError, match="resource is not enough"):
            await driver.create_vnpu(1, "vir02")
        with pytest.raises(DriverError, match="not the name of a template"):
            await driver.create_vnpu(0, "vir02; rm -rf /")
        with pytest.raises(DriverError, match="no vNPU 999"):
            await driver.destroy_vnpu(999)

    run(go())


def test_the_exporter_reads_through_it(tmp_path: Path) -> None:
    async def go() -> str:
        tool = node()
        tool.outputs["info -t health -i 1 -c 0"] = HEALTH_BAD
        exporter = Exporter(parse(["-ip=127.0.0.1", f"-configDir={tmp_path}"]), SmiSource(SmiDriver(tool)))
        running = asyncio.create_task(exporter.run())
        async with asyncio.timeout(20):
            while not {"npu", "hbm", "utilization"} <= set(exporter.cache.groups()):
                assert not running.done(), running.exception()
                await asyncio.sleep(0.01)
        running.cancel()
        return exporter.page.plain().decode()

    text = run(go())
    shown = {line.split("{")[0]: line.rsplit(" ", 2)[1] for line in text.splitlines() if 'id="1"' in line}
    assert shown["npu_chip_info_temperature"] == "45" and shown["npu_chip_info_power"] == "97.6"
    assert shown["npu_chip_info_aicore_current_freq"] == "800" and shown["npu_chip_info_health_status"] == "0"
    assert shown["npu_chip_info_error_code"] == str(0x80C98001)
    assert shown["npu_chip_info_utilization"] == "63" and shown["npu_chip_info_vector_utilization"] == "12"
    assert shown["npu_chip_info_hbm_total_memory"] == "65536" and shown["npu_chip_info_hbm_used_memory"] == "3277"
    assert shown["npu_chip_info_hbm_ecc_total_double_bit_error_cnt"] == "2"
    # what the program does not print is not there, instead of being zero
    assert "npu_chip_info_voltage" not in shown and "npu_chip_info_cube_utilization" not in shown
    assert 'pcie_bus_info="0000:C1:00.0"' in text and 'serial_number="033ABC10P1000001"' in text


def test_the_agent_takes_it_by_name(tmp_path: Path) -> None:
    assert isinstance(make_driver("npu_smi", "n1"), SmiDriver)
    missing = make_driver(f"npu_smi:{tmp_path}/none", "n1")
    with pytest.raises(DriverError, match="cannot be run"):
        run(missing.chips())
