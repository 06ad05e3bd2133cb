"""Answers of `belay get`: rows for nodes, chips, jobs, faults, vNPUs, pools and links.

The answers come from a plan and its snapshot; this module decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from belay.engine.cli.counted_chips import CountedChips, chip_use, pool_rows
from belay.engine.cli.holds import how_held
from belay.engine.cli.link_rows import link_rows
from belay.engine.cli.selection import JOB_COLUMNS, JOB_WIDE, Answer
from belay.engine.cli.vnpus import vnpu_rows
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.gangs.job_status import FAILED, end_message, standing
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import UNREPORTED, ChipState, NodeState, Plan, ServerChips, takes_no_pods
from belay.engine.model.states import IN_SERVICE, ChipHealth
from belay.engine.model.times import rfc3339
from belay.engine.status.jobs import awaits_pods, job_object, phase_of, shown_jobs, succeeded
from belay.engine.status.links import row_of


def nodes(plan: Plan, observed: Observed) -> Answer:
    """Every node with its state, whether it is cordoned, its chips in use and out of service, the age of its report."""
    used = planned_use(plan, observed)
    held = {one.node: [how_held(one)] for one in plan.holds if not one.chip}
    rows = []
    for state in plan.nodes:
        report, known = observed.reports.get(state.node), observed.nodes.get(state.node)
        use = used[state.node]
        rows.append(
            {
                "node": state.node,
                "pool": state.pool,
                "state": state.state,
                "level": state.level,
                "cordoned": known is not None and known.unschedulable,
                "chips": use.chips,
                "used": use.used,
                "free": use.free,
                "unhealthy": use.out if report else None,
                "codes": list(state.codes),
                "heldBy": held.get(state.node, []),
                "report": rfc3339(report.update_time) if report else observed.problems.get(state.node, "none"),
            }
        )
    held_by = ("heldBy",) if held else ()
    columns = ("node", "pool", "state", "cordoned", "level", "chips", "used", "free", "unhealthy", "codes", *held_by)
    return Answer(columns, rows, ("report",))


def chips(plan: Plan, observed: Observed) -> Answer:
    """Every chip of every node; the plan names those that are not plainly healthy and free."""
    failures = {(lemon.node, lemon.chip): lemon.failures for lemon in plan.repeat_offenders}
    cut: dict[tuple[str, str], list[str]] = {}
    for part in vnpus(plan, observed).rows:
        cut.setdefault((part["node"], part["chip"]), []).append(part["template"])
    holds: dict[tuple[str, str], list[str]] = {}
    for one in plan.holds:
        holds.setdefault((one.node, one.chip), []).append(how_held(one))
    named: dict[str, dict[str, ChipState]] = {}
    for chip in plan.chips:
        named.setdefault(chip.node, {})[chip.chip] = chip
    rows = []
    for state in plan.nodes:
        known, server = named.get(state.node, {}), plan.servers.get(state.node)
        listed = chip_names(server)
        for name in (*listed, *(name for name in known if name not in listed)):
            row = chip_row(state.node, name, known.get(name), server)
            parts = cut.get((state.node, name), [])
            # state manually-isolated is MindCluster's word for a policy's hold too
            held = [*holds.get((state.node, name), ()), *holds.get((state.node, ""), ())]
            rows.append({**row, "vnpus": parts, "heldBy": held, "failures": failures.get((state.node, name), 0.0)})
    held_by = ("heldBy",) if any(row["heldBy"] for row in rows) else ()
    columns = ("node", "chip", "state", "level", "codes", "usedBy", "vnpus", *held_by)
    return Answer(columns, rows, ("faultType", "failures"))


def jobs(plan: Plan, observed: Observed) -> Answer:
    """Every job that requests NPUs, and the stored jobs of ``belay-job-*``."""
    gangs, gang_of = group(observed)
    pending = pending_by_gang(plan.pending, gangs)
    done = succeeded(observed, gang_of)
    rows = []
    for key in shown_jobs(plan, observed, gangs, pending):
        gang = gangs.get(key)
        pods = [observed.pods[p] for p in gang.pods if p in observed.pods] if gang else []
        namespace, kind, name = key.split("/", 2)
        wait = pending.get(key)
        running = sum(bool(pod.node) and pod.phase == "Running" for pod in pods)
        placed = any(pod.node for pod in pods)
        raw = job_object(key, gang, observed)
        end = standing(raw)
        why = f"{wait.reason}: {wait.message}" if wait else ""
        if end == FAILED:
            why = end_message(raw)
        rows.append(
            {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "phase": phase_of(
                    gang, wait, end, placed=placed, running=running, ended=done.get(key, 0), due=awaits_pods(raw)
                ),
                "ready": f"{running}/{gang.replicas if gang else len(pods)}",
                "chips": sum(pod.count for pod in pods),
                "nodes": sorted({pod.node for pod in pods if pod.node}),
                "queue": gang.queue if gang is not None else None,
                "priority": gang.priority if gang is not None else None,
                "created": rfc3339(gang.created) if gang is not None and gang.created else None,
                "reason": why,
            }
        )
    return Answer(JOB_COLUMNS, rows, JOB_WIDE)


def faults(plan: Plan, observed: Observed) -> Answer:
    """Every fault code seen, on chips and nodes, and since when it is reported."""
    since: dict[tuple[str, str, str], float] = {}
    for name, report in observed.reports.items():
        for fault in report.faults:
            if fault.time_ms and fault.chip >= 0:
                since[(name, f"{report.prefix}{fault.chip}", fault.code)] = fault.time_ms / 1000
    rows: list[dict[str, Any]] = []
    for chip in plan.chips:
        for code in chip.codes:
            began = since.get((chip.node, chip.chip, code))
            rows.append(_fault_row(chip.node, chip.chip, code, chip) | {"since": rfc3339(began) if began else None})
    for node in plan.nodes:
        rows += [
            {"node": node.node, "chip": "", "code": code, "level": node.level, "state": node.state, "since": None}
            for code in node.codes
        ]
    return Answer(("node", "chip", "code", "level", "state", "since"), rows)


def vnpus(plan: Plan, observed: Observed) -> Answer:
    """Every vNPU: those that agents report, and those that are ordered and not there yet."""
    prefixes = {name: server.prefix for name, server in plan.servers.items()}
    return vnpu_rows(observed.agents, observed.orders, prefixes)


def pools(plan: Plan, observed: Observed) -> Answer:
    """Nodes and chips per pool."""
    used = planned_use(plan, observed)
    return pool_rows((node.pool, node.state, used[node.node]) for node in plan.nodes)


def links(plan: Plan, observed: Observed) -> Answer:
    """Every link that a KVLink declares: both ends and the state."""
    return link_rows((row.link, row_of(row)) for row in plan.links)


def planned_use(plan: Plan, observed: Observed) -> dict[str, CountedChips]:
    """The counts of every node by a plan."""
    used: dict[str, set[str]] = {}
    out: dict[str, set[str]] = {}
    for chip in plan.chips:
        if chip.used_by:
            used.setdefault(chip.node, set()).add(chip.chip)
        if chip.state not in IN_SERVICE:
            out.setdefault(chip.node, set()).add(chip.chip)

    found = {}
    for state in plan.nodes:
        name, server, node = state.node, plan.servers.get(state.node), observed.nodes.get(state.node)
        found[name] = chip_use(
            server.base.bit_count() if server is not None else 0,
            used.get(name, set()),
            out.get(name, set()),
            state=state.state,
            cordoned=node is not None and node.unschedulable,
            closed=takes_no_pods(server, node),
        )
    return found


GET: Final[dict[str, Callable[[Plan, Observed], Answer]]] = {
    "nodes": nodes,
    "chips": chips,
    "jobs": jobs,
    "faults": faults,
    "vnpus": vnpus,
    "pools": pools,
    "links": links,
}


def chip_row(node: str, name: str, chip: ChipState | None, server: ServerChips | None) -> dict[str, Any]:
    """One chip; None if the plan has no row for it: it is healthy and free, or unreported."""
    if chip is None:
        return {
            "node": node,
            "chip": name,
            "state": ChipHealth.HEALTHY if server is not None and server.reported else UNREPORTED,
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


def chip_names(server: ServerChips | None) -> tuple[str, ...]:
    """The device names of a node's chips, by id."""
    return tuple(f"{server.prefix}{index}" for index in ids_of(server.base)) if server is not None else ()
