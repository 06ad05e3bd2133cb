"""The page over the whole product: `belay up` with all its processes, and a fault in a simulated chip."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING

import pytest

from belay import IMPORT_ROOT
from tests.console.browser import Problems, context_of, opened
from tests.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
CODE = "80C98001"
READY = "Ctrl-C ends everything"


def _read(stream: IO[str], lines: SimpleQueue[str]) -> None:
    """Pass on each line, and an empty one at the end."""
    for line in stream:
        lines.put(line)
    lines.put("")


@pytest.fixture
def sandbox(tmp_path: Path, browser: Browser) -> Iterator[tuple[str, dict[str, str]]]:
    """The console's address, and the environment of commands against the sandbox. The browser comes first: without one
    nothing is started."""
    # other tests begin sandboxes and servers at the same moment, and all would like the usual port
    data = tmp_path / "data"
    data.mkdir()
    (data / "lock").touch()  # as an earlier sandbox leaves it
    (data / "console-port").write_text(f"{free_port()}\n")
    environment = os.environ | {"BELAY_TIME_SCALE": "0.05", "PYTHONPATH": str(IMPORT_ROOT)}
    command = [sys.executable, "-m", "belay.engine.cli", "up", "--nodes", "2", "--data", str(data)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: SimpleQueue[str] = SimpleQueue()
    assert process.stdout is not None
    Thread(target=_read, args=[process.stdout, lines], daemon=True).start()
    try:
        address, printed, ends = "", "", time.monotonic() + 120
        while READY not in printed:
            try:
                line = lines.get(timeout=max(0.0, ends - time.monotonic()))
            except Empty:
                pytest.fail(f"not up within 120 s:\n{printed}")
            if not line:
                pytest.fail(f"it ended:\n{printed}")
            printed += line
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/console/", line):
                address = found[1]
        assert address, printed
        yield address, environment | {"KUBECONFIG": str(data / "kubeconfig")}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_a_fault_in_a_chip_shows(browser: Browser, sandbox: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = sandbox
    context = context_of(browser)
    problems = Problems(context, address)
    page = opened(context.new_page(), address, "/faults")
    page.get_by_text("live", exact=True).wait_for()
    assert page.get_by_role("cell", name=CODE).count() == 0
    command = [sys.executable, "-m", "belay.engine.cli", "inject", "fault", "node-1/Ascend910-0", CODE]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60, capture_output=True)
    page.get_by_role("cell", name=CODE).first.wait_for()
    for view in ("map", "recovery", "queue", "git", "whatif", "time"):
        page.evaluate("view => { location.hash = '#/' + view }", view)
        page.locator(f"nav a[href^='#/{view}'][aria-current=page]").wait_for()
        assert page.get_by_text("This view failed").count() == 0
    page.evaluate("location.hash = '#/git'")
    page.get_by_text("in force").first.wait_for()
    context.close()
    assert problems.found == []
