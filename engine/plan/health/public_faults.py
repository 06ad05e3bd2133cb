"""Public faults: what other components report about a node, folded into its memory and merged into its report.

The reports of this pass are copies with elements of type ``PublicFault`` added; the observed ones stay as they are.
Source: component/clusterd/pkg/application/faultmanager/cmprocess/publicfault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from belay.engine.documents import Desired
from belay.engine.documents.scheduling import ANY_NAMESPACE, SchedulingSettingsSpec
from belay.engine.model import public_faults
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import NodeMemory, PublicFaultMemory
from belay.engine.model.labels import MANAGED_BY, PRODUCT_SERIAL, PUBLIC_FAULT_CONSUMER
from belay.engine.model.public_faults import MAX_PER_NODE, MAX_STORED, PublicFaultClaim
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import PassNodes
from belay.engine.wire import publicinfo
from belay.engine.wire.errors import WireError

_STATISTICS: Final = ObjectKey("v1", "ConfigMap", publicinfo.STATISTICS_NAMESPACE, publicinfo.STATISTICS)
_NOTHING: Final = NodeMemory()
_INBOX: Final = f"{publicinfo.MESSAGES_NAMESPACE}/{publicinfo.MESSAGES}"
_SETTING: Final = "SchedulingSettings.spec.publicFaultSources"
_MAX_REFUSED: Final = 20
"""Namespaces that are named when their ConfigMaps do not count; the others are counted."""


class _Allowed(NamedTuple):
    """On which nodes the public faults of a ConfigMap count: all, those of these pools, or (neither) none."""

    everywhere: bool
    pools: frozenset[str]

    @classmethod
    def of(cls, where: str, settings: SchedulingSettingsSpec) -> _Allowed:
        """For a ConfigMap named ``namespace/name``. The messages that came by gRPC were checked by their caller."""
        namespace = where.partition("/")[0]
        rows = [row for row in settings.public_fault_sources if row.namespace in (namespace, ANY_NAMESPACE)]
        everywhere = where == _INBOX or any(not row.pools for row in rows)
        return cls(everywhere, frozenset(pool for row in rows for pool in row.pools))

    def on(self, pool: str) -> bool:
        return self.everywhere or pool in self.pools


def read_public_faults(facts: Facts, draft: Draft, nodes: PassNodes, desired: Desired) -> None:
    """Fold the claims into the memory, and add standing faults to the reports of the views.

    Args:
        desired: the declarations with the table of public codes in force.
    """
    claims = _read_claims(facts, draft, nodes, desired)
    foreign = _clusterd_faults(facts, draft)
    stored = sum(len(memory.public) for memory in draft.memory.nodes.values() if memory.public)
    dropped = 0
    known = {name for name, memory in draft.memory.nodes.items() if memory.public}
    for name in sorted(nodes.keys() & (claims.keys() | foreign.keys() | known)):
        before, own = draft.memory.nodes.get(name, _NOTHING), claims.get(name, ())
        if not own and not before.public and name not in foreign:
            continue
        nodes.reassess(name)
        after = public_faults.fold(before.public, own, facts.now_ms)
        after, refused = _limited(before.public, after, MAX_STORED - stored)
        stored += len(after) - len(before.public)
        dropped += refused
        after = _with_table_levels(desired, after)
        if after != before.public:
            draft.memory.nodes[name] = msgspec.structs.replace(before, public=after)
        report = nodes[name].report
        if report is not None:
            nodes.change(name, report=publicinfo.merged(report, after, foreign.get(name, ())))
    if dropped:
        text = f"{dropped} public faults are not stored: the limit is {MAX_STORED}, {MAX_PER_NODE} on one node"
        draft.diagnostics.append(
            Diagnostic("warning", "PublicFault", "", 0, 0, "", text, PassCode.PUBLIC_FAULTS_LEFT_OUT)
        )


def _read_claims(facts: Facts, draft: Draft, nodes: PassNodes, desired: Desired) -> dict[str, list[PublicFaultClaim]]:
    """The claims of this snapshot's messages, by node; reports invalid messages."""
    if not facts.observed.public:
        return {}
    table = desired.tables.get("public")
    senders = frozenset(table.spec.senders) if table else frozenset()
    codes = frozenset(table.code_levels) if table else frozenset()
    serials: dict[str, str] = {}
    for name in sorted(facts.observed.nodes, reverse=True):
        serial = facts.observed.nodes[name].annotations.get(PRODUCT_SERIAL)
        if serial:
            serials[serial] = name
    claims: dict[str, list[PublicFaultClaim]] = {}
    refused: dict[str, int] = {}
    for where in sorted(facts.observed.public):
        report = facts.observed.public[where]
        allowed = _Allowed.of(where, desired.settings)
        if not allowed.everywhere and not allowed.pools:
            namespace = where.partition("/")[0]
            refused[namespace] = refused.get(namespace, 0) + 1
            continue
        problems = [(p.field, p.message) for p in report.problems]
        for message in report.messages:
            admitted, found = public_faults.admit(message, senders, codes)
            problems += [(f"data.{publicinfo.KEY}.{p.field}", p.message) for p in found]
            if admitted is None:
                continue
            unknown: set[str] = set()
            others: set[str] = set()
            for node, claim in public_faults.claims(admitted, serials):
                if node in facts.observed.nodes:
                    # a node of another shard has no view here, and what is said about it is for that shard
                    view = nodes.get(node)
                    if view is None or allowed.on(view.pool):
                        claims.setdefault(node, []).append(claim)
                    else:
                        others.add(node)
                else:
                    unknown.add(node)
            if others:
                pools = ", ".join(sorted(allowed.pools)[:5])
                shown = ", ".join(sorted(others)[:5])
                outside = f"{counted(len(others), 'node')} outside the pools {pools} of {_SETTING}"
                text = f"names {outside}, which {'does' if len(others) == 1 else 'do'} not count: {shown}"
                problems.append((f"data.{publicinfo.KEY}.faults", text))
            if unknown:
                shown = ", ".join(sorted(unknown - {""})[:5]) or "an unknown serial number"
                text = f"names {shown}, which no node has: that part waits until such a node registers"
                about, field = f"ConfigMap/{where}", f"data.{publicinfo.KEY}.faults"
                draft.diagnostics.append(Diagnostic("warning", about, "", 0, 0, field, text, PassCode.UNKNOWN_NODE))
        draft.diagnostics += [
            Diagnostic("error", f"ConfigMap/{where}", "", 0, 0, field, text[:300], PassCode.PUBLIC_FAULT_REFUSED)
            for field, text in problems[:20]
        ]
    _report_refused(draft, refused)
    return claims


def _report_refused(draft: Draft, refused: Mapping[str, int]) -> None:
    """One finding per namespace whose ConfigMaps do not count, the first ones by name."""
    for namespace in sorted(refused)[:_MAX_REFUSED]:
        text = (
            f"{refused[namespace]} ConfigMaps with label {PUBLIC_FAULT_CONSUMER}=true do not count: public faults of "
            f"namespace {namespace} are not allowed; write them to an allowed namespace, or add it to {_SETTING}"
        )
        where = f"Namespace/{namespace}"
        field = f"metadata.labels.{PUBLIC_FAULT_CONSUMER}"
        draft.diagnostics.append(Diagnostic("error", where, "", 0, 0, field, text, PassCode.PUBLIC_FAULT_REFUSED))
    if len(refused) > _MAX_REFUSED:
        text = f"public faults of {len(refused) - _MAX_REFUSED} more namespaces are not allowed ({_SETTING})"
        draft.diagnostics.append(Diagnostic("error", "PublicFault", "", 0, 0, "", text, PassCode.PUBLIC_FAULT_REFUSED))


def _clusterd_faults(facts: Facts, draft: Draft) -> dict[str, tuple[publicinfo.PublicFaultRow, ...]]:
    """The faults that a live ClusterD lists (it alone knows those sent to it by gRPC); Belay's list is skipped."""
    raw = facts.observed.objects.get(_STATISTICS)
    if raw is None:
        return {}
    labels = (raw.get("metadata") or {}).get("labels") or {}
    if labels.get(MANAGED_BY) == "belay":
        return {}
    try:
        held = publicinfo.statistics(raw)
    except WireError as error:
        unreadable = Diagnostic("error", error.object, "", 0, 0, error.field, error.message, PassCode.UNREADABLE)
        draft.diagnostics.append(unreadable)
        return {}
    out = {}
    for node, rows in held.items():
        known = draft.memory.nodes.get(node, _NOTHING).public
        # Belay judges the faults that it received itself: it may know of a recovery before the list shows it
        out[node] = tuple(row for row in rows if f"{row.resource}/{row.id}" not in known)
    return {node: rows for node, rows in out.items() if rows}


def _limited(
    before: Mapping[str, PublicFaultMemory], after: dict[str, PublicFaultMemory], room: int
) -> tuple[dict[str, PublicFaultMemory], int]:
    """Keep known faults; admit new ones, the earliest first, while there is room. Also the number dropped."""
    fresh = sorted((key for key in after if key not in before), key=lambda key: (after[key].stamp, key))
    free = max(0, min(room, MAX_PER_NODE - len(before)))
    if len(fresh) <= free:
        return after, 0
    gone = set(fresh[free:])
    return {key: seen for key, seen in after.items() if key not in gone}, len(gone)


def _with_table_levels(desired: Desired, seen: dict[str, PublicFaultMemory]) -> dict[str, PublicFaultMemory]:
    """Each fault with its level in the table now; a code that left the table keeps its level."""
    table = desired.tables.get("public")
    out = {}
    for key in sorted(seen):
        level = (table.level_of(seen[key].code) if table else None) or seen[key].level
        out[key] = seen[key] if level == seen[key].level else msgspec.structs.replace(seen[key], level=level)
    return out
