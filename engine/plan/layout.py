"""The layout pass: vNPU layouts declared in Git against the vNPUs that nodes report.

A chip is re-cut only when nothing that would have to go is in use; chips declared for vNPUs or holding
some take no whole-chip work (docs/zh/scheduling/04_usage/02_virtual_instance).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from engine.documents import Declared, VNPULayout, VNPUTemplates
from engine.model.actions import Evidence, PartitionChip
from engine.model.cluster import AgentReport, Orders
from engine.model.diagnostics import Diagnostic, Severity
from engine.model.history import NodeMemory
from engine.model.levels import IN_SERVICE, NORMAL
from engine.model.plan import ChipState
from engine.model.vnpu import Existing, Size, Totals, change, unfit
from engine.plan.scope import NodeView, Scope
from engine.wire.orders import chip_number

CHIP_NAME_LABEL: Final = "node.kubernetes.io/npu.chip.name"
#: A refused or failed partition is ordered again after this long, in milliseconds.
RETRY_MS: Final = 300_000

#: chip id -> (templates wanted, the document that says so; None when Git no longer lays the chip out)
_Wanted = dict[int, tuple[tuple[str, ...], Declared[VNPULayout] | None]]


def run(scope: Scope) -> None:
    """Emits PartitionChip and takes chips with or for vNPUs out of whole-chip placement."""
    laid_out = scope.desired.layouts or any(o.vnpu_layout for o in scope.observed.orders.values())
    if not laid_out or scope.observed.ledger_broken:
        _close_cut_chips(scope)
        return
    for name in sorted(scope.nodes):
        view = scope.nodes[name]
        wanted = _wanted(scope, view)
        if wanted:
            _node(scope, view, wanted)
    _close_cut_chips(scope)


def _wanted(scope: Scope, view: NodeView) -> _Wanted:
    wanted: _Wanted = {}
    for layout in scope.desired.layouts:
        spec = layout.document.spec
        selected = (
            spec.pool == view.pool if spec.pool else bool(spec.selector and spec.selector.matches(view.node.labels))
        )
        if not selected or spec.mode != "static":
            continue
        for row in spec.chips:
            for chip in row.chips:
                if chip in wanted:
                    _complain(
                        scope, view, layout, chip, "is already laid out by another document, the first by name wins"
                    )
                elif not view.base >> chip & 1:
                    _complain(scope, view, layout, chip, "does not exist on the node")
                elif _fits(scope, view, layout, chip, row.templates):
                    wanted[chip] = (row.templates, layout)
    orders = scope.observed.orders.get(view.node.name)
    if scope.desired.has_git and orders is not None:
        for chip, templates in orders.vnpu_layout.items():
            if templates and chip not in wanted:
                wanted[chip] = ((), None)
    return dict(sorted(wanted.items()))


def _fits(scope: Scope, view: NodeView, layout: Declared[VNPULayout], chip: int, templates: tuple[str, ...]) -> bool:
    family = scope.desired.templates_for(view.product, view.node.labels)
    if family is None:
        _complain(scope, view, layout, chip, "cannot be cut: no vNPU templates are known for the node's chips")
        return False
    unknown = [name for name in templates if name not in family.by_name]
    if unknown:
        _complain(scope, view, layout, chip, f"template {unknown[0]} is none of family {family.spec.family}")
        return False
    totals = _totals(view, family)
    why = unfit(totals, [_size(family, name, totals.aicore) for name in templates])
    if why is not None:
        _complain(scope, view, layout, chip, f"the templates do not fit: {why}")
    return why is None


def _node(scope: Scope, view: NodeView, wanted: _Wanted) -> None:
    node = view.node.name
    agent, orders = scope.observed.agents.get(node), scope.observed.orders.get(node)
    memory = scope.memory.nodes.get(node, NodeMemory())
    if _outstanding(scope, agent, orders):
        for chip in _changing(agent, orders):
            _take_out(view, chip)
            _show(scope, view, chip)
        return
    if view.state in ("not-ready", "unknown", "isolated") or _waits(scope, agent, orders):
        return
    epoch = max(memory.vnpu_epoch, orders.vnpu_epoch if orders else 0, agent.vnpu_epoch_done if agent else 0) + 1
    ordered = False
    for chip, (templates, layout) in wanted.items():
        if view.chip_level.get(chip, NORMAL) not in IN_SERVICE:
            continue
        ordered |= _chip(scope, view, chip, templates, layout, epoch)
    if ordered:
        scope.memory.nodes[node] = msgspec.structs.replace(memory, vnpu_epoch=epoch)


def _chip(
    scope: Scope, view: NodeView, chip: int, templates: tuple[str, ...], layout: Declared[VNPULayout] | None, epoch: int
) -> bool:
    name = view.chip(chip)
    step = change(list(_existing(scope, view, chip)), templates)
    if not step.needed:
        return False
    if view.used >> chip & 1 or step.blocked:
        holder = view.used_by.get(chip) or ", ".join(f"vNPU {i}" for i in step.blocked)
        severity: Severity = "error" if layout is not None and layout.document.spec.when_busy == "refuse" else "info"
        if layout is not None:
            _complain(scope, view, layout, chip, f"is in use by {holder}; it is cut when that ends", severity)
        return False
    _take_out(view, chip)
    doing = "cut into " + ", ".join(templates) if templates else "made whole again"
    scope.actions.append(
        PartitionChip(
            reason="LayoutDiffers" if layout is not None else "LayoutRemoved",
            message=f"chip {name} of node {view.node.name} is {doing}",
            evidence=_evidence(scope, layout),
            preconditions={"epoch": epoch, "idle": True},
            node=view.node.name,
            chip=name,
            templates=templates,
            create=step.create,
            destroy=tuple(str(i) for i in step.destroy),
            epoch=epoch,
        )
    )
    return True


def _existing(scope: Scope, view: NodeView, chip: int) -> Iterator[Existing]:
    """The chip's vNPUs; one whose size a pod without a known device asked for counts as busy."""
    agent = scope.observed.agents.get(view.node.name)
    if agent is None:
        return
    named = {device.used_by for device in agent.vnpus if device.used_by}
    family = scope.desired.templates_for(view.product, view.node.labels)
    asked = {pod.resource for pod in view.pods if pod.count and pod.key not in named and not pod.finished}
    for device in agent.vnpus:
        if device.chip == chip:
            size = family.by_name.get(device.template) if family is not None else None
            resource = f"{family.spec.resource_prefix}{size.suffix}" if family is not None and size is not None else ""
            yield Existing(id=device.id, template=device.template, busy=bool(device.used_by) or resource in asked)


def _outstanding(scope: Scope, agent: AgentReport | None, orders: Orders | None) -> bool:
    """An order that the agent has neither answered nor let expire."""
    if orders is None or orders.vnpu_epoch == 0:
        return False
    done = agent.vnpu_epoch_done if agent is not None else 0
    return orders.vnpu_epoch > done and scope.now_ms <= orders.not_after_ms


def _waits(scope: Scope, agent: AgentReport | None, orders: Orders | None) -> bool:
    """After an expired, refused or failed order: wait for a newer report, and a while."""
    if orders is None or orders.vnpu_epoch == 0:
        return False
    if agent is None or agent.vnpu_epoch_done < orders.vnpu_epoch:
        return agent is None or agent.time_ms <= orders.not_after_ms
    bad = agent.vnpu_result.startswith(("refused", "failed"))
    return bad and scope.now_ms - orders.issued_ms < RETRY_MS


def _changing(agent: AgentReport | None, orders: Orders | None) -> Iterator[int]:
    for chip, templates in (orders.vnpu_layout if orders is not None else {}).items():
        held = sorted(d.template for d in agent.vnpus if d.chip == chip) if agent is not None else []
        if held != sorted(templates):
            yield chip


def _take_out(view: NodeView, chip: int) -> None:
    view.unavailable |= 1 << chip
    view.chip_state[chip] = "resetting"


def _show(scope: Scope, view: NodeView, chip: int) -> None:
    """A chip being cut is listed as resetting, beside what health said of it."""
    place = (view.node.name, chip)
    index = bisect_left(scope.chips, place, key=lambda row: (row.node, chip_number(row.chip)))
    known = scope.chips[index] if index < len(scope.chips) else None
    if known is not None and (known.node, known.chip) == (view.node.name, view.chip(chip)):
        scope.chips[index] = msgspec.structs.replace(known, state="resetting")
    else:
        row = ChipState(view.node.name, view.chip(chip), "resetting", NORMAL, (), (), view.used_by.get(chip))
        scope.chips.insert(index, row)


def _close_cut_chips(scope: Scope) -> None:
    """A chip with a vNPU, or declared for some, cannot be used whole."""
    for layout in scope.desired.layouts:
        spec = layout.document.spec
        for view in scope.nodes.values():
            if spec.pool == view.pool if spec.pool else bool(spec.selector and spec.selector.matches(view.node.labels)):
                for row in spec.chips:
                    for chip in row.chips:
                        view.unavailable |= 1 << chip
    for name, agent in scope.observed.agents.items():
        node = scope.nodes.get(name)
        if node is not None:
            for device in agent.vnpus:
                node.unavailable |= 1 << device.chip


def _totals(view: NodeView, family: VNPUTemplates) -> Totals:
    labels = view.node.labels
    row = family.totals(labels.get(CHIP_NAME_LABEL, ""), labels.get("servertype", ""))
    return Totals(
        aicore=row.aicore,
        aicpu=row.aicpu,
        memory=row.memory_mi_b,
        dvpp=_engines(row.dvpp.model_dump() if row.dvpp is not None else {}),
        max_vnpus=row.max_vnpus,
    )


def _size(family: VNPUTemplates, name: str, aicore: int) -> Size:
    template = family.by_name[name]
    return Size(
        name=name,
        aicore=template.aicore,
        aicpu=template.aicpu,
        memory=template.memory_by_aicore.get(str(aicore), template.memory_mi_b),
        dvpp=_engines(template.dvpp.model_dump() if template.dvpp is not None else {}),
        dvpp_flag=template.dvpp_flag,
    )


def _engines(values: Mapping[str, int | None]) -> dict[str, int]:
    return {engine: count for engine, count in values.items() if count is not None}


def _evidence(scope: Scope, layout: Declared[VNPULayout] | None) -> Evidence:
    if layout is None:
        return Evidence(rule="layout", revision=scope.desired.revision)
    return Evidence(
        rule=f"VNPULayout/{layout.document.name}",
        file=layout.origin.file,
        line=layout.origin.line,
        revision=scope.desired.revision,
    )


def _complain(
    scope: Scope, view: NodeView, layout: Declared[VNPULayout], chip: int, what: str, severity: Severity = "error"
) -> None:
    origin = layout.origin
    scope.diagnostics.append(
        Diagnostic(
            severity=severity,
            object=f"VNPULayout/{layout.document.name}",
            file=origin.file,
            line=origin.line,
            column=origin.column,
            field="spec.chips",
            message=f"node {view.node.name} chip {chip}: {what}",
        )
    )
