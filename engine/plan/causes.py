"""Causes of actions: which report, condition, document, mark, object or decision an action is taken for.

Passes that choose among several causes name theirs in the evidence (``of_chips``, ``of_node``, …); ``run`` fills in
those that an action's kind and evidence show on their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from belay.engine.documents import Declared, Isolation
from belay.engine.model.actions import (
    AnyAction,
    BindPod,
    CreateObject,
    CreatePod,
    DeleteObject,
    EvictPod,
    Evidence,
    IsolateChip,
    IsolateNode,
    PartitionChip,
    PatchObject,
    ReleaseChip,
    ReleaseNode,
    ResetChips,
    ScaleJob,
    SignalJob,
    WriteRankTable,
)
from belay.engine.model.causes import Cause, CauseKind, joined
from belay.engine.model.diagnostics import Origin
from belay.engine.model.history import Hold, NodeMemory
from belay.engine.model.jobs import Gang
from belay.engine.model.node_options import cordon_rule
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import DOCUMENTS, RuleKind, document_and_part, rule_kind
from belay.engine.model.times import rfc3339
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.rules.fault_rules import FaultRules
from belay.engine.wire.orders import chip_number

GONE: Final = "no longer declared"


def name_causes(facts: Facts, draft: Draft, nodes: PassNodes, rules: FaultRules | None) -> None:
    """Fill in the causes that no pass has named."""
    draft.actions = [_with_cause(facts, draft, nodes, rules, action) for action in draft.actions]
    draft.deferred = [
        msgspec.structs.replace(row, action=_with_cause(facts, draft, nodes, rules, row.action))
        for row in draft.deferred
    ]


# what passes ask


def caused(evidence: Evidence, cause: Cause | None) -> Evidence:
    """The evidence with its cause."""
    return msgspec.structs.replace(evidence, cause=cause or msgspec.UNSET)


def of_chips(
    facts: Facts, draft: Draft, rules: FaultRules | None, view: NodeView, chips: Iterable[int]
) -> Cause | None:
    """Why chips of a node are as they are: the rule that decided for each, or the report on it."""
    return joined(tuple(_of_chip(facts, draft, rules, view, chip) for chip in chips))


def of_node(facts: Facts, nodes: PassNodes, view: NodeView) -> Cause:
    """Why a node takes no work, or its pods have to go."""
    name = view.node.name
    isolation = of_isolations(facts, nodes).get(name)
    if isolation is not None:
        return isolation
    if view.node.maintenance or view.node.departure is not None:
        detail = view.node.maintenance or (view.node.departure.text if view.node.departure is not None else "")
        return Cause(kind=CauseKind.CONDITION, subject=f"Node/{name}", detail=detail)
    hardware = facts.observed.node_reports.get(name)
    stated = [one for one in view.node.conditions if one.type in view.codes]
    if stated and (hardware is None or not hardware.devices):
        detail = ", ".join(f"{one.type}={one.status}" for one in stated)
        return Cause(kind=CauseKind.CONDITION, subject=f"Node/{name}", detail=detail)
    if hardware is not None:
        return _report(f"mindx-dl/mindx-dl-nodeinfo-{name}", view.codes)
    if not view.node.ready:
        return Cause(kind=CauseKind.CONDITION, subject=f"Node/{name}", detail="not Ready")
    if view.report is not None and view.report.switch is not None:
        return _report(_device_report(name), view.codes)
    return Cause(kind=CauseKind.CONDITION, subject=f"Node/{name}", detail=str(view.state))


def of_isolations(facts: Facts, nodes: PassNodes) -> dict[str, Cause]:
    """The Isolations in force that take whole nodes out, by node: the first one of each."""
    found: dict[str, Cause] = {}
    for item in facts.desired.isolations:
        spec = item.document.spec
        if spec.until is not None and facts.now >= spec.until:
            continue
        for node in spec.nodes:
            if node in nodes:
                found.setdefault(node, of_document(facts, item))
    return found


def of_missing_node(name: str) -> Cause:
    """A node that does not exist any more."""
    return Cause(kind=CauseKind.CONDITION, subject=f"Node/{name}", detail="deleted")


def of_pod(key: str, detail: str) -> Cause:
    """A pod that is as it is."""
    return Cause(kind=CauseKind.OBJECT, subject=f"Pod/{key}", detail=detail)


def of_mark(key: str, detail: str) -> Cause:
    """A label or annotation that a person or a program put on a pod."""
    return Cause(kind=CauseKind.ANNOTATION, subject=f"Pod/{key}", detail=detail)


def of_claim(gang: Gang, rule: str) -> Cause:
    """Another job that a queue or a priority puts first."""
    return Cause(kind=CauseKind.DECISION, subject=f"{gang.kind}/{gang.namespace}/{gang.name}", rule=rule)


def of_codes(node: str, codes: tuple[str, ...]) -> Cause:
    """Codes in a node's device report."""
    return _report(_device_report(node), codes)


# documents, reports


def _of_chip(facts: Facts, draft: Draft, rules: FaultRules | None, view: NodeView, chip: int) -> Cause:
    return _of_rule(facts, rules, view, chip, _rule_of(draft, view, chip))


def of_hold(facts: Facts, rules: FaultRules | None, view: NodeView, chip: int, hold: Hold) -> Cause | None:
    """The document that holds a chip; None where none does, or it is not there any more."""
    rule = hold.policy or hold.rule
    cause = _of_rule(facts, rules, view, chip, rule) if rule_kind(rule) in DOCUMENTS else None
    return cause if cause is not None and cause.kind is CauseKind.DOCUMENT else None


def _of_rule(facts: Facts, rules: FaultRules | None, view: NodeView, chip: int, rule: str) -> Cause:
    name, codes = view.node.name, view.chip_codes.get(chip, ())
    for item in facts.desired.isolations:
        if rule == RuleKind.ISOLATION.named(item.document.name):
            return of_document(facts, item)

    document, part = document_and_part(rule)
    origin = rules.origin(rule) if rules is not None else None
    if origin is not None:
        return _document(facts, document, origin, ", ".join(codes), rule=part)
    kind = rule_kind(rule)
    if kind in (RuleKind.MANUAL_LIST, RuleKind.MANUAL_KEY):
        subject = document if kind is RuleKind.MANUAL_LIST else f"ConfigMap/{_device_report(name)}"
        return Cause(kind=CauseKind.ANNOTATION, subject=subject, rule=part, detail=view.chip(chip))
    cause = _report(_device_report(name), codes)
    return msgspec.structs.replace(cause, rule=rule) if kind is RuleKind.FAULT_TABLE else cause


def _rule_of(draft: Draft, view: NodeView, chip: int) -> str:
    """The rule that decided about a chip; for a hold, the rule of the policy that holds it."""
    memory = draft.memory.nodes.get(view.node.name, NodeMemory()).chips.get(chip)
    held = next((hold.policy for hold in memory.holds if hold.policy), "") if memory is not None else ""
    return held or view.chip_rules.get(chip, "")


def _document(facts: Facts, subject: str, origin: Origin, detail: str = "", *, rule: str = "") -> Cause:
    place = facts.desired.place_of(origin)
    return Cause(
        kind=CauseKind.DOCUMENT,
        subject=subject,
        rule=rule,
        detail=detail,
        file=place.file,
        line=place.line,
        commit=place.commit,
        author=place.author,
    )


def of_document(facts: Facts, item: Declared[Isolation]) -> Cause:
    """An Isolation with its reason, its author and its end."""
    spec = item.document.spec
    cause = _document(facts, RuleKind.ISOLATION.named(item.document.name), item.origin, spec.reason)
    return msgspec.structs.replace(cause, until=rfc3339(spec.until) if spec.until is not None else "")


def _report(name: str, codes: Iterable[str]) -> Cause:
    return Cause(kind=CauseKind.REPORT, subject=f"ConfigMap/{name}", detail=", ".join(codes))


def _device_report(node: str) -> str:
    return f"kube-system/mindx-dl-deviceinfo-{node}"


# what actions say themselves


def _with_cause(facts: Facts, draft: Draft, nodes: PassNodes, rules: FaultRules | None, action: AnyAction) -> AnyAction:
    if isinstance(action.evidence.cause, Cause):
        return action
    return msgspec.structs.replace(
        action, evidence=caused(action.evidence, _cause_of(facts, draft, nodes, rules, action))
    )


def _cause_of(facts: Facts, draft: Draft, nodes: PassNodes, rules: FaultRules | None, action: AnyAction) -> Cause:
    """The cause that an action's kind and evidence show."""
    evidence = action.evidence
    if isinstance(action, DeleteObject) and action.reason == ActionReason.PRUNED:
        return _gone(facts, _subject(action.object_kind, action.namespace, action.name))
    if isinstance(action, ReleaseChip | ReleaseNode):
        return _of_release(facts, nodes, action)
    if isinstance(action, ResetChips | IsolateChip):
        view = nodes.get(action.node)
        found = (
            of_chips(facts, draft, rules, view, [chip_number(one) for one in action.chips])
            if view is not None
            else None
        )
        return _report(_device_report(action.node), ("clean",)) if found is None else found
    if isinstance(action, IsolateNode):
        view = nodes.get(action.node)
        return of_missing_node(action.node) if view is None else of_node(facts, nodes, view)
    if isinstance(action, PartitionChip):
        return _of_partition(facts, action)
    if evidence.file:
        return _declared(facts, action, evidence)
    return Cause(kind=CauseKind.OBJECT, subject=_object_of(action), rule=evidence.rule)


def _of_release(facts: Facts, nodes: PassNodes, action: ReleaseChip | ReleaseNode) -> Cause:
    """What ended: the Isolations that held before, a policy that judged what is still reported, else the faults in the
    reports.
    """
    ended = joined(tuple(_ended(facts, rule) for rule in _isolated_by(facts, action)))
    if ended is not None:
        return ended
    judged = joined(_judged_otherwise(facts, nodes, action)) if isinstance(action, ReleaseChip) else None
    if judged is not None:
        return judged
    device = _report(_device_report(action.node), ("clean",))
    if isinstance(action, ReleaseChip):
        return device
    node = _report(f"mindx-dl/mindx-dl-nodeinfo-{action.node}", ("clean",))
    return msgspec.structs.replace(node, also=(device,))


def _isolated_by(facts: Facts, action: ReleaseChip | ReleaseNode) -> tuple[str, ...]:
    """The Isolations that held what is released, as the last pass remembers its chips, and the cordon its node."""
    if isinstance(action, ReleaseNode):
        node = facts.observed.nodes.get(action.node)
        rule = (cordon_rule(node) if node is not None else None) or ""
        return (rule,) if rule_kind(rule) is RuleKind.ISOLATION else ()
    before = facts.observed.history.nodes.get(action.node, NodeMemory()).chips
    chips = [before[chip] for chip in map(chip_number, action.chips) if chip in before]
    rules = [rule for row in chips for rule in (row.rule, *(hold.rule for hold in row.holds))]
    return tuple(dict.fromkeys(rule for rule in rules if rule_kind(rule) is RuleKind.ISOLATION))


def _judged_otherwise(facts: Facts, nodes: PassNodes, action: ReleaseChip) -> tuple[Cause, ...]:
    """The policies that changed: the report still has the faults for which the chips were isolated.

    It is the policy that judged before, changed or gone, else the one that judges now.
    """
    view = nodes.get(action.node)
    before = facts.observed.history.nodes.get(action.node, NodeMemory()).chips
    found: list[Cause] = []
    if view is None or view.report is None:
        return ()

    for chip in map(chip_number, action.chips):
        if not any(fault.chip == chip and fault.code for fault in view.report.faults):
            continue
        row = before.get(chip)
        for rule in (row.rule if row is not None else "", view.chip_rules.get(chip, "")):
            if rule_kind(rule) is RuleKind.FAULT_POLICY:
                found.append(_of_policy(facts, view, chip, rule))
                break
    return tuple(found)


def _of_policy(facts: Facts, view: NodeView, chip: int, rule: str) -> Cause:
    """A FaultPolicy as it is declared now, with the change of its file; or that it is declared no more."""
    document, part = document_and_part(rule)
    for item in facts.desired.fault_policies:
        if document == RuleKind.FAULT_POLICY.named(item.document.name):
            codes = ", ".join(view.chip_codes.get(chip, ()))
            return _document(facts, document, item.origin, codes, rule=part)
    return _gone(facts, document)


def _ended(facts: Facts, rule: str) -> Cause:
    """An Isolation that holds no more: its time is over, or Git no longer declares it so."""
    for item in facts.desired.isolations:
        if rule == RuleKind.ISOLATION.named(item.document.name):
            return of_document(facts, item)
    return _gone(facts, rule)


def _gone(facts: Facts, subject: str) -> Cause:
    """That a document is declared no more: the file in which it stood, and the commit that took it out of it."""
    former = facts.observed.places.get(subject)
    if former is None:
        return Cause(kind=CauseKind.DOCUMENT, subject=subject, detail=GONE, commit=facts.desired.revision)
    return _document(facts, subject, Origin(former.file, former.line), GONE)


def _of_partition(facts: Facts, action: PartitionChip) -> Cause:
    """The layout that asks for vNPUs; or that none does any more."""
    evidence = action.evidence
    if evidence.file:
        return _document(facts, evidence.rule, Origin(evidence.file, evidence.line), action.chip)
    detail = f"{action.chip} of node {action.node}: {GONE}"
    return Cause(kind=CauseKind.DOCUMENT, subject="VNPULayout", detail=detail, commit=facts.desired.revision)


def _declared(facts: Facts, action: AnyAction, evidence: Evidence) -> Cause:
    """The document whose place the evidence names."""
    origin = Origin(evidence.file, evidence.line)
    if evidence.rule_kind is RuleKind.SYNC and isinstance(action, CreateObject | PatchObject):
        return _document(facts, _subject(action.object_kind, action.namespace, action.name), origin, rule=evidence.rule)
    return _document(facts, _object_of(action), origin, rule=evidence.rule)


def _object_of(action: AnyAction) -> str:
    """The object that an action is for: the owner of what it makes, else what it changes."""
    if isinstance(action, CreatePod):
        return _subject(action.owner.kind, action.namespace, action.owner.name)
    if isinstance(action, BindPod | EvictPod):
        return f"Pod/{action.namespace}/{action.pod}"
    if isinstance(action, CreateObject | PatchObject | DeleteObject):
        owner = _owner_of(action)
        return owner or _subject(action.object_kind, action.namespace, action.name)
    if isinstance(action, ScaleJob):
        return _subject(action.job_kind, action.namespace, action.name)
    if isinstance(action, SignalJob | WriteRankTable):
        return f"Job/{action.namespace}/{action.name}"
    return f"Node/{action.node}"


def _owner_of(action: CreateObject | PatchObject | DeleteObject) -> str:
    """The controller that a new object names."""
    raw = action.object if isinstance(action, CreateObject) else {}
    for row in (raw.get("metadata") or {}).get("ownerReferences") or ():
        return _subject(str(row.get("kind")), action.namespace, str(row.get("name")))
    return ""


def _subject(kind: str, namespace: str, name: str) -> str:
    return "/".join(part for part in (kind, namespace, name) if part)


__all__ = [
    "caused", "of_chips", "of_claim", "of_codes", "of_document", "of_hold", "of_isolations", "of_mark",
    "of_missing_node", "of_node", "of_pod", "name_causes",
]  # fmt: skip
