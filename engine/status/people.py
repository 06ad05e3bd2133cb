"""``belay-sync`` and ``belay-pool-<pool>``: what a person asks first, readable with ``kubectl get cm -o yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic.alias_generators import to_camel

from engine.model.actions import kind_of
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.model.hardware import PREFIX
from engine.model.plan import Plan, ShadowChange
from engine.model.times import rfc3339
from engine.status.bodies import bounded_list, config_map, text
from engine.wire import manualinfo, names, sync

_DIAGNOSTICS_BYTES: Final = 200 * 1024
_LIST_BYTES: Final = 150 * 1024
_SMALL_BYTES: Final = 50 * 1024
#: Nodes in the list of frequency holds; a node's entry stays below 16 KiB.
_MANUAL_NODES: Final = 500


class Condition(msgspec.Struct, frozen=True):
    """A Kubernetes-style condition: ``status`` True, False or Unknown, ``reason`` a CamelCase constant."""

    type: str
    status: str
    reason: str
    message: str = ""


class SyncState(msgspec.Struct, frozen=True):
    """What ``belay-sync`` tells of the repository.

    ``attempted`` is the newest revision tried, ``applied`` the one in force (it differs while a revision
    is refused or held back). ``last_good`` maps a path to the blob ids of its newest good versions.
    ``inventory`` is what Git applied and what survived a refused deletion.
    """

    attempted: str = ""
    applied: str = ""
    conditions: tuple[Condition, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    inventory: tuple[ObjectKey, ...] | None = None
    last_good: Mapping[str, tuple[str, ...]] = {}
    roles: Mapping[str, str] = {}


def manual_bodies(plan: Plan, observed: Observed) -> list[dict[str, Any]]:
    """``belay-manual``: every chip with a frequency hold; a person ends one by deleting its name from ``Total``."""
    rows: dict[str, dict[str, list[manualinfo.Entry]]] = {}
    for node, memory in sorted(plan.history.nodes.items()):
        report = observed.reports.get(node)
        for chip, row in sorted(memory.chips.items()):
            held = [
                manualinfo.Entry(h.rule.removeprefix(PREFIX), h.level, h.since)
                for h in row.holds
                if h.kind == "frequency"
            ]
            if held and report is not None:
                rows.setdefault(node, {})[f"{report.prefix}{chip}"] = held
    standing = observed.objects.get(ObjectKey("v1", "ConfigMap", names.SYSTEM, names.MANUAL))
    if not rows and standing is None:
        return []
    listed = (standing or {}).get("data") or {}
    # what is listed stays listed: a name that goes means that a person ends the hold
    shown = {node: rows[node] for node in sorted(rows, key=lambda node: (node not in listed, node))[:_MANUAL_NODES]}
    return [config_map(names.SYSTEM, names.MANUAL, manualinfo.build(shown), {names.ABOUT_LABEL: "manual"})]


def sync_body(state: SyncState, plan: Plan) -> dict[str, Any]:
    """``belay-sync``."""
    findings = sorted({*state.diagnostics, *plan.diagnostics})
    shown, left_out = bounded_list([msgspec.to_builtins(d) for d in findings], _DIAGNOSTICS_BYTES)
    deferred, more = bounded_list(
        [
            {"action": kind_of(d.action), "what": d.action.message, "budget": d.budget, "until": d.until}
            for d in plan.deferred
        ],
        _LIST_BYTES,
    )
    data = {
        sync.ATTEMPTED: state.attempted,
        sync.APPLIED: state.applied,
        "conditions.json": text([msgspec.to_builtins(c) for c in state.conditions]),
        "diagnostics.json": text(shown),
        "summary": _summary(findings),
        "deferred.json": text(deferred),
        "roles.json": text({to_camel(role): state.roles[role] for role in sorted(state.roles)}),
        "lastGood.json": text({path: list(ids) for path, ids in sorted(state.last_good.items())}),
    }
    if left_out or more:
        data["leftOut"] = f"{left_out} diagnostics and {more} deferred actions are not shown"
    if plan.shadows:
        data["shadow.json"] = text(bounded_list([_shadow(change) for change in plan.shadows], _LIST_BYTES)[0])
    if state.inventory is not None:
        data[sync.INVENTORY] = sync.inventory_text(state.inventory)
    return config_map(names.SYSTEM, names.SYNC, data, {names.ABOUT_LABEL: "sync"})


def _shadow(change: ShadowChange) -> dict[str, Any]:
    """A difference that a shadow policy would make, in short."""
    action = change.action
    return {
        "policy": change.policy,
        "change": change.change,
        "action": kind_of(action),
        "what": action.message,
        "node": getattr(action, "node", "") or str(action.preconditions.get("node") or ""),
        "budget": change.budget,
    }


def pool_bodies(plan: Plan) -> list[dict[str, Any]]:
    """``belay-pool-<pool>``: counts, and every node and chip that is not plainly healthy."""
    pools: dict[str, dict[str, Any]] = {}
    pool_of = {}
    for node in plan.nodes:
        pool_of[node.node] = node.pool
        pool = pools.setdefault(node.pool, {"states": {}, "nodes": [], "chips": [], "lemons": [], "shadow": []})
        pool["states"][node.state] = pool["states"].get(node.state, 0) + 1
        if node.state != "healthy":
            pool["nodes"].append(msgspec.to_builtins(node))
    for chip in plan.chips:
        pool_name = pool_of.get(chip.node)
        if pool_name is not None and chip.state != "healthy":
            pools[pool_name]["chips"].append(
                {**msgspec.to_builtins(chip), "history": _timeline(plan, chip.node, chip.chip)}
            )
    for lemon in plan.lemons:
        if lemon.node in pool_of:
            pools[pool_of[lemon.node]]["lemons"].append(msgspec.to_builtins(lemon))
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
            data["leftOut"] = f"{nodes_left} nodes and {chips_left} chips are not shown"
        label = {names.ABOUT_LABEL: "pool"}
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
