"""Isolation by people: ``Isolation`` documents and the lists of isolated chips.

ClusterD's list isolates the chips it names (component/clusterd/pkg/domain/manualfault). Belay's list has the same
form, ``belay-system/belay-manual``, and shows frequency holds; deleting a name there ends the hold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from belay.engine.documents import Declared, Isolation
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import HoldKind
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.plan import causes
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.health.assessment import LIST_RULE, ManualHold
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.rules import fault_tables
from belay.engine.wire import manualinfo, names


class NodeHold(NamedTuple):
    """Why a whole node is in maintenance: the rule, its words for people, and whether Belay cordons the node for it.

    ``waits``: pods that their annotations keep on the node stay until others delete them.
    """

    rule: str
    text: str
    cordon: bool
    waits: bool = False


ManualHolds = dict[str, dict[int, tuple[ManualHold, ...]]]
FREQUENCY_LIST_KEY: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.MANUAL)
LIST_KEY: Final = ObjectKey("v1", "ConfigMap", manualinfo.NAMESPACE, manualinfo.NAME)


def isolations(facts: Facts, draft: Draft, nodes: PassNodes) -> tuple[dict[str, NodeHold], ManualHolds]:
    """Isolations that are in force now: node → hold, and node → chip → holds. Conditions of nodes that are emptied or
    worked on hold them too, and so do taints by which others remove them: who writes those closes the nodes."""
    held: dict[str, NodeHold] = {}
    by_chip = _listed(facts, draft)
    for item in facts.desired.isolations:
        spec, rule = item.document.spec, RuleKind.ISOLATION.named(item.document.name)
        if spec.until is not None and facts.now >= spec.until:
            continue
        until = round(spec.until * 1000) if spec.until is not None else 0
        _diagnose(facts, draft, nodes, item, rule, until)
        for node in spec.nodes:
            held.setdefault(node, NodeHold(rule, f"{rule}: {spec.reason}" if spec.reason else rule, True))
        for row in spec.chips:
            for chip in row.chips:
                rules = by_chip.setdefault(row.node, {})
                rules[chip] = (*rules.get(chip, ()), ManualHold(rule, until))

    for name, known in facts.observed.nodes.items():
        if name not in nodes:
            continue
        if known.maintenance:
            rule = f"Node/{name} {known.maintenance}"
            held.setdefault(name, NodeHold(rule, f"condition {known.maintenance}", False))
        elif known.departure is not None and known.departure.now:
            leaves = NodeHold(f"Node/{name} departure", known.departure.text, False, known.departure.waits)
            held.setdefault(name, leaves)
    return held, by_chip


def _diagnose(
    facts: Facts, draft: Draft, nodes: PassNodes, item: Declared[Isolation], rule: str, until_ms: int
) -> None:
    """Report the nodes that a document holds and until when, and the nodes it names that do not exist."""
    spec, origin = item.document.spec, item.origin
    end = f"until {rfc3339(until_ms / 1000)}" if until_ms else "until a person ends it"
    for name in sorted({*spec.nodes, *(row.node for row in spec.chips)}):
        if name not in facts.observed.nodes:
            text = f"names node {name}, which does not exist; it takes effect once the node registers"
            place = (origin.file, origin.line, origin.column)
            draft.diagnostics.append(Diagnostic("warning", rule, *place, "spec", text, PassCode.UNKNOWN_NODE))
        elif name in spec.nodes and name in nodes:
            by = causes.of_document(facts, item).text_without_end
            text = f"node {name} is held: manual, by {by}, {end}"
            draft.diagnostics.append(Diagnostic("info", f"Node/{name}", "", 0, 0, "", text, PassCode.HELD))


def _listed(facts: Facts, draft: Draft) -> ManualHolds:
    """Holds of the chips in ``clusterd-manual-info-cm``.

    ClusterD's rule, where the cluster has it, applies: disabled, it isolates nothing; its hours end a hold.
    """
    raw, policy = facts.observed.objects.get(LIST_KEY), fault_tables.manual_policy(facts.observed, facts.cache)
    if raw is None or (policy is not None and not policy.enabled):
        return {}
    listed, problems = manualinfo.parse(raw)
    draft.diagnostics.extend(
        Diagnostic("error", p.object, "", 0, 0, p.field, p.message, PassCode.UNREADABLE) for p in problems
    )
    after = policy.release_ms if policy is not None else 0
    out = _last_readable(draft, {problem.field.partition(".")[2] for problem in problems})
    for node, named in listed.items():
        for chip, entries in named.items():
            newest = max((entry.since_ms for entry in entries), default=0)
            until = newest + after if newest and after else 0
            if not until or facts.now_ms < until:
                out.setdefault(node, {})[chip] = (ManualHold(LIST_RULE, until),)
    return out


def _last_readable(draft: Draft, fields: set[str]) -> ManualHolds:
    """The previous holds of nodes whose entry cannot be read: a person's slip must release nothing.

    ``fields`` are the unreadable keys, or paths below them.
    """
    out: ManualHolds = {}
    for node, memory in draft.memory.nodes.items():
        if node not in fields and f"{node}.Total" not in fields:
            continue
        for chip, row in memory.chips.items():
            for hold in row.holds:
                if hold.key == (HoldKind.MANUAL, LIST_RULE):
                    out.setdefault(node, {})[chip] = (ManualHold(LIST_RULE, hold.until),)
    return out


def listed_holds(facts: Facts) -> dict[str, manualinfo.Chips] | None:
    """The chips in Belay's list of frequency holds; None when the list is missing or unreadable."""
    raw = facts.observed.objects.get(FREQUENCY_LIST_KEY)
    if raw is None:
        return None
    listed, problems = manualinfo.parse(raw)
    return None if problems else listed
