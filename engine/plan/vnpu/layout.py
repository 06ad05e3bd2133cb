"""The layout pass: vNPU layouts declared in Git against the vNPUs that nodes report.

A chip is partitioned again only when no live pod and no process is on it; chips declared for vNPUs or shares, or
holding vNPUs, take no whole-chip work. Chips in mode dynamic are partitioned by placement, when a pod needs it
(docs/zh/scheduling/04_usage/02_virtual_instance).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from belay.engine.documents import Declared, Desired, VNPULayout
from belay.engine.documents.fault_policy import IDLE
from belay.engine.model.actions import (
    Evidence,
    PartitionChip,
    Preconditions,
)
from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import AgentReport, Orders
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, Severity
from belay.engine.model.history import NodeMemory
from belay.engine.model.levels import IN_SERVICE, NORMAL
from belay.engine.model.plan import CONTRADICTED, ChipState, Deferred
from belay.engine.model.reasons import ActionReason
from belay.engine.model.states import ChipHealth, NodeHealth
from belay.engine.model.times import rfc3339
from belay.engine.model.vnpu import ExistingVNPU, VNPUChange, change, unfit
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health.assessment import Health
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.products import withheld
from belay.engine.plan.rules.fault_rules import DEFAULT_ATTEMPTS, FaultRules
from belay.engine.plan.vnpu import failed_partitions
from belay.engine.plan.vnpu.templates import chip_totals, cut_by_layout, cut_on_demand, layouts_of, templates_of
from belay.engine.wire.orders import chip_number

#: A refused or failed partition is ordered again after this long, in milliseconds.
RETRY_MS: Final = 300_000
#: Budget name of a deferred partition whose attempts are used up.
ATTEMPTS: Final = "attempts:partition"
#: Most partition orders per node whose times are remembered.
MAX_PARTITIONS: Final = 20

#: chip id -> (templates wanted, the layout that declares them; None when no layout covers the chip any more)
_Wanted = dict[int, tuple[tuple[str, ...], Declared[VNPULayout] | None]]


def cut_chips(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, health: Health) -> list[ChipState]:
    """Order partitions for static layouts, and mark on the node views which chips are for vNPUs or shares.

    Returns:
        The rows of the plan's chips, with those that are being cut as resetting.
    """
    failed_partitions.hold_failed(facts, draft, gangs)
    _mark_cut_chips(facts, nodes)
    laid_out = facts.desired.layouts or any(o.vnpu_layout for o in facts.observed.orders.values())
    if not laid_out:
        return health.chips

    chips = list(health.chips)
    for name in sorted(nodes):
        wanted = _wanted(facts, draft, nodes, name, tuple(layouts_of(facts.desired, nodes[name])))
        if facts.observed.ledger_broken:
            continue
        if wanted or nodes[name].dynamic_chips:
            _order_node(facts, draft, nodes, health.rules, chips, nodes[name], wanted)
    return chips


def _mark_cut_chips(facts: Facts, nodes: PassNodes) -> None:
    """Mark chips that hold vNPUs: they cannot be used whole."""
    for name, agent in facts.observed.agents.items():
        if name in nodes and agent.vnpus:
            carved = mask_of(sorted({device.chip for device in agent.vnpus}))
            nodes.change(name, carved=carved, cut=nodes[name].cut | carved)


def _wanted(facts: Facts, draft: Draft, nodes: PassNodes, node: str, about: Sequence[Declared[VNPULayout]]) -> _Wanted:
    """Mark the chips that layouts cover (where two cover one chip, the first by name); return the templates that static
    layouts want.
    """
    wanted: _Wanted = {}
    taken, of_mode, view = 0, dict[str, int](), nodes[node]
    for layout in about:
        spec = layout.document.spec
        mask = 0
        for chip, templates in _rows(view, layout, taken):
            if taken >> chip & 1:
                _report(draft, view, layout, chip, "is already covered by another document; the first by name counts")
            elif not view.base >> chip & 1:
                _report(draft, view, layout, chip, "does not exist on the node")
            else:
                mask |= 1 << chip
                if spec.mode == "static" and _fits(facts, draft, view, layout, chip, templates):
                    wanted[chip] = (templates, layout)
        taken |= mask
        of_mode[spec.mode] = of_mode.get(spec.mode, 0) | _of_mode(facts, draft, view, layout, mask)
    if taken:
        view = nodes.change(
            node,
            static_chips=view.static_chips | of_mode.get("static", 0),
            dynamic_chips=view.dynamic_chips | of_mode.get("dynamic", 0),
            soft_chips=view.soft_chips | of_mode.get("soft", 0),
            cut=view.cut | taken,
        )
    orders = facts.observed.orders.get(node)
    if facts.desired.has_git and orders is not None and _may_undo(facts.desired):
        for chip, templates in orders.vnpu_layout.items():
            if templates and chip not in wanted and not view.dynamic_chips >> chip & 1:
                wanted[chip] = ((), None)
    return dict(sorted(wanted.items()))


def _may_undo(desired: Desired) -> bool:
    """Whether a cut that no layout asks for may be undone: not while a layout may be hidden in what cannot be read."""
    known = {f"VNPULayout/{layout.document.name}" for layout in desired.layouts}
    return not desired.incomplete and all(name in known for name in desired.held if name.startswith("VNPULayout/"))


def _rows(view: NodeView, layout: Declared[VNPULayout], taken: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Chips with their templates; a layout that names no chips covers all that no other layout has."""
    spec = layout.document.spec
    if not spec.chips:
        yield from ((chip, ()) for chip in ids_of(view.base & ~taken))
    for row in spec.chips:
        for chip in row.chips:
            yield chip, row.templates


def _of_mode(facts: Facts, draft: Draft, view: NodeView, layout: Declared[VNPULayout], mask: int) -> int:
    """Which of these chips can be what the layout's mode says; none or all."""
    mode = layout.document.spec.mode
    if mode == "static":
        return mask
    family = templates_of(facts.desired, view)
    on_demand = family is not None and cut_on_demand(view, family)
    softly = bool(
        (family is not None and family.spec.soft) or (view.product is not None and view.product.spec.vnpu.soft)
    )
    first = ids_of(mask)[0] if mask else -1
    if mode == "dynamic":
        if not on_demand and mask:
            _report(draft, view, layout, first, "cannot be cut on demand: chips of this node have static vNPUs only")
        return mask if on_demand else 0
    if not softly and mask:
        _report(draft, view, layout, first, "cannot be shared softly: chips of this node do not support it")
    return mask if softly else 0


def _fits(
    facts: Facts, draft: Draft, view: NodeView, layout: Declared[VNPULayout], chip: int, templates: tuple[str, ...]
) -> bool:
    if view.product is not None and not cut_by_layout(view):
        _report(draft, view, layout, chip, f"cannot be cut: {view.product.spec.title} has no static vNPUs")
        return False
    family = facts.desired.templates_for(view.product, view.node.labels)
    if family is None:
        _report(draft, view, layout, chip, "cannot be cut: no vNPU templates are known for the node's chips")
        return False
    unknown = [name for name in templates if name not in family.by_name]
    if unknown:
        _report(draft, view, layout, chip, f"template {unknown[0]} does not belong to family {family.spec.family}")
        return False
    totals = chip_totals(view, family)
    why = unfit(totals, [family.by_name[name].size(totals.aicore) for name in templates])
    if why is not None:
        _report(draft, view, layout, chip, f"the templates do not fit: {why}")
    return why is None


def _order_node(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    rules: FaultRules | None,
    chips: list[ChipState],
    view: NodeView,
    wanted: _Wanted,
) -> None:
    node = view.node.name
    agent, orders = facts.observed.agents.get(node), facts.observed.orders.get(node)
    if _outstanding(facts, agent, orders):
        changing = list(_changing(agent, orders))
        for chip in changing:
            _mark_resetting(nodes, node, chip)
            _list_as_resetting(chips, view, chip)
        _report_ordered(draft, view, [chip for chip in changing if chip in wanted])
        return
    if not orderable(facts, view):
        return
    epoch = next_epoch(facts, view)
    ordered = False
    for chip, (templates, layout) in wanted.items():
        if view.chip_level.get(chip, NORMAL) not in IN_SERVICE:
            continue
        ordered |= _order_chip(facts, draft, nodes, rules, view, chip, templates, layout, epoch)
    if ordered:
        remember_epoch(facts, draft, view, epoch)


def _report_ordered(draft: Draft, view: NodeView, chips: Sequence[int]) -> None:
    """Say that chips are on the way to what layouts ask for, which is not in force until the agent has answered."""
    if chips:
        names = ", ".join(view.chip(chip) for chip in chips)
        text = f"{names} of node {view.node.name}: ordered as the layouts say, the agent has not answered yet"
        about = f"Node/{view.node.name}"
        draft.diagnostics.append(Diagnostic("info", about, "", 0, 0, "", text, PassCode.LAYOUT_ORDERED))


def orderable(facts: Facts, view: NodeView) -> bool:
    """Whether the node can take a partition order now: it is healthy, and no order is unanswered."""
    node = view.node.name
    agent, orders = facts.observed.agents.get(node), facts.observed.orders.get(node)
    if _outstanding(facts, agent, orders) or view.suspended:
        return False
    healthy = view.state not in (NodeHealth.NOT_READY, NodeHealth.UNKNOWN, NodeHealth.ISOLATED)
    return healthy and not _is_waiting(facts, agent, orders)


def pending_templates(facts: Facts, view: NodeView) -> dict[int, list[str]]:
    """Templates of an order that the node has not answered, by chip."""
    node = view.node.name
    agent, orders = facts.observed.agents.get(node), facts.observed.orders.get(node)
    if orders is None or not _outstanding(facts, agent, orders):
        return {}
    out: dict[int, list[str]] = {}
    for chip, templates in orders.vnpu_layout.items():
        missing = (
            Counter(templates) - Counter(d.template for d in agent.vnpus if d.chip == chip)
            if agent
            else Counter(templates)
        )
        if missing:
            out[chip] = sorted(missing.elements())
    return out


def next_epoch(facts: Facts, view: NodeView) -> int:
    """Epoch of the next partition order; all orders to a node in one pass share it."""
    node = view.node.name
    agent, orders = facts.observed.agents.get(node), facts.observed.orders.get(node)
    memory = facts.observed.history.nodes.get(node, NodeMemory())
    return max(memory.vnpu_epoch, orders.vnpu_epoch if orders else 0, agent.vnpu_epoch_done if agent else 0) + 1


def remember_epoch(facts: Facts, draft: Draft, view: NodeView, epoch: int) -> None:
    """Keep the epoch in the memory, so that it never repeats."""
    memory = draft.memory.nodes.get(view.node.name, NodeMemory())
    if memory.vnpu_epoch == epoch:
        return
    tries = (*memory.partitions, facts.now_ms) if _failed(facts, view) else (facts.now_ms,)
    draft.memory.nodes[view.node.name] = msgspec.structs.replace(
        memory, vnpu_epoch=epoch, partitions=tries[-MAX_PARTITIONS:]
    )


def occupant_of(facts: Facts, view: NodeView, chip: int) -> str:
    """What keeps a chip from being partitioned: a live pod, or processes in the report; empty when nothing does."""
    if view.used >> chip & 1:
        return view.used_by.get(chip) or "a pod"
    agent = facts.observed.agents.get(view.node.name)
    row = agent.chips.get(chip) if agent is not None else None
    return f"{row.processes} processes" if row is not None and row.processes else ""


def _order_chip(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    rules: FaultRules | None,
    view: NodeView,
    chip: int,
    templates: tuple[str, ...],
    layout: Declared[VNPULayout] | None,
    epoch: int,
) -> bool:
    step = change(list(vnpus_on(facts, view, chip)), templates)
    if not step.needed:
        return False
    holder = occupant_of(facts, view, chip) or ", ".join(f"vNPU {i}" for i in step.blocked)
    if holder:
        severity: Severity = "error" if layout is not None and layout.document.spec.when_busy == "refuse" else "info"
        if layout is not None:
            what = f"is in use by {holder}; it is cut when that ends"
            _report(draft, view, layout, chip, what, severity, PassCode.LAYOUT_WAITS)
        return False
    doing = "cut into " + ", ".join(templates) if templates else "made whole again"
    return order_partition(
        facts,
        draft,
        nodes,
        rules,
        view,
        chip,
        templates,
        step,
        epoch,
        reason=ActionReason.LAYOUT_DIFFERS if layout is not None else ActionReason.LAYOUT_REMOVED,
        message=f"chip {view.chip(chip)} of node {view.node.name} is {doing}",
        evidence=layout_evidence(facts, layout),
    )


def order_partition(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    rules: FaultRules | None,
    view: NodeView,
    chip: int,
    templates: tuple[str, ...],
    step: VNPUChange,
    epoch: int,
    *,
    reason: str,
    message: str,
    evidence: Evidence,
) -> bool:
    """Order a partition and take the chip out of placement until it is done.

    Returns:
        False when the order is deferred: the node contradicts its product, or the attempts are used up until the window
        of reset attempts frees one.
    """
    action = PartitionChip(
        reason=reason,
        message=message,
        evidence=evidence,
        preconditions=Preconditions(epoch=epoch, idle=True),
        node=view.node.name,
        chip=view.chip(chip),
        templates=templates,
        create=step.create,
        destroy=tuple(str(i) for i in step.destroy),
        epoch=epoch,
    )
    if view.contradiction:
        held = msgspec.structs.replace(action, message=f"{message}; {withheld(view)}")
        draft.deferred.append(Deferred(held, CONTRADICTED, None))
        return False
    until = _next_attempt(facts, rules, view)
    if until is not None:
        draft.deferred.append(Deferred(action, ATTEMPTS, rfc3339(until / 1000) if until else None))
        return False
    _mark_resetting(nodes, view.node.name, chip)
    draft.actions.append(action)
    return True


def _mark_resetting(nodes: PassNodes, node: str, chip: int) -> None:
    """The chip takes no new work until it is cut."""
    view = nodes[node]
    chip_state = {**view.chip_state, chip: ChipHealth.RESETTING}
    nodes.change(node, unavailable=view.unavailable | 1 << chip, chip_state=chip_state)


def _failed(facts: Facts, view: NodeView) -> bool:
    """Whether the node's last partition order was refused, failed or expired."""
    agent, orders = facts.observed.agents.get(view.node.name), facts.observed.orders.get(view.node.name)
    if orders is None or orders.vnpu_epoch == 0:
        return False
    if agent is None or agent.vnpu_epoch_done < orders.vnpu_epoch:
        return True
    return agent.vnpu_result.startswith(("refused", "failed"))


def _next_attempt(facts: Facts, rules: FaultRules | None, view: NodeView) -> int | None:
    """When the next attempt is due (Unix ms, 0: never) if the window's are used up; None while one is left."""
    if not _failed(facts, view):
        return None
    most, window = rules.of(view, IDLE).reset_attempts if rules else DEFAULT_ATTEMPTS
    tries = facts.observed.history.nodes.get(view.node.name, NodeMemory()).partitions
    recent = [at for at in tries if at > facts.now_ms - window]
    if len(recent) < most:
        return None
    return recent[len(recent) - most] + window if most else 0


def vnpus_on(facts: Facts, view: NodeView, chip: int) -> Iterator[ExistingVNPU]:
    """The chip's vNPUs; one counts as busy if a pod whose device is unknown asked for its size."""
    agent = facts.observed.agents.get(view.node.name)
    if agent is None:
        return
    named = {device.used_by for device in agent.vnpus if device.used_by}
    family = facts.desired.templates_for(view.product, view.node.labels)
    asked = {pod.resource for pod in view.pods if pod.count and pod.key not in named and not pod.finished}
    for device in agent.vnpus:
        if device.chip == chip:
            size = family.by_name.get(device.template) if family is not None else None
            resource = f"{family.spec.resource_prefix}{size.suffix}" if family is not None and size is not None else ""
            yield ExistingVNPU(id=device.id, template=device.template, busy=bool(device.used_by) or resource in asked)


def _outstanding(facts: Facts, agent: AgentReport | None, orders: Orders | None) -> bool:
    """Whether an order is neither answered nor expired."""
    if orders is None or orders.vnpu_epoch == 0:
        return False
    done = agent.vnpu_epoch_done if agent is not None else 0
    return orders.vnpu_epoch > done and facts.now_ms <= orders.not_after_ms


def _is_waiting(facts: Facts, agent: AgentReport | None, orders: Orders | None) -> bool:
    """Whether to wait after an expired, refused or failed order: for a newer report, then ``RETRY_MS``."""
    if orders is None or orders.vnpu_epoch == 0:
        return False
    if agent is None or agent.vnpu_epoch_done < orders.vnpu_epoch:
        return agent is None or agent.time_ms <= orders.not_after_ms
    bad = agent.vnpu_result.startswith(("refused", "failed"))
    return bad and facts.now_ms - orders.issued_ms < RETRY_MS


def _changing(agent: AgentReport | None, orders: Orders | None) -> Iterator[int]:
    for chip, templates in (orders.vnpu_layout if orders is not None else {}).items():
        held = sorted(d.template for d in agent.vnpus if d.chip == chip) if agent is not None else []
        if held != sorted(templates):
            yield chip


def _list_as_resetting(chips: list[ChipState], view: NodeView, chip: int) -> None:
    """List a chip that is being partitioned as resetting."""
    place = (view.node.name, chip)
    index = bisect_left(chips, place, key=lambda row: (row.node, chip_number(row.chip)))
    known = chips[index] if index < len(chips) else None
    if known is not None and (known.node, known.chip) == (view.node.name, view.chip(chip)):
        chips[index] = msgspec.structs.replace(known, state=ChipHealth.RESETTING)
    else:
        row = ChipState(view.node.name, view.chip(chip), ChipHealth.RESETTING, NORMAL, (), (), view.used_by.get(chip))
        chips.insert(index, row)


def layout_evidence(facts: Facts, layout: Declared[VNPULayout] | None) -> Evidence:
    """Place of the document that asks for a partition; None: no document does any more."""
    if layout is None:
        return Evidence(rule="layout", revision=facts.desired.revision)
    return Evidence(
        rule=f"VNPULayout/{layout.document.name}",
        file=layout.origin.file,
        line=layout.origin.line,
        revision=facts.desired.revision,
    )


def _report(
    draft: Draft,
    view: NodeView,
    layout: Declared[VNPULayout],
    chip: int,
    what: str,
    severity: Severity = "error",
    code: PassCode = PassCode.LAYOUT_REFUSED,
) -> None:
    origin = layout.origin
    draft.diagnostics.append(
        Diagnostic(
            severity=severity,
            object=f"VNPULayout/{layout.document.name}",
            file=origin.file,
            line=origin.line,
            column=origin.column,
            field="spec.chips",
            message=f"node {view.node.name} chip {chip}: {what}",
            code=code,
        )
    )
