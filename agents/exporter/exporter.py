"""The exporter: chip list, containers, collection loops, and the page that they make."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from belay.agents.common import ticks
from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.family import A5
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.exporter import chips, groups, telegraf
from belay.agents.exporter.chips import Chip, ChipList, Machine
from belay.agents.exporter.collect import COLLECTORS, Collector, Reader
from belay.agents.exporter.collectors import Collectors
from belay.agents.exporter.entries import Containers
from belay.agents.exporter.groups import CARD_MAINBOARDS, Group
from belay.agents.exporter.page import CONTENT_TYPE, Page
from belay.agents.exporter.ports import Ports
from belay.agents.exporter.samples import NODE, Cache, Value
from belay.agents.exporter.schedule import Lane, Work
from belay.agents.exporter.settings import ExporterSettings
from belay.agents.exporter.source import Source
from belay.agents.exporter.textfiles import TextFiles, TextMetric
from belay.agents.serving.http import HTML, LANDING, HttpResponse
from belay.engine import versions

CONTAINER_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 10.0
TEXT_RETRY: Final = 0.1
TEXT_PATIENCE: Final = 60.0
STUCK_SECONDS: Final = 120.0
"""Seconds without a round of a collection loop after which the probe fails."""

_log = Log("exporter")


class ContainerSource(Protocol):
    """The containers that hold each device."""

    async def read(self) -> Containers:
        """Read again. Never raises: what cannot be read is empty or keeps its recent value."""
        ...


def version() -> str:
    """Belay's version, as the metric shows it."""
    return versions.version()


class Exporter:
    """One node's metrics. `run` collects until cancelled; `answer` is the HTTP handler, `lines` what Telegraf gets."""

    def __init__(
        self,
        settings: ExporterSettings,
        source: Source,
        *,
        tool: HccnTool | None = None,
        containers: ContainerSource | None = None,
        collectors: Collectors | None = None,
        now: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.settings = settings
        self._source, self._containers = source, containers
        self._now, self._now_ms = now, now_ms
        self._reader = Reader(source, settings.profiling_time, settings.hccs_bw_profiling_time)
        self._ports = Ports(tool or HccnTool(), source)
        self._list = ChipList(source)
        self._texts = TextFiles(settings.text_metrics_file_path)
        self._collectors = collectors or Collectors(now_ms)
        self.cache = Cache()
        self.page = Page(self.cache, now, legacy=settings.enable_legacy_metrics)
        self.machine: Machine | None = None
        self._known: Containers = {}
        self._text_metrics: tuple[TextMetric, ...] = ()
        self._lanes: list[Lane] = []
        self._version = version()

    async def run(self) -> None:
        """Collect. Raises DriverError when no driver answers within ``deviceResetTimeout``."""
        await self._begin()
        assert self.machine is not None
        if self.settings.enable_legacy_metrics and self.machine.mainboard not in CARD_MAINBOARDS:
            _log.warning("enableLegacyMetrics is for Atlas 350 cards only", mainboard=self.machine.mainboard)
        await self._ports.learn(self.machine)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_chips())
            if self._containers is not None:
                tasks.create_task(self._keep_containers(self._containers))
            tasks.create_task(self._keep_collecting())

    async def _begin(self) -> None:
        end = self._now() + self.settings.device_reset_timeout
        while True:
            try:
                self.machine = await self._list.read()
                break
            except DriverError as error:
                if self._now() + RETRY_SECONDS > end:
                    raise
                _log.warning("no driver answers yet", error=error)
                await asyncio.sleep(RETRY_SECONDS)
        self.page.show(self.machine, self._known)

    def _until(self, seconds: float) -> float:
        """How long to wait for what is done every so many seconds."""
        return ticks.due(self._now(), seconds) - self._now()

    async def _keep_chips(self) -> None:
        while True:
            await asyncio.sleep(self._until(chips.PERIOD))
            try:
                self.machine = await self._list.read()
            except DriverError as error:
                _log.warning("the chip list cannot be read", error=error)
                continue
            self.cache.keep({chip.phy for chip in self.machine.chips})
            self.page.show(self.machine, self._known)

    async def _keep_containers(self, source: ContainerSource) -> None:
        while True:
            self._known = await source.read()
            if self.machine is not None:
                self.page.show(self.machine, self._known)
            await asyncio.sleep(self._until(CONTAINER_SECONDS))

    async def _keep_collecting(self) -> None:
        folder = Path(self.settings.config_dir)
        while True:
            before = self._shape(folder)
            chosen = groups.configured(folder, self.settings.update_time, self._collectors.names)
            running = asyncio.create_task(self._collect(chosen))
            try:
                while self._shape(folder) == before:
                    done, _ = await asyncio.wait((running,), timeout=self._until(WATCH_SECONDS))
                    if done:
                        running.result()
                await asyncio.sleep(SETTLE_SECONDS)
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
            _log.info("groups are configured again")
            self.cache.clear()

    def _shape(self, folder: Path) -> tuple[object, ...]:
        """The inputs of the loops: the configuration files and the chips."""
        assert self.machine is not None
        return (_signature(folder), tuple(chip.phy for chip in self.machine.chips))

    async def _collect(self, chosen: Sequence[Group]) -> None:
        """Run the chosen groups, each in its lane, until cancelled."""
        assert self.machine is not None
        machine = self.machine
        own = [group for group in chosen if group.name in self._collectors.names]
        on = [group for group in chosen if group not in own and groups.supported(group.name, machine)]
        self._collectors.keep(group.name for group in own)
        self._show_plugins()

        self._lanes = await self._lanes_of(on, machine)
        texts = [group for group in on if group.lane == "plugin"]
        async with asyncio.TaskGroup() as tasks:
            for lane in self._lanes:
                tasks.create_task(lane.run())
            if texts and self._texts.paths:
                tasks.create_task(self._plugins(texts))
            for group in own:
                tasks.create_task(Lane([group], self._run_collector, self._now).run())

    async def _lanes_of(self, on: Sequence[Group], machine: Machine) -> list[Lane]:
        """One lane for groups that are read chip after chip, and one of each chip for groups that take long."""
        single = [group for group in on if group.lane == "single"]
        alone = [group for group in on if group.lane == "chip"]
        if machine.family == A5 and not await self._ports.fast(machine):
            alone += [group for group in single if group.name == "ub"]
            single = [group for group in single if group.name != "ub"]

        lanes = [Lane(single, self._all_chips, self._now)]
        if alone:
            lanes += [Lane(alone, self._of(chip.phy), self._now) for chip in machine.chips]
        return lanes

    async def _all_chips(self, group: Group) -> None:
        if group.name in ("version", "nodeBase"):
            self._node(group)
            return
        machine = self.machine
        assert machine is not None
        await asyncio.gather(*(self._one(group, machine, chip) for chip in machine.chips))

    def _node(self, group: Group) -> None:
        assert self.machine is not None
        if group.name == "version":
            value = Value("npu_exporter_version_info", 1, (self._version,), text=self._version)
        else:
            value = Value("node_base_info", 1, (self._version, self.machine.driver))
        self.cache.put(group, NODE, [value], self._now_ms(), self._now())

    def _of(self, phy: int) -> Work:
        async def work(group: Group) -> None:
            machine = self.machine
            assert machine is not None
            for chip in machine.chips:
                if chip.phy == phy:
                    await self._one(group, machine, chip)

        return work

    async def _one(self, group: Group, machine: Machine, chip: Chip) -> None:
        if group.name in COLLECTORS:
            collector: Collector = COLLECTORS[group.name]
            values = await collector(self._reader, machine, chip)
        else:
            values = await getattr(self._ports, group.name)(machine, chip)
        if values is not None:
            self.cache.put(group, chip.phy, values, self._now_ms(), self._now())

    async def _plugins(self, texts: Sequence[Group]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Lane(texts, self._read_texts, self._now).run())
            tasks.create_task(self._await_texts(texts[0]))

    async def _await_texts(self, group: Group) -> None:
        end, before = self._now() + TEXT_PATIENCE, self._texts.waiting
        while before and self._now() < end:
            await asyncio.sleep(TEXT_RETRY)
            if (waiting := self._texts.waiting) != before:
                before = waiting
                await self._read_texts(group)
        self._texts.drop(before)

    async def _read_texts(self, group: Group) -> None:
        self._text_metrics = self._texts.read()
        self._show_plugins()
        self.cache.put(group, NODE, [], self._now_ms(), self._now())

    async def _run_collector(self, group: Group) -> None:
        assert self.machine is not None
        await self._collectors.collect(group.name, self.machine)
        self._show_plugins()
        # the page shows them with the metrics of text files
        shown = msgspec.structs.replace(group, name=groups.TEXT)
        self.cache.put(shown, NODE, [], self._now_ms(), self._now())

    def _show_plugins(self) -> None:
        """Show the metrics of text files and of collectors; a file's name counts first."""
        taken = {metric.name for metric in self._text_metrics}
        self.page.show_text((*self._text_metrics, *(one for one in self._collectors.metrics if one.name not in taken)))

    # -- output

    def answer(self, path: str, gzip: bool) -> HttpResponse:
        """Return the response to a GET of ``path``: the metrics, or a page that leads to them."""
        if path != "/metrics":
            return HttpResponse(200, LANDING, HTML)
        if gzip:
            return HttpResponse(200, self.page.zipped(), CONTENT_TYPE, encoding="gzip")
        return HttpResponse(200, self.page.plain(), CONTENT_TYPE)

    def lines(self) -> str:
        """Return all metrics as lines of Telegraf's line protocol."""
        if self.machine is None:
            return ""
        now = self._now()
        samples = {group: self.cache.of(group, now) for group in list(self.cache.groups())}
        return telegraf.lines(self.machine, samples, self.page.text_metrics, self._now_ms())

    def trouble(self) -> str:
        """Why the probe fails; empty when it does not."""
        if self.machine is None:
            return "the driver has not answered yet"
        late = max((lane.late() for lane in self._lanes), default=0.0)
        return f"collection stands still for {late:.0f} s" if late > STUCK_SECONDS else ""


def _signature(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Changes when one of the files, or the link that a ConfigMap volume swaps, does."""
    found: list[tuple[int, int, int] | None] = []
    for name in (groups.METRICS_FILE, groups.PLUGINS_FILE, "..data"):
        try:
            status = (folder / name).stat()
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)
