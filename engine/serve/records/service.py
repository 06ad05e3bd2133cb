"""The history as a part of `belay server`: its writer, its paths, and what the metrics say of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from belay.engine.kube import Kube
from belay.engine.metrics import BY_NAME
from belay.engine.metrics.collector import gauge
from belay.engine.serve.records.reading import Data
from belay.engine.serve.records.routes import HistoryRoutes
from belay.engine.serve.records.store import HistoryBounds, RecordStore, database_url
from belay.engine.serve.records.writer import EventFollower, HistoryWriter
from belay.engine.settings import Settings, password_in

OFF: Final = "off"
_RECORDS: Final = "belay_history_records"
_UP: Final = "belay_history_up"


class HistoryService:
    """The history of one server.

    Raises:
        InputError: the setting is not the URL of a database.
    """

    def __init__(self, settings: Settings) -> None:
        url = history_url(settings)
        RecordStore(url).close()  # a URL that is none is an error at the start
        bounds = HistoryBounds(settings.history_days, settings.history_megabytes)
        self.writer = HistoryWriter(url, settings.identity, bounds)
        self._routes = HistoryRoutes(url, self.writer)

    def add_to(self, app: web.Application) -> None:
        """Add the routes to the application."""
        self._routes.add_to(app)

    def take(self, name: str, data: Data | None, raw: Mapping[str, Any] | None) -> None:
        """A status ConfigMap as it is now."""
        self.writer.take(name, data, raw)

    async def run(self, kube: Kube, synced: Callable[[], bool]) -> None:
        """Write until cancelled. ``synced``: whether the status was read whole."""
        events = EventFollower(kube, self.writer.take_event)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(events.run())
                group.create_task(self.writer.run(lambda: synced() and events.synced))
        finally:
            self._routes.close()

    def problems(self) -> list[str]:
        """What the console lists among what cannot be read or done."""
        problem = self.writer.state.problem
        return [f"the history is not written: {problem}; the last hour is shown"] if problem else []

    def metrics(self) -> list[Metric]:
        """Whether the history can be used, and how many records this process stored."""
        up: GaugeMetricFamily = gauge(_UP)
        up.add_metric([], 0 if self.writer.state.problem else 1)
        counted = CounterMetricFamily(_RECORDS, BY_NAME[_RECORDS].text)
        counted.add_metric([], self.writer.state.records)
        return [up, counted]


def history_url(settings: Settings) -> str:
    """The URL of the history's database, with its password. Raises InputError where the password cannot be read."""
    url = database_url(settings.history_url, settings.data_folder)
    if not settings.history_password_file:
        return url
    scheme, _, rest = url.partition("://")
    user, _, host = rest.rpartition("@")
    password = quote(password_in(settings.history_password_file, "HISTORY_PASSWORD_FILE"), safe="")
    return f"{scheme}://{user.partition(':')[0]}:{password}@{host}"
