"""Running the exporter: alone (``belay exporter``), or as a part of the node agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from belay.agents.common.log import JsonLines, Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.library import find
from belay.agents.drivers.dcmi.supervisor import Supervisor
from belay.agents.drivers.tools.command import Runner
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.exporter.exporter import Exporter, version
from belay.agents.exporter.runtimes import Runtimes
from belay.agents.exporter.settings import TELEGRAF, ExporterSettings, FlagError, parse
from belay.agents.exporter.source import DcmiSource, Source
from belay.agents.serving import probe
from belay.agents.serving.http import Server
from belay.agents.serving.limits import RequestLimiter
from belay.agents.serving.tls import CHECK_SECONDS, Certificate, TlsError

ANY_ADDRESS: Final = ""
LOG_BYTES: Final = 20 << 20
LEVELS: Final = {-1: logging.DEBUG, 0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.CRITICAL}
DAY_SECONDS: Final = 86_400.0
_log = Log("exporter")


def main(arguments: Sequence[str]) -> int:
    """Run until SIGINT or SIGTERM. Exit code 2 for a wrong flag, 1 when it cannot serve."""
    try:
        settings = parse(arguments)
        if settings.version:
            sys.stdout.write(f"belay exporter {version()}\n")
            return 0
        _logging(settings)
        asyncio.run(_alone(settings))
    except FlagError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (DriverError, TlsError, OSError) as error:
        _log.error("the exporter cannot serve", error=error)
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


async def _alone(settings: ExporterSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    kind, _, file = settings.driver.partition(":")
    if kind == "npu_smi":
        # with the library, which is the rule, nothing of the programs' driver stays in memory
        from belay.agents.drivers.tools.driver import SmiDriver
        from belay.agents.exporter.smi import SmiSource

        await serve(settings, SmiSource(SmiDriver(Runner(file) if file else None)), stop)
        return
    if kind != "dcmi":
        raise FlagError(f"-driver: {settings.driver[:64]!r} is unknown; use dcmi[:/path/libdcmi.so] or npu_smi[:PATH]")
    library = Path(file) if file else find(os.environ.get("LD_LIBRARY_PATH", ""))
    supervisor = Supervisor(library, owners=frozenset({os.getuid()}), listens=False)  # no metric needs an event
    try:
        await serve(settings, DcmiSource(supervisor, time.monotonic), stop)
    finally:
        await supervisor.close()


async def serve(settings: ExporterSettings, source: Source, stop: asyncio.Event) -> None:
    """Collect and serve until ``stop``. Raises OSError for a port in use, TlsError, DriverError."""
    telegraf = settings.platform == TELEGRAF
    runtimes = None
    if not telegraf:
        runtimes = Runtimes(
            settings.container_mode, time.monotonic, cri=settings.endpoint, oci=settings.containerd,
            owners=frozenset({0, os.getuid()}),
        )  # fmt: skip
    exporter = Exporter(settings, source, tool=HccnTool(Runner(settings.hccn_tool)), containers=runtimes)
    async with contextlib.AsyncExitStack() as stack:
        if runtimes is not None:
            stack.push_async_callback(runtimes.close)
        certificates = await stack.enter_async_context(_servers(settings, exporter))
        tasks = [asyncio.create_task(exporter.run()), asyncio.create_task(stop.wait())]
        if telegraf:
            tasks.append(asyncio.create_task(_print(settings, exporter)))
        if certificates:
            tasks.append(asyncio.create_task(_renew(certificates)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _servers(settings: ExporterSettings, exporter: Exporter) -> AsyncIterator[list[Certificate]]:
    """Listen while the body runs; before the first reading the page is empty."""
    servers, certificates = [], []
    if settings.platform != TELEGRAF:
        own = None
        if settings.metrics_tls_cert:
            own = Certificate(settings.metrics_tls_cert, settings.metrics_tls_key, settings.metrics_client_ca)
            certificates.append(own)
        servers.append((
            Server(exporter.answer, RequestLimiter(settings.limits()), tls=own.context if own else None), settings.ip,
            settings.port,
        ))  # fmt: skip
    if settings.enable_healthz:
        other = None
        if settings.tls_cert_file:
            other = Certificate(settings.tls_cert_file, settings.tls_private_key_file)
            certificates.append(other)
        servers.append((probe.server(exporter.trouble, other), settings.ip or ANY_ADDRESS, settings.healthz_address))
    started: list[Server] = []
    try:
        for server, host, port in servers:
            found = await server.start(host, port)
            started.append(server)
            _log.info("listening", address=host, port=found)
        yield certificates
    finally:
        for server in started:
            await server.close()


async def _print(settings: ExporterSettings, exporter: Exporter) -> None:
    """Lines for execd on standard output, each poll interval; nothing is printed before there are values."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(settings.poll_interval)
        if text := exporter.lines():
            # a reader that is slow must not stop the collection
            await loop.run_in_executor(None, _write, text)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _renew(certificates: Sequence[Certificate]) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        for certificate in certificates:
            certificate.renew()


def _logging(settings: ExporterSettings) -> None:
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if settings.log_file:
        handler = _Rotated(settings.log_file, settings.max_backups, settings.max_age)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=LEVELS[settings.log_level], handlers=[handler], force=True)


class _Rotated(logging.handlers.RotatingFileHandler):
    """A log in files of 20 MB, limited in number and age."""

    def __init__(self, path: str, backups: int, days: int) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=backups, encoding="utf-8")
        self._days = days

    def doRollover(self) -> None:  # the name is logging's
        super().doRollover()
        oldest = time.time() - self._days * DAY_SECONDS
        for number in range(1, self.backupCount + 1):
            path = Path(f"{self.baseFilename}.{number}")
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
