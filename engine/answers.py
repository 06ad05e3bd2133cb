"""Answers of `belay get`: rows for nodes, chips, jobs, faults, vNPUs and pools.

Everything is read from a plan and the snapshot it was made from; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from engine.model.cluster import Observed, ids_of
from engine.model.diagnostics import ObjectKey
from engine.model.plan import ChipState, NodeState, Plan
from engine.model.times import rfc3339
from engine.plan.gangs import pending_by_gang
from engine.plan.groups import group
from engine.plan.jobstatus import ended
from engine.status.jobs import runs, succeeded
from engine.status.links import row_of

_LINK_KEYS: Final = ("state", "latencyMs", "error", "node", "decode", "prefill", "since", "tries")


class Answer(msgspec.Struct, frozen=True):
    """Rows under columns; ``wide`` columns are shown only with ``-o wide``."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    wide: tuple[str, ...] = ()


def nodes(plan: Plan, observed: Observed) -> Answer:
    """Every node with its state, chips used and free, and the age of its report."""
    taken = _used(observed)
    rows = []
    for state in plan.nodes:
        report = observed.reports.get(state.node)
        base = base_chips(observed, state.node)
        used = len(taken.get(state.node, {}))
        rows.append(
            {
                "node": state.node,
                "pool": state.pool,
                "state": state.state,
                "level": state.level,
                "chips": len(ids_of(base)),
                "used": used,
                "unhealthy": len(ids_of(report.unhealthy)) if report else None,
                "codes": list(state.codes),
                "report": rfc3339(report.update_time) if report else observed.problems.get(state.node, "none"),
            }
        )
    return Answer(("node", "pool", "state", "level", "chips", "used", "unhealthy", "codes"), rows, ("report",))


def chips(plan: Plan, observed: Observed) -> Answer:
    """Every chip of every node; the plan names those that are not plainly healthy and free."""
    named = {(chip.node, chip.chip): chip for chip in plan.chips}
    failures = {(lemon.node, lemon.chip): lemon.failures for lemon in plan.lemons}
    rows = []
    for state in plan.nodes:
        report = observed.reports.get(state.node)
        if report is None:
            continue
        for index in ids_of(base_chips(observed, state.node)):
            name = f"{report.prefix}{index}"
            row = chip_row(state.node, name, named.get((state.node, name)))
            rows.append({**row, "failures": failures.get((state.node, name), 0.0)})
    return Answer(("node", "chip", "state", "level", "codes", "usedBy"), rows, ("faultType", "failures"))


def jobs(plan: Plan, observed: Observed) -> Answer:
    """Every job that wants NPUs."""
    gangs, gang_of = group(observed)
    pending = pending_by_gang(plan.pending, gangs)
    done = succeeded(observed, gang_of)
    rows = []
    for key in sorted({*gangs, *pending}):
        gang = gangs.get(key)
        pods = [observed.pods[p] for p in gang.pods if p in observed.pods] if gang else []
        if not any(pod.count for pod in pods) and key not in pending:
            continue
        namespace, kind, name = key.split("/", 2)
        wait = pending.get(key)
        running = sum(pod.phase == "Running" for pod in pods)
        going = gang is not None and runs(gang, running, done.get(key, 0))
        owner = ObjectKey(gang.api_version, gang.kind, namespace, name) if gang is not None else None
        end = ended(observed.objects.get(owner)) if owner is not None else ""
        rows.append(
            {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "phase": end or ("Pending" if wait else ("Running" if going else "Starting")),
                "ready": f"{running}/{gang.replicas if gang else len(pods)}",
                "chips": sum(pod.count for pod in pods),
                "nodes": sorted({pod.node for pod in pods if pod.node}),
                "reason": f"{wait.reason}: {wait.message}" if wait else "",
            }
        )
    return Answer(("namespace", "kind", "name", "phase", "ready", "chips", "nodes", "reason"), rows)


def faults(plan: Plan, observed: Observed) -> Answer:
    """Every fault code seen, on chips and nodes."""
    rows: list[dict[str, Any]] = []
    for chip in plan.chips:
        rows += [_fault_row(chip.node, chip.chip, code, chip) for code in chip.codes]
    for node in plan.nodes:
        rows += [
            {"node": node.node, "chip": "", "code": code, "level": node.level, "state": node.state}
            for code in node.codes
        ]
    return Answer(("node", "chip", "code", "level", "state"), rows)


def vnpus(plan: Plan, observed: Observed) -> Answer:
    """Every vNPU that agents report."""
    rows = []
    for name, agent in observed.agents.items():
        report = observed.reports.get(name)
        prefix = report.prefix if report else ""
        rows += [
            {"node": name, "chip": f"{prefix}{v.chip}", "id": v.id, "template": v.template, "usedBy": v.used_by}
            for v in agent.vnpus
        ]
    return Answer(("node", "chip", "id", "template", "usedBy"), rows)


def pools(plan: Plan, observed: Observed) -> Answer:
    """Nodes and chips per pool."""
    taken = _used(observed)
    found: dict[str, dict[str, Any]] = {}
    for node in plan.nodes:
        row = found.setdefault(
            node.pool, {"pool": node.pool, "nodes": 0, "healthy": 0, "chips": 0, "used": 0, "outOfService": 0}
        )
        row["nodes"] += 1
        row["healthy"] += node.state == "healthy"
        row["chips"] += len(ids_of(base_chips(observed, node.node)))
        row["used"] += len(taken.get(node.node, {}))
    pool_of = {node.node: node.pool for node in plan.nodes}
    for chip in plan.chips:
        if chip.node in pool_of and chip.state not in ("healthy", "sub-healthy", "suspect"):
            found[pool_of[chip.node]]["outOfService"] += 1
    rows = [found[name] for name in sorted(found)]
    return Answer(("pool", "nodes", "healthy", "chips", "used", "outOfService"), rows)


def links(plan: Plan, observed: Observed) -> Answer:
    """Every link that a KVLink declares: who makes it to whom, and how it is."""
    rows = []
    for row in plan.links:
        told = row_of(row)
        rows.append({"link": row.link, "from": row.holder, "to": row.peer} | {key: told[key] for key in _LINK_KEYS})
    return Answer(
        ("link", "from", "to", "state", "latencyMs", "error"), rows, ("node", "decode", "prefill", "since", "tries")
    )


GET: Final[dict[str, Callable[[Plan, Observed], Answer]]] = {
    "nodes": nodes,
    "chips": chips,
    "jobs": jobs,
    "faults": faults,
    "vnpus": vnpus,
    "pools": pools,
    "links": links,
}


def chip_row(node: str, name: str, chip: ChipState | None) -> dict[str, Any]:
    """One chip; None where the plan does not name it, so that it is healthy and free."""
    if chip is None:
        return {
            "node": node,
            "chip": name,
            "state": "healthy",
            "level": "",
            "codes": [],
            "usedBy": None,
            "faultType": [],
        }
    return {
        "node": node,
        "chip": name,
        "state": chip.state,
        "level": chip.level,
        "codes": list(chip.codes),
        "usedBy": chip.used_by,
        "faultType": list(chip.fault_type),
    }


def _fault_row(node: str, chip: str, code: str, state: ChipState | NodeState) -> dict[str, Any]:
    return {"node": node, "chip": chip, "code": code, "level": state.level, "state": state.state}


def _used(observed: Observed) -> dict[str, dict[str, str]]:
    taken: dict[str, dict[str, str]] = {}
    for pod in observed.pods.values():
        if pod.holds_chips:
            for chip in pod.chips:
                taken.setdefault(pod.node, {})[chip] = pod.key
    return taken


def base_chips(observed: Observed, node: str) -> int:
    """The chips that a node has, as a bitmask: by its annotation, else all that its report lists."""
    known = observed.nodes.get(node)
    report = observed.reports.get(node)
    return (known.base_chips if known else 0) or (report.listed if report else 0)
