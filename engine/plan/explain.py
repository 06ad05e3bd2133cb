"""The plan as a document: what the passes decided, sorted, and nothing decided here."""

from __future__ import annotations

from engine.model.plan import NodeState, Pending, Plan
from engine.plan.scope import Scope


def run(scope: Scope) -> None:
    """Sorts every list whose order the passes do not give, and merges what two passes said of the same gang."""
    scope.pending = _merged(scope.pending)
    scope.diagnostics = sorted(set(scope.diagnostics) | set(scope.observed.diagnostics))
    scope.scores = {pod: dict(sorted(row.items())) for pod, row in sorted(scope.scores.items())}


def document(scope: Scope) -> Plan:
    """The finished plan. ``actions`` stay in the order in which the passes gave them: it is the order of execution."""
    return Plan(
        revision=scope.desired.revision,
        now=scope.now,
        actions=tuple(scope.actions),
        deferred=tuple(scope.deferred),
        pending=tuple(scope.pending),
        nodes=tuple(
            NodeState(name, view.pool, view.state, view.level, tuple(sorted(view.codes)))
            for name, view in sorted(scope.nodes.items())
        ),
        chips=tuple(scope.chips),
        scores=scope.scores,
        diagnostics=tuple(scope.diagnostics),
        history=scope.memory.frozen(),
    )


def _merged(entries: list[Pending]) -> list[Pending]:
    """One entry per gang, the first that was given, sorted by namespace, name and kind."""
    first: dict[tuple[str, str, str], Pending] = {}
    for entry in entries:
        first.setdefault((entry.namespace, entry.name, entry.kind), entry)
    return [first[key] for key in sorted(first)]
