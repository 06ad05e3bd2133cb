"""What must never happen, watched from outside: an own connection that nothing disturbs sees every change.

It follows pods and orders in the API server's own order and reads the hardware's books of resets, so what it finds is
what was, whatever the engine believes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from belay.engine.kube import CONFIGMAP, POD, Kube, KubeError, cancel_all
from belay.engine.wire import names
from tests.chaos.live import chips_of, living, on_chips
from tests.chaos.node import Hardware

Json = dict[str, Any]


class Witness:
    """``broken`` lists what happened and must not."""

    def __init__(self, kube: Kube, hardware: dict[str, Hardware]) -> None:
        self._kube, self._hardware = kube, hardware
        self.broken: list[str] = []
        self.bound = 0
        self.moments: dict[str, float] = {}
        """When each pod was first seen bound, and each chip isolated (monotonic s): ``pod/UID``, ``NODE/CHIP``."""
        self.isolated: set[str] = set()
        """``NODE/CHIP`` that the newest orders take out."""
        self._pods: dict[str, Json] = {}
        self._epochs: dict[str, int] = {}
        self._open = {"pods": asyncio.Event(), "orders": asyncio.Event()}
        self._read = dict.fromkeys(hardware, 0)
        self._ran: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[Witness]:
        tasks = [
            asyncio.create_task(self._follow("pods", POD, None)),
            asyncio.create_task(self._follow("orders", CONFIGMAP, names.SYSTEM)),
        ]
        try:
            for event in self._open.values():
                await event.wait()
            yield self
        finally:
            await cancel_all(*tasks)

    def check(self) -> None:
        """Raise AssertionError with what was broken so far."""
        for node in self._hardware:
            self._look_at_resets(node)
        assert not self.broken, "; ".join(self.broken[:5])

    @property
    def resets(self) -> int:
        """How often groups of chips were reset."""
        return sum(self._read.values())

    async def _follow(self, what: str, resource: Any, namespace: str | None) -> None:
        take = self._take_pod if what == "pods" else self._take_map
        while True:
            with contextlib.suppress(KubeError):
                listing = await self._kube.list(resource, namespace)
                if what == "pods":  # those that are gone since the last list must not be remembered
                    there = {obj["metadata"]["uid"] for obj in listing.items}
                    self._pods = {uid: pod for uid, pod in self._pods.items() if uid in there}
                for obj in listing.items:
                    take("MODIFIED", obj)
                async for kind, obj in self._kube.watch(
                    resource, namespace, rv=listing.resource_version, seconds=3000, on_open=self._open[what].set
                ):
                    if kind in ("ADDED", "MODIFIED", "DELETED"):
                        take(kind, obj)
            await asyncio.sleep(0.2)

    def _take_pod(self, kind: str, pod: Json) -> None:
        uid = str(pod["metadata"]["uid"])
        before = self._pods.pop(uid, None)
        if kind == "DELETED":
            return
        if living(pod) and not (before and living(before)):
            self.bound += 1
            self.moments.setdefault(f"pod/{uid}", time.monotonic())
            held = on_chips(self._pods.values())
            if twice := {chip: held[chip] for chip in chips_of(pod) if chip in held}:
                self.broken.append(f"{pod['metadata']['name']} was bound to chips in use: {twice}")
        self._pods[uid] = pod
        # kubelet may let equal pods change places, one after the other: what counts is where their containers run
        running = on_chips(one for one in self._pods.values() if (one.get("status") or {}).get("phase") == "Running")
        if twice := {chip: owners for chip, owners in running.items() if len(owners) > 1}:
            self.broken.append(f"chips with two owners: {twice}")

    def _take_map(self, kind: str, obj: Json) -> None:
        name = str(obj["metadata"]["name"])
        if kind == "DELETED" or not name.startswith(names.ORDERS_PREFIX):
            return
        node = name.removeprefix(names.ORDERS_PREFIX)
        try:
            chips = json.loads(obj["data"]["orders.json"]).get("chips") or {}
        except (KeyError, ValueError) as error:
            self.broken.append(f"orders of {node} cannot be read: {error}")
            return
        self.isolated = {key for key in self.isolated if key.partition("/")[0] != node}
        for chip, order in chips.items():
            key = f"{node}/{chip}"
            if order.get("isolate"):
                self.isolated.add(key)
                self.moments.setdefault(key, time.monotonic())
            epoch = int((order.get("reset") or {}).get("epoch") or 0)
            if epoch and epoch < self._epochs.get(key, 0):
                self.broken.append(f"{key}: epoch {epoch} was ordered after epoch {self._epochs[key]}")
            self._epochs[key] = max(epoch, self._epochs.get(key, 0))

    def _look_at_resets(self, node: str) -> None:
        rows = self._hardware[node].resets()
        for row in rows[self._read[node] :]:
            if row["used"]:
                self.broken.append(f"{node} {row['chips']} was reset while {row['used']} lived there")
            for chip in row["chips"]:
                key, epoch = f"{node}/{chip}", int(row["epoch"])
                if epoch <= self._ran.get(key, 0):
                    self.broken.append(f"{key} ran epoch {epoch} after epoch {self._ran.get(key, 0)}")
                self._ran[key] = max(epoch, self._ran.get(key, 0))
        self._read[node] = len(rows)
