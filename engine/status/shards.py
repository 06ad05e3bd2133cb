"""Several shards, one ``belay-sync``: each shard publishes its part, and the main shard's holds them all.

Only the main shard applies Git's objects, so what it says of them is the whole. The others add what their own passes
found. ``Ready`` and ``Applied`` are as bad as the worst shard has them: people and their tools read one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.freshness import APPLIED, NO_PASS, READY, VOUCHED
from belay.engine.status.conditions import APPLYING, StatusCondition
from belay.engine.wire import names, passinfo, sourceinfo, sync
from belay.engine.wire.names import MAIN_SHARD, SYSTEM
from belay.engine.wire.sync import ShardPart

#: The worse of two states of a condition is the later one.
_ORDER: Final = ("True", "Unknown", "False")
_LONGEST_MESSAGE: Final = 1024


class PublishedPart(NamedTuple):
    """A declared shard and what it published; None while it has published nothing. ``same_source``: whether it follows
    the repository of the main shard, as far as that is known.
    """

    shard: str
    part: ShardPart | None
    same_source: bool = True


def declared_shards(desired: Desired) -> frozenset[str]:
    """The shards that pools name, and the main one."""
    return frozenset({MAIN_SHARD, *(pool.document.spec.shard for pool in desired.pools)})


def published_parts(observed: Observed, desired: Desired) -> tuple[PublishedPart, ...]:
    """What the other declared shards say, by name of the shard."""
    own = _source(observed, MAIN_SHARD)
    found = []
    for shard in sorted(declared_shards(desired) - {MAIN_SHARD}):
        raw = observed.objects.get(_key(names.sync_config_map(shard)))
        part = sync.parse_part(raw) if raw is not None else None
        found.append(PublishedPart(shard, part, _source(observed, shard) in (own, None)))
    return tuple(found)


def outdated_parts(observed: Observed, desired: Desired, shard: str) -> list[tuple[str, str]]:
    """Namespace and name of what shards published that no pool names any more; the main shard deletes it."""
    if shard != MAIN_SHARD or not desired.has_git:
        return []
    current = {names.sync_config_map(one) for one in declared_shards(desired)}
    gone = [
        key.name
        for key in observed.objects
        if key.kind == "ConfigMap" and key.namespace == SYSTEM and key.name.startswith(f"{names.SYNC}.")
        if key.name not in current
    ]
    shards = [name.removeprefix(f"{names.SYNC}.") for name in gone]
    views = [
        key.name
        for key in observed.objects
        if key.kind == "ConfigMap" and key.namespace == SYSTEM and key.name.startswith(names.VIEW_PREFIX)
        if key.name.removeprefix(names.VIEW_PREFIX).rpartition("-")[0] not in declared_shards(desired) - {MAIN_SHARD}
    ]
    return sorted((SYSTEM, name) for name in (*gone, *map(passinfo.name_of, shards), *views))


def of_all_shards(
    rows: Sequence[StatusCondition], applied: str, parts: Iterable[PublishedPart]
) -> tuple[StatusCondition, ...]:
    """The main shard's conditions, with ``Ready`` and ``Applied`` as the worst shard has them. ``applied`` is the
    revision that is in force in the main shard.
    """
    said = [row for one in parts for row in _vouched(one, applied)]
    worst = []
    for row in rows:
        others = [other for other in said if other.type == row.type]
        worst.append(max([row, *others], key=_badness) if row.type in VOUCHED else row)
    return tuple(worst)


def _vouched(one: PublishedPart, applied: str) -> list[StatusCondition]:
    """``Ready`` and ``Applied`` of another shard, naming it."""
    if one.part is None:
        text = (
            f"shard {one.shard} has had no pass, so nothing decides its pools: start belay controller with "
            f"BELAY_SHARD={one.shard}"
        )
        return [StatusCondition(kind, "Unknown", NO_PASS, text) for kind in VOUCHED]

    if one.same_source and applied and one.part.applied != applied:
        text = f"shard {one.shard} has {one.part.applied[:12] or 'no revision'} in force, not {applied[:12]}"
        return [StatusCondition(kind, "False", APPLYING, text) for kind in (READY, APPLIED)]

    return [
        StatusCondition(
            row["type"],
            row.get("status", ""),
            row.get("reason", ""),
            f"shard {one.shard}: {row.get('message', '')}"[:_LONGEST_MESSAGE],
        )
        for row in one.part.conditions
        if row.get("type") in VOUCHED and row.get("status") in _ORDER
    ]


def _badness(row: StatusCondition) -> int:
    return _ORDER.index(row.status) if row.status in _ORDER else len(_ORDER)


def _source(observed: Observed, shard: str) -> str | None:
    """The URL that the shard's controller follows; None where that is not known."""
    published = sourceinfo.parse(observed.objects.get(_key(names.source_config_map(shard))) or {})
    return published.url if published is not None else None


def _key(name: str) -> ObjectKey:
    return ObjectKey("v1", "ConfigMap", SYSTEM, name)


def rows_with_shard(shard: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Published rows of another shard, each with the shard's name."""
    return [{**row, "shard": shard} for row in rows]


__all__ = [
    "PublishedPart",
    "declared_shards",
    "of_all_shards",
    "outdated_parts",
    "published_parts",
    "rows_with_shard",
]
