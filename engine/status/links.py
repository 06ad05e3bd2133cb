"""``belay-link-<KVLink>``: each link with its state and latency, faulty ones first."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from belay.engine.model.cluster import Observed
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.links import (
    BROKEN,
    FAILED,
    LINKED,
    LINKING,
    NO_PROCESS,
    ORDERED,
    STALE,
    LinkState,
    count_states,
)
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.status.bodies import bounded_list, config_map, text
from belay.engine.wire import names

_LIST_BYTES: Final = 600 * 1024
#: States in the order of the list.
_ORDER: Final = {state: rank for rank, state in enumerate((BROKEN, FAILED, NO_PROCESS, STALE, ORDERED, LINKING))}


def link_bodies(plan: Plan) -> list[dict[str, Any]]:
    """One ConfigMap for each KVLink that has a link."""
    rows: dict[str, list[LinkState]] = {}
    for state in plan.links:
        rows.setdefault(state.link, []).append(state)
    bodies = []
    for link in sorted(rows):
        ranked = sorted(rows[link], key=lambda row: (_ORDER.get(row.state, len(_ORDER)), row.decode, row.prefill))
        shown, left_out = bounded_list([row_of(row) for row in ranked], _LIST_BYTES)
        data = {"summary": summary(rows[link]), "links.json": text(shown)}
        if left_out:
            data["leftOut"] = f"{left_out} links are not shown"
        bodies.append(config_map(names.SYSTEM, names.bounded(names.LINK_PREFIX + link), data, {ABOUT_LABEL: "link"}))
    return bodies


def summary(rows: list[LinkState]) -> str:
    """How many links hold, and the states of the others."""
    counted = count_states(rows)
    others = ", ".join(f"{state} {number}" for state, number in sorted(counted.items()) if state != LINKED)
    return f"{counted.get(LINKED, 0)} of {len(rows)} links hold" + (f"; {others}" if others else "")


def row_of(row: LinkState) -> dict[str, Any]:
    """One link as a row of the list."""
    body: dict[str, Any] = msgspec.to_builtins(row)
    del body["link"], body["sinceMs"]
    return body | {"since": rfc3339(row.since_ms / 1000) if row.since_ms else None}


def published_links(observed: Observed) -> list[tuple[str, str]]:
    """Namespace and name of every such ConfigMap in the cluster."""
    return [
        (key.namespace, key.name)
        for key in observed.objects
        if key.name.startswith(names.LINK_PREFIX) and key.kind == "ConfigMap" and key.namespace == names.SYSTEM
    ]


__all__ = ["link_bodies", "row_of", "published_links", "summary"]
