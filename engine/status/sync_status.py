"""``belay-sync``, ``belay-pool-<pool>`` and ``belay-manual``, readable with ``kubectl get cm -o yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic.alias_generators import to_camel

from belay.engine.documents import Desired
from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.freshness import READY
from belay.engine.model.history import HoldKind
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.last_changes import Place
from belay.engine.model.plan import REFUSED, Plan, PruneHold, ShadowChange
from belay.engine.model.rules import RuleKind
from belay.engine.model.states import ChipHealth, NodeHealth
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.status.bodies import bounded_list, config_map, text
from belay.engine.status.conditions import Standing, StatusCondition, condition_row, conditions, standing
from belay.engine.status.readers import NOTHING
from belay.engine.status.shards import PublishedPart, declared_shards, of_all_shards, published_parts, rows_with_shard
from belay.engine.wire import manualinfo, names, sync
from belay.engine.wire.names import MAIN_SHARD

# read often: members of an enumeration are slow to look up
_HEALTHY_NODE: Final = NodeHealth.HEALTHY
_HEALTHY: Final = ChipHealth.HEALTHY
_DIAGNOSTICS_BYTES: Final = 200 * 1024
_LIST_BYTES: Final = 150 * 1024
_SMALL_BYTES: Final = 50 * 1024
#: Nodes in the list of frequency holds; a node's entry stays below 16 KiB.
_MANUAL_NODES: Final = 500


class SyncState(msgspec.Struct, frozen=True):
    """The repository's part of ``belay-sync``.

    ``attempted`` is the newest revision tried, ``applied`` the one in force; they differ while a revision is refused or
    held back. ``remembered`` holds the versions of files until now, ``inventory`` what Git applied and what survived a
    refused deletion, ``declared`` the objects that the revision in force declares. ``in_force`` is the condition
    ``Applied`` as reading alone has it; None while nothing is applied from Git. ``places`` says where in Git Belay's
    own documents stand, by ``Kind/name``, those first that hold chips or nodes.
    """

    attempted: str = ""
    applied: str = ""
    conditions: tuple[StatusCondition, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    inventory: tuple[ObjectKey, ...] | None = None
    remembered: sync.FileVersions = sync.FileVersions()
    roles: Mapping[str, str] = {}
    declared: tuple[ObjectKey, ...] = ()
    in_force: StatusCondition | None = None
    places: Mapping[str, Place] = {}


def manual_bodies(plan: Plan, observed: Observed) -> list[dict[str, Any]]:
    """``belay-manual``: every chip with a frequency hold. Deleting its name from ``Total`` ends the hold."""
    rows: dict[str, dict[str, list[manualinfo.ManualEntry]]] = {}
    for node, memory in sorted(plan.history.nodes.items()):
        report = observed.reports.get(node)
        for chip, row in sorted(memory.chips.items()):
            held = [
                manualinfo.ManualEntry(RuleKind.HARDWARE.name_in(h.rule), h.level, h.since)
                for h in row.holds
                if h.kind == HoldKind.FREQUENCY
            ]
            if held and report is not None:
                rows.setdefault(node, {})[f"{report.prefix}{chip}"] = held
    standing = observed.objects.get(ObjectKey("v1", "ConfigMap", names.SYSTEM, names.MANUAL))
    if not rows and standing is None:
        return []
    listed = (standing or {}).get("data") or {}
    # listed names stay: a missing name means that an operator ended the hold
    shown = {node: rows[node] for node in sorted(rows, key=lambda node: (node not in listed, node))[:_MANUAL_NODES]}
    return [config_map(names.SYSTEM, names.MANUAL, manualinfo.build(shown), {ABOUT_LABEL: "manual"})]


def sync_bodies(
    state: SyncState, plan: Plan, observed: Observed, desired: Desired = NOTHING, shard: str = MAIN_SHARD
) -> list[dict[str, Any]]:
    """``belay-sync`` of the main shard, which holds what every shard says; of another declared shard its part."""
    if shard == MAIN_SHARD:
        return [sync_body(state, plan, observed, published_parts(observed, desired))]
    return [part_body(state, plan, shard)] if shard in declared_shards(desired) else []


def part_body(state: SyncState, plan: Plan, shard: str) -> dict[str, Any]:
    """``belay-sync.<shard>``: what this shard's passes add to ``belay-sync``."""
    rows = conditions(state.conditions, state.in_force, plan, Standing())
    findings = sorted({*state.diagnostics, *plan.diagnostics})
    data = {
        sync.SHARD: shard,
        sync.ATTEMPTED: state.attempted,
        sync.APPLIED: state.applied,
        sync.CONDITIONS: text([condition_row(row) for row in rows]),
        **_readiness(rows),
        **_lists(findings, _deferred_rows(plan), _refused_rows(plan), list(map(_shadow, plan.shadows))),
    }
    return config_map(names.SYSTEM, names.sync_config_map(shard), data, {ABOUT_LABEL: sync.PART})


def sync_body(state: SyncState, plan: Plan, observed: Observed, parts: Sequence[PublishedPart] = ()) -> dict[str, Any]:
    """``belay-sync``. ``parts`` are what the other shards published."""
    stands = standing(plan, observed, state.declared)
    own = conditions(state.conditions, state.in_force, plan, stands)
    rows = of_all_shards(own, state.applied, parts)
    findings = {*state.diagnostics, *plan.diagnostics}
    deferred, refused = _deferred_rows(plan), _refused_rows(plan)
    shadows = list(map(_shadow, plan.shadows))
    for one in parts:
        if one.part is not None:
            findings.update(one.part.diagnostics)
            deferred += rows_with_shard(one.shard, one.part.deferred)
            refused += rows_with_shard(one.shard, one.part.refusals)
            shadows += rows_with_shard(one.shard, one.part.shadows)

    data = {
        sync.ATTEMPTED: state.attempted,
        sync.APPLIED: state.applied,
        sync.CONDITIONS: text([condition_row(row) for row in rows]),
        **_readiness(rows),
        sync.OBJECTS: text(stands.counts),
        "roles.json": text({to_camel(role): state.roles[role] for role in sorted(state.roles)}),
        **sync.file_versions_data(state.remembered),
        **_lists(sorted(findings), deferred, refused, shadows),
    }
    if state.places:
        data[sync.PLACES] = text(_places(state.places))
    if plan.ignored:
        ignored = bounded_list([msgspec.to_builtins(one) for one in plan.ignored], _SMALL_BYTES)[0]
        data[sync.IGNORED] = text(ignored)
    if plan.held_prune is not None:
        data[sync.HELD_PRUNE] = text(_held_prune(plan.held_prune))
    if plan.history.prunes:
        data[sync.PRUNE_BASE] = plan.history.prunes[0].base
    if state.inventory is not None:
        data[sync.INVENTORY] = sync.inventory_text(state.inventory)
    return config_map(names.SYSTEM, names.SYNC, data, {ABOUT_LABEL: "sync"})


def _deferred_rows(plan: Plan) -> list[dict[str, Any]]:
    """What a budget or a window holds back."""
    return [
        {"action": kind_of(d.action), "what": d.action.message, "budget": d.budget, "until": d.until}
        | ({"confirm": d.confirm} if d.confirm else {})
        for d in plan.deferred
        if d.budget != REFUSED
    ]


def _refused_rows(plan: Plan) -> list[dict[str, Any]]:
    """What the API server refuses."""
    return [row.document() for row in plan.refusals]


def _lists(
    findings: Sequence[Diagnostic],
    deferred: list[dict[str, Any]],
    refused: list[dict[str, Any]],
    shadows: list[dict[str, Any]],
) -> dict[str, str]:
    """The lists that grow with the cluster, as much of each as fits."""
    shown, left_out = bounded_list([msgspec.to_builtins(d) for d in findings], _DIAGNOSTICS_BYTES)
    held, more = bounded_list(deferred, _LIST_BYTES)
    data = {sync.DIAGNOSTICS: text(shown), "summary": _summary(findings), sync.DEFERRED: text(held)}
    if refused:
        data[sync.REFUSALS] = text(bounded_list(refused, _SMALL_BYTES)[0])
    if shadows:
        data[sync.SHADOW] = text(bounded_list(shadows, _LIST_BYTES)[0])
    if left_out or more:
        data["leftOut"] = f"{left_out} diagnostics and {more} deferred actions are not shown"
    return data


def _places(places: Mapping[str, Place]) -> dict[str, Any]:
    """As many places as fit, in their order."""
    rows, _ = bounded_list([[name, msgspec.to_builtins(place)] for name, place in places.items()], _SMALL_BYTES)
    return dict(rows)


def _readiness(rows: Sequence[StatusCondition]) -> dict[str, str]:
    """``Ready`` as plain keys, for tools that read no JSON in ConfigMaps: kubectl wait, Argo CD, Flux."""
    found = [row for row in rows if row.type == READY]
    if not found:
        return {}
    return {sync.READY: found[-1].status, sync.READY_REASON: found[-1].reason, sync.READY_MESSAGE: found[-1].message}


def _held_prune(hold: PruneHold) -> dict[str, Any]:
    """A held deletion, with as much of its list as fits."""
    listed, left_out = bounded_list([msgspec.to_builtins(item) for item in hold.objects], _SMALL_BYTES)
    return {**hold.document(), "list": listed} | ({"leftOut": left_out} if left_out else {})


def _shadow(change: ShadowChange) -> dict[str, Any]:
    """A change that a shadow policy would make."""
    action = change.action
    return {
        "policy": change.policy,
        "change": change.change,
        "action": kind_of(action),
        "what": action.message,
        "node": getattr(action, "node", "") or (action.preconditions.node or ""),
        "budget": change.budget,
    }


def pool_bodies(plan: Plan) -> list[dict[str, Any]]:
    """``belay-pool-<pool>``: counts, and every node and chip that is not healthy."""
    pools: dict[str, dict[str, Any]] = {}
    pool_of = {}
    for node in plan.nodes:
        pool_of[node.node] = node.pool
        pool = pools.setdefault(node.pool, {"states": {}, "nodes": [], "chips": [], "lemons": [], "shadow": []})
        pool["states"][node.state] = pool["states"].get(node.state, 0) + 1
        if node.state != _HEALTHY_NODE:
            pool["nodes"].append(msgspec.to_builtins(node))
    for chip in plan.chips:
        pool_name = pool_of.get(chip.node)
        if pool_name is not None and chip.state != _HEALTHY:
            pools[pool_name]["chips"].append(
                {**msgspec.to_builtins(chip), "history": _timeline(plan, chip.node, chip.chip)}
            )
    for lemon in plan.repeat_offenders:
        if lemon.node in pool_of:
            # it decays with every pass: more digits would be a write of the pool's status for each
            row = {**msgspec.to_builtins(lemon), "failures": round(lemon.failures, 2)}
            pools[pool_of[lemon.node]]["lemons"].append(row)
    for change in map(_shadow, plan.shadows):
        if change["node"] in pool_of:
            pools[pool_of[change["node"]]]["shadow"].append(change)
    bodies = []
    for name in sorted(pools):
        pool = pools[name]
        nodes, nodes_left = bounded_list(pool["nodes"], _LIST_BYTES)
        chips, chips_left = bounded_list(pool["chips"], 3 * _LIST_BYTES)
        data = {
            "nodes": text(dict(sorted(pool["states"].items()))),
            "nodes.json": text(nodes),
            "chips.json": text(chips),
        }
        for key in ("lemons", "shadow"):
            if pool[key]:
                data[f"{key}.json"] = text(bounded_list(pool[key], _SMALL_BYTES)[0])
        if nodes_left or chips_left:
            data["leftOut"] = f"{counted(nodes_left, 'node')} and {counted(chips_left, 'chip')} are not shown"
        label = {ABOUT_LABEL: "pool"}
        bodies.append(config_map(names.SYSTEM, names.bounded(names.POOL_PREFIX + name), data, label))
    return bodies


def _timeline(plan: Plan, node: str, chip: str) -> list[dict[str, str]]:
    memory = plan.history.nodes.get(node)
    entry = memory.chips.get(int(chip.rpartition("-")[2])) if memory is not None else None
    return [{"time": rfc3339(ms / 1000), "what": what} for ms, what in entry.timeline] if entry is not None else []


def _summary(findings: Sequence[Diagnostic]) -> str:
    errors = sum(d.severity == "error" for d in findings)
    warnings = sum(d.severity == "warning" for d in findings)
    first = f"; first: {findings[0]}" if findings else ""
    return f"{errors} errors, {warnings} warnings{first}"[:2000]
