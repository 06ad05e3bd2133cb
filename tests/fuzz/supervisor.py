"""Runs sessions in a process of their own, and takes the input that ended it as a finding."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.fuzz.execution import ROOT
from tests.fuzz.session import Report

GRACE: Final = 300.0
"""Seconds a process may take longer than it was given, for slow machines."""
MAX_DEATHS: Final = 10


def supervise(names: Sequence[str], folder: Path, seed: int, *, tries: int) -> list[Report]:
    """Run harnesses for a number of tries each; what is left of one whose process ended is not tried."""
    found: list[Report] = []
    while len(found) < len(names):
        found += _process(names[len(found) :], folder, seed, 0.0, tries)
    return found


def fuzz(name: str, folder: Path, seed: int, seconds: float) -> Report:
    """Run one harness for a time; after an input ended the process, go on with another seed."""
    whole, begin = Report(name), time.monotonic()
    for number in range(MAX_DEATHS):
        left = seconds - (time.monotonic() - begin)
        if left <= 0:
            break
        (done,) = _process([name], folder, seed + 1_000_003 * number, left, 0)
        whole.runs, whole.population = whole.runs + done.runs, done.population
        whole.seeds, whole.lines = max(whole.seeds, done.seeds), max(whole.lines, done.lines)
        whole.longest, whole.findings = max(whole.longest, done.longest), whole.findings | done.findings
        whole.files = sorted({*whole.files, *done.files})
    return whole


def _process(names: Sequence[str], folder: Path, seed: int, seconds: float, tries: int) -> list[Report]:
    """The reports of the sessions that one process began."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "result.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.session", str(folder), str(seed), repr(seconds), str(tries), *names]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1", "HOME": str(folder)}
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=(seconds or 600.0) + GRACE)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            # also what it started: a Redis, a server
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 6000))
        said = output.read().decode(errors="replace")
    ended = [folder / name / "result.json" for name in names if (folder / name / "result.json").exists()]
    reports = [msgspec.json.decode(file.read_bytes(), type=Report) for file in ended]
    if len(reports) < len(names):
        reports.append(death(names[len(reports)], folder / names[len(reports)], code, said))
    return reports


def death(name: str, folder: Path, code: int, said: str) -> Report:
    """The report of a session that did not come to its end."""
    why = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    try:
        with (folder / "current").open("rb") as file:
            data = file.read(int.from_bytes(file.read(8), "little"))
    except OSError:
        data = b""
    file_name = hashlib.sha256(data).hexdigest()[:16]
    (folder / "findings").mkdir(parents=True, exist_ok=True)
    (folder / "findings" / f"{file_name}.input").write_bytes(data)
    (folder / "findings" / f"{file_name}.txt").write_text(f"{name}: {why}\n{said}\n")
    return Report(name, findings={why: f"{file_name}.input"})


__all__ = ["death", "fuzz", "supervise"]
