"""The plan as a document: the decisions of the passes, sorted; decides nothing."""

from __future__ import annotations

from typing import assert_never

from belay.engine.model.causes import Cause
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import HOLD_KINDS, Hold, HoldKind
from belay.engine.model.holds import Held
from belay.engine.model.plan import NodeState, Pending, Plan, ServerChips
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.plan import causes
from belay.engine.plan.scope import Scope


#: End of a hold without a time, by kind.
def run(scope: Scope) -> None:
    """Sort every list whose order the passes do not give; keep one pending entry per gang."""
    scope.draft.pending = _merged(scope.draft.pending)
    _holds(scope)
    scope.draft.diagnostics = sorted(set(scope.draft.diagnostics) | set(scope.facts.observed.diagnostics))
    scope.scores = {pod: _in_order(row) for pod, row in sorted(scope.scores.items())}


def _in_order(row: dict[str, float]) -> dict[str, float]:
    """The scores sorted by node name; the same object when they are sorted already."""
    names = sorted(row)
    return row if names == list(row) else {name: row[name] for name in names}


def _holds(scope: Scope) -> None:
    """Report every hold with its rule and its end."""
    for name, view in scope.unassessed_views():
        if view.resetting:
            orders = scope.facts.observed.orders.get(name)
            end = rfc3339(orders.not_after_ms / 1000) if orders and orders.not_after_ms else "its end"
            which = ", ".join(view.chip(chip) for chip in ids_of(view.resetting))
            message = f"{which} of node {name} held: reset-pending, by the standing order, until {end} or the answer"
            scope.draft.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", message, PassCode.HELD))
    for name, memory in scope.draft.memory.nodes.items():
        held = scope.nodes.get(name)
        if held is None:
            continue
        for chip, row in memory.chips.items():
            for hold in row.holds:
                cause = causes.of_hold(scope, held, chip, hold)
                scope.holds.append(Held.of(name, held.chip(chip), hold, cause))
                end = f"until {rfc3339(hold.until / 1000)}" if hold.until else _end_of(HOLD_KINDS.get(hold.kind))
                by = f", by {_holder(hold, cause)}" if hold.rule else ""
                message = f"{held.chip(chip)} of node {name} is held: {hold.kind}{by}, {end}"
                scope.draft.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", message, PassCode.HELD))
    for name, isolation in causes.of_isolations(scope).items():
        scope.holds.append(Held(name, "", HoldKind.MANUAL, isolation.subject, until=isolation.until, cause=isolation))


def _holder(hold: Hold, cause: Cause | None) -> str:
    """What holds a chip: a rule or a code, and the document that says so."""
    if cause is None or not cause.commit:
        return f"{hold.rule} of {hold.policy}" if hold.policy else hold.rule
    by = cause.text_without_end
    return by if hold.rule_kind is RuleKind.ISOLATION else f"{hold.rule} of {by}"


def _end_of(kind: HoldKind | None) -> str:
    """What ends a hold that has no time of its own."""
    match kind:
        case HoldKind.MANUAL:
            return "until a person ends it"
        case HoldKind.FREQUENCY:
            return "until a person ends it (delete the name from Total in belay-system/belay-manual)"
        case HoldKind.BAD_BOOT:
            return "until a newer report"
        case HoldKind.DURATION | HoldKind.ATTEMPT_BUDGET | HoldKind.RESET_PENDING | HoldKind.NO_AGENT | None:
            return "until it is ended"
        case _:
            assert_never(kind)


def document(scope: Scope) -> Plan:
    """The finished plan; ``actions`` stay in the order of the passes, which is the order of execution."""
    return Plan(
        revision=scope.facts.desired.revision,
        now=scope.facts.now,
        actions=tuple(scope.draft.actions),
        deferred=tuple(scope.draft.deferred),
        pending=tuple(scope.draft.pending),
        nodes=tuple(
            [
                view.assessed.node
                if view.assessed is not None
                else NodeState(name, view.pool, view.state, view.level, tuple(sorted(view.codes)))
                for name, view in scope.nodes.items()  # in the order of names, see ``views``
            ]
        ),
        chips=tuple(scope.chips),
        scores=scope.scores,
        diagnostics=tuple(scope.draft.diagnostics),
        history=scope.draft.memory.frozen(),
        planes=scope.planes,
        switches=scope.switches,
        repeat_offenders=tuple(scope.repeat_offenders),
        links=tuple(scope.links),
        ignored=tuple(scope.ignored),
        servers={
            name: ServerChips(view.prefix, view.base, view.report is not None, view.suspended)
            for name, view in scope.nodes.items()
        },
        held_prune=scope.held_prune,
        budgets=scope.budgets,
        refusals=tuple(sorted(scope.refusals, key=lambda row: row.key)),
        holds=tuple(sorted(scope.holds, key=lambda row: (row.node, row.chip))),
    )


def _merged(entries: list[Pending]) -> list[Pending]:
    """The first entry of each gang, sorted by namespace, name and kind."""
    first: dict[tuple[str, str, str], Pending] = {}
    for entry in entries:
        first.setdefault((entry.namespace, entry.name, entry.kind), entry)
    return [first[key] for key in sorted(first)]
