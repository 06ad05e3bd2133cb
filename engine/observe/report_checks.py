"""Reports that are well formed and cannot be true: jumps that hardware does not make, words about another node.

Such a report is named in the diagnostics, and the last one that was in force stays in force. Who may write a report
is a matter of RBAC and admission; this is the second line, and it covers mixed-up and damaged reports as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from belay.engine.model.cluster import AgentReport, DeviceReport, Node, Orders, PublicReport
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.labels import PRODUCT_SERIAL
from belay.engine.model.public_faults import PublicFaultProblem
from belay.engine.wire import names
from belay.engine.wire.reserved import PUBLIC_NAMESPACE

PLAUSIBLE_EPOCH: Final = 1_000_000
"""Largest epoch that a report may claim beyond what was ordered: three resets in six hours take 200 years to reach it.
A larger one would drive the epochs of its chips towards the end of their range."""
_AGENT_FAULTS: Final = "-fault-"
"""In names of an agent's public faults: ``<sender>-fault-<node>``."""
_AGENT_REPORTS: Final = (
    (names.DEVICE_NAMESPACE, names.DEVICE_PREFIX),
    (names.NODE_NAMESPACE, names.NODE_PREFIX),
    (names.NODES, names.REPORT_PREFIX),
)
"""Namespace and prefix of an agent's other reports, which could be labelled as public faults as well."""
_MOST_PROBLEMS: Final = 20


class _Report(Protocol):
    @property
    def node(self) -> str: ...


_R = TypeVar("_R", bound=_Report)


class Doubt(NamedTuple):
    """Why a report is not believed: its field, and a sentence."""

    field: str
    message: str


class ReportsInForce(Generic[_R]):
    """One kind of report: the newest of each node unless it is held, then the last one that was in force.

    ``name`` is the ConfigMap's key of a node. Only reports that changed and those that are held are judged again.
    """

    def __init__(self, name: Callable[[str], ObjectKey]) -> None:
        self._name = name
        self._accepted: dict[str, _R] = {}
        self._changed: set[str] = set()
        self._held: dict[str, Doubt] = {}

    def change(self, node: str) -> None:
        """Judge the node's report again at the next snapshot."""
        self._changed.add(node)

    def forget(self, node: str) -> None:
        """Drop what is known of a node that is gone."""
        self._accepted.pop(node, None)
        self._held.pop(node, None)

    def of(self, newest: Mapping[str, _R], doubt: Callable[[_R | None, _R], Doubt | None]) -> dict[str, _R]:
        """The reports in force; ``doubt`` compares the last one in force, if any, with the newest."""
        for node in self._changed | self._held.keys():
            report = newest.get(node)
            found = doubt(self._accepted.get(node), report) if report is not None else None
            if found is not None:
                self._held[node] = found
                continue
            self._held.pop(node, None)
            if report is not None:
                self._accepted[node] = report
        self._changed.clear()
        if not self._held:
            return dict(newest)
        kept = {node: self._accepted.get(node) if node in self._held else report for node, report in newest.items()}
        return {node: report for node, report in kept.items() if report is not None}

    def findings(self) -> list[Diagnostic]:
        """One finding per held report."""
        found = []
        for node, doubt in sorted(self._held.items()):
            stays = "the last one before it stays in force" if node in self._accepted else "it is not used"
            text = f"{doubt.message}: the report is held, {stays}"
            found.append(Diagnostic("error", str(self._name(node)), "", 0, 0, doubt.field, text, PassCode.REPORT_HELD))
        return found


def device_jump(before: DeviceReport | None, after: DeviceReport, in_use: Callable[[str], bool]) -> Doubt | None:
    """What a server cannot do while pods hold chips on it: become another product, or move to another super pod."""
    if before is None or before is after:
        return None
    if before.prefix != after.prefix and in_use(after.node):
        text = f"its chips are {after.prefix}N, were {before.prefix}N, and pods hold chips of the node"
        return Doubt("data.DeviceInfoCfg.DeviceInfo.DeviceList", text)
    if before.super_pod_id >= 0 and before.super_pod_id != after.super_pod_id and in_use(after.node):
        text = f"super pod {after.super_pod_id} was {before.super_pod_id}, and pods hold chips of the node"
        return Doubt("data.DeviceInfoCfg.SuperPodID", text)
    return None


def epoch_jump(report: AgentReport, orders: Orders | None) -> Doubt | None:
    """An epoch that cannot have been ordered."""
    for chip, row in report.chips.items():
        order = orders.resets.get(chip) if orders is not None else None
        most = max(PLAUSIBLE_EPOCH, order.epoch if order is not None else 0)
        if row.reset_epoch_done > most:
            text = f"chip {chip} claims reset epoch {row.reset_epoch_done}, at most {most} can be"
            return Doubt("data.report.json.chips.resetEpochDone", text)
    most = max(PLAUSIBLE_EPOCH, orders.vnpu_epoch if orders is not None else 0)
    if report.vnpu_epoch_done > most:
        text = f"the report claims vNPU epoch {report.vnpu_epoch_done}, at most {most} can be"
        return Doubt("data.report.json.vnpu.epochDone", text)
    return None


def went_back(before: AgentReport | None, after: AgentReport) -> str:
    """Why a report is older than the one before from the same run of the agent; empty when it is not."""
    if before is None or before.boot != after.boot or not after.boot or after.seq >= before.seq:
        return ""
    return f"seq {after.seq} is older than {before.seq} of the same run: an earlier report was written again"


def _agent_of(key: ObjectKey) -> str:
    """The node whose agent writes a ConfigMap, by its name; empty where the name is nothing of an agent's."""
    if key.namespace == PUBLIC_NAMESPACE:
        sender, _, node = key.name.partition(_AGENT_FAULTS)
        return node if sender else ""
    for namespace, prefix in _AGENT_REPORTS:
        if key.namespace == namespace and key.name.startswith(prefix):
            return key.name.removeprefix(prefix)
    return ""


def own_public_faults(key: ObjectKey, report: PublicReport, nodes: Mapping[str, Node]) -> PublicReport:
    """The report without words about other nodes, where the name of its ConfigMap is that of one node's agent."""
    node = _agent_of(key)
    if node not in nodes:
        return report
    serial = nodes[node].annotations.get(PRODUCT_SERIAL) or None
    messages, problems, found = [], list(report.problems), report.found
    for message in report.messages:
        faults = []
        for fault in message.faults:
            own = tuple(one for one in fault.influences if one.node == node or (not one.node and one.serial == serial))
            if len(own) < len(fault.influences):
                found += 1
                text = f"names {len(fault.influences) - len(own)} other nodes in the ConfigMap of node {node}: left out"
                problems.append(PublicFaultProblem(f"data.PublicFault.faults[{fault.index}].influence", text))
            if own:
                faults.append(msgspec.structs.replace(fault, influences=own))
        if faults:
            messages.append(msgspec.structs.replace(message, faults=tuple(faults)))
    if found == report.found:
        return report
    return PublicReport(tuple(messages), tuple(problems[:_MOST_PROBLEMS]), found)
