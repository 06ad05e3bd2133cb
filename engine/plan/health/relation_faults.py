"""Locations of relation faults: the chips and switches under a job that report codes of the relation table."""

from __future__ import annotations

from typing import Final

from belay.engine.model.faults import code_key
from belay.engine.model.jobs import Gang
from belay.engine.model.relations import CODES, RELATIONS, SWITCH, FaultLocation
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health.node_faults import fresh
from belay.engine.plan.node_view import NodeView, PassNodes

_UNHEALTHY: Final = "UnHealthy"


def locations(facts: Facts, nodes: PassNodes, gangs: PassGangs) -> dict[str, frozenset[FaultLocation]]:
    """Fault locations per job; a node with an unhealthy switch contributes its switch only."""
    out: dict[str, set[FaultLocation]] = {}
    for _, view in nodes.unassessed_views():
        found = set() if view.suspended or not fresh(view, facts.now) else _on_node(view)
        if not found:
            continue
        for carrier in found:
            owners = view.used_by.values() if carrier.chip == SWITCH else [view.used_by.get(carrier.chip, "")]
            for pod in set(owners):
                gang = gangs.of_pod.get(pod, "")
                if gang in gangs:
                    out.setdefault(gang, set()).add(carrier)
    return {gang: frozenset(found) for gang, found in out.items()}


def super_pod(facts: Facts, nodes: PassNodes, gang: Gang) -> bool:
    """Whether the job runs in a super pod (``SuperPodID`` of its nodes' reports)."""
    for key in gang.pods:
        pod = facts.observed.pods.get(key)
        view = nodes.get(pod.node) if pod is not None else None
        if view is not None and view.report is not None and view.report.super_pod_id >= 0:
            return True
    return False


def _on_node(view: NodeView) -> set[FaultLocation]:
    report, name = view.report, view.node.name
    if report is None or not view.used_by:
        return set()
    switch = report.switch
    found = {
        FaultLocation(name, SWITCH, code) for code in (switch.codes if switch else ()) if code_key(code) in RELATIONS
    }
    if switch is None or switch.node_status != _UNHEALTHY:
        found |= {
            FaultLocation(name, fault.chip, fault.code)
            for fault in report.faults
            if fault.chip >= 0 and code_key(fault.code) in CODES
        }
    return found
