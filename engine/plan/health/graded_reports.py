"""Reports with the levels that the policies in force give their codes.

The planner applies every rule; process recovery, fault subscribers and the status of jobs read single codes. They
read graded reports, so that a `FaultPolicy` that changes the level of a code applies to all of them. Withheld codes
and windows do not matter here: ClusterD's services show these codes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from belay.engine.documents import Desired, NodePool, Product
from belay.engine.documents.fault_policy import IDLE
from belay.engine.model.cluster import DeviceReport, Node, NodeReport, Observed, Pod, SwitchReport
from belay.engine.model.faults import NETWORK, code_key, level_of
from belay.engine.model.levels import (
    NODE_LEVELS,
    NOT_HANDLE,
    SUB_HEALTH,
    TO_NODE,
    NodeStatus,
    SwitchLevel,
    SwitchTableLevel,
    node_rank,
    node_status,
)
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache, Slot
from belay.engine.plan.health import node_faults
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.rules import in_force
from belay.engine.plan.rules.fault_rules import DEFAULT_ACTIONS, ChipRules, FaultRules, use_of
from belay.engine.plan.views import chip_ids

_NO_DESIRED: Final = Desired()
#: Switch level for a node status that a policy has improved.
_SWITCH_LEVELS: Final[dict[str, str]] = {
    NodeStatus.HEALTHY.value: NOT_HANDLE,
    NodeStatus.SUB_HEALTHY.value: SUB_HEALTH,
    NodeStatus.PRE_SEPARATE.value: SwitchLevel.PRE_SEPARATE,
}
_RESTART: Final = frozenset({SwitchLevel.RESTART_REQUEST, SwitchTableLevel.RESTART_REQUEST})
#: Level that stands for an action, for readers who act on levels only.
_ACTION_LEVELS: Final = {"ignore": NOT_HANDLE, "strategy": SUB_HEALTH}

_Kept = Slot["tuple[Desired, GradedReports]"]
_BY_LEVEL: Final = CacheKey("graded reports, by level", _Kept)
_BY_ACTION: Final = CacheKey("graded reports, by action", _Kept)


class GradedReports:
    """Grades single codes by the policies in force.

    Args:
        desired: the shipped tables and products, or what reads them: it is called once a policy needs them.
        by_action: translate the actions of policies into levels as well, for readers who act on levels: ``ignore``
            becomes NotHandleFault, ``strategy`` SubHealthFault.
    """

    def __init__(self, desired: Desired | Callable[[], Desired] = _NO_DESIRED, *, by_action: bool = False) -> None:
        self._given = desired
        self._by_action = by_action
        self._text = ""
        self._fault_rules: FaultRules | None = None
        self._pools: tuple[NodePool, ...] = ()
        self._by_use = False
        self._reports: Memo[DeviceReport] = Memo(16384)
        self._node_reports: Memo[NodeReport] = Memo(16384)

    def of(self, observed: Observed, kept: str | None = None) -> Observed:
        """The snapshot with graded reports; unchanged reports stay the same objects.

        Args:
            kept: the declarations in force (``History.policy_revision``) where they are newer than the snapshot's.
        """
        self._update_rules(observed.history.policy_revision if kept is None else kept)
        fault_rules = self._fault_rules
        if fault_rules is None:
            return observed
        loud = [n for n, r in observed.reports.items() if (r.faults or r.switch is not None) and n in observed.nodes]
        pods = _on_nodes(observed, {*loud}) if self._by_use else {}
        reports, hardware = dict(observed.reports), dict(observed.node_reports)
        for name in loud:
            node, report = observed.nodes[name], observed.reports[name]
            uses = _uses(pods.get(name, ()), report)
            inputs = (fault_rules, node, report, uses)
            reports[name] = self._reports.of(name, inputs, partial(self._report, *inputs))
        for name, node_report in observed.node_reports.items():
            if name in observed.nodes:
                given = (fault_rules, observed.nodes[name], node_report)
                hardware[name] = self._node_reports.of(name, given, partial(self._node_report, *given))
        return msgspec.structs.replace(observed, reports=reports, node_reports=hardware)

    @property
    def _desired(self) -> Desired:
        if not isinstance(self._given, Desired):
            self._given = self._given()
        return self._given

    def _update_rules(self, text: str) -> None:
        if text == self._text:
            return
        self._text, self._fault_rules = text, None
        policies = [p for p in in_force.previous_policies(text) or () if p.document.spec.mode == "enforce"]
        acting = [p for p in policies if self._by_action and p.document.spec.actions]
        policies = [p for p in policies if p.document.spec.levels or p in acting]
        if policies:
            self._fault_rules, self._pools = FaultRules(self._desired, policies), in_force.previous_pools(text)
            self._by_use = bool(acting) or any(p.document.spec.scope.workloads for p in policies)

    def _view(self, node: Node, report: DeviceReport | None) -> NodeView:
        """A view with the fields that a policy's scope needs."""
        pool = next((p for p in self._pools if p.spec.selector.matches(node.labels)), None)
        return NodeView(
            node=node, pool=pool.name if pool else "default", product=self._product(node, pool), report=report,
            resource="", prefix="", base=0, unhealthy=0, unavailable=0, network=None, used=0, used_by={}, pods=[],
            requested={},
        )  # fmt: skip

    def _product(self, node: Node, pool: NodePool | None) -> Product | None:
        if pool is not None and pool.spec.product:
            declared = self._desired.products.get(pool.spec.product)
            return declared.document if declared else None
        return self._desired.product_of(node.labels)

    def _report(
        self, fault_rules: FaultRules, node: Node, report: DeviceReport, uses: tuple[tuple[int, str], ...]
    ) -> DeviceReport:
        view, use = self._view(node, report), dict(uses)
        faults, changed = [], False
        for fault in report.faults:
            how = use.get(fault.chip, IDLE)
            chip_rules, level = fault_rules.of(view, how), fault.level
            if fault.chip >= 0 and fault.code:
                if code_key(fault.code) in chip_rules.rules.overrides:
                    level = level_of(chip_rules.rules, fault.kind, fault.code, fault.level)[0]
                if self._by_action and fault.kind != NETWORK:
                    level = _level_of_action(chip_rules, level, how)
            if level != fault.level:
                fault, changed = msgspec.structs.replace(fault, level=level), True
            faults.append(fault)
        switch = report.switch
        if switch is not None:
            switch = _switch(fault_rules, view, switch)
            changed |= switch is not report.switch
        return msgspec.structs.replace(report, faults=tuple(faults), switch=switch) if changed else report

    def switch_levels(self, observed: Observed, report: DeviceReport) -> dict[str, str]:
        """Levels that the policies of the last :meth:`of` give to codes on a report's node, by :func:`code_key`."""
        node = observed.nodes.get(report.node)
        if self._fault_rules is None or node is None:
            return {}
        overrides = self._fault_rules.of(self._view(node, report), IDLE).rules.overrides
        return {code: level for code, (level, _) in overrides.items()}

    def _node_report(self, fault_rules: FaultRules, node: Node, report: NodeReport) -> NodeReport:
        view = self._view(node, None)
        overrides = fault_rules.of(view, IDLE).rules.overrides
        if not any(code_key(code) in overrides for device in report.devices for code in device.codes):
            return report
        devices = []
        for device in report.devices:
            given = [overrides[code_key(c)][0] if code_key(c) in overrides else device.level for c in device.codes]
            level = max((TO_NODE.get(word, NODE_LEVELS[0]) for word in given), key=node_rank, default=device.level)
            devices.append(msgspec.structs.replace(device, level=level))
        worst, _ = node_faults.hardware_level(fault_rules, view, report)
        return msgspec.structs.replace(report, devices=tuple(devices), status=node_status(worst))


def _switch(fault_rules: FaultRules, view: NodeView, switch: SwitchReport) -> SwitchReport:
    """The switch graded by policies; the same object when no policy names one of its codes."""
    overrides = fault_rules.of(view, IDLE).rules.overrides if switch.codes else {}
    given = [overrides[code_key(code)][0] for code in switch.codes if code_key(code) in overrides]
    if not given:
        return switch
    status, _ = node_faults.switch_status(fault_rules, view, switch)
    level = _SWITCH_LEVELS.get(status, "")
    if not level:
        others = [code for code in switch.codes if code_key(code) not in overrides]
        levels = [*given, *(fault_rules.table_level("switch", code) or switch.level for code in others)]
        grave = [word for word in levels if node_faults.status_of(word) == NodeStatus.UNHEALTHY]
        level = SwitchLevel.RESTART_REQUEST if all(w in _RESTART for w in grave) else SwitchLevel.SEPARATE
    if (status, level) == (switch.node_status, switch.level):
        return switch
    return msgspec.structs.replace(switch, node_status=status, level=level)


def _level_of_action(chip_rules: ChipRules, level: str, use: str) -> str:
    """The level that usually gets the action that policies give to ``level``; ``level`` where they give none."""
    wanted = chip_rules.action(level, use)
    usual = DEFAULT_ACTIONS.get(level)
    return level if usual is None or wanted == usual.of(use) else _ACTION_LEVELS.get(wanted, level)


def _on_nodes(observed: Observed, names: set[str]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in observed.pods.values():
        if pod.node in names and pod.holds_chips:
            found.setdefault(pod.node, []).append(pod)
    return found


def _uses(pods: Iterable[Pod], report: DeviceReport) -> tuple[tuple[int, str], ...]:
    """(chip, use) of the faulty chips, for policies that distinguish training from inference."""
    bad = {fault.chip for fault in report.faults}
    return tuple(sorted((chip, use_of(pod)) for pod in pods for chip in chip_ids(pod) if chip in bad))


def graded_reports(desired: Desired, cache: PlanCache, *, by_action: bool = False) -> GradedReports:
    """The one that a cache keeps for these declarations."""
    slot = cache[_BY_ACTION if by_action else _BY_LEVEL]
    known = slot.value
    if known is None or known[0] is not desired:
        known = slot.value = (desired, GradedReports(desired, by_action=by_action))
    return known[1]


__all__ = ["GradedReports", "graded_reports"]
