"""The resources of an action while it writes: the client, the fence, the clock, and the record of its writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from belay.engine.act.pod_watch import PodWatch
from belay.engine.errors import BelayError
from belay.engine.kube import LEASE, Kube, Object
from belay.engine.kube.lease import NAMESPACE, epoch_of
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.store import ObjectWrite

FENCE_SECONDS = 1.0
"""Seconds for which one read of the Lease counts.

Another worker gets the Lease by a release, by our silence (engine/store/liveness.py) or after its whole duration. What
we still write within this time after that, the ledger's claims and the epochs in orders make harmless.
"""


class Refused(BelayError):
    """A precondition of the action no longer holds: nothing was written."""

    code = "ActionRefused"


class Superseded(BelayError):
    """A newer epoch writes for the shard: the remaining actions are dropped."""

    code = "Superseded"


class Fence:
    """Checks before each write that our epoch is still the newest of the shard."""

    def __init__(
        self,
        kube: Kube,
        shard: str,
        epoch: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = FENCE_SECONDS,
    ) -> None:
        self._kube = kube
        self._shard = shard
        self._epoch = epoch
        self._clock = clock
        self._seconds = seconds
        self._checked = float("-inf")
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Raise Superseded when another epoch began, KubeError when the Lease cannot be read."""
        if self._clock() - self._checked < self._seconds:
            return
        async with self._lock:
            if self._clock() - self._checked < self._seconds:
                return
            began = self._clock()
            lease = await self._kube.get(LEASE, f"belay-shard-{self._shard}", NAMESPACE)
            newest = epoch_of(lease) if lease is not None else None
            if newest != self._epoch:
                raise Superseded(f"epoch {self._epoch} of shard {self._shard} was superseded by {newest}")
            self._checked = began


class Edge:
    """One batch's access to the cluster. ``now`` gives Unix seconds; ``order_life`` is how long an order may wait (s).

    ``pods`` is the watch that batches of many bindings share, ``follows`` whether this batch may use it. ``gate``
    bounds the bindings that all batches of a worker have in flight: with more, an API server only becomes slower.
    ``keys`` seal orders; ``plan`` is the digest of the plan that the actions are of. ``traces`` are theirs by their
    place in the plan, where spans are sent.
    """

    def __init__(
        self,
        kube: Kube,
        shard: str,
        fence: Fence,
        *,
        now: Callable[[], float] = time.time,
        order_life: float = 900.0,
        revision: str = "",
        pods: PodWatch | None = None,
        gate: asyncio.Semaphore | None = None,
        keys: OrderKeys | None = None,
        plan: str = "",
        traces: Mapping[int, str] | None = None,
    ) -> None:
        self.traces = traces or {}
        self.keys = keys or OrderKeys()
        self.plan = plan
        self.gate: contextlib.AbstractAsyncContextManager[None] = gate or contextlib.nullcontext()
        self.pods = pods
        self.follows = False
        self.kube = kube
        self.shard = shard
        self.fence = fence
        self.now = now
        self.order_life = order_life
        self.revision = revision
        self.writes: list[ObjectWrite] = []

    def wrote(self, obj: Object) -> None:
        """Record a written object, for which the next pass waits."""
        self.writes.append(written(obj))

    def removed(self, api_version: str, kind: str, namespace: str, name: str, uid: str) -> None:
        """Record a deletion that the server accepted; the next pass waits until the object is gone."""
        self.writes.append(ObjectWrite(api_version, kind, namespace, name, "", uid, True))


def written(obj: Object) -> ObjectWrite:
    """The record of an object as the server returned it."""
    metadata: dict[str, Any] = obj["metadata"]
    return ObjectWrite(
        str(obj["apiVersion"]),
        str(obj["kind"]),
        str(metadata.get("namespace") or ""),
        str(metadata["name"]),
        str(metadata.get("resourceVersion") or ""),
        str(metadata.get("uid") or ""),
    )
