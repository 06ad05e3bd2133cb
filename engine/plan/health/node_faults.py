"""Faults of whole nodes: reports of NodeD and the switch, nodes that are not ready or missing, and closed nodes.

Messages keep the wording of component/ascend-for-volcano/plugin/node.go, which users search for. A node that stays
not ready has a fault (``heartbeatTimeOut``): Kubernetes has waited its own grace period before it says so. When more
than half of a pool turned not ready within a minute, the planner suspects the control plane and evicts nothing for it:
a mass outage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from belay.engine.documents.fault_policy import IDLE
from belay.engine.gangs import live_pods
from belay.engine.model.cluster import NodeReport, SwitchReport
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.faults import HEARTBEAT, code_key
from belay.engine.model.labels import NODE_HEALTHY_STATUS, NPU_CORE
from belay.engine.model.levels import (
    NODE_LEVELS,
    NORMAL,
    NOT_HANDLE,
    SUB_HEALTH,
    TO_NODE,
    NodeLevel,
    NodeStatus,
    SwitchLevel,
    node_rank,
    node_status,
)
from belay.engine.model.pending_reasons import LEAVING
from belay.engine.model.states import NodeHealth
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.health import node_conditions
from belay.engine.plan.health.manual_isolation import NodeHold
from belay.engine.plan.node_agents import AGENT_STALE_MS
from belay.engine.plan.node_view import FUTURE_TOLERANCE, MAINTENANCE, NODE_DOWN, STALE_AFTER, NodeView, PassNodes
from belay.engine.plan.rules.fault_rules import FaultRules

MASS_WINDOW: Final = 60.0

# read often: members of an enumeration are slow to look up
_PRE_SEPARATE: Final = NodeStatus.PRE_SEPARATE
_UNHEALTHY: Final = NodeStatus.UNHEALTHY
_SUB_HEALTHY: Final = NodeStatus.SUB_HEALTHY
_HEALTHY: Final = NodeStatus.HEALTHY
_STATUS_RANK: Final[dict[str, int]] = {status.value: rank for rank, status in enumerate(NodeStatus)}


def fresh(view: NodeView, now: float) -> bool:
    """Whether a node's report in force is young enough to act on (``now`` in Unix seconds)."""
    return view.report is not None and now - view.report.update_time <= STALE_AFTER


def past_debounce(facts: Facts, view: NodeView) -> bool:
    """Whether a node that is not ready has been so for longer than ``SchedulingSettings.spec.notReadyDebounce``."""
    debounce = facts.desired.settings.not_ready_debounce
    return not debounce or facts.now - view.node.ready_changed > debounce


def severity(fault_rules: FaultRules, view: NodeView, report: NodeReport | None, now: float) -> tuple[bool, bool]:
    """Whether the codes of NodeD and the switch, and its conditions, keep a node from new work, and whether they evict
    its tasks.
    """
    level, _ = _node_level(fault_rules, view, report, now)
    status, _ = switch_status(fault_rules, view, view.report.switch if view.report else None)
    out = node_rank(level) > 0 or status in (_PRE_SEPARATE, _UNHEALTHY)
    return out, node_rank(level) == 2 or status == _UNHEALTHY


def assessed(
    facts: Facts,
    fault_rules: FaultRules,
    view: NodeView,
    held: NodeHold | None,
    mass_outage: bool,
    switch: SwitchReport | None,
) -> NodeView:
    """The view with its node-level part: state, level, codes, ``down``, ``closed``, ``fresh``.

    Args:
        held: the maintenance that the node is in.
        mass_outage: whether the node's pool has a mass outage.
        switch: the node's switch, without the faults that its jobs tolerate for now; their codes are shown all the
            same.
    """
    name, observed, now = view.node.name, facts.observed, facts.now
    problem, young = observed.problems.get(name, ""), fresh(view, now)
    level, codes = _node_level(fault_rules, view, observed.node_reports.get(name), now)
    status, _ = switch_status(fault_rules, view, switch)
    switch_codes = view.report.switch.codes if view.report and view.report.switch else ()
    not_ready = not view.node.ready
    expired = not_ready and past_debounce(facts, view)
    stressed = view.node.annotations.get(NODE_HEALTHY_STATUS) == _UNHEALTHY
    pre = node_rank(level) == 1 or status == _PRE_SEPARATE
    separate = node_rank(level) == 2 or status == _UNHEALTHY or stressed
    weak = status == _SUB_HEALTHY
    node_level: str
    if separate or held is not None:
        node_level = NodeLevel.SEPARATE
    elif not_ready:
        node_level = SwitchLevel.SEPARATE
    elif pre:
        node_level = NodeLevel.PRE_SEPARATE
    elif weak:
        node_level = SUB_HEALTH
    else:
        node_level = level if codes else NORMAL
    known = node_rank(level) == 2 or stressed or (status == _UNHEALTHY and young)
    broken = known or (expired and not mass_outage)
    down = NODE_DOWN if broken else MAINTENANCE if held is not None else view.down
    state = _state(not_ready, held is not None or stressed, separate, pre)
    if state is None:
        silent = bool(view.resource) and not young
        state = NodeHealth.UNKNOWN if silent else NodeHealth.SUB_HEALTHY if weak else NodeHealth.HEALTHY
    return msgspec.structs.replace(
        view,
        fresh=young,
        codes=tuple(sorted({*codes, *switch_codes, *((HEARTBEAT,) if not_ready else ())})),
        switch_sub_healthy=weak,
        level=node_level,
        down=down,
        maintenance=held.text if held is not None else "",
        waits=held is not None and held.waits,
        state=state,
        closed=_closed_reason(view, problem, now, separate, pre, held, not_ready),
    )


def _state(not_ready: bool, manual: bool, separate: bool, pre: bool) -> NodeHealth | None:
    """The state of a node that takes no new work for its own sake; None for any other."""
    if not_ready:
        return NodeHealth.NOT_READY
    if manual:
        return NodeHealth.MANUALLY_ISOLATED
    if separate:
        return NodeHealth.ISOLATED
    if pre:
        return NodeHealth.PRE_ISOLATED
    return None


def _closed_reason(
    view: NodeView, problem: str, now: float, separate: bool, pre: bool, held: NodeHold | None, not_ready: bool
) -> tuple[str, str] | None:
    if not_ready:
        return "NodeNotReady", "node is not ready"
    if view.node.departure is not None:
        # whatever the pod tolerates: it would have to go again at once
        return LEAVING, f"node is about to be removed: {view.node.departure.text}"
    if held is not None:
        return "NodeIsolated", f"node is in maintenance: {held.text}"
    if separate:
        return "NodeUnhealthy", "node is unhealthy"
    if pre:
        return "NodePreSeparate", "node health status is PreSeparate"
    if view.suspended:
        return "PoolSuspended", f"pool {view.pool} is suspended"
    if not view.resource:
        return None
    if view.report is None:
        lack = f"not has(or not same) {view.resource}"
        return ("NodeReportRefused", f"{lack}: {problem}") if problem else ("NodeReportMissing", lack)
    if not fresh(view, now):
        age = int(now - view.report.update_time)
        return "NodeReportStale", f"not has(or not same) {view.resource}: the device report is {age} s old"
    return None


def stability(view: NodeView) -> tuple[str, str] | None:
    """MindCluster's check that the device list and Kubernetes agree: (reason, message), None when they do."""
    resource, allocatable, capacity = view.resource, view.node.allocatable, view.node.capacity
    if not resource or view.closed is not None:
        return view.closed
    head = f"{resource}-"
    if any(key.startswith(head) for key in allocatable) or NPU_CORE in allocatable:
        return None  # a node with vNPUs offers other resources; its chips are not counted in pieces
    if resource not in allocatable or resource not in capacity:
        return "NodeUnstable", f"not has(or not same) {resource}"
    listed, idle = view.free.bit_count(), allocatable[resource] - view.requested.get(resource, 0)
    if listed > idle:
        return "NodeUnstable", f"{resource} not stable:device-info is {listed} but k8s is {idle}"
    if listed > capacity[resource]:
        return "NodeUnstable", f"{resource} not stable:device-info is {listed} but k8s is {capacity[resource]}"
    if idle > capacity[resource]:
        return (
            "NodeUnstable",
            f"{view.node.name} is not stable because of capacity={capacity[resource]} < allocatable={idle}",
        )
    return None


def _node_level(fault_rules: FaultRules, view: NodeView, report: NodeReport | None, now: float) -> tuple[str, set[str]]:
    """The level of a node by NodeD and by its conditions, and the codes and types of both."""
    level, codes = hardware_level(fault_rules, view, report)
    for found in node_conditions.faults(fault_rules, view, now):
        codes.add(found.condition.type)
        level = max(level, found.level, key=node_rank)
    return level, codes


def hardware_level(fault_rules: FaultRules, view: NodeView, report: NodeReport | None) -> tuple[str, set[str]]:
    """NodeD's level under the policies in scope, and its codes; faults of the node in the device report count, too."""
    worst: str = NodeLevel.NOT_HANDLE
    codes, lowered = set[str](), False
    elements = [(code, device.level) for device in (report.devices if report else ()) for code in device.codes or ("",)]
    if view.report:
        elements += [(f.code, TO_NODE.get(f.level, f.level)) for f in view.report.faults if f.chip < 0]
    overrides = fault_rules.of(view, IDLE).rules.overrides if elements else {}
    for code, reported in elements:
        level = reported
        override = overrides.get(code_key(code))
        if override is not None:
            level, lowered = TO_NODE.get(override[0], NodeLevel.NOT_HANDLE), True
        elif not level:
            level = fault_rules.table_level("node", code) or NodeLevel.NOT_HANDLE
        if code:
            codes.add(code)
        worst = max(worst, level, key=node_rank)
    if report is not None and not lowered:
        worst = next(
            (lv for lv in NODE_LEVELS[::-1] if node_status(lv) == report.status and node_rank(lv) > node_rank(worst)),
            worst,
        )
    return worst, codes


def switch_status(fault_rules: FaultRules, view: NodeView, switch: SwitchReport | None) -> tuple[str, tuple[str, ...]]:
    """The node status by the switch (the worse of its stated status and its level), and the switch's codes.

    When a policy names one of the codes, each code is graded separately, those without policy by the shipped table.
    """
    if switch is None:
        return _HEALTHY, ()
    stated = max(switch.node_status, status_of(switch.level), key=_status_rank)
    overrides = fault_rules.of(view, IDLE).rules.overrides if switch.codes else {}
    if not any(code_key(code) in overrides for code in switch.codes):
        return stated, switch.codes
    judged = []
    for code in switch.codes:
        override = overrides.get(code_key(code))
        level = override[0] if override else fault_rules.table_level("switch", code) or switch.level
        judged.append(status_of(level))
    return max(judged, key=_status_rank), switch.codes


def status_of(level: str) -> NodeStatus:
    """The node status for a switch level, in the words of any table."""
    if level in ("", SwitchLevel.NOT_HANDLE, NOT_HANDLE):
        return _HEALTHY
    if level in ("SubHealth", SUB_HEALTH):
        return _SUB_HEALTHY
    return _PRE_SEPARATE if level.startswith(SwitchLevel.PRE_SEPARATE) else _UNHEALTHY


def _status_rank(status: str) -> int:
    return _STATUS_RANK.get(status, _STATUS_RANK[_UNHEALTHY])


def mass_outages(nodes: PassNodes) -> dict[str, int]:
    """Pools with a mass outage (more than half turned not ready within a minute): pool → nodes not ready."""
    drops: dict[str, list[float]] = {}
    for _, view in nodes.unassessed_views():
        if not view.node.ready:
            drops.setdefault(view.pool, []).append(view.node.ready_changed)
    sizes = Counter(view.pool for view in nodes.values()) if drops else {}
    return {pool: len(times) for pool, times in sorted(drops.items()) if _most_within(sorted(times)) * 2 > sizes[pool]}


def _most_within(times: list[float]) -> int:
    most = first = 0
    for last, moment in enumerate(times):
        while moment - times[first] > MASS_WINDOW:
            first += 1
        most = max(most, last - first + 1)
    return most


def missing_nodes(facts: Facts) -> tuple[set[str], bool]:
    """Missing nodes that live pods are bound to, and whether they are so many that nothing is evicted for them."""
    observed = facts.observed
    live = live_pods.by_node(observed, facts.cache)
    names = {name for name in live.keys() - observed.nodes.keys() if live[name]}
    return names, len(names) * 2 > len(observed.nodes) + len(names)


def record_outages(draft: Draft, nodes: PassNodes, found: Mapping[str, int], missing: set[str], mass: bool) -> None:
    """Report mass outages, and keep the times at which their nodes turned not ready while they last."""
    draft.memory.ready_drops = {
        pool: tuple(
            sorted(int(v.node.ready_changed * 1000) for v in nodes.values() if v.pool == pool and not v.node.ready)
        )
        for pool in found
    }
    for pool, count in found.items():
        message = (
            f"{count} nodes of pool {pool} turned NotReady within a minute, more than half of it: the control plane is "
            "suspected, so nothing is evicted for nodes that are not ready; check the network and the API server"
        )
        draft.diagnostics.append(
            Diagnostic("warning", f"NodePool/{pool}", "", 0, 0, "", message, PassCode.MANY_NOT_READY)
        )
    if mass:
        shown = ", ".join(sorted(missing)[:20])
        bound = f"{counted(len(missing), 'node')} that pods are bound to"
        message = f"{bound} {'does' if len(missing) == 1 else 'do'} not exist ({shown}): nothing is evicted for that"
        draft.diagnostics.append(Diagnostic("warning", "Node", "", 0, 0, "", message, PassCode.NODES_MISSING))


def diagnose(facts: Facts, draft: Draft, nodes: PassNodes) -> None:
    """Report which reports are refused, stale, missing, or from the future."""
    for name, view in nodes.unassessed_views():
        if not view.resource:
            continue
        report, about = view.report, f"ConfigMap/kube-system/mindx-dl-deviceinfo-{name}"
        message, code = "", PassCode.REPORT_REFUSED
        if name in facts.observed.problems:
            kept = "the last good report stays in force" if report else "the node gets no new placement"
            message = f"report of node {name} refused: {facts.observed.problems[name]}; {kept}"
        elif report is None:
            message = f"node {name} has no device report: it gets no new placement"
            code = PassCode.REPORT_MISSING
        elif not view.fresh:
            message = f"device report of node {name} is stale: it gets no new placement until it reports again"
            code = PassCode.REPORT_STALE
        elif report.update_time - facts.now > FUTURE_TOLERANCE:
            ahead = int(report.update_time - facts.now)
            message = f"device report of node {name} is {ahead} s ahead: it is treated as now"
            code = PassCode.CLOCK_AHEAD
        if message:
            draft.diagnostics.append(Diagnostic("warning", about, "", 0, 0, "", message, code))
    for name, agent in facts.observed.agents.items():
        if facts.now_ms - agent.time_ms > AGENT_STALE_MS and name in nodes and nodes[name].resource:
            message = (
                f"agent of node {name} has been silent for {(facts.now_ms - agent.time_ms) // 1000} s: "
                "its list of processes is ignored; check the agent's pod"
            )
            about = f"ConfigMap/belay-nodes/belay-report-{name}"
            draft.diagnostics.append(Diagnostic("warning", about, "", 0, 0, "", message, PassCode.AGENT_SILENT))
