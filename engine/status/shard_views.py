"""The main shard's plan with what the other shards' passes say of their nodes and jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan, PlaneLevels
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.status.shards import declared_shards
from belay.engine.wire import names, shardview
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import MAIN_SHARD
from belay.engine.wire.shardview import ShardView

_VIEWS: Final = CacheKey("views of other shards", Memo[ShardView | None], limit=256)


def with_other_shards(plan: Plan, observed: Observed, desired: Desired, cache: PlanCache) -> Plan:
    """The main shard's plan with nodes, chips and waiting jobs of all shards, for readers that expect one list.

    A node that both name is the main shard's: it has moved, and the other shard's next pass says so.
    """
    views = [view for shard in sorted(declared_shards(desired) - {MAIN_SHARD}) for view in _of(shard, observed, cache)]
    if not views:
        return plan

    nodes = {node.node: node for view in views for node in view.nodes}
    own = {node.node for node in plan.nodes}
    nodes = {name: node for name, node in nodes.items() if name not in own}
    chips = [chip for view in views for chip in view.chips if chip.node in nodes]
    planes: dict[str, dict[int, PlaneLevels]] = {}
    for row in (row for view in views for row in view.planes if row.node in nodes):
        planes.setdefault(row.node, {})[row.chip] = row.levels
    switches = {node: switch for view in views for node, switch in view.switches.items() if node in nodes}
    waiting = [row for view in views for row in view.pending]
    return msgspec.structs.replace(
        plan,
        nodes=tuple(sorted((*plan.nodes, *nodes.values()), key=lambda row: row.node)),
        chips=tuple(sorted((*plan.chips, *chips), key=lambda row: row.node)),
        planes={**plan.planes, **planes},
        switches={**plan.switches, **switches},
        pending=tuple(sorted((*plan.pending, *waiting), key=lambda row: (row.namespace, row.name, row.kind))),
    )


def _of(shard: str, observed: Observed, cache: PlanCache) -> Iterator[ShardView]:
    """The parts that a shard published; one that cannot be read is missing until its shard writes it again."""
    number, parts = 0, 1
    while number < parts:
        name = shardview.name_of(shard, number)
        raw = observed.objects.get(ObjectKey("v1", "ConfigMap", names.SYSTEM, name))
        view = None if raw is None else cache[_VIEWS].of(name, raw, partial(_read, raw))
        if view is not None:
            parts = max(parts, view.parts) if number == 0 else parts
            yield view
        number += 1


def _read(raw: Mapping[str, Any]) -> ShardView | None:
    try:
        return shardview.parse(raw)
    except WireError:
        return None


__all__ = ["with_other_shards"]
