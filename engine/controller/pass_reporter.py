"""Say when the last pass was, and why none comes: ``belay-pass``, written by what is alive.

A worker writes it after its passes, and when something has hindered them for a while. The leading controller watches it
and writes what the worker cannot say: that there is none, or that it takes nothing. Times of other machines are never
compared: a pass is missing when *we* saw no new one for too long.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError, NotFound
from belay.engine.log import get
from belay.engine.model.freshness import DOUBTED, NO_PASS, Hindrance, LastPass, allowed_seconds
from belay.engine.wire import names, passinfo, sync

WRITE_SECONDS: Final = 5.0
"""Least seconds between two writes after passes that completed."""
_log = get("reconcile")


class PassReporter:
    """What one process says about the passes of a shard. ``clock``: monotonic seconds, ``wall``: Unix seconds."""

    def __init__(
        self,
        kube: Kube,
        shard: str,
        identity: str,
        every: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._shard, self._identity, self._every = kube, shard, identity, every
        self._clock, self._wall = clock, wall
        self._written = float("-inf")
        self._hindered: float | None = None
        self._said = float("-inf")
        self._seen = ""
        self._changed = clock()
        self._complained = False

    async def completed(self, identifier: str, revision: str) -> None:
        """A pass is done. The first after a hindrance is written at once, the others every few seconds."""
        now = self._clock()
        if self._hindered is None and now - self._written < WRITE_SECONDS:
            return
        last = LastPass(
            shard=self._shard, identifier=identifier, time=self._wall(), revision=revision, every=self._every,
            by=self._identity,
        )  # fmt: skip
        try:
            await self._kube.apply(passinfo.build(last))
        except KubeError as error:
            self._complain(error)
            return
        self._written, self._hindered, self._complained = now, None, False

    async def hindered(self, reason: Hindrance, problem: str) -> None:
        """A pass could not be done; this is said once it has lasted, and then now and again, unless another worker does
        passes.
        """
        now = self._clock()
        if self._hindered is None:
            self._hindered = now
        if now - self._hindered < self.patience or now - self._said < self.patience:
            return
        self._said = now
        if await self.missing_for() >= self.patience:
            await self.say(reason, problem)

    async def missing_for(self) -> float:
        """Seconds since this process saw a new pass; 0 if the API server does not answer."""
        try:
            live = await self._kube.get(CONFIGMAP, passinfo.name_of(self._shard), names.SYSTEM)
        except KubeError:
            return 0.0
        seen = str(((live or {}).get("data") or {}).get("time") or "")
        now = self._clock()
        if seen != self._seen:
            self._seen, self._changed = seen, now
        return now - self._changed

    async def say(self, reason: Hindrance, problem: str) -> None:
        """Write what hinders the passes, and that ``Ready`` is unknown from now on; best effort."""
        patch = passinfo.hindrance(self._shard, reason, problem, self._wall(), self._identity)
        try:
            try:
                await self._kube.patch(CONFIGMAP, patch["metadata"]["name"], patch, names.SYSTEM)
            except NotFound:
                await self._kube.create(CONFIGMAP, patch)
            await self._doubt(problem)
        except Conflict:
            return  # another process was faster
        except KubeError as error:
            self._complain(error)

    @property
    def patience(self) -> float:
        """Seconds without a pass after which it is news."""
        return allowed_seconds(self._every)

    async def _doubt(self, problem: str) -> None:
        """``Ready`` and ``Applied`` of the shard's ``belay-sync`` become Unknown; the next pass writes them again."""
        name = names.sync_config_map(self._shard)
        live = await self._kube.get(CONFIGMAP, name, names.SYSTEM)
        data: dict[str, Any] = (live or {}).get("data") or {}
        try:
            rows = json.loads(str(data.get("conditions.json") or "[]"))
        except (ValueError, RecursionError):
            return
        since = f" since {self._seen}" if self._seen else ""
        text = f"no pass{since}: {problem}"[:1024]
        doubted = [_doubted(row, text) for row in rows if isinstance(row, dict)]
        if live is None or doubted == rows:
            return
        changed = {
            "conditions.json": json.dumps(doubted), sync.READY: "Unknown", sync.READY_REASON: NO_PASS,
            sync.READY_MESSAGE: text,
        }  # fmt: skip
        version = live["metadata"].get("resourceVersion")
        await self._kube.patch(
            CONFIGMAP, name, {"metadata": {"resourceVersion": version}, "data": changed}, names.SYSTEM
        )
        _log.warning("no pass", shard=self._shard, since=self._seen, reason=problem)

    def _complain(self, error: KubeError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("last pass not reported", shard=self._shard, reason=str(error))


def _doubted(row: dict[str, Any], text: str) -> dict[str, Any]:
    """A condition that only passes can vouch for, as Unknown; the others stay."""
    if row.get("type") not in DOUBTED or row.get("status") != "True":
        return row
    return {**row, "status": "Unknown", "reason": NO_PASS, "message": text}
