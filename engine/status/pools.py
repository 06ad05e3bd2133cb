"""``belay-pool-<pool>`` ConfigMaps of pools that no longer have nodes, to be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belay.engine.documents import Desired
from belay.engine.wire import names
from belay.engine.wire.names import DEFAULT_POOL


class PublishedPools:
    """The pools that one shard has published since its worker started.

    Otherwise a pool that is renamed, loses its nodes or is no longer declared would stay in `belay status`.
    """

    def __init__(self) -> None:
        self._published: set[str] = set()
        self._dropped: set[str] = set()

    def outdated(self, shard: str, bodies: Sequence[dict[str, Any]], desired: Desired) -> list[tuple[str, str]]:
        """Namespace and name of ConfigMaps to delete now that the shard publishes ``bodies``; each is returned once.

        Candidates are the pools that this worker published before, and those declared for the shard, which an earlier
        worker may have published.
        """
        current = {body["metadata"]["name"] for body in bodies}
        own = {_name(pool.document.name) for pool in desired.pools if pool.document.spec.shard == shard}
        others = {_name(pool.document.name) for pool in desired.pools if pool.document.spec.shard != shard}
        if shard == names.MAIN_SHARD:
            own.add(_name(DEFAULT_POOL))
        known = self._published | own
        gone = known - current - others - self._dropped
        self._published = {name for name in current if name.startswith(names.POOL_PREFIX)}
        self._dropped = (self._dropped | gone) - current
        return sorted((names.SYSTEM, name) for name in gone)


def _name(pool: str) -> str:
    return names.bounded(names.POOL_PREFIX + pool)
