"""Driver libraries that hang while they are loaded, that are no files, that print megabytes: the agent stays whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_ending import NOWHERE
from tests.loop_world import until

pytestmark = pytest.mark.real_time

SOURCE = """
#include <fcntl.h>
#include <unistd.h>
#ifdef CONSTRUCTOR
__attribute__((constructor)) static void begin(void) { for (;;) sleep(1000); }
#endif
int dcmi_init(void)
{
#ifdef INIT
    for (;;) sleep(1000);
#endif
#ifdef LOUD
    char line[4096];
    for (int i = 0; i < 4096; i++) line[i] = i % 64 == 63 ? 10 : 'x';
    for (int i = 0; i < 2000; i++) write(i % 2 + 1, line, sizeof line);
    creat(MARK, 0600);
    for (;;) sleep(1000);
#endif
    return -8005;
}
"""
LOUDEST = 100_000
"""Most bytes of the agent's log while a library prints 8 MB."""


def library(folder: Path, kind: str) -> Path:
    """A library that misbehaves in one way."""
    file = folder / f"lib{kind}.so"
    if kind == "PIPE":
        os.mkfifo(file, 0o600)
        return file
    source = folder / "library.c"
    source.write_text(SOURCE)
    mark = f'-DMARK="{folder / "printed"}"'
    command = ["gcc", "-shared", "-fPIC", "-w", f"-D{kind}", mark, str(source), "-o", str(file)]
    subprocess.run(command, check=True, timeout=100)
    file.chmod(0o755)
    return file


def agent(folder: Path, file: Path) -> subprocess.Popen[bytes]:
    (folder / "kubeconfig").write_text(NOWHERE)
    command = [sys.executable, "-m", "belay.agents.daemon", "--node", "a", "--driver", f"dcmi:{file}"]
    command += ["--kubeconfig", str(folder / "kubeconfig"), "--state-dir", str(folder / "state"), "--reset-files", ""]
    command += ["--rank-tables", "", "--links", ""]
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def children(file: Path) -> list[int]:
    """Processes that were started to load a library."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"belay.agents.drivers.dcmi.child" in words and os.fsencode(file) in words:
            found.append(int(entry.name))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("CONSTRUCTOR", signal.SIGTERM),
        ("CONSTRUCTOR", signal.SIGKILL),
        ("INIT", signal.SIGTERM),
        ("PIPE", signal.SIGTERM),
    ],
)
def test_an_agent_ends_with_its_driver_process_whatever_the_library_does(
    tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    file = library(tmp_path, kind)
    process = agent(tmp_path, file)
    try:
        until(lambda: children(file), 100, what="the driver process")
        process.send_signal(number)
        expected = -number if number == signal.SIGKILL else 0
        assert process.wait(60) == expected, (tmp_path / "agent.log").read_text()[-1000:]
        until(lambda: not children(file), 60, what="the end of the driver process")
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(300)
def test_a_library_that_prints_megabytes_leaves_a_bounded_log(tmp_path: Path) -> None:
    process = agent(tmp_path, library(tmp_path, "LOUD"))
    log = tmp_path / "agent.log"
    try:
        until((tmp_path / "printed").exists, 200, what="the end of the output")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert log.stat().st_size < LOUDEST
    assert log.read_text().count("the driver printed") == 20
