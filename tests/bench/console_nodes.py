"""100,000 nodes of 8 chips and 5,000 jobs: `belay server` and a tab of headless Chromium, drawn in software.

The status (``tests/bench/wide_status.py``) lies in the sandbox's API server; `belay server` reads it with its history
on, and serves the committed page. One run. CPU seconds are those of one process, so they say the same on a busy
machine; the wall times beside them do not. The first view is the overview, from the navigation of a new browser context
until it says what is broken; the map's, until every chip is drawn. A change is one chip more that is isolated: from the
write to the API server until the overview's number has changed, and what the server does in the 3 s after that.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from belay.engine.kube import CONFIGMAP, Kube
from belay.engine.sandbox.api.objects import ObjectWriter, WriteOptions
from belay.engine.sandbox.api.server import ApiServer
from belay.engine.settings import Settings, to_environment
from belay.engine.wire import names
from tests.bench import wide_status
from tests.bench.browser import Chromium
from tests.bench.console import _memory
from tests.bench.measure import Result
from tests.bench.running import cpu_seconds, resident
from tests.ports import free_port

NODES, CHIPS, JOBS = 100_000, 8, 5_000
PATIENCE = 180_000
"""Milliseconds for which the page may lack something on a busy machine."""
_SENT = """() => performance.getEntriesByType("resource").filter(one => one.name.endsWith("/api/v1/state"))
  .reduce((sum, one) => sum + one.encodedBodySize, 0) / 1024"""
_SCROLLED = """async () => {
  const regions = [...document.querySelectorAll("main .scroll, main .sheet, main")];
  const region = regions.find(one => one.scrollHeight > one.clientHeight + 50);
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const busy = [];
  const observer = new PerformanceObserver(list => busy.push(...list.getEntries().map(one => one.duration)));
  observer.observe({ type: "longtask" });
  for (let turn = 0; turn < 60; turn++) { region.scrollTop += 40; await frame(); }
  observer.disconnect();
  return Math.max(0, ...busy);
}"""


def run() -> list[Result]:
    """Raises Skipped without Chromium or playwright."""
    chromium = Chromium()
    size = f"{NODES:,} nodes"
    found = wide_status.status(NODES, CHIPS, JOBS)
    results: dict[str, Result] = {}

    def say(work: str, unit: str, value: float, limit: float | None = None, remark: str = "") -> None:
        results[work] = Result(f"{size}: {work}", unit, limit, [value], remark)

    with _served(found) as (address, pid, api), chromium as launch:
        say("CPU of the server until it serves", "s", cpu_seconds(pid), remark="imports, status and history")
        browser = launch()
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(PATIENCE)
        before, begin = _cpu_of_tabs(browser), time.monotonic()
        page.goto(f"{address}/console/#/overview")
        shown = page.locator(".verdicts").get_by_role("link", name="chips out of service")
        shown.wait_for()
        wall = time.monotonic() - begin
        say(
            "CPU of the tab until the overview stands",
            "s",
            _cpu_of_tabs(browser) - before,
            2,
            f"{wall:.1f} s of wall time",
        )
        say("what is sent for it, gzipped", "KiB", page.evaluate(_SENT), 2048)
        text = shown.inner_text()
        used, begin = cpu_seconds(pid), time.monotonic()
        api.isolate(found, wide_status.node_name(NODES // 2), 0)
        page.wait_for_function(
            "was => [...document.querySelectorAll('.verdicts a')].map(one => one.textContent)"
            ".some(text => text.includes('chips out of service') && text !== was)",
            arg=text,
        )
        wall = time.monotonic() - begin
        page.wait_for_timeout(3_000)  # the history looks, too
        say(
            "CPU of the server for one chip's change",
            "s",
            cpu_seconds(pid) - used,
            1,
            f"shown after {wall:.1f} s of wall time",
        )

        before = _cpu_of_tabs(browser)
        page.goto(f"{address}/console/#/map")
        page.wait_for_function("() => performance.getEntriesByName('belay-map-drawn').length > 0")
        say("CPU of the tab until the map stands", "s", _cpu_of_tabs(browser) - before, 2)
        before = _cpu_of_tabs(browser)
        page.get_by_role("searchbox").fill(wide_status.node_name(NODES - 1)[-6:])
        page.get_by_role("button", name=wide_status.node_name(NODES - 1)).wait_for()
        say("CPU of the tab to find a node by a part of its name", "s", _cpu_of_tabs(browser) - before, 0.5)
        before = _cpu_of_tabs(browser)
        page.goto(f"{address}/console/#/map?form=table")
        page.get_by_text("800,001 chips").or_(page.get_by_text("800,000 chips")).first.wait_for()
        say("rows in the page of the table of all chips", "rows", page.locator("main tbody tr").count(), 100)
        say("longest task while it is scrolled", "ms", page.evaluate(_SCROLLED), None, "one page of rows")
        say("CPU of the tab for that table", "s", _cpu_of_tabs(browser) - before, 2)
        say("memory of the server", "MiB", resident(pid), 600, "RSS, after all of this")
        say("memory of the tab", "MiB", _memory(browser), 600)
        browser.close()
    return list(results.values())


def _cpu_of_tabs(browser: Any) -> float:
    """CPU seconds of all renderers so far."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return float(sum(one["cpuTime"] for one in found if one["type"] == "renderer"))


class _Api:
    """The sandbox's API server in a thread, with a status."""

    def __init__(self, folder: Path, found: dict[str, wide_status.Data]) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._found = found
        self._server = ApiServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._done(self._start())

    def isolate(self, found: dict[str, wide_status.Data], node: str, chip: int) -> None:
        """One chip more is isolated."""
        number = int(node.rpartition("-")[2]) // wide_status.PART
        name = f"{names.CHIPS_PREFIX}main-{number}"
        self._done(self._patch(name, wide_status.with_fault(found[name], node, chip)))

    def stop(self) -> None:
        """Stop serving."""
        self._done(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _start(self) -> None:
        await self._server.start()
        self._server.write_kubeconfig(self.kubeconfig)
        objects = ObjectWriter(self._server.store, self._server.registry, time.time)
        config_maps = self._server.registry.find("", "v1", "configmaps")
        assert config_maps is not None
        options = WriteOptions(manager="belay")
        for body in wide_status.config_maps(self._found):
            objects.create(config_maps, names.SYSTEM, body, options)

    async def _patch(self, name: str, data: wide_status.Data) -> None:
        async with Kube.from_config(str(self.kubeconfig)) as kube:
            await kube.patch(CONFIGMAP, name, {"data": data}, names.SYSTEM)

    def _done(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE / 1000)


@contextmanager
def _served(found: dict[str, wide_status.Data]) -> Iterator[tuple[str, int, _Api]]:
    """The address of a server that shows this status, its process, and the API server."""
    folder = Path(tempfile.mkdtemp(prefix="belay-bench-"))
    api = _Api(folder, found)
    port = free_port()
    settings = Settings(
        kubeconfig=str(api.kubeconfig),
        data=str(folder / "data"),
        redis_url="redis://127.0.0.1:1/0",
        grpc_listen="off",
        identity="bench",
    )
    command = [sys.executable, "-m", "belay.engine.cli", "server", "--listen", f"127.0.0.1:{port}"]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=to_environment(settings), stdout=output, stderr=output)
    try:
        _await_document(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}", process.pid, api
    finally:
        process.terminate()
        process.wait(30)
        api.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _await_document(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import urllib.error
    import urllib.request

    ends = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        try:
            request = urllib.request.Request(f"{address}/api/v1/state", headers={"Accept-Encoding": "gzip"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"no document: {log.read_text()[-2000:]}")
