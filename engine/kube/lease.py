"""The writer of a shard: a Lease in Kubernetes whose ``leaseTransitions`` is the writer's epoch.

Redis' busy key only saves work; the Lease fences. Every acquisition raises the epoch by compare-and-swap, also when the
same identity acquires again after a restart, so batches of an earlier epoch can be recognised and dropped. Clocks of
other machines are never trusted: a foreign Lease has expired when *we* saw it unchanged for its whole duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from belay.engine.kube import LEASE, Conflict, Kube, NotFound, Object
from belay.engine.wire import leases

NAMESPACE = "belay-system"
DURATION_SECONDS = 15.0
CEILING_SECONDS = 60.0
"""Longest time for which a foreign Lease is believed without a renewal, whatever duration it states: workers renew
every few seconds while they write."""
_SHARD = leases.SHARD_PREFIX


class Lease:
    """One named Lease as seen by one identity.

    ``identity`` must be the same after a restart of the same process, and differ between processes. ``clock`` is
    monotonic seconds, ``wall`` Unix seconds (written for users, never compared). ``ended`` says whether another
    identity is known to be dead, so that what it holds need not expire.
    """

    def __init__(
        self,
        kube: Kube,
        name: str,
        identity: str,
        *,
        namespace: str = NAMESPACE,
        duration: float = DURATION_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        ended: Callable[[str], bool] = lambda identity: False,
    ) -> None:
        self.holder = ""
        """Who else held it when ``acquire`` last looked."""
        self.name = name
        self.identity = identity
        self.duration = duration
        self._kube = kube
        self._namespace = namespace
        self._clock = clock
        self._wall = wall
        self._ended = ended
        self._epoch: int | None = None
        self._observed: tuple[str, float] = ("", 0.0)

    @property
    def epoch(self) -> int | None:
        """The epoch we hold, as far as we know."""
        return self._epoch

    async def acquire(self) -> int | None:
        """Acquire the Lease: the new epoch, or None while another identity holds it or was faster.

        Raises KubeError when the API server does not answer or refuses.
        """
        self._epoch = None
        found = await self._kube.get(LEASE, self.name, self._namespace)
        try:
            if found is None:
                written = await self._kube.create(LEASE, self._body(1))
            elif self._free(found):
                written = await self._kube.replace(LEASE, self._body(epoch_of(found) + 1, found))
            else:
                return None
        except Conflict:
            return None
        self._epoch = epoch_of(written)
        return self._epoch

    async def renew(self) -> bool:
        """Renew the Lease; False when we no longer hold it: stop writing."""
        found = await self._kube.get(LEASE, self.name, self._namespace)
        if self._epoch is None or found is None or not self._ours(found, self._epoch):
            self._epoch = None
            return False
        try:
            await self._kube.replace(LEASE, self._body(self._epoch, found))
        except (Conflict, NotFound):
            self._epoch = None
            return False
        return True

    async def verify(self, epoch: int) -> bool:
        """Whether ``epoch`` is still the newest. A released epoch stays valid until the next acquisition."""
        found = await self._kube.get(LEASE, self.name, self._namespace)
        return found is not None and epoch_of(found) == epoch

    async def release(self) -> None:
        """Release the Lease for others. The epoch stays valid, so that running batches may end. Losing it before is no
        error.
        """
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            return
        found = await self._kube.get(LEASE, self.name, self._namespace)
        if found is None or not self._ours(found, epoch):
            return
        try:
            await self._kube.replace(LEASE, self._body(epoch, found, holder=""))
        except (Conflict, NotFound):
            return  # another identity acquired it meanwhile: the same as released

    async def release_former(self) -> bool:
        """Release what a former run of this process, killed while it held the Lease, holds still; whether it did.

        Others would wait for its whole duration. The epoch stays valid, as by ``release``.
        """
        found = await self._kube.get(LEASE, self.name, self._namespace)
        if found is None or self._epoch is not None or (found.get("spec") or {}).get("holderIdentity") != self.identity:
            return False
        try:
            await self._kube.replace(LEASE, self._body(epoch_of(found), found, holder=""))
        except (Conflict, NotFound):
            return False  # held again meanwhile
        return True

    def _free(self, found: Object) -> bool:
        spec: dict[str, Any] = found.get("spec") or {}
        self.holder = holder = str(spec.get("holderIdentity") or "")
        if holder in {"", self.identity} or self._ended(holder):
            return True
        version = str((found.get("metadata") or {}).get("resourceVersion"))
        if self._observed[0] != version:
            self._observed = (version, self._clock())
            return False
        stated = float(spec.get("leaseDurationSeconds") or self.duration)
        duration = min(stated, max(CEILING_SECONDS, self.duration))
        return self._clock() - self._observed[1] > duration

    def _ours(self, found: Object, epoch: int) -> bool:
        return (found.get("spec") or {}).get("holderIdentity") == self.identity and epoch_of(found) == epoch

    def _body(self, epoch: int, over: Object | None = None, holder: str | None = None) -> Object:
        before: dict[str, Any] = (over or {}).get("spec") or {}
        now = _micro_time(self._wall())
        same = over is not None and epoch_of(over) == epoch
        metadata: dict[str, Any] = {"name": self.name, "namespace": self._namespace}
        if over is not None:
            metadata = dict(over["metadata"])
            metadata.pop("managedFields", None)
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity if holder is None else holder,
                "leaseDurationSeconds": max(1, round(self.duration)),
                "acquireTime": before.get("acquireTime") or now if same else now,
                "renewTime": now,
                "leaseTransitions": epoch,
            },
        }


async def release_former_leases(kube: Kube, identity: str) -> list[str]:
    """Release every shard's Lease that a former run of this process holds; returns the shards. Raises KubeError."""
    released = []
    for found in (await kube.list(LEASE, NAMESPACE)).items:
        name, holder = str(found["metadata"]["name"]), (found.get("spec") or {}).get("holderIdentity")
        if name.startswith(_SHARD) and holder == identity:
            shard = name.removeprefix(_SHARD)
            if await shard_lease(kube, shard, identity).release_former():
                released.append(shard)
    return released


def shard_lease_name(shard: str) -> str:
    """The name of the Lease of a shard's writer."""
    return f"{_SHARD}{shard}"


def shard_lease(kube: Kube, shard: str, identity: str, **options: Any) -> Lease:
    """The Lease of a shard's writer."""
    return Lease(kube, shard_lease_name(shard), identity, **options)


def epoch_of(lease: Object) -> int:
    """The epoch written in a Lease; 0 in one that has none."""
    return int((lease.get("spec") or {}).get("leaseTransitions") or 0)


def _micro_time(seconds: float) -> str:
    whole = int(seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((seconds - whole) * 1_000_000):06d}Z"
