"""Compile the stand-in: one file, a C compiler, and no library but libpthread. Beside it a stand-in for hccn_tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 60


class BuildError(Exception):
    """The stand-in could not be compiled; the text states what to install, or the compiler's error."""


def build(folder: Path, compiler: str = "") -> Path:
    """Compile `libdcmi.so` into ``folder`` and return its path. Raises BuildError."""
    return _compile(folder, "libdcmi.so", "dcmi_standin.c", compiler)


def build_switch(folder: Path, compiler: str = "") -> Path:
    """Compile the bus switch's `liblingqu-dcmi.so`; its faults are lines of the file BELAY_SIM_SWITCH_STATE."""
    return _compile(folder, "liblingqu-dcmi.so", "lingqu_standin.c", compiler)


def place_hccn_tool(folder: Path) -> Path:
    """Put the stand-in for hccn_tool into ``folder`` and return its path."""
    tool = folder / "hccn_tool"
    tool.write_bytes((HERE / "hccn_tool.sh").read_bytes())
    tool.chmod(0o755)
    return tool


def _compile(folder: Path, name: str, source: str, compiler: str) -> Path:
    found = compiler or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")
    if not found:
        raise BuildError("no C compiler found (cc, gcc or clang); on Debian: apt-get install gcc libc6-dev")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / name
    fresh = folder / f".{name}.new"
    command = [
        found, "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(fresh), str(HERE / source),
        "-lpthread",
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{found} did not finish in {SECONDS} s") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{found}: {getattr(error, 'stderr', None) or error}"[:2000]) from error
    fresh.chmod(0o755)
    fresh.replace(library)
    return library
