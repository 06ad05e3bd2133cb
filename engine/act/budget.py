"""Budgets are reserved before a disruptive action: no reservation, no disruption.

``belay-system/belay-budget`` shows every shard what the others spent. A reservation counts as spent until its window
passes, whatever its outcome; none is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belay.engine.act.edge import Refused, written
from belay.engine.kube import CONFIGMAP, Conflict, Kube
from belay.engine.model.history import History
from belay.engine.model.labels import MANAGED_BY
from belay.engine.store import ObjectWrite
from belay.engine.wire import reservations
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import BUDGET, SYSTEM

KEY = reservations.KEY
FIELD = f"v1|ConfigMap|{SYSTEM}|{BUDGET}"
"""Its field in the snapshot."""
_KEEP_MS = 7 * 86_400_000
_ROWS = 2000


async def reserve(kube: Kube, shard: str, before: History, after: History, seen: str, now: float) -> ObjectWrite | None:
    """Reserve what a pass is about to spend; None when that is nothing.

    ``seen`` is the version of the ConfigMap that the plan rests on (empty: none). Raises Refused when another shard has
    reserved since, or the reservations cannot be read: plan again.
    """
    spent = {name: _new(before.budgets.get(name, ()), rows) for name, rows in after.budgets.items()}
    spent = {name: rows for name, rows in spent.items() if rows}
    if not spent:
        return None
    live = await kube.get(CONFIGMAP, BUDGET, SYSTEM)
    version = str(live["metadata"]["resourceVersion"]) if live else ""
    if version != seen:
        raise Refused("the budget was reserved from elsewhere since the snapshot; planning again")
    rows = _rows(live or {})
    oldest = int(now * 1000) - _KEEP_MS
    for name, added in spent.items():
        merged = [row for row in rows.get(name, []) if row[0] >= oldest]
        rows[name] = [*merged, *((at, unit, count, shard) for at, unit, count in added)][-_ROWS:]
    metadata = {"name": BUDGET, "namespace": SYSTEM, "labels": {MANAGED_BY: "belay"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    body["data"] = {reservations.KEY: reservations.text(rows)}
    try:
        if live is None:
            return written(await kube.create(CONFIGMAP, body))
        metadata["resourceVersion"] = version
        return written(await kube.replace(CONFIGMAP, body))
    except Conflict as error:
        raise Refused("the budget was reserved from elsewhere at this moment; planning again") from error


def _new(
    before: tuple[tuple[int, str, int], ...], after: tuple[tuple[int, str, int], ...]
) -> list[tuple[int, str, int]]:
    known = set(before)
    return [row for row in after if row not in known]


def _rows(live: Mapping[str, Any]) -> dict[str, list[reservations.Reservation]]:
    try:
        return {name: list(rows) for name, rows in reservations.parse(live).items()}
    except WireError as error:
        raise Refused(
            "the reserved budgets cannot be read, nothing disruptive is done",
            where=f"ConfigMap {SYSTEM}/{BUDGET} data.{reservations.KEY}",
            hint="Mend or delete it.",
        ) from error
