"""Lets a super pod release the resources of a faulty job's chips: marks them abnormal on every chip of this node.

ConfigMap ``cluster-system/fault-job-info``, written by ClusterD for process-level recovery on A3 super pods. Source:
component/noded (super-pod node release), docs/zh/scheduling 06_api.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.node.hardware.pings import Maps

NAMESPACE: Final = "cluster-system"
NAME: Final = "fault-job-info"
NORMAL, ABNORMAL = 0, 1
TRIES: Final = 6
CALL_SECONDS: Final = 10.0
MAX_JOBS: Final = 10_000
MAX_IDS: Final = 100_000
_log = Log("superpod")

Ask = Callable[..., Awaitable[Any]]
Marks = dict[str, tuple[str, tuple[int, ...]]]
"""Job → identity of its fault, and the super device ids that are marked for it."""


def wanted(data: Mapping[str, Any], node: str) -> Marks:
    """The marks that a ConfigMap asks of a node; jobs that cannot be read, or concern other nodes, ask for none."""
    found: Marks = {}
    unreadable: list[str] = []
    for job, text in sorted(data.items())[:MAX_JOBS]:
        try:
            pods = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            pods = None
        if not isinstance(pods, dict):
            unreadable.append(job)
            continue
        mine = [entry for _, entry in sorted(pods.items()) if isinstance(entry, dict) and node in _names(entry)]
        if mine:
            times = json.dumps([entry.get("FaultTimes") for entry in mine], sort_keys=True)
            ids = {number for entry in mine for number in map(_number, _ids(entry)) if number is not None}
            found[job] = (times, tuple(sorted(ids)))
    if unreadable:
        _log.warning("faults of jobs cannot be read", first=unreadable[0][:128], jobs=len(unreadable))
    return found


def _names(entry: Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
    # a set is written as a list or as an object with the members as keys
    names = entry.get("NodeNames")
    return names if isinstance(names, list | dict) else ()


def _ids(entry: Mapping[str, Any]) -> list[Any]:
    ids = entry.get("SdIds")
    return list(ids)[:MAX_IDS] if isinstance(ids, list | dict) else []


def _number(text: Any) -> int | None:
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 1 << 32:
        return int(text)
    return None


class SuperPod:
    """Follows the ConfigMap. ``file`` remembers the marks over restarts, so that none is left behind."""

    def __init__(self, node: str, chips: Sequence[int], maps: Maps, ask: Ask, clock: Clock, file: Path) -> None:
        self._node, self._chips, self._maps, self._ask = node, tuple(chips), maps, ask
        self._clock, self._file = clock, file
        self._marks = self._remembered()

    async def run(self) -> None:
        """Run until cancelled."""
        async for body in self._maps.config_map(NAMESPACE, NAME):
            data = (body or {}).get("data")
            await self.follow(data if isinstance(data, dict) else {})

    async def follow(self, data: Mapping[str, Any]) -> None:
        """Set the requested marks; remove those that no job requests any more."""
        now = wanted(data, self._node)
        before, self._marks = self._marks, now
        marked = {number for _, ids in now.values() for number in ids}
        # written first: a mark that is not on disk would never be removed
        self._remember({**before, **now})
        for job, (times, ids) in now.items():
            if before.get(job) != (times, ids):
                await self._set(job, ids, ABNORMAL)
        gone = {number for job, (_, ids) in before.items() if job not in now for number in ids} - marked
        gone |= {n for job, (_, ids) in before.items() if job in now for n in ids} - marked
        if gone:
            await self._set("", sorted(gone), NORMAL)
        self._remember(now)

    async def _set(self, job: str, ids: Sequence[int], status: int) -> None:
        _log.info("super devices are marked", node=self._node, job=job, devices=len(ids), status=status)
        for number in ids:
            for chip in self._chips:
                for attempt in range(1, TRIES + 1):
                    try:
                        if await self._ask("spod_status", chip, number, timeout=CALL_SECONDS) != status:
                            await self._ask("set_spod_status", chip, number, status, timeout=CALL_SECONDS)
                        break
                    except DriverError as error:
                        if attempt == TRIES:
                            _log.error("a super device cannot be marked", chip=chip, device=number, error=error)
                        else:
                            await self._clock.sleep(0.1)

    def _remembered(self) -> Marks:
        try:
            body = json.loads(self._file.read_bytes())
            return {str(job): (str(times), tuple(int(number) for number in ids)) for job, (times, ids) in body.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _remember(self, marks: Marks) -> None:
        fresh = self._file.with_name(f".{self._file.name}.new")
        with contextlib.suppress(OSError):
            # without the file marks may be left behind after a restart; that must not stop them being set now
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(marks))
            os.replace(fresh, self._file)
