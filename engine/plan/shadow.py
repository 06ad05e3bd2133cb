"""What shadow policies would do: the same pass on a copied world in which one of them is enforced, and the difference.

A shadow policy never changes an action. What codes would have done to chips under it over time (occurrences, upgrades)
is a track of its own beside each chip's memory (``NodeMemory.shadows``), kept only where it differs from what really
happened; what it would do is always asked of the world as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from engine.documents import Declared, Desired, FaultPolicy
from engine.model import actions as act
from engine.model.actions import AnyAction, kind_of
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic
from engine.model.history import ChipMemory, History, NodeMemory
from engine.model.levels import NORMAL
from engine.model.plan import Plan, ShadowChange
from engine.plan import inforce

#: Shadow policies of which each pass asks what they would do; the rest is named in a diagnostic.
MAX_POLICIES: Final = 8
#: Differences of one policy that a plan holds.
MAX_CHANGES: Final = 200
#: Lines per policy among the diagnostics; status holds all.
MAX_LINES: Final = 20
#: What a shadow is told of: everything that people would notice.
TOLD: Final = (
    act.EvictPod, act.IsolateChip, act.ReleaseChip, act.IsolateNode, act.ReleaseNode, act.ResetChips,
    act.PartitionChip, act.BindPod, act.ScaleJob, act.SignalJob,
)  # fmt: skip
_PLAIN: Final = ChipMemory()

Pass = Callable[[Desired, Observed], Plan]
Key = tuple[str, ...]


def cast(desired: Desired, observed: Observed, result: Plan, run: Pass) -> Plan:
    """The plan with what each shadow policy would change, and its track in the memory. ``run`` is one plain pass."""
    policies = [item for item in _in_force(desired, result) if item.document.spec.mode == "shadow"]
    tracked = any(memory.shadows for memory in result.history.nodes.values())
    if not policies and not tracked:
        return result
    changes: list[ShadowChange] = []
    tracks: dict[str, dict[str, dict[int, ChipMemory]]] = {}
    said = list(result.diagnostics)
    for item in policies[:MAX_POLICIES] if tracked or _matters(result) else ():
        name = item.document.name
        enforcing = _enforcing(desired, result, name)
        own = {node: memory.shadows.get(name, {}) for node, memory in observed.history.nodes.items()}
        other = run(enforcing, remembering(enforcing, observed, own, result.history))
        found = list(differences(result, other))
        changes += [ShadowChange(name, change, action, budget) for change, action, budget in found[:MAX_CHANGES]]
        tracks[name] = track(result.history, other.history)
        said += _lines(item, found)
    if len(policies) > MAX_POLICIES:
        left = ", ".join(item.document.name for item in policies[MAX_POLICIES:])
        text = f"shadow policies beyond the first {MAX_POLICIES} are not asked: {left}"
        said.append(Diagnostic("warning", "FaultPolicy", "", 0, 0, "spec.mode", text))
    history = msgspec.structs.replace(result.history, nodes=_with_tracks(result.history.nodes, tracks))
    return msgspec.structs.replace(
        result, shadows=tuple(changes), diagnostics=tuple(sorted(set(said))), history=history
    )


def differences(now: Plan, other: Plan) -> Iterator[tuple[str, AnyAction, str]]:
    """What one plan does and the other does not, as (``new`` or ``avoided``, action, budget that defers it)."""
    ours, theirs = decided(now), decided(other)
    for key in sorted(theirs.keys() - ours.keys()):
        yield "new", *theirs[key]
    for key in sorted(ours.keys() - theirs.keys()):
        yield "avoided", *ours[key]


def decided(plan: Plan) -> dict[Key, tuple[AnyAction, str]]:
    """Everything that a plan decided to do, deferred or not, one entry per chip, pod, node or job."""
    out: dict[Key, tuple[AnyAction, str]] = {}
    rows = [*((action, "") for action in plan.actions), *((row.action, row.budget) for row in plan.deferred)]
    for action, budget in rows:
        if isinstance(action, act.IsolateChip | act.ReleaseChip):
            for chip in action.chips:
                one = msgspec.structs.replace(action, chips=(chip,))
                out.setdefault((kind_of(action), action.node, chip, action.level), (one, budget))
        elif isinstance(action, TOLD):
            out.setdefault(_key(action), (action, budget))
    return out


def _key(action: Any) -> Key:
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


def _matters(result: Plan) -> bool:
    """Whether any policy could judge anything otherwise: with no fault anywhere, none can."""
    return (
        bool(result.history.nodes)
        or any(chip.codes or chip.level != NORMAL for chip in result.chips)
        or any(node.state != "healthy" or node.codes for node in result.nodes)
    )


def _in_force(desired: Desired, result: Plan) -> tuple[Declared[FaultPolicy], ...]:
    """The policies that this pass judged by, which a held-back revision's are not."""
    kept = inforce.previous_policies(result.history.policy_revision)
    return inforce.fault_policies(desired) if kept is None else kept


def enforced(item: Declared[FaultPolicy]) -> Declared[FaultPolicy]:
    """The same policy in ``mode: enforce``."""
    spec = item.document.spec.model_copy(update={"mode": "enforce"})
    return dataclasses.replace(item, document=item.document.model_copy(update={"spec": spec}))


def _enforcing(desired: Desired, result: Plan, name: str) -> Desired:
    policies = tuple(enforced(item) if item.document.name == name else item for item in _in_force(desired, result))
    return dataclasses.replace(desired, fault_policies=policies)


def remembering(
    desired: Desired, observed: Observed, tracks: Mapping[str, Mapping[int, ChipMemory]], real: History
) -> Observed:
    """The world with another memory of codes, by node and chip; the policies of ``desired`` count as in force already,
    so that no change of them is held back. ``real`` is the memory after the real pass.
    """
    nodes = dict(observed.history.nodes)
    for node, rows in tracks.items():
        if rows:
            nodes[node] = _own(nodes.get(node, NodeMemory()), rows)
    pools = inforce.previous_pools(real.policy_revision)
    revision = inforce.text(inforce.fault_policies(desired), pools)
    history = msgspec.structs.replace(observed.history, nodes=dict(sorted(nodes.items())), policy_revision=revision)
    return msgspec.structs.replace(observed, history=history)


def _own(memory: NodeMemory, rows_of_its_own: Mapping[int, ChipMemory]) -> NodeMemory:
    rows = dict(memory.chips)
    for chip, own in rows_of_its_own.items():
        real = rows.get(chip, _PLAIN)
        others = tuple(hold for hold in real.holds if hold.kind != "frequency")
        rows[chip] = msgspec.structs.replace(real, codes=own.codes, holds=(*others, *own.holds), hardware=own.hardware)
    return msgspec.structs.replace(memory, chips=dict(sorted(rows.items())))


def track(real: History, other: History) -> dict[str, dict[int, ChipMemory]]:
    """What another policy remembers of codes otherwise than the real memory, by node and chip."""
    out: dict[str, dict[int, ChipMemory]] = {}
    for node in sorted({*real.nodes, *other.nodes}):
        ours, theirs = real.nodes.get(node, NodeMemory()).chips, other.nodes.get(node, NodeMemory()).chips
        for chip in sorted({*ours, *theirs}):
            own = _codes(theirs.get(chip, _PLAIN))
            if own != _codes(ours.get(chip, _PLAIN)):
                out.setdefault(node, {})[chip] = own
    return out


def _codes(row: ChipMemory) -> ChipMemory:
    holds = tuple(hold for hold in row.holds if hold.kind == "frequency")
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


def _lines(item: Declared[FaultPolicy], found: list[tuple[str, AnyAction, str]]) -> Iterator[Diagnostic]:
    """Differences in words, for whoever reads the plan."""
    origin, name = item.origin, f"FaultPolicy/{item.document.name}"
    for change, action, budget in found[:MAX_LINES]:
        would = "would" if change == "new" else "would not"
        held = f" (held back by budget {budget})" if budget and change == "new" else ""
        text = f"shadow: {would} {kind_of(action)}: {action.message}{held}"
        if isinstance(action, act.IsolateChip | act.ReleaseChip):
            codes = f" by {', '.join(action.evidence.codes)}" if action.evidence.codes else ""
            text = f"shadow: {would} {kind_of(action)}: {action.chips[0]} of node {action.node}, level {action.level}"
            text += f"{codes}{held}"
        yield Diagnostic("info", name, origin.file, origin.line, origin.column, "spec.mode", text)
    if len(found) > MAX_LINES:
        text = f"shadow: {len(found) - MAX_LINES} more differences, see belay-sync"
        yield Diagnostic("info", name, origin.file, origin.line, origin.column, "spec.mode", text)
