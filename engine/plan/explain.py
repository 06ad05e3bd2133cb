"""The plan as a document: the decisions of the passes, sorted; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, assert_never

from belay.engine.model.causes import Cause
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import HOLD_KINDS, Hold, HoldKind
from belay.engine.model.holds import Held
from belay.engine.model.links import LinkState
from belay.engine.model.plan import (
    BudgetUse,
    ChipState,
    IgnoredObject,
    NodeState,
    Pending,
    Plan,
    PruneHold,
    ServerChips,
)
from belay.engine.model.refusals import ServerRefusal
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.plan import causes
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.health.assessment import Health
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.rules.fault_rules import FaultRules


def _in_order(row: dict[str, float]) -> dict[str, float]:
    """The scores sorted by node name; the same object when they are sorted already."""
    names = sorted(row)
    return row if names == list(row) else {name: row[name] for name in names}


def _holds(facts: Facts, draft: Draft, nodes: PassNodes, rules: FaultRules | None) -> list[Held]:
    """Report every hold with its rule and its end."""
    holds: list[Held] = []
    for name, view in nodes.unassessed_views():
        if view.resetting:
            orders = facts.observed.orders.get(name)
            end = rfc3339(orders.not_after_ms / 1000) if orders and orders.not_after_ms else "its end"
            which = ", ".join(view.chip(chip) for chip in ids_of(view.resetting))
            message = f"{which} of node {name} held: reset-pending, by the standing order, until {end} or the answer"
            draft.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", message, PassCode.HELD))
    for name, memory in draft.memory.nodes.items():
        held = nodes.get(name)
        if held is None:
            continue
        for chip, row in memory.chips.items():
            for hold in row.holds:
                cause = causes.of_hold(facts, rules, held, chip, hold)
                holds.append(Held.of(name, held.chip(chip), hold, cause))
                end = f"until {rfc3339(hold.until / 1000)}" if hold.until else _end_of(HOLD_KINDS.get(hold.kind))
                by = f", by {_holder(hold, cause)}" if hold.rule else ""
                message = f"{held.chip(chip)} of node {name} is held: {hold.kind}{by}, {end}"
                draft.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", message, PassCode.HELD))
    for name, isolation in causes.of_isolations(facts, nodes).items():
        holds.append(Held(name, "", HoldKind.MANUAL, isolation.subject, until=isolation.until, cause=isolation))
    return sorted(holds, key=lambda row: (row.node, row.chip))


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


class Findings(NamedTuple):
    """What the passes found beside the views of nodes and the draft."""

    health: Health = Health()
    chips: Sequence[ChipState] = ()
    scores: Mapping[str, dict[str, float]] = MappingProxyType({})
    links: Sequence[LinkState] = ()
    ignored: Sequence[IgnoredObject] = ()
    held_prune: PruneHold | None = None
    budgets: tuple[BudgetUse, ...] = ()
    refusals: Sequence[ServerRefusal] = ()


def document(facts: Facts, draft: Draft, nodes: PassNodes, found: Findings) -> Plan:
    """The finished plan; ``actions`` stay in the order of the passes, which is the order of execution.

    Every list whose order the passes do not give is sorted, and one pending entry stays per gang.
    """
    holds = _holds(facts, draft, nodes, found.health.rules)
    return Plan(
        revision=facts.desired.revision,
        now=facts.now,
        actions=tuple(draft.actions),
        deferred=tuple(draft.deferred),
        pending=tuple(_merged(draft.pending)),
        nodes=tuple(
            [
                view.assessed.node
                if view.assessed is not None
                else NodeState(name, view.pool, view.state, view.level, tuple(sorted(view.codes)))
                for name, view in nodes.items()  # in the order of names, see ``views``
            ]
        ),
        chips=tuple(found.chips),
        scores={pod: _in_order(row) for pod, row in sorted(found.scores.items())},
        diagnostics=tuple(sorted(set(draft.diagnostics) | set(facts.observed.diagnostics))),
        history=draft.memory.frozen(),
        planes=found.health.planes,
        switches=found.health.switches,
        repeat_offenders=tuple(found.health.repeat_offenders),
        links=tuple(found.links),
        ignored=tuple(found.ignored),
        servers={
            name: ServerChips(view.prefix, view.base, view.report is not None, view.suspended)
            for name, view in nodes.items()
        },
        held_prune=found.held_prune,
        budgets=found.budgets,
        refusals=tuple(sorted(found.refusals, key=lambda row: row.key)),
        holds=tuple(holds),
    )


def _merged(entries: list[Pending]) -> list[Pending]:
    """The first entry of each gang, sorted by namespace, name and kind."""
    first: dict[tuple[str, str, str], Pending] = {}
    for entry in entries:
        first.setdefault((entry.namespace, entry.name, entry.kind), entry)
    return [first[key] for key in sorted(first)]
