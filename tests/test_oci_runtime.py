"""The compiled runtime: its tables, its linkage, the grammar of ASCEND_VISIBLE_DEVICES."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from belay.agents.runtime import tables
from belay.agents.runtime.build import BuildError, build, compiler
from tests.runtime_host import oci_programs

__all__ = ["oci_programs"]

ROOT = Path(__file__).resolve().parents[1]


def test_the_checked_in_tables_are_current() -> None:
    assert tables.HEADER.read_text() == tables.header(), "run python -m belay.agents.runtime.tables"


def test_the_templates_are_the_eighteen_of_the_reference() -> None:
    assert set(tables.template_names(ROOT / "policies")) == {
        "vir01", "vir02", "vir04", "vir08", "vir16", "vir02_1c", "vir03_1c_8g", "vir04_3c", "vir04_4c_dvpp",
        "vir04_3c_ndvpp", "vir05_1c_8g", "vir05_1c_16g", "vir06_1c_16g", "vir10_3c_16g", "vir10_3c_16g_nm",
        "vir10_3c_32g", "vir10_4c_16g_m", "vir12_3c_32g",
    }  # fmt: skip


def test_a_broken_table_names_file_and_key(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    text = (ROOT / "policies/runtime/nodes.toml").read_text()
    assert "access" in tomllib.loads(text)["devices"]
    (tmp_path / "runtime/nodes.toml").write_text(text.replace("access =", "acess ="))
    with pytest.raises(ValueError, match=r"nodes\.toml: access is missing"):
        tables.header(tmp_path)


GOOD = {
    "0-3,5,7": "0,1,2,3,5,7",
    "7,5,5-6": "5,6,7",
    "npu-3,npu-1": "1,3",
    "": "",
    "void": "",
    " 0 - 2 , 5 ": "0,1,2,5",
    "0": "0",
    "00,+1": "0,1",
    "300": "300",
    "128-128": "128",
    "Ascend910-3, Ascend910-3,Ascend910-0": "0,3",
    "Ascend310-1,Ascend310P-2,Ascend310B-3,npu-4": "1,2,3,4",
    "npu-07": "7",
}
BAD = [
    "0-3-4", "4-3", "0l-3", "0=3", "3o", "0,npu-1", "Ascend910", "Ascend910B-0", "0-129", "1,,2", ",", " ", "-1", "1-",
    "0x1", "1.5", "Ascend910-", "Ascend910-1-2", "npu--1", "npu-+1", "xAscend910-1", "Ascend910-1x", "void,0",
    "99999999999999999999", "0 1",
]  # fmt: skip


@pytest.mark.parametrize(("value", "chips"), GOOD.items())
def test_chips_that_a_value_selects(oci_programs: Sequence[Path], value: str, chips: str) -> None:
    done = subprocess.run(
        [oci_programs[0], "belay-check", "devices", value], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout.strip()) == (0, chips)


@pytest.mark.parametrize("value", BAD)
def test_values_that_select_nothing(oci_programs: Sequence[Path], value: str) -> None:
    done = subprocess.run(
        [oci_programs[0], "belay-check", "devices", value], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a chip" in done.stderr or "range" in done.stderr


def headers(file: Path, *options: str) -> str:
    return subprocess.run(
        ["readelf", "-W", *options, file], capture_output=True, text=True, check=True, timeout=30
    ).stdout


def machines() -> list[str]:
    return ["native", *(["aarch64"] if shutil.which("aarch64-linux-gnu-gcc") else [])]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The programs for the other architecture."""
    return build(tmp_path_factory.mktemp("aarch64"), "aarch64")


@pytest.mark.parametrize("architecture", machines())
def test_one_program_is_static_and_the_other_asks_for_an_old_libc(
    request: pytest.FixtureRequest, architecture: str
) -> None:
    runtime, driver = request.getfixturevalue("oci_programs" if architecture == "native" else "foreign")
    assert "(NEEDED)" not in headers(runtime, "-d")
    assert "INTERP" not in headers(runtime, "-l")
    assert re.search(r"GNU_STACK .* RW ", headers(runtime, "-l")), "an executable stack"
    assert "BIND_NOW" in headers(runtime, "-d") and "DYN" in headers(runtime, "-h")
    assert runtime.stat().st_size < 1_500_000
    wanted = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", headers(driver, "-V"))}
    assert wanted and max(wanted) <= (2, 17), wanted
    if architecture == "aarch64":
        assert "AArch64" in headers(runtime, "-h") and "AArch64" in headers(driver, "-h")


EMULATOR = shutil.which("qemu-aarch64-static") if "aarch64" in machines() else None


# the one thing that CI does without where it is not installed: compiler, libc and emulator of another architecture
@pytest.mark.skipif(EMULATOR is None, reason="no emulator or no compiler of the other architecture")
def test_the_programs_of_the_other_architecture_run(foreign: Sequence[Path]) -> None:
    runtime, driver = foreign

    def emulated(*command: str | Path) -> tuple[int, str]:
        done = subprocess.run(
            [str(EMULATOR), "-L", "/usr/aarch64-linux-gnu", *command], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout.strip()

    assert emulated(runtime, "belay-check", "devices", "npu-3,npu-1") == (0, "1,3")
    assert emulated(runtime, "belay-check", "devices", "4-3") == (1, "")
    code, told = emulated(driver, "identify")
    assert (code, told) == (1, "libdcmi.so was found nowhere; is the NPU driver installed?")


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match="apt-get install gcc"):
        compiler()
    with pytest.raises(BuildError, match="gcc-aarch64-linux-gnu"):
        compiler("aarch64")
