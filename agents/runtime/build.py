"""Compiling the runtime: one static program, and a small dynamic one that loads the NPU driver.

The driver's libraries must meet the host's own libc, which a static program cannot do, while the program that runs for
every container must not depend on the host's libc. Hence two files. `belay-oci-driver` needs no libc newer than 2.17.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent / "oci"
RUNTIME: Final = "belay-oci-runtime"
DRIVER: Final = "belay-oci-driver"
SECONDS: Final = 180
_SOURCES: Final = (
    "main.c", "text.c", "json.c", "trust.c", "env.c", "grant.c", "lists.c", "runtime.c", "call.c", "spec.c", "hook.c",
    "mount.c", "drivercall.c", "snapshot.c", "restore.c", "tar.c", "untar.c", "digest.c", "check.c",
)  # fmt: skip
_COMMON: Final = (
    "-std=gnu11", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation",
    "-fno-strict-aliasing", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s",
)  # fmt: skip
_SANITIZE: Final = ("-g", "-U_FORTIFY_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS: Final = {
    "native": ("cc", "gcc", "clang"),
    "aarch64": ("aarch64-linux-gnu-gcc",),
    "x86_64": ("x86_64-linux-gnu-gcc",),
}


class BuildError(Exception):
    """Compilation failed; the text names what to install or quotes the compiler."""


def compiler(architecture: str = "native") -> str:
    """The compiler for an architecture. Raises BuildError."""
    for name in COMPILERS.get(architecture, ()):
        if shutil.which(name):
            return name
    package = {"native": "gcc libc6-dev", "aarch64": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"}
    wanted = package.get(architecture, "gcc-x86-64-linux-gnu libc6-dev-amd64-cross")
    raise BuildError(f"no C compiler for {architecture}; on Debian: apt-get install {wanted}")


def build(folder: Path, architecture: str = "native", *, sanitize: bool = False) -> Sequence[Path]:
    """Compile both programs into ``folder``, mode 0550; return the files. Raises BuildError.

    ``sanitize`` builds a dynamic runtime for tests that aborts at the first invalid memory access.
    """
    program = compiler(architecture)
    folder.mkdir(parents=True, exist_ok=True)
    sources = [str(HERE / name) for name in _SOURCES]
    static = ["-static-pie", "-fPIE"] if not sanitize else [*_SANITIZE]
    # the linker's own start-up code would need glibc 2.34: see driver.c
    dynamic = ["-pie", "-fPIE", "-nostartfiles", "-Wl,--no-as-needed", "-l:libdl.so.2"]
    return [
        _compile(program, folder / RUNTIME, [*_COMMON, *static, *sources]),
        _compile(program, folder / DRIVER, [*_COMMON, str(HERE / "driver.c"), *dynamic]),
    ]


def _compile(program: str, file: Path, arguments: Sequence[str]) -> Path:
    fresh = file.with_name(f".{file.name}.new")
    try:
        subprocess.run(
            [program, *arguments, "-o", str(fresh)], check=True, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{program} did not finish in {SECONDS} s") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{program}: {getattr(error, 'stderr', None) or error}"[:2000]) from error
    fresh.chmod(0o550)
    fresh.replace(file)
    return file
