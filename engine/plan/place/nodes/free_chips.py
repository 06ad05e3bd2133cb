"""The number of free chips of a resource in the shard, while a pass assigns them."""

from __future__ import annotations

from collections.abc import Mapping

from belay.engine.plan.node_view import NodeView


class FreeChips:
    """The free chips of one resource, counted once and then only on nodes that changed."""

    def __init__(self, views: Mapping[str, NodeView], resource: str, seen: int) -> None:
        self._views = views
        self._counts = {name: view.free.bit_count() for name, view in views.items() if view.resource == resource}
        self._total = sum(self._counts.values())
        self._seen = seen

    def total(self, log: list[str]) -> int:
        """The number now; ``log`` names the nodes that changed and only grows within a pass."""
        for name in set(log[self._seen :]):
            before = self._counts.get(name)
            if before is not None:
                self._counts[name] = now = self._views[name].free.bit_count()
                self._total += now - before
        self._seen = len(log)
        return self._total
