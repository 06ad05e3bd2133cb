"""Harnesses of the C code, compiled with the address and undefined-behaviour sanitizers.

`make fuzz` uses clang's libFuzzer where clang is installed. In CI, and elsewhere, gcc and ``driver.c`` feed the seeds
and mutations of them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from belay.agents.runtime.build import HERE as RUNTIME
from tests.fuzz.execution import ROOT
from tests.fuzz.harness import CORPUS, Form
from tests.fuzz.mutator import Mutator
from tests.fuzz.session import Report

HERE: Final = Path(__file__).parent
TARGETS: Final = {
    "oci-document": Form.JSON,
    "oci-edits": Form.JSON,
    "oci-environment": Form.TEXT,
    "oci-layer": Form.BYTES,
    "oci-arguments": Form.TEXT,
    "oci-state": Form.JSON,
}
"""The targets of ``oci.c`` with the form of their inputs."""
COVERS: Final = ("json.c", "env.c", "lists.c", "spec.c", "restore.c", "tar.c", "call.c", "hook.c", "text.c")
"""Sources of the runtime that parse what others wrote, which the targets reach."""
CLANGS: Final = ("clang", *(f"clang-{version}" for version in range(21, 12, -1)))
LEFT_OUT: Final = ("main.c", "hook.c", "mount.c", "driver.c")
"""Not linked: ``oci.c`` includes the hook without its mounting, and ``driver.c`` is another program."""
NOT_COVERED: Final = {
    "runtime.c": "puts the pieces together; tests/test_oci_memory.py makes containers with damaged config.json",
    "drivercall.c": "starts that program; its answers are cut at 1,024 bytes and read by sscanf of three numbers",
    "mount.c": "mounts; its arguments come from the hook, whose lists the target oci-environment reads",
    "snapshot.c": "talks to runc and writes checkpoints; tests/test_oci_snapshot.py",
    "untar.c": "writes files as a child in a chroot; tests/test_oci_memory.py applies damaged layers",
    "check.c": "verbs for operators and tests around the readers that the targets reach",
}
"""Sources that call such readers, too, and why no target does."""
LARGEST: Final = 64 << 10
CHECKED: Final = 4 << 10
"""Longest input without libFuzzer; long ones take long under sanitizers."""
_FLAGS: Final = (
    "-std=gnu11",
    "-g",
    "-O1",
    "-D_GNU_SOURCE",
    f"-I{RUNTIME}",
    "-fno-strict-aliasing",
    "-fno-sanitize-recover=all",
    "-Wl,--wrap=say",
)
_ENVIRONMENT: Final = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
}
_DONE: Final = re.compile(r"Done (\d+) runs")
_COVERAGE: Final = re.compile(r"cov: (\d+)")
_FAULT: Final = re.compile(r"(?:SUMMARY: .*|broken rule: .*|.*runtime error: .*|ERROR: libFuzzer: .*)")


def build(folder: Path, *, fuzzer: str = "") -> Path:
    """The program with all targets; ``fuzzer`` is a clang with libFuzzer, empty for gcc and ``driver.c``.

    Raises:
        RuntimeError: it does not compile; the text quotes the compiler.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / ("oci-fuzzer" if fuzzer else "oci-driver")
    sources = [str(file) for file in sorted(RUNTIME.glob("*.c")) if file.name not in LEFT_OUT]
    sanitize = f"-fsanitize={'fuzzer,' if fuzzer else ''}address,undefined"
    own = [HERE / "oci.c"] if fuzzer else [HERE / "oci.c", HERE / "driver.c"]
    command = [fuzzer or "gcc", *_FLAGS, sanitize, *sources, *map(str, own), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return program


def clang() -> str:
    """A clang on PATH; empty without one."""
    return next((name for name in CLANGS if shutil.which(name)), "")


def fuzz(name: str, above: Path, seed: int, seconds: float) -> Report:
    """Fuzz one target for a time, with libFuzzer where there is one."""
    program, folder = clang(), above / name
    if not program:
        return _without_libfuzzer(name, folder, seed, seconds)
    for part in ("kept", "findings"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    fuzzer = folder.parent / "oci-fuzzer"
    if not fuzzer.exists() or fuzzer.stat().st_mtime < max(file.stat().st_mtime for file in _sources()):
        fuzzer = build(folder.parent, fuzzer=program)
    command = [
        str(fuzzer),
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed % 2**31 or 1}",
        f"-max_len={LARGEST}",
        "-timeout=25",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={folder}/findings/",
        str(folder / "kept"),
        str(CORPUS / name),
    ]
    before = set((folder / "findings").iterdir())
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds + 300,
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT, "BELAY_FUZZ_TARGET": name},
    )
    runs, reached = re.findall(r"stat::number_of_executed_units: (\d+)", done.stderr), _COVERAGE.findall(done.stderr)
    report = Report(name, runs=int(runs[-1]) if runs else 0, lines=int(reached[-1]) if reached else 0)
    if done.returncode:
        fresh = sorted(set((folder / "findings").iterdir()) - before)
        report.findings = {_fault(done.stderr): fresh[0].name if fresh else ""}
    return report


def _without_libfuzzer(name: str, folder: Path, seed: int, seconds: float) -> Report:
    program, end, whole = build(folder.parent), time.monotonic() + seconds, Report(name)
    while time.monotonic() < end and not whole.findings:
        done = check(program, name, folder, seed + whole.runs, 20_000)
        whole.runs, whole.findings = whole.runs + done.runs, done.findings
    return whole


def check(program: Path, name: str, folder: Path, seed: int, tries: int) -> Report:
    """Feed the seeds of a target and ``tries`` mutations of them to the program that gcc made."""
    (folder / "findings").mkdir(parents=True, exist_ok=True)
    seeds = [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
    mutator = Mutator(TARGETS[name], (), random.Random(f"{name} {seed}"))
    inputs = [*seeds, *(mutator.next(seeds)[:CHECKED] for _ in range(tries))]
    report = Report(name, seeds=len(seeds))
    code, fed, said = _feed(program, name, inputs)
    report.runs = fed
    if code:
        data = inputs[max(0, fed - 1)]
        file = folder / "findings" / f"{hashlib.sha256(data).hexdigest()[:16]}.input"
        file.write_bytes(data)
        file.with_suffix(".txt").write_text(said)
        report.findings = {_fault(said): file.name}
    return report


def _feed(program: Path, name: str, inputs: Sequence[bytes]) -> tuple[int, int, str]:
    """Exit code, number of inputs that were begun, and what the program said."""
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as said:
        for data in inputs:
            file.write(b"%d\n" % len(data) + data)
        file.flush()
        file.seek(0)
        # the inputs are at descriptor 3: a target replaces stdin
        command = ["bash", "-c", 'exec 3<&0 </dev/null; exec "$0"', str(program)]
        environment = {"PATH": os.environ["PATH"], **_ENVIRONMENT, "BELAY_FUZZ_TARGET": name}
        done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, stderr=said, env=environment, timeout=900)
        said.seek(0)
        return done.returncode, len(done.stdout.split()), said.read(6000).decode(errors="replace")


def _fault(said: str) -> str:
    found = _FAULT.search(said)
    return found[0].removeprefix(f"{ROOT}/")[:200] if found else "ended without a word"


def _sources() -> list[Path]:
    return [*RUNTIME.glob("*.[ch]"), *HERE.glob("*.c")]


__all__ = ["COVERS", "NOT_COVERED", "TARGETS", "build", "check", "clang", "fuzz"]
