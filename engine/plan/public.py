"""Public faults join the chips' own: what others say of a node is folded into its memory and shown in its report.

The reports of this pass are copies with elements of type ``PublicFault`` added; the observed ones stay as they are.
Source: component/clusterd/pkg/application/faultmanager/cmprocess/publicfault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.documents import Desired
from engine.model import publicfaults
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.model.history import NodeMemory, PublicSeen
from engine.model.publicfaults import MAX_PER_NODE, MAX_STORED, Claim
from engine.plan.scope import Scope
from engine.wire import publicinfo
from engine.wire.errors import WireError

SERIAL_KEY: Final = "product-serial-number"
_STATISTICS: Final = ObjectKey("v1", "ConfigMap", publicinfo.STATISTICS_NAMESPACE, publicinfo.STATISTICS)
_NOTHING: Final = NodeMemory()


def run(scope: Scope, desired: Desired) -> None:
    """Fold what was said into the memory, and add what stands to the reports of the views.

    ``desired`` has the table of public codes in force.
    """
    said = _said(scope, desired)
    foreign = _foreign(scope)
    stored = sum(len(memory.public) for memory in scope.memory.nodes.values() if memory.public)
    dropped = 0
    known = {name for name, memory in scope.memory.nodes.items() if memory.public}
    for name in sorted(scope.nodes.keys() & (said.keys() | foreign.keys() | known)):
        before, mine = scope.memory.nodes.get(name, _NOTHING), said.get(name, ())
        if not mine and not before.public and name not in foreign:
            continue
        scope.unsettle(name)
        after = publicfaults.fold(before.public, mine, scope.now_ms)
        after, refused = _bounded(before.public, after, MAX_STORED - stored)
        stored += len(after) - len(before.public)
        dropped += refused
        after = _graded(desired, after)
        if after != before.public:
            scope.memory.nodes[name] = msgspec.structs.replace(before, public=after)
        view = scope.nodes[name]  # unsettling gave the pass one of its own
        if view.report is not None:
            view.report = publicinfo.merged(view.report, after, foreign.get(name, ()))
    if dropped:
        text = f"{dropped} public faults are not stored: the limit is {MAX_STORED}, {MAX_PER_NODE} on one node"
        scope.diagnostics.append(Diagnostic("warning", "PublicFault", "", 0, 0, "", text))


def _said(scope: Scope, desired: Desired) -> dict[str, list[Claim]]:
    """What the messages of this snapshot say, by node; what is wrong with them is told."""
    if not scope.observed.public:
        return {}
    table = desired.tables.get("public")
    senders = frozenset(table.spec.senders) if table else frozenset()
    codes = frozenset(table.code_levels) if table else frozenset()
    serials: dict[str, str] = {}
    for name in sorted(scope.observed.nodes, reverse=True):
        serial = scope.observed.nodes[name].annotations.get(SERIAL_KEY)
        if serial:
            serials[serial] = name
    said: dict[str, list[Claim]] = {}
    for where in sorted(scope.observed.public):
        report = scope.observed.public[where]
        problems = [(p.field, p.message) for p in report.problems]
        for message in report.messages:
            admitted, found = publicfaults.admit(message, senders, codes)
            problems += [(f"data.{publicinfo.KEY}.{p.field}", p.message) for p in found]
            if admitted is None:
                continue
            unknown: set[str] = set()
            for node, claim in publicfaults.claims(admitted, serials):
                if node in scope.observed.nodes:
                    said.setdefault(node, []).append(claim)
                else:
                    unknown.add(node)
            if unknown:
                shown = ", ".join(sorted(unknown - {""})[:5]) or "an unknown serial number"
                text = f"names {shown}, which no node has: that part waits until such a node registers"
                scope.diagnostics.append(
                    Diagnostic("warning", f"ConfigMap/{where}", "", 0, 0, f"data.{publicinfo.KEY}.faults", text)
                )
        scope.diagnostics += [
            Diagnostic("error", f"ConfigMap/{where}", "", 0, 0, field, text[:300]) for field, text in problems[:20]
        ]
    return said


def _foreign(scope: Scope) -> dict[str, tuple[publicinfo.Held, ...]]:
    """What a live ClusterD holds (it alone knows what it got by gRPC); Belay's own list is no news."""
    raw = scope.observed.objects.get(_STATISTICS)
    if raw is None:
        return {}
    labels = (raw.get("metadata") or {}).get("labels") or {}
    if labels.get("app.kubernetes.io/managed-by") == "belay":
        return {}
    try:
        held = publicinfo.statistics(raw)
    except WireError as error:
        scope.diagnostics.append(Diagnostic("error", error.object, "", 0, 0, error.field, error.message))
        return {}
    out = {}
    for node, rows in held.items():
        known = scope.memory.nodes.get(node, _NOTHING).public
        # what Belay heard itself it judges itself: it may have heard of the end before the list says so
        out[node] = tuple(row for row in rows if f"{row.resource}/{row.id}" not in known)
    return {node: rows for node, rows in out.items() if rows}


def _bounded(
    before: Mapping[str, PublicSeen], after: dict[str, PublicSeen], room: int
) -> tuple[dict[str, PublicSeen], int]:
    """Known faults stay, new ones find room or are dropped, the earliest first to come."""
    fresh = sorted((key for key in after if key not in before), key=lambda key: (after[key].stamp, key))
    free = max(0, min(room, MAX_PER_NODE - len(before)))
    if len(fresh) <= free:
        return after, 0
    gone = set(fresh[free:])
    return {key: seen for key, seen in after.items() if key not in gone}, len(gone)


def _graded(desired: Desired, seen: dict[str, PublicSeen]) -> dict[str, PublicSeen]:
    """Each fault with the level its table gives it now; one whose code went from the table keeps its level."""
    table = desired.tables.get("public")
    out = {}
    for key in sorted(seen):
        level = (table.level_of(seen[key].code) if table else None) or seen[key].level
        out[key] = seen[key] if level == seen[key].level else msgspec.structs.replace(seen[key], level=level)
    return out
