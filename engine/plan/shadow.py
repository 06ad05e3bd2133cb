"""Shadow policies: the same pass on a copied world in which one of them is enforced, compared with the real plan.

A shadow policy never changes an action. The memory of codes under it (occurrences, upgrades) is a track beside each
chip's memory (``NodeMemory.shadows``), kept only where it differs from the real memory. The other pass always starts
from the world as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from belay.engine.documents import Declared, Desired, FaultPolicy
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction, kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import (
    ChipMemory,
    History,
    HoldKind,
    NodeMemory,
)
from belay.engine.model.levels import NORMAL
from belay.engine.model.plan import Plan, ShadowChange
from belay.engine.model.states import NodeHealth
from belay.engine.plan.rules import in_force

#: Maximum shadow policies evaluated per pass; a diagnostic names the others.
MAX_POLICIES: Final = 8
#: Maximum differences of one policy in a plan.
MAX_CHANGES: Final = 200
#: Maximum diagnostics per policy; status holds all differences.
MAX_LINES: Final = 20
#: Actions that are compared: all that people would notice.
COMPARED_ACTIONS: Final = (
    act.EvictPod, act.IsolateChip, act.ReleaseChip, act.IsolateNode, act.ReleaseNode, act.ResetChips,
    act.PartitionChip, act.BindPod, act.ScaleJob, act.SignalJob,
)  # fmt: skip
# read often: members of an enumeration are slow to look up
_HEALTHY: Final = NodeHealth.HEALTHY
_PLAIN: Final = ChipMemory()

Pass = Callable[[Desired, Observed], Plan]
DecisionKey = tuple[str, ...]


def compare(desired: Desired, observed: Observed, result: Plan, run: Pass) -> Plan:
    """The plan with the changes by each shadow policy, and their tracks in the memory; ``run`` is one plain pass."""
    policies = [item for item in _in_force(desired, result) if item.document.spec.mode == "shadow"]
    tracked = any(memory.shadows for memory in result.history.nodes.values())
    if not policies and not tracked:
        return result
    changes: list[ShadowChange] = []
    tracks: dict[str, dict[str, dict[int, ChipMemory]]] = {}
    said = list(result.diagnostics)
    for item in policies[:MAX_POLICIES] if tracked or _any_fault(result) else ():
        name = item.document.name
        enforcing = _enforcing(desired, result, name)
        codes = {node: memory.shadows.get(name, {}) for node, memory in observed.history.nodes.items()}
        other = run(enforcing, with_memory(enforcing, observed, codes, result.history))
        found = list(differences(result, other))
        changes += [ShadowChange(name, change, action, budget) for change, action, budget in found[:MAX_CHANGES]]
        tracks[name] = track(result.history, other.history)
        said += _diagnostics(item, found)
    if len(policies) > MAX_POLICIES:
        left = ", ".join(item.document.name for item in policies[MAX_POLICIES:])
        text = f"shadow policies beyond the first {MAX_POLICIES} are not asked: {left}"
        said.append(Diagnostic("warning", "FaultPolicy", "", 0, 0, "spec.mode", text, PassCode.SHADOWS_LEFT_OUT))
    history = msgspec.structs.replace(result.history, nodes=_with_tracks(result.history.nodes, tracks))
    return msgspec.structs.replace(
        result, shadows=tuple(changes), diagnostics=tuple(sorted(set(said))), history=history
    )


def differences(now: Plan, other: Plan) -> Iterator[tuple[str, AnyAction, str]]:
    """Actions of only one of two plans, as (``new`` or ``avoided``, action, budget that defers it)."""
    ours, theirs = decided(now), decided(other)
    for key in sorted(theirs.keys() - ours.keys()):
        yield "new", *theirs[key]
    for key in sorted(ours.keys() - theirs.keys()):
        yield "avoided", *ours[key]


def decided(plan: Plan) -> dict[DecisionKey, tuple[AnyAction, str]]:
    """All actions of a plan, deferred ones included; one entry per chip, pod, node or job."""
    out: dict[DecisionKey, tuple[AnyAction, str]] = {}
    rows = [*((action, "") for action in plan.actions), *((row.action, row.budget) for row in plan.deferred)]
    for action, budget in rows:
        if isinstance(action, act.IsolateChip | act.ReleaseChip):
            for chip in action.chips:
                one = msgspec.structs.replace(action, chips=(chip,))
                out.setdefault((kind_of(action), action.node, chip, action.level), (one, budget))
        elif isinstance(action, COMPARED_ACTIONS):
            out.setdefault(_key(action), (action, budget))
    return out


def _key(action: Any) -> DecisionKey:
    kind = kind_of(action)
    match action:
        case act.ResetChips():
            return kind, action.node, *action.chips
        case act.BindPod():
            return kind, action.namespace, action.pod, action.node, *action.chips
        case act.EvictPod():
            return kind, action.namespace, action.pod
        case act.IsolateNode() | act.ReleaseNode():
            return kind, action.node, action.level
        case act.PartitionChip():
            return kind, action.node, action.chip, *action.templates
        case act.ScaleJob():
            return kind, action.namespace, action.name, str(action.replicas)
        case _:
            return kind, action.namespace, action.name, str(action.signal)


def _any_fault(result: Plan) -> bool:
    """Whether the plan has any fault; without one, no policy makes a difference."""
    return (
        bool(result.history.nodes)
        or any(chip.codes or chip.level != NORMAL for chip in result.chips)
        or any(node.state != _HEALTHY or node.codes for node in result.nodes)
    )


def _in_force(desired: Desired, result: Plan) -> tuple[Declared[FaultPolicy], ...]:
    """The policies in force in this pass; not those of a revision that was held back."""
    kept = in_force.previous_policies(result.history.policy_revision)
    return in_force.fault_policies(desired) if kept is None else kept


def enforced(item: Declared[FaultPolicy]) -> Declared[FaultPolicy]:
    """The same policy in ``mode: enforce``."""
    spec = item.document.spec.model_copy(update={"mode": "enforce"})
    return dataclasses.replace(item, document=item.document.model_copy(update={"spec": spec}))


def _enforcing(desired: Desired, result: Plan, name: str) -> Desired:
    policies = tuple(enforced(item) if item.document.name == name else item for item in _in_force(desired, result))
    return dataclasses.replace(desired, fault_policies=policies)


def with_memory(
    desired: Desired, observed: Observed, tracks: Mapping[str, Mapping[int, ChipMemory]], real: History
) -> Observed:
    """The world with another memory of codes, by node and chip.

    The policies of ``desired`` count as in force, so that no change is held back; ``real`` is the memory after the real
    pass.
    """
    nodes = dict(observed.history.nodes)
    for node, rows in tracks.items():
        if rows:
            nodes[node] = _with_codes(nodes.get(node, NodeMemory()), rows)
    pools = in_force.previous_pools(real.policy_revision)
    revision = in_force.text(in_force.fault_policies(desired), pools)
    history = msgspec.structs.replace(observed.history, nodes=dict(sorted(nodes.items())), policy_revision=revision)
    return msgspec.structs.replace(observed, history=history)


def _with_codes(memory: NodeMemory, rows_of_its_own: Mapping[int, ChipMemory]) -> NodeMemory:
    rows = dict(memory.chips)
    for chip, codes in rows_of_its_own.items():
        real = rows.get(chip, _PLAIN)
        others = tuple(hold for hold in real.holds if hold.kind != HoldKind.FREQUENCY)
        rows[chip] = msgspec.structs.replace(
            real, codes=codes.codes, holds=(*others, *codes.holds), hardware=codes.hardware
        )
    return msgspec.structs.replace(memory, chips=dict(sorted(rows.items())))


def track(real: History, other: History) -> dict[str, dict[int, ChipMemory]]:
    """The memory of codes under another policy where it differs from the real one, by node and chip."""
    out: dict[str, dict[int, ChipMemory]] = {}
    for node in sorted({*real.nodes, *other.nodes}):
        ours, theirs = real.nodes.get(node, NodeMemory()).chips, other.nodes.get(node, NodeMemory()).chips
        for chip in sorted({*ours, *theirs}):
            codes = _codes(theirs.get(chip, _PLAIN))
            if codes != _codes(ours.get(chip, _PLAIN)):
                out.setdefault(node, {})[chip] = codes
    return out


def _codes(row: ChipMemory) -> ChipMemory:
    holds = tuple(hold for hold in row.holds if hold.kind == HoldKind.FREQUENCY)
    return ChipMemory(codes=row.codes, holds=holds, hardware=row.hardware)


def _with_tracks(
    nodes: Mapping[str, NodeMemory], tracks: Mapping[str, Mapping[str, dict[int, ChipMemory]]]
) -> dict[str, NodeMemory]:
    out = dict(nodes)
    for node in sorted({*nodes, *(node for one in tracks.values() for node in one)}):
        before = nodes.get(node, NodeMemory())
        after = {name: one[node] for name, one in sorted(tracks.items()) if node in one}
        if after != before.shadows:
            out[node] = msgspec.structs.replace(before, shadows=after)
    return dict(sorted(out.items()))


def _diagnostics(item: Declared[FaultPolicy], found: list[tuple[str, AnyAction, str]]) -> Iterator[Diagnostic]:
    """Diagnostics for the differences by one policy."""
    origin, name = item.origin, f"FaultPolicy/{item.document.name}"
    place = (origin.file, origin.line, origin.column)
    for change, action, budget in found[:MAX_LINES]:
        would = "would" if change == "new" else "would not"
        held = f" (held back by budget {budget})" if budget and change == "new" else ""
        text = f"shadow: {would} {kind_of(action)}: {action.message}{held}"
        if isinstance(action, act.IsolateChip | act.ReleaseChip):
            codes = f" by {', '.join(action.evidence.codes)}" if action.evidence.codes else ""
            text = f"shadow: {would} {kind_of(action)}: {action.chips[0]} of node {action.node}, level {action.level}"
            text += f"{codes}{held}"
        yield Diagnostic("info", name, *place, "spec.mode", text, PassCode.SHADOW)
    if len(found) > MAX_LINES:
        text = f"shadow: {len(found) - MAX_LINES} more differences, see belay-sync"
        yield Diagnostic("info", name, *place, "spec.mode", text, PassCode.SHADOW)
