"""A test that depends on the machine, or that a time limit ended, gets one more try, named at the end; others none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import reruns

ROOT = Path(__file__).resolve().parents[1]
CASES = """
import pathlib, sys, pytest

HERE = pathlib.Path(__file__).parent

def tries(name):
    file = HERE / name
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())

@pytest.fixture
def fresh(tmp_path):
    yield tmp_path
    tries("torn-down")

@pytest.fixture(scope="module")
def started_once():
    yield tries("module")

@pytest.fixture(scope="session")
def shared():
    return tries("session")

@pytest.mark.real_time
def test_second_try_passes(fresh, started_once, shared):
    assert not list(fresh.iterdir()) and shared == 1
    (fresh / "file").touch()
    assert tries("once") == started_once == 2, "the first words"

@pytest.mark.real_time
def test_fails_twice():
    tries("twice")
    raise OSError("always")

def test_computes():
    tries("computes")
    assert False

def test_ended_by_a_time_limit():
    if tries("limit") == 1:
        raise TimeoutError("no answer within 5 s")

@pytest.mark.parametrize("number", range(5))
@pytest.mark.real_time
def test_many(number):
    assert tries(f"many-{number}") == 2
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_on_real_time_is_run_once_more_and_named(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text("from tests.reruns import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real_time: x\n")
    (tmp_path / "test_cases.py").write_text(CASES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    tries = {file.name: len(file.read_text()) for file in tmp_path.iterdir() if "." not in file.name and file.is_file()}
    assert (tries["once"], tries["twice"], tries["computes"], tries["torn-down"]) == (2, 2, 1, 2), done.stdout
    # one worker runs no more than three again: the two above, and the one that a time limit ended
    assert tries["limit"] == 2
    assert sorted(tries[f"many-{number}"] for number in range(5)) == [1, 1, 1, 1, 1]
    assert "7 failed, 2 passed" in done.stdout and done.returncode == 1
    _, _, summary = done.stdout.partition("tests that failed once and were run again")
    assert "test_second_try_passes: call: AssertionError: the first words" in summary
    assert "test_fails_twice: call: OSError: always" in summary and "test_computes" not in summary.partition("short")[0]


def test_modules_that_start_processes_depend_on_the_machine(request: pytest.FixtureRequest) -> None:
    assert reruns.scheduled(request.node)
    module = ModuleType("test_other")
    assert not reruns.imports_any(module)
    module.subprocess = subprocess  # type: ignore[attr-defined]
    assert reruns.imports_any(module)
    module.subprocess = subprocess.run  # type: ignore[attr-defined]
    assert not reruns.imports_any(module)
