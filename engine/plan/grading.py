"""Reports with the levels that the policies in force give their codes: for those who tell jobs what hit them.

The planner judges with every rule; process recovery, fault subscribers and people's status of a job look at single
codes. They read them through here, so that a `FaultPolicy` which calls a code harmless, or grave, is heard by all.
Withheld codes and windows are no matter here: ClusterD's own services see these too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from engine.documents import Desired, NodePool, Product
from engine.model.cluster import DeviceReport, Node, NodeReport, Observed, Pod, SwitchReport
from engine.model.faults import NETWORK, code_key, level_of
from engine.model.levels import NODE_LEVELS, NOT_HANDLE, SUB_HEALTH, node_rank, node_status
from engine.plan import inforce, outages
from engine.plan.judge import DEFAULT_ACTIONS, IDLE, TO_NODE, Judge, Judgement, use_of
from engine.plan.memo import Memo
from engine.plan.scope import NodeView
from engine.plan.views import chip_ids

_NO_DESIRED: Final = Desired()
#: What a switch's level becomes where a policy makes its node better than it reports.
_SWITCH_LEVELS: Final = {"Healthy": NOT_HANDLE, "SubHealthy": SUB_HEALTH, "PreSeparate": "PreSeparate"}
_RESTART: Final = frozenset({"RestartRequest", "RestartRequestFault"})
#: As which level a chip is told whose work a policy leaves alone, to those who know levels only.
_ACTED: Final = {"ignore": NOT_HANDLE, "strategy": SUB_HEALTH}


class Grading:
    """Judges single codes by the policies in force. ``desired`` gives the tables and products that are shipped.

    ``acts``: what policies have done about a level (``actions``) is told as a level too, for readers who act on levels
    by themselves: what is ignored as NotHandleFault, what is left to the job's strategy as SubHealthFault.
    """

    def __init__(self, desired: Desired = _NO_DESIRED, *, acts: bool = False) -> None:
        self._desired = desired
        self._acts = acts
        self._text = ""
        self._judge: Judge | None = None
        self._pools: tuple[NodePool, ...] = ()
        self._by_use = False
        self._reports: Memo[DeviceReport] = Memo(16384)
        self._hardware: Memo[NodeReport] = Memo(16384)

    def of(self, observed: Observed, kept: str | None = None) -> Observed:
        """The snapshot with graded reports; what nothing changes stays the same object.

        Args:
            kept: the declarations in force (``History.policy_revision``) where they are newer than the snapshot's.
        """
        self._follow(observed.history.policy_revision if kept is None else kept)
        judge = self._judge
        if judge is None:
            return observed
        loud = [n for n, r in observed.reports.items() if (r.faults or r.switch is not None) and n in observed.nodes]
        pods = _on_nodes(observed, {*loud}) if self._by_use else {}
        reports, hardware = dict(observed.reports), dict(observed.node_reports)
        for name in loud:
            node, report = observed.nodes[name], observed.reports[name]
            uses = _uses(pods.get(name, ()), report)
            inputs = (judge, node, report, uses)
            reports[name] = self._reports.of(name, inputs, partial(self._report, *inputs))
        for name, told in observed.node_reports.items():
            if name in observed.nodes:
                board = (judge, observed.nodes[name], told)
                hardware[name] = self._hardware.of(name, board, partial(self._board, *board))
        return msgspec.structs.replace(observed, reports=reports, node_reports=hardware)

    def _follow(self, text: str) -> None:
        if text == self._text:
            return
        self._text, self._judge = text, None
        policies = [p for p in inforce.previous_policies(text) or () if p.document.spec.mode == "enforce"]
        acting = [p for p in policies if self._acts and p.document.spec.actions]
        policies = [p for p in policies if p.document.spec.levels or p in acting]
        if policies:
            self._judge, self._pools = Judge(self._desired, policies), inforce.previous_pools(text)
            self._by_use = bool(acting) or any(p.document.spec.scope.workloads for p in policies)

    def _view(self, node: Node, report: DeviceReport | None) -> NodeView:
        """As much of a view as a policy's scope asks for."""
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
        self, judge: Judge, node: Node, report: DeviceReport, uses: tuple[tuple[int, str], ...]
    ) -> DeviceReport:
        view, use = self._view(node, report), dict(uses)
        faults, changed = [], False
        for fault in report.faults:
            how = use.get(fault.chip, IDLE)
            judgement, level = judge.of(view, how), fault.level
            if fault.chip >= 0 and fault.code:
                if code_key(fault.code) in judgement.rules.overrides:
                    level = level_of(judgement.rules, fault.kind, fault.code, fault.level)[0]
                if self._acts and fault.kind != NETWORK:
                    level = _acted(judgement, level, how)
            if level != fault.level:
                fault, changed = msgspec.structs.replace(fault, level=level), True
            faults.append(fault)
        switch = report.switch
        if switch is not None:
            switch = _switch(judge, view, switch)
            changed |= switch is not report.switch
        return msgspec.structs.replace(report, faults=tuple(faults), switch=switch) if changed else report

    def switch_words(self, observed: Observed, report: DeviceReport) -> dict[str, str]:
        """The levels that the policies of the last :meth:`of` give to codes on a report's node, by :func:`code_key`."""
        node = observed.nodes.get(report.node)
        if self._judge is None or node is None:
            return {}
        overrides = self._judge.of(self._view(node, report), IDLE).rules.overrides
        return {code: level for code, (level, _) in overrides.items()}

    def _board(self, judge: Judge, node: Node, told: NodeReport) -> NodeReport:
        view = self._view(node, None)
        overrides = judge.of(view, IDLE).rules.overrides
        if not any(code_key(code) in overrides for device in told.devices for code in device.codes):
            return told
        devices = []
        for device in told.devices:
            given = [overrides[code_key(c)][0] if code_key(c) in overrides else device.level for c in device.codes]
            level = max((TO_NODE.get(word, NODE_LEVELS[0]) for word in given), key=node_rank, default=device.level)
            devices.append(msgspec.structs.replace(device, level=level))
        worst, _ = outages.hardware(judge, view, told)
        return msgspec.structs.replace(told, devices=tuple(devices), status=node_status(worst))


def _switch(judge: Judge, view: NodeView, switch: SwitchReport) -> SwitchReport:
    """A switch as the policies see it; the same object where none names one of its codes."""
    overrides = judge.of(view, IDLE).rules.overrides if switch.codes else {}
    given = [overrides[code_key(code)][0] for code in switch.codes if code_key(code) in overrides]
    if not given:
        return switch
    status, _ = outages.switch_of(judge, view, switch)
    level = _SWITCH_LEVELS.get(status, "")
    if not level:
        others = [code for code in switch.codes if code_key(code) not in overrides]
        words = [*given, *(judge.table_level("switch", code) or switch.level for code in others)]
        grave = [word for word in words if outages.status_of(word) == "UnHealthy"]
        level = "RestartRequest" if all(word in _RESTART for word in grave) else "Separate"
    if (status, level) == (switch.node_status, switch.level):
        return switch
    return msgspec.structs.replace(switch, node_status=status, level=level)


def _acted(judgement: Judgement, level: str, use: str) -> str:
    """The level whose usual treatment is what policies have done about ``level``; itself where none says another."""
    wanted = judgement.action(level, use)
    usual = DEFAULT_ACTIONS.get(level)
    return level if usual is None or wanted == usual.of(use) else _ACTED.get(wanted, level)


def _on_nodes(observed: Observed, names: set[str]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in observed.pods.values():
        if pod.node in names and pod.holds_chips:
            found.setdefault(pod.node, []).append(pod)
    return found


def _uses(pods: Iterable[Pod], report: DeviceReport) -> tuple[tuple[int, str], ...]:
    """How the faulty chips are used, for policies that tell training from inference."""
    bad = {fault.chip for fault in report.faults}
    return tuple(sorted((chip, use_of(pod)) for pod in pods for chip in chip_ids(pod) if chip in bad))


__all__ = ["Grading"]
