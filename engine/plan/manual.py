"""What people take out by hand, and what they give back: Isolation documents and the lists of isolated chips.

ClusterD's list isolates the chips it names (component/clusterd/pkg/domain/manualfault). Belay's own list of the same
form, ``belay-system/belay-manual``, only shows its frequency holds; deleting a name there ends the hold.
"""

from __future__ import annotations

from typing import Final

from engine.documents import Declared, Isolation
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.model.times import rfc3339
from engine.plan import tables
from engine.plan.scope import Scope
from engine.plan.verdict import LIST_RULE, Held
from engine.wire import manualinfo, names

HeldChips = dict[str, dict[int, tuple[Held, ...]]]
TOLD_KEY: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.MANUAL)
LIST_KEY: Final = ObjectKey("v1", "ConfigMap", manualinfo.NAMESPACE, manualinfo.NAME)


def isolations(scope: Scope) -> tuple[dict[str, str], HeldChips]:
    """What Isolation documents and ClusterD's list take out at this time: nodes → rule, node → chip → rules."""
    nodes: dict[str, str] = {}
    by_chip = _listed(scope)
    for item in scope.desired.isolations:
        spec, rule = item.document.spec, f"Isolation/{item.document.name}"
        if spec.until is not None and scope.now >= spec.until:
            continue
        until = round(spec.until * 1000) if spec.until is not None else 0
        _tell(scope, item, rule, until)
        for node in spec.nodes:
            nodes.setdefault(node, rule)
        for row in spec.chips:
            for chip in row.chips:
                rules = by_chip.setdefault(row.node, {})
                rules[chip] = (*rules.get(chip, ()), Held(rule, until))
    return nodes, by_chip


def _tell(scope: Scope, item: Declared[Isolation], rule: str, until_ms: int) -> None:
    """Say which nodes a document holds and until when, and which of the nodes it names do not exist."""
    spec, origin = item.document.spec, item.origin
    end = f"until {rfc3339(until_ms / 1000)}" if until_ms else "until a person ends it"
    for name in sorted({*spec.nodes, *(row.node for row in spec.chips)}):
        if name not in scope.observed.nodes:
            text = f"names node {name}, which does not exist; it takes effect once the node registers"
            scope.diagnostics.append(Diagnostic("warning", rule, origin.file, origin.line, origin.column, "spec", text))
        elif name in spec.nodes and name in scope.nodes:
            text = f"node {name} is held: manual, by {rule}, {end}"
            scope.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", text))


def _listed(scope: Scope) -> HeldChips:
    """The chips in ``clusterd-manual-info-cm``, by ClusterD's rule where it is written: switched off it isolates
    nothing, and its hours give back what nobody lengthened."""
    raw, policy = scope.observed.objects.get(LIST_KEY), tables.manual_policy(scope.observed)
    if raw is None or (policy is not None and not policy.enabled):
        return {}
    listed, problems = manualinfo.parse(raw)
    scope.diagnostics.extend(Diagnostic("error", p.object, "", 0, 0, p.field, p.message) for p in problems)
    after = policy.release_ms if policy is not None else 0
    out = _kept(scope, {problem.field.partition(".")[2] for problem in problems})
    for node, named in listed.items():
        for chip, entries in named.items():
            newest = max((entry.since_ms for entry in entries), default=0)
            until = newest + after if newest and after else 0
            if not until or scope.now_ms < until:
                out.setdefault(node, {})[chip] = (Held(LIST_RULE, until),)
    return out


def _kept(scope: Scope, fields: set[str]) -> HeldChips:
    """What the list last said of nodes whose entry cannot be read any more (a person's slip must give nothing back):
    ``fields`` are the keys, or places below them."""
    out: HeldChips = {}
    for node, memory in scope.memory.nodes.items():
        if node not in fields and f"{node}.Total" not in fields:
            continue
        for chip, row in memory.chips.items():
            for hold in row.holds:
                if (hold.kind, hold.rule) == ("manual", LIST_RULE):
                    out.setdefault(node, {})[chip] = (Held(LIST_RULE, hold.until),)
    return out


def told(scope: Scope) -> dict[str, manualinfo.Chips] | None:
    """The chips in Belay's own list of frequency holds; None where the list is not written or cannot be read."""
    raw = scope.observed.objects.get(TOLD_KEY)
    if raw is None:
        return None
    listed, problems = manualinfo.parse(raw)
    return None if problems else listed
