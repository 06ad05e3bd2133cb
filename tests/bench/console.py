"""The console in headless Chromium, drawn in software, on 80,000 chips.

5,000 nodes of 16 chips in three pools, 300 gangs, 200 recorded moments, served on loopback as the server encodes them
(``tests/bench/console_world.py``); Chromium has no graphics card and shares two cores with that server. The first
useful paint is the frame in which every chip is drawn, counted from the navigation of a new browser context. Panning
and zooming run for two seconds each, as fast as frames come. The tab's memory is the proportional set of its process
after all of that and the steps of the slider. A slider step is from the event of the slider to the frame that shows
that moment; a change, from the server's write to the frame.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.bench.browser import Chromium
from tests.bench.console_world import STATIC, World
from tests.bench.measure import RUNS, Result
from tests.ports import free_port

NODES, CHIPS = 5000, 16
FIRST, STEPS = 100, 20
_PAINT = """() => new Promise((done) => { const look = () => {
  const [mark] = performance.getEntriesByName("belay-map-drawn");
  if (mark) done(mark.startTime); else requestAnimationFrame(look); }; look(); })"""
_FRAMES = """async ([kind, seconds]) => {
  const stage = document.querySelector(".stage"), box = stage.getBoundingClientRect();
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const pointer = (type, dx, dy) => stage.dispatchEvent(new PointerEvent(type, {
    bubbles: true, pointerId: 1, button: 0, buttons: 1, clientX: x + dx, clientY: y + dy }));
  const wheel = (by) => stage.dispatchEvent(new WheelEvent("wheel", {
    bubbles: true, cancelable: true, deltaY: by, clientX: x, clientY: y }));
  stage.setPointerCapture = () => undefined;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  for (let turn = 0; turn < 3; turn++) { wheel(kind === "pan" ? -150 : 150); await frame(); }
  if (kind === "pan") pointer("pointerdown", 0, 0);
  const before = Number(stage.dataset.drawn), begin = performance.now();
  let turn = 0;
  while (performance.now() - begin < seconds * 1000) {
    turn += 1;
    if (kind === "pan") pointer("pointermove", 200 * Math.sin(turn / 9), 120 * Math.cos(turn / 9));
    else wheel(Math.sin(turn / 25) > 0 ? -60 : 60);
    await frame();
  }
  const took = (performance.now() - begin) / 1000;
  if (kind === "pan") pointer("pointerup", 0, 0);
  return (Number(stage.dataset.drawn) - before) / took;
}"""
_STEP = """async (value) => {
  const stage = document.querySelector(".stage"), slider = document.querySelector(".timebar input[type=range]");
  const id = `m${String(value).padStart(5, "0")}`;
  const drawn = () => new Promise((done) => { const look = () => stage.dataset.moment === id
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look); look(); });
  const begin = performance.now();
  slider.value = String(value);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  return await drawn() - begin;
}"""
_SVG = """async ([count, seconds]) => {
  const svg = document.body.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
  svg.setAttribute("width", 1400); svg.setAttribute("height", 760); svg.setAttribute("viewBox", "0 0 1400 760");
  const wide = Math.ceil(Math.sqrt(count * 1.84));
  for (let at = 0; at < count; at++) {
    const rect = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
    rect.setAttribute("x", (at % wide) * 3.6); rect.setAttribute("y", Math.floor(at / wide) * 3.6);
    rect.setAttribute("width", 3); rect.setAttribute("height", 3);
    rect.setAttribute("fill", at % 7 ? "#4a86b8" : "#c9d3da");
  }
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  await frame(); await frame();
  const begin = performance.now();
  let turn = 0;
  while (performance.now() - begin < seconds * 1000) {
    turn += 1;
    svg.setAttribute("viewBox", `${20 * Math.sin(turn / 9)} ${12 * Math.cos(turn / 9)} 1400 760`);
    await frame();
  }
  return turn / ((performance.now() - begin) / 1000);
}"""


def run() -> list[Result]:
    """Raises Skipped without Chromium or playwright."""
    chromium = Chromium()
    count = f"{NODES * CHIPS:,} chips"
    paint = Result(f"{count}: first useful paint", "s", 1.0)
    pan = Result(f"{count}: panning", "frames/s", 25, at_least=True)
    zoom = Result(f"{count}: zooming from all to a node and back", "frames/s", 25, at_least=True)
    memory = Result(f"{count}: memory of the tab", "MiB", 300)
    step = Result("a step of the slider", "ms", 100, remark=f"median of {STEPS} steps a run, five a second")
    jump = Result("a jump of the slider to a moment that was not read before", "ms", None, remark="median of 6 a run")
    change = Result("a chip's change at the server → its frame", "ms", None, remark="one tab")
    results = [_bundle(), paint, pan, zoom, memory, step, jump, change]
    with served(World(NODES, CHIPS)) as (world, port, loop), chromium as launch:
        paint.remark = f"{len(world.encoded(world.moments - 1)) / 1024:,.0f} KiB of document, gzipped"
        for _ in range(RUNS):
            browser = launch()
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.goto(f"http://127.0.0.1:{port}/console/#/map")
            page.wait_for_selector(".stage[data-drawn]")
            paint.runs.append(page.evaluate(_PAINT) / 1000)
            page.wait_for_selector(".connection.live")
            page.wait_for_selector(".timebar input[type=range]:enabled")
            pan.runs.append(page.evaluate(_FRAMES, ["pan", 2]))
            zoom.runs.append(page.evaluate(_FRAMES, ["zoom", 2]))
            change.runs.append(_changed(page, world, loop))
            page.evaluate(_STEP, FIRST)
            step.runs.append(statistics.median(_stepped(page, FIRST + 1 + at) for at in range(STEPS)))
            jump.runs.append(statistics.median(_stepped(page, 10 + 10 * at) for at in range(6)))
            memory.runs.append(_memory(browser))
            if len(paint.runs) == 1:
                blank = browser.new_page()
                pan.remark = f"80,000 SVG rectangles instead: {blank.evaluate(_SVG, [NODES * CHIPS, 2]):.1f} frames/s"
            browser.close()
    return results


def _bundle() -> Result:
    files = [path for path in STATIC.rglob("*") if path.is_file() and path.name != "NOTICES.txt"]
    size = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) / 1024
    return Result("bundle, gzipped", "KiB", 250, [size] * RUNS)


def _stepped(page: Any, turn: int) -> float:
    page.wait_for_timeout(200)  # a person looks at the moment, and the page reads its neighbours
    return float(page.evaluate(_STEP, turn))


def _changed(page: Any, world: World, loop: asyncio.AbstractEventLoop) -> float:
    chip = next(at for at, state in enumerate(world.present["chips"]["state"]) if state == 0)
    watch = """() => { const stage = document.querySelector('.stage'), was = stage.dataset.moment;
      window.changed = new Promise((done) => { const look = () => stage.dataset.moment !== was
        ? requestAnimationFrame(() => done(Date.now())) : requestAnimationFrame(look); look(); }); }"""
    page.evaluate(watch)
    begin = time.time() * 1000
    asyncio.run_coroutine_threadsafe(world.change(chip, 3), loop).result()
    return float(page.evaluate("window.changed")) - begin


def _memory(browser: Any) -> float:
    """MiB of the proportional set of the largest renderer, after a collection."""
    session = browser.new_browser_cdp_session()
    pids = [one["id"] for one in session.send("SystemInfo.getProcessInfo")["processInfo"] if one["type"] == "renderer"]
    sets = [re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE) for pid in pids]
    return max(int(found[1]) for found in sets if found) / 1024


@contextmanager
def served(world: World) -> Iterator[tuple[World, int, asyncio.AbstractEventLoop]]:
    """The world's server in a thread; every moment that is asked for is encoded before."""
    for turn in (*range(FIRST - 1, FIRST + STEPS + 2), *(10 * at + by for at in range(1, 7) for by in (-1, 0, 1))):
        world.encoded(turn)
    world.encoded(world.moments - 1)
    loop, port, ready = asyncio.new_event_loop(), free_port(), threading.Event()

    async def begin() -> web.AppRunner:
        runner = web.AppRunner(world.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        ready.set()
        return runner

    runner = loop.create_task(begin())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield world, port, loop
    finally:
        asyncio.run_coroutine_threadsafe(_end(runner.result()), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _end(runner: web.AppRunner) -> None:
    await runner.cleanup()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
