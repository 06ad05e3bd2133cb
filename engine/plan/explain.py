"""The plan as a document: what the passes decided, sorted, and nothing decided here."""

from __future__ import annotations

from typing import Final

from engine.model.cluster import ids_of
from engine.model.diagnostics import Diagnostic
from engine.model.plan import NodeState, Pending, Plan
from engine.model.times import rfc3339
from engine.plan.scope import Scope

#: How a hold without a time ends.
_ENDS: Final = {
    "manual": "until a person ends it",
    "frequency": "until a person ends it (delete the name from Total in belay-system/belay-manual)",
    "bad-boot": "until a newer report",
}


def run(scope: Scope) -> None:
    """Sorts every list whose order the passes do not give, and merges what two passes said of the same gang."""
    scope.pending = _merged(scope.pending)
    _holds(scope)
    scope.diagnostics = sorted(set(scope.diagnostics) | set(scope.observed.diagnostics))
    scope.scores = {pod: _in_order(row) for pod, row in sorted(scope.scores.items())}


def _in_order(row: dict[str, float]) -> dict[str, float]:
    """The scores by the names of nodes, in which order they mostly are already."""
    names = sorted(row)
    return row if names == list(row) else {name: row[name] for name in names}


def _holds(scope: Scope) -> None:
    """Says of every hold what it is, by which rule, and when it ends."""
    for name, view in scope.unsettled.items():
        if view.resetting:
            orders = scope.observed.orders.get(name)
            end = rfc3339(orders.not_after_ms / 1000) if orders and orders.not_after_ms else "its end"
            which = ", ".join(view.chip(chip) for chip in ids_of(view.resetting))
            message = f"{which} of node {name} held: reset-pending, by the standing order, until {end} or the answer"
            scope.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", message))
    for name, memory in scope.memory.nodes.items():
        held = scope.nodes.get(name)
        if held is None:
            continue
        for chip, row in memory.chips.items():
            for hold in row.holds:
                end = f"until {rfc3339(hold.until / 1000)}" if hold.until else _ENDS.get(hold.kind, "until it is ended")
                what = f"{held.chip(chip)} of node {name} is held: {hold.kind}"
                message = f"{what}, by {hold.rule}, {end}" if hold.rule else f"{what}, {end}"
                scope.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", message))


def document(scope: Scope) -> Plan:
    """The finished plan. ``actions`` stay in the order in which the passes gave them: it is the order of execution."""
    return Plan(
        revision=scope.desired.revision,
        now=scope.now,
        actions=tuple(scope.actions),
        deferred=tuple(scope.deferred),
        pending=tuple(scope.pending),
        nodes=tuple(
            [
                view.told or NodeState(name, view.pool, view.state, view.level, tuple(sorted(view.codes)))
                for name, view in scope.nodes.items()  # in the order of names, see ``views``
            ]
        ),
        chips=tuple(scope.chips),
        scores=scope.scores,
        diagnostics=tuple(scope.diagnostics),
        history=scope.memory.frozen(),
        planes=scope.planes,
        lemons=tuple(scope.lemons),
        links=tuple(scope.links),
    )


def _merged(entries: list[Pending]) -> list[Pending]:
    """One entry per gang, the first that was given, sorted by namespace, name and kind."""
    first: dict[tuple[str, str, str], Pending] = {}
    for entry in entries:
        first.setdefault((entry.namespace, entry.name, entry.kind), entry)
    return [first[key] for key in sorted(first)]
