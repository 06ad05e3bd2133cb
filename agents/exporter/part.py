"""The exporter as a part of the node agent: one process, one driver process, its own failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver, DriverError
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.tools.driver import SmiDriver
from belay.agents.exporter.run import serve
from belay.agents.exporter.settings import ExporterSettings
from belay.agents.exporter.smi import SmiSource
from belay.agents.exporter.source import DcmiSource, Source
from belay.agents.serving.tls import TlsError

RETRY_SECONDS: Final = (1.0, 5.0, 30.0, 60.0)
_log = Log("exporter")


def exporter_part(settings: ExporterSettings, driver: Driver) -> Callable[[], Coroutine[Any, Any, None]]:
    """The coroutine that serves until cancelled. Raises ValueError at once for a driver that gives no readings. Later
    failures (a port in use, a certificate) are logged and retried: they must not end the node's protection.
    """
    source: Source
    if isinstance(driver, DcmiDriver):
        source = DcmiSource(driver.calls, time.monotonic)
    elif isinstance(driver, SmiDriver):
        source = SmiSource(driver)
    else:
        raise ValueError("--exporter needs readings of real chips: use --driver dcmi")
    return lambda: _run(settings, source)


async def _run(settings: ExporterSettings, source: Source) -> None:
    never, times = asyncio.Event(), 0
    while True:
        begin = time.monotonic()
        try:
            await serve(settings, source, never)
        except (OSError, DriverError, TlsError) as error:
            _log.error("the exporter cannot serve", error=error)
        except Exception:
            # whatever the bug is, the agent goes on without metrics and tries again
            _log.exception("the exporter failed")
        times = 0 if time.monotonic() - begin > RETRY_SECONDS[-1] else times + 1
        await asyncio.sleep(RETRY_SECONDS[min(times, len(RETRY_SECONDS) - 1)])
