"""Node-level trouble: NodeD's and the switch's reports, nodes that are not ready or gone, and the gate for new pods.

Messages keep the wording of component/ascend-for-volcano/plugin/node.go, which users search for. A node that is not
ready beyond its grace is a fault of its own (``heartbeatTimeOut``); while more than half of a pool turned not ready
within a minute, the control plane is suspected instead and nothing is evicted for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from engine.model.cluster import NodeReport, SwitchReport
from engine.model.diagnostics import Diagnostic
from engine.model.faults import code_key
from engine.model.levels import NODE_LEVELS, NORMAL, node_rank, node_status
from engine.plan import livepods
from engine.plan.judge import IDLE, TO_NODE, Judge
from engine.plan.scope import NodeView, Scope

NOT_READY_GRACE: Final = 40.0
"""Seconds: Kubernetes' node-monitor grace period."""
MASS_WINDOW: Final = 60.0
STALE_AFTER: Final = 600.0
"""Seconds: a device report is rewritten every 300."""
AGENT_STALE_MS: Final = 180_000
"""Three heartbeats of an agent's report."""
FUTURE_TOLERANCE: Final = 60.0
HEARTBEAT: Final = "heartbeatTimeOut"
CORES: Final = "huawei.com/npu-core"
STRESS_KEY: Final = "NodeHealthyStatus"

_SEPARATE: Final = "SeparateFault"
_PRE_SEPARATE: Final = "PreSeparateFault"
_SWITCH_STATUS: Final = {"Healthy": 0, "SubHealthy": 1, "PreSeparate": 2, "UnHealthy": 3}


def fresh(view: NodeView, now: float) -> bool:
    """Whether a node's report in force is young enough to act on (``now`` in Unix seconds)."""
    return view.report is not None and now - view.report.update_time <= STALE_AFTER


def standing(judge_: Judge, view: NodeView, report: NodeReport | None) -> tuple[bool, bool]:
    """Whether NodeD's and the switch's codes keep a node from new work, and whether they drive its tasks away."""
    level, _ = hardware(judge_, view, report)
    status, _ = switch_of(judge_, view, view.report.switch if view.report else None)
    out = node_rank(level) > 0 or status in ("PreSeparate", "UnHealthy")
    return out, node_rank(level) == 2 or status == "UnHealthy"


def judge(scope: Scope, judge_: Judge, view: NodeView, held: str, wave: bool) -> None:
    """Fill the node-level part of a view: state, level, codes, ``down``, ``closed``, ``fresh``.

    ``held`` is the rule of an Isolation document on the node (empty: none); ``wave`` that its pool is losing
    nodes in a wave.
    """
    name, observed, now = view.node.name, scope.observed, scope.now
    problem = observed.problems.get(name, "")
    view.fresh = fresh(view, now)
    level, codes = hardware(judge_, view, observed.node_reports.get(name))
    status, switch_codes = switch_of(judge_, view, view.report.switch if view.report else None)
    silent = not view.node.ready
    expired = silent and now - view.node.ready_changed > NOT_READY_GRACE
    stressed = view.node.annotations.get(STRESS_KEY) == "UnHealthy"
    pre = node_rank(level) == 1 or status == "PreSeparate"
    separate = node_rank(level) == 2 or status == "UnHealthy" or stressed
    view.codes = tuple(sorted({*codes, *switch_codes, *((HEARTBEAT,) if silent else ())}))
    view.switch_sub_healthy = status == "SubHealthy"
    if separate or held:
        view.level = _SEPARATE
    elif silent:
        view.level = "Separate"
    elif pre:
        view.level = _PRE_SEPARATE
    elif view.switch_sub_healthy:
        view.level = "SubHealthFault"
    else:
        view.level = level if codes else NORMAL
    known = node_rank(level) == 2 or stressed or (status == "UnHealthy" and view.fresh)
    if known or held or (expired and not wave):
        view.down = "NodeUnhealthy"
    view.state = _state(view, silent, bool(held) or stressed, separate, pre)
    view.closed = _gate(view, problem, now, separate, pre, held, silent)


def _state(view: NodeView, silent: bool, manual: bool, separate: bool, pre: bool) -> str:
    if silent:
        return "not-ready"
    if manual:
        return "manually-isolated"
    if separate:
        return "isolated"
    if pre:
        return "pre-isolated"
    if view.resource and not view.fresh:
        return "unknown"
    return "sub-healthy" if view.switch_sub_healthy else "healthy"


def _gate(
    view: NodeView, problem: str, now: float, separate: bool, pre: bool, held: str, silent: bool
) -> tuple[str, str] | None:
    if silent:
        return "NodeNotReady", "node is not ready"
    if held:
        return "NodeIsolated", f"node is unhealthy: isolated by {held}"
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
    if not view.fresh:
        age = int(now - view.report.update_time)
        return "NodeReportStale", f"not has(or not same) {view.resource}: the device report is {age} s old"
    return None


def stability(view: NodeView) -> tuple[str, str] | None:
    """The reference's check that the device list and Kubernetes agree; None when they do."""
    resource, allocatable, capacity = view.resource, view.node.allocatable, view.node.capacity
    if not resource or view.closed is not None:
        return view.closed
    head = f"{resource}-"
    if any(key.startswith(head) for key in allocatable) or CORES in allocatable:
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


def hardware(judge_: Judge, view: NodeView, report: NodeReport | None) -> tuple[str, set[str]]:
    """NodeD's level under the policies in scope, and its codes; the device report's elements about the node join."""
    worst, codes, lowered = NODE_LEVELS[0], set[str](), False
    elements = [(code, device.level) for device in (report.devices if report else ()) for code in device.codes or ("",)]
    if view.report:
        elements += [(f.code, TO_NODE.get(f.level, f.level)) for f in view.report.faults if f.chip < 0]
    overrides = judge_.of(view, IDLE).rules.overrides if elements else {}
    for code, reported in elements:
        level = reported
        override = overrides.get(code_key(code))
        if override is not None:
            level, lowered = TO_NODE.get(override[0], NODE_LEVELS[0]), True
        elif not level:
            level = judge_.table_level("node", code) or NODE_LEVELS[0]
        if code:
            codes.add(code)
        worst = max(worst, level, key=node_rank)
    if report is not None and not lowered:
        worst = next(
            (lv for lv in NODE_LEVELS[::-1] if node_status(lv) == report.status and node_rank(lv) > node_rank(worst)),
            worst,
        )
    return worst, codes


def switch_of(judge_: Judge, view: NodeView, switch: SwitchReport | None) -> tuple[str, tuple[str, ...]]:
    """The switch's node status, the worse of what it states and what its level means, and its codes.

    A policy that names one of its codes has every code judged for itself, the others by the shipped table.
    """
    if switch is None:
        return "Healthy", ()
    stated = max(switch.node_status, status_of(switch.level), key=lambda s: _SWITCH_STATUS.get(s, 3))
    overrides = judge_.of(view, IDLE).rules.overrides if switch.codes else {}
    if not any(code_key(code) in overrides for code in switch.codes):
        return stated, switch.codes
    judged = []
    for code in switch.codes:
        override = overrides.get(code_key(code))
        level = override[0] if override else judge_.table_level("switch", code) or switch.level
        judged.append(status_of(level))
    return max(judged, key=lambda s: _SWITCH_STATUS.get(s, 3)), switch.codes


def status_of(level: str) -> str:
    """The node status that a switch level means; the words of all tables are understood."""
    if level in ("", "NotHandle", "NotHandleFault"):
        return "Healthy"
    if level in ("SubHealth", "SubHealthFault"):
        return "SubHealthy"
    return "PreSeparate" if level.startswith("PreSeparate") else "UnHealthy"


def waves(scope: Scope) -> dict[str, int]:
    """Pools of which more than half turned not ready within a minute and have not come back: pool → how many."""
    drops: dict[str, list[float]] = {}
    for view in scope.unsettled.values():
        if not view.node.ready:
            drops.setdefault(view.pool, []).append(view.node.ready_changed)
    sizes = Counter(view.pool for view in scope.nodes.values()) if drops else {}
    return {pool: len(times) for pool, times in sorted(drops.items()) if _most_within(sorted(times)) * 2 > sizes[pool]}


def _most_within(times: list[float]) -> int:
    most = first = 0
    for last, moment in enumerate(times):
        while moment - times[first] > MASS_WINDOW:
            first += 1
        most = max(most, last - first + 1)
    return most


def gone(scope: Scope) -> tuple[set[str], bool]:
    """Nodes that live pods are bound to but that no longer exist, and whether so many are gone that nothing is done."""
    observed = scope.observed
    live = livepods.by_node(observed)
    names = {name for name in live.keys() - observed.nodes.keys() if live[name]}
    return names, len(names) * 2 > len(observed.nodes) + len(names)


def remember_waves(scope: Scope, found: Mapping[str, int], missing: set[str], mass: bool) -> None:
    """Say which pools are held for a wave of lost nodes, and keep the times of the drops while it lasts."""
    scope.memory.ready_drops = {
        pool: tuple(
            sorted(
                int(v.node.ready_changed * 1000) for v in scope.nodes.values() if v.pool == pool and not v.node.ready
            )
        )
        for pool in found
    }
    for pool, count in found.items():
        message = (
            f"{count} nodes of pool {pool} turned NotReady within a minute, more than half of it: the control plane is "
            "suspected, so nothing is evicted for nodes that are not ready; check the network and the API server"
        )
        scope.diagnostics.append(Diagnostic("warning", f"NodePool/{pool}", "", 0, 0, "", message))
    if mass:
        shown = ", ".join(sorted(missing)[:20])
        message = f"{len(missing)} nodes that pods are bound to do not exist ({shown}): nothing is evicted for them"
        scope.diagnostics.append(Diagnostic("warning", "Node", "", 0, 0, "", message))


def notes(scope: Scope) -> None:
    """Say which reports are refused, stale, missing, or from the future."""
    for name, view in scope.unsettled.items():
        if not view.resource:
            continue
        report, about = view.report, f"ConfigMap/kube-system/mindx-dl-deviceinfo-{name}"
        message = ""
        if name in scope.observed.problems:
            kept = "the last good report stays in force" if report else "the node gets no new placement"
            message = f"report of node {name} refused: {scope.observed.problems[name]}; {kept}"
        elif report is None:
            message = f"node {name} has no device report: it gets no new placement"
        elif not view.fresh:
            message = f"device report of node {name} is stale: it gets no new placement until it reports again"
        elif report.update_time - scope.now > FUTURE_TOLERANCE:
            message = (
                f"device report of node {name} is {int(report.update_time - scope.now)} s ahead: it is treated as now"
            )
        if message:
            scope.diagnostics.append(Diagnostic("warning", about, "", 0, 0, "", message))
    for name, agent in scope.observed.agents.items():
        if scope.now_ms - agent.time_ms > AGENT_STALE_MS and name in scope.nodes and scope.nodes[name].resource:
            message = (
                f"agent of node {name} has been silent for {(scope.now_ms - agent.time_ms) // 1000} s: what it said of "
                "processes is not believed any more; check the agent's pod"
            )
            about = f"ConfigMap/belay-nodes/belay-report-{name}"
            scope.diagnostics.append(Diagnostic("warning", about, "", 0, 0, "", message))
