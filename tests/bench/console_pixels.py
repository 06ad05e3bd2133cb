"""From a fault in the simulated driver to the pixel that shows it, in headless Chromium drawn in software.

`belay up` runs with its agents, engine and server, and a tab shows the map on the same two cores. The clock starts
before the fault is written to the simulated node and stops in the frame after the one that draws a chip isolated where
none was: in between lie driver event, report, watch, trigger, pass, status write, watch, server-sent event, patch and
drawing. Faults come one by one at random distances, on chips of different nodes, and stay.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from belay.engine.kube import Kube
from tests.bench.browser import Chromium
from tests.bench.isolation import _break
from tests.bench.measure import RUNS, Result
from tests.bench.running import up

NODES = 20
SAMPLES = 12
"""Per run."""
LATEST = 20_000
"""Milliseconds after which a fault that is not drawn fails the benchmark."""
# The colour of an isolated chip (console/src/shell/palette.ts, light), counted on every second pixel of every second
# line, and only after the page drew: the watching itself must cost little.
_WATCH = """() => {
  const stage = document.querySelector(".stage"), canvas = stage.querySelector("canvas");
  const context = canvas.getContext("2d");
  const read = () => new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const before = read();
  const news = () => {
    const pixels = read();
    let found = 0;
    for (let y = 0; y < canvas.height; y += 2)
      for (let x = y * canvas.width, end = x + canvas.width; x < end; x += 2)
        if (pixels[x] === 0xff1c42c9 && before[x] !== 0xff1c42c9) found++;
    return found > 4;
  };
  let drawn = stage.dataset.drawn;
  window.changed = new Promise((done) => { const look = () => {
    if (stage.dataset.drawn !== drawn) {
      drawn = stage.dataset.drawn;
      if (news()) { requestAnimationFrame(() => done(Date.now())); return; }
    }
    requestAnimationFrame(look); }; look(); });
}"""


def run() -> list[Result]:
    """Raises Skipped without Chromium or playwright."""
    chromium = Chromium()
    middle = Result("fault in the simulated driver → pixel changed, p50", "ms", None)
    every = Result("the same, p99 of all samples", "ms", 500, percentile=99)
    chance = random.Random(23)
    with up(NODES) as running, chromium as launch, _Breaker(running.kubeconfig) as breaker:
        address = next(line.split()[1] for line in running.lines if line.startswith("console: "))
        browser = launch()
        page = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light").new_page()
        page.set_default_timeout(LATEST)
        page.goto(f"{address}#/map")
        page.wait_for_selector(".stage[data-drawn]")
        page.wait_for_selector(".connection.live")
        _seen(page, breaker, "node-20", 7)  # until it is seen, everything has started
        for chip in range(RUNS):
            samples = []
            for number in range(SAMPLES):
                time.sleep(chance.uniform(0.5, 1.0))
                samples.append(_seen(page, breaker, f"node-{number + 1}", chip))
            middle.runs.append(Result("", "ms", runs=samples).value)
            every.runs += samples
        browser.close()
    middle.remark = f"{RUNS} runs of {SAMPLES} faults; median of the runs' medians"
    every.remark = f"{len(every.runs)} samples, {NODES} nodes"
    return [middle, every]


def _seen(page: Any, breaker: _Breaker, node: str, chip: int) -> float:
    """Milliseconds from a fault to the frame that shows its chip isolated."""
    page.evaluate(_WATCH)
    begin = breaker.act(node, chip)
    return float(page.evaluate("window.changed")) - begin


class _Breaker:
    """Breaks chips over a connection that stays open, in a thread of its own: playwright's loop has this one."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig, self._loop = str(kubeconfig), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> _Breaker:
        self._thread.start()
        self._kube = self._on_loop(self._stack.enter_async_context(Kube.from_config(self._kubeconfig)))
        return self

    def __exit__(self, *error: object) -> None:
        self._on_loop(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def act(self, node: str, chip: int) -> float:
        """When the fault began to be written, in ms since 1970."""
        begin = time.time() * 1000
        self._on_loop(_break(self._kube, node, chip))
        return begin

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
