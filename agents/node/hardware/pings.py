"""What pings between chips and pings over network cards share: ConfigMap, bounded lists, results, one warning a cause.

Source: component/noded/pkg/pingmesh.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.node.hardware.pinglist import Config, PingError, Tasks
from belay.agents.node.hardware.pingresults import PingFiles, Results
from belay.engine.model.labels import APP_LABEL

NAMESPACE: Final = "cluster-system"
CONFIG_MAP: Final = "pingmesh-config"
LABEL: Final = (APP_LABEL, "pingmesh")
#: Results are written after so many rounds.
COLLECT_FACTOR: Final = 10
#: Bytes of a ping list.
MAX_LIST: Final = 64 << 20


class Maps(Protocol):
    """The reads from the API server."""

    def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """Follow one ConfigMap."""
        ...


Rounds = Callable[[Config, Tasks, Results], None]
"""Takes the results of each round (`PingWindows.add`)."""


class PingRecords:
    """The output of one kind of pings: its results in files, its problems in the log."""

    def __init__(self, log: Log, node: str, clock: Clock, files: PingFiles, rounds: Rounds | None = None) -> None:
        self._log, self._node, self._clock, self._files, self._rounds = log, node, clock, files, rounds
        self._said = ""

    def problem(self, what: str) -> None:
        """Log a warning, unless it repeats the last one."""
        if what != self._said:
            self._said = what
            self._log.warning("pings do not work as they should", node=self._node, error=what)

    def solved(self) -> None:
        """Clear the problem; it is logged again when it returns."""
        self._said = ""

    async def results(self, uid: str, chosen: Config, tasks: Tasks, results: Results) -> None:
        """Add a round to the files and to what is reported; a disk that does not take it is logged as a problem and
        raises nothing.
        """
        if self._rounds is not None:
            self._rounds(chosen, tasks, results)
        try:
            await asyncio.to_thread(self._files.write, uid, chosen, tasks, results, self._clock.now_ms())
        except (OSError, ValueError) as error:
            self.problem(f"results cannot be written: {error}")

    def close(self) -> None:
        """Let go of the files."""
        self._files.close()


def settings(body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The data of a ConfigMap of pings; None when it is gone or lacks the label that says so."""
    labels = ((body or {}).get("metadata") or {}).get("labels") or {}
    if body is None or labels.get(LABEL[0]) != LABEL[1]:
        return None
    data = body.get("data")
    return data if isinstance(data, dict) else {}


def read_list(file: Path) -> bytes:
    """A ping list as it stands. Raises OSError, and PingError when it is too long."""
    with file.open("rb") as source:
        data = source.read(MAX_LIST + 1)
    if len(data) > MAX_LIST:
        raise PingError(f"{file.name} is longer than {MAX_LIST} bytes")
    return data
