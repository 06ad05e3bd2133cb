"""A recording of 10,000 nodes (80,000 chips, 3,333 jobs) in `belay console`, in headless Chromium drawn in software.

Belay's own recorder wrote its moments (``tests/console_recordings.py``). `belay console --recording` derives the
document of each from its pass with the planner, the nearest to what is looked at first. The first row is how long that
takes for one moment. A step is from the event of the slider to the frame that shows that moment, when all moments are
derived; a person steps five times a second, and the page reads the neighbours of the moment that it shows.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import console_recordings
from tests.bench.browser import Chromium
from tests.bench.measure import ROOT, RUNS, Result

NODES, MOMENTS = 10_000, 8
_STEP = """async ([value, id]) => {
  const stage = document.querySelector(".stage"), slider = document.querySelector(".timebar input[type=range]");
  const drawn = () => new Promise((done) => { const look = () => stage.dataset.moment === id
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look); look(); });
  const begin = performance.now();
  slider.value = String(value);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  return await drawn() - begin;
}"""


def run() -> list[Result]:
    """Raises Skipped without Chromium or playwright."""
    chromium = Chromium()
    derived = Result("10,000 nodes: the document of a recorded moment that was not looked at before", "s", None)
    step = Result("10,000 nodes: a step of the slider through a recording", "ms", 100)
    step.remark = f"median of {2 * (MOMENTS - 1)} steps a run, five a second"
    folder = Path(tempfile.mkdtemp(prefix="belay-bench-"))
    try:
        console_recordings.write(NODES, MOMENTS, folder)
        with _console(folder) as address, chromium as launch:
            moments = [row["id"] for row in json.loads(_got(f"{address}/api/v1/history"))["moments"]]
            for identity in moments:  # the oldest first, where the console itself begins with the newest
                begin = time.monotonic()
                _got(f"{address}/api/v1/at/{identity}")
                if len(derived.runs) < RUNS:
                    derived.runs.append(time.monotonic() - begin)
            for _ in range(RUNS):
                browser = launch()
                page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                page.set_default_timeout(60_000)
                page.goto(f"{address}/console/#/map?at={moments[0]}")
                page.wait_for_selector(f".stage[data-moment='{moments[0]}']")
                page.wait_for_selector(".timebar input[type=range]:enabled")
                took = []
                for place in [*range(1, MOMENTS), *range(MOMENTS - 2, -1, -1)]:
                    page.wait_for_timeout(200)
                    took.append(float(page.evaluate(_STEP, [place, moments[place]])))
                step.runs.append(statistics.median(took))
                browser.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    derived.remark = "on two cores, while the console derives others, too"
    return [derived, step]


def _got(address: str) -> bytes:
    request = urllib.request.Request(address, headers={"Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return bytes(reply.read())


@contextmanager
def _console(folder: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "belay.engine.cli",
        "console",
        "--recording",
        str(folder),
        "--listen",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"console: (http://127\.0\.0\.1:\d+)/console/", line):
                yield found[1]
                return
        raise RuntimeError("`belay console` ended")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
