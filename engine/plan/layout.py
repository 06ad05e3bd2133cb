"""The layout pass: vNPU layouts declared in Git against the vNPUs that nodes report.

A chip is re-cut only when no live pod and no process is on it; chips declared for vNPUs or shares, or holding vNPUs,
take no whole-chip work. Chips in mode dynamic are cut by the pass that places pods, when somebody needs it
(docs/zh/scheduling/04_usage/02_virtual_instance).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from engine.documents import Declared, VNPULayout
from engine.model.actions import Evidence, PartitionChip
from engine.model.cluster import AgentReport, Orders, ids_of, mask_of
from engine.model.diagnostics import Diagnostic, Severity
from engine.model.history import NodeMemory
from engine.model.levels import IN_SERVICE, NORMAL
from engine.model.plan import ChipState, Deferred
from engine.model.times import rfc3339
from engine.model.vnpu import Change, Existing, change, unfit
from engine.plan import failedcuts
from engine.plan.cutting import chip_totals, layouts_of, templates_of
from engine.plan.judge import DEFAULT_ATTEMPTS, IDLE
from engine.plan.scope import NodeView, Scope
from engine.wire.orders import chip_number

#: A refused or failed partition is ordered again after this long, in milliseconds.
RETRY_MS: Final = 300_000
#: Budget name of a partition whose attempts are used up.
ATTEMPTS: Final = "attempts:partition"
#: Most times of partition orders remembered per node.
MAX_PARTITIONS: Final = 20

#: chip id -> (templates wanted, the document that says so; None when Git no longer lays the chip out)
_Wanted = dict[int, tuple[tuple[str, ...], Declared[VNPULayout] | None]]


def run(scope: Scope) -> None:
    """Emits PartitionChip for static layouts and says which chips are for vNPUs or shares of which kind."""
    failedcuts.run(scope)
    _carved(scope)
    laid_out = scope.desired.layouts or any(o.vnpu_layout for o in scope.observed.orders.values())
    if not laid_out:
        return
    for name in sorted(scope.nodes):
        about = tuple(layouts_of(scope.desired, scope.nodes[name]))
        view = scope.own(name) if about else scope.nodes[name]
        wanted = _wanted(scope, view, about)
        if scope.observed.ledger_broken:
            continue
        if wanted or view.dynamic_chips:
            _node(scope, scope.own(name), wanted)


def _carved(scope: Scope) -> None:
    """A chip with a vNPU cannot be used whole."""
    for name, agent in scope.observed.agents.items():
        if name in scope.nodes and agent.vnpus:
            view = scope.own(name)
            view.carved = mask_of(sorted({device.chip for device in agent.vnpus}))
            view.cut |= view.carved


def _wanted(scope: Scope, view: NodeView, about: Sequence[Declared[VNPULayout]]) -> _Wanted:
    """Marks the chips of the node that documents are about, the first by name where two are about the same; returns
    the templates that static ones want.
    """
    wanted: _Wanted = {}
    taken = 0
    for layout in about:
        spec = layout.document.spec
        mask = 0
        for chip, templates in _rows(view, layout, taken):
            if taken >> chip & 1:
                _complain(scope, view, layout, chip, "is already laid out by another document, the first by name wins")
            elif not view.base >> chip & 1:
                _complain(scope, view, layout, chip, "does not exist on the node")
            else:
                mask |= 1 << chip
                if spec.mode == "static" and _fits(scope, view, layout, chip, templates):
                    wanted[chip] = (templates, layout)
        taken |= mask
        _mark(scope, view, layout, mask)
    if taken:
        view.cut |= taken
    orders = scope.observed.orders.get(view.node.name)
    if scope.desired.has_git and orders is not None:
        for chip, templates in orders.vnpu_layout.items():
            if templates and chip not in wanted and not view.dynamic_chips >> chip & 1:
                wanted[chip] = ((), None)
    return dict(sorted(wanted.items()))


def _rows(view: NodeView, layout: Declared[VNPULayout], taken: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Chips with their templates; a layout that names no chips is about all that no other one has."""
    spec = layout.document.spec
    if not spec.chips:
        yield from ((chip, ()) for chip in ids_of(view.base & ~taken))
    for row in spec.chips:
        for chip in row.chips:
            yield chip, row.templates


def _mark(scope: Scope, view: NodeView, layout: Declared[VNPULayout], mask: int) -> None:
    mode = layout.document.spec.mode
    if mode == "static":
        view.static_chips |= mask
        return
    family = templates_of(scope.desired, view)
    excluded = family.spec.rules.excluded_products if family is not None else ()
    on_demand = (
        family is not None and family.spec.dynamic and (view.product is None or view.product.name not in excluded)
    )
    softly = bool(
        (family is not None and family.spec.soft) or (view.product is not None and view.product.spec.vnpu.soft)
    )
    first = ids_of(mask)[0] if mask else -1
    if mode == "dynamic":
        view.dynamic_chips |= mask if on_demand else 0
        if not on_demand and mask:
            _complain(scope, view, layout, first, "cannot be cut on demand: chips of this node have static vNPUs only")
    else:
        view.soft_chips |= mask if softly else 0
        if not softly and mask:
            _complain(scope, view, layout, first, "cannot be shared softly: chips of this node do not know how")


def _fits(scope: Scope, view: NodeView, layout: Declared[VNPULayout], chip: int, templates: tuple[str, ...]) -> bool:
    family = scope.desired.templates_for(view.product, view.node.labels)
    if family is None:
        _complain(scope, view, layout, chip, "cannot be cut: no vNPU templates are known for the node's chips")
        return False
    unknown = [name for name in templates if name not in family.by_name]
    if unknown:
        _complain(scope, view, layout, chip, f"template {unknown[0]} is none of family {family.spec.family}")
        return False
    totals = chip_totals(view, family)
    why = unfit(totals, [family.by_name[name].size(totals.aicore) for name in templates])
    if why is not None:
        _complain(scope, view, layout, chip, f"the templates do not fit: {why}")
    return why is None


def _node(scope: Scope, view: NodeView, wanted: _Wanted) -> None:
    node = view.node.name
    agent, orders = scope.observed.agents.get(node), scope.observed.orders.get(node)
    if _outstanding(scope, agent, orders):
        for chip in _changing(agent, orders):
            view.own()
            view.unavailable |= 1 << chip
            view.chip_state[chip] = "resetting"
            _show(scope, view, chip)
        return
    if not orderable(scope, view):
        return
    epoch = next_epoch(scope, view)
    ordered = False
    for chip, (templates, layout) in wanted.items():
        if view.chip_level.get(chip, NORMAL) not in IN_SERVICE:
            continue
        ordered |= _chip(scope, view, chip, templates, layout, epoch)
    if ordered:
        remember_epoch(scope, view, epoch)


def orderable(scope: Scope, view: NodeView) -> bool:
    """Whether a partition can be ordered from the node now: it is well, and no order waits for an answer."""
    node = view.node.name
    agent, orders = scope.observed.agents.get(node), scope.observed.orders.get(node)
    if _outstanding(scope, agent, orders) or view.suspended:
        return False
    return view.state not in ("not-ready", "unknown", "isolated") and not _waits(scope, agent, orders)


def coming(scope: Scope, view: NodeView) -> dict[int, list[str]]:
    """Templates under an order that the node has not answered yet, by chip."""
    node = view.node.name
    agent, orders = scope.observed.agents.get(node), scope.observed.orders.get(node)
    if orders is None or not _outstanding(scope, agent, orders):
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


def next_epoch(scope: Scope, view: NodeView) -> int:
    """The epoch of the next partition order; all orders to a node in one pass share it."""
    node = view.node.name
    agent, orders = scope.observed.agents.get(node), scope.observed.orders.get(node)
    memory = scope.observed.history.nodes.get(node, NodeMemory())
    return max(memory.vnpu_epoch, orders.vnpu_epoch if orders else 0, agent.vnpu_epoch_done if agent else 0) + 1


def remember_epoch(scope: Scope, view: NodeView, epoch: int) -> None:
    """Keeps the epoch in the memory, so that it is never given again."""
    memory = scope.memory.nodes.get(view.node.name, NodeMemory())
    if memory.vnpu_epoch == epoch:
        return
    tries = (*memory.partitions, scope.now_ms) if _failed(scope, view) else (scope.now_ms,)
    scope.memory.nodes[view.node.name] = msgspec.structs.replace(
        memory, vnpu_epoch=epoch, partitions=tries[-MAX_PARTITIONS:]
    )


def user_of(scope: Scope, view: NodeView, chip: int) -> str:
    """Who keeps a chip from being cut: a live pod on it, or a process that the report shows; empty when nobody does."""
    if view.used >> chip & 1:
        return view.used_by.get(chip) or "a pod"
    agent = scope.observed.agents.get(view.node.name)
    row = agent.chips.get(chip) if agent is not None else None
    return f"{row.processes} processes" if row is not None and row.processes else ""


def _chip(
    scope: Scope, view: NodeView, chip: int, templates: tuple[str, ...], layout: Declared[VNPULayout] | None, epoch: int
) -> bool:
    step = change(list(vnpus_on(scope, view, chip)), templates)
    if not step.needed:
        return False
    holder = user_of(scope, view, chip) or ", ".join(f"vNPU {i}" for i in step.blocked)
    if holder:
        severity: Severity = "error" if layout is not None and layout.document.spec.when_busy == "refuse" else "info"
        if layout is not None:
            _complain(scope, view, layout, chip, f"is in use by {holder}; it is cut when that ends", severity)
        return False
    doing = "cut into " + ", ".join(templates) if templates else "made whole again"
    return partition(
        scope,
        view,
        chip,
        templates,
        step,
        epoch,
        reason="LayoutDiffers" if layout is not None else "LayoutRemoved",
        message=f"chip {view.chip(chip)} of node {view.node.name} is {doing}",
        evidence=evidence(scope, layout),
    )


def partition(
    scope: Scope,
    view: NodeView,
    chip: int,
    templates: tuple[str, ...],
    step: Change,
    epoch: int,
    *,
    reason: str,
    message: str,
    evidence: Evidence,
) -> bool:
    """Orders a chip to be cut, and takes it out of placement until that is done; False when its attempts are used up:
    orders that fail again and again are deferred until the window of the reset attempts frees one.
    """
    action = PartitionChip(
        reason=reason,
        message=message,
        evidence=evidence,
        preconditions={"epoch": epoch, "idle": True},
        node=view.node.name,
        chip=view.chip(chip),
        templates=templates,
        create=step.create,
        destroy=tuple(str(i) for i in step.destroy),
        epoch=epoch,
    )
    until = _exhausted(scope, view)
    if until is not None:
        scope.deferred.append(Deferred(action, ATTEMPTS, rfc3339(until / 1000) if until else None))
        return False
    view.own()
    view.unavailable |= 1 << chip
    view.chip_state[chip] = "resetting"
    scope.actions.append(action)
    return True


def _failed(scope: Scope, view: NodeView) -> bool:
    """Whether the node's last partition order did not end well: refused, failed, or not taken in its time."""
    agent, orders = scope.observed.agents.get(view.node.name), scope.observed.orders.get(view.node.name)
    if orders is None or orders.vnpu_epoch == 0:
        return False
    if agent is None or agent.vnpu_epoch_done < orders.vnpu_epoch:
        return True
    return agent.vnpu_result.startswith(("refused", "failed"))


def _exhausted(scope: Scope, view: NodeView) -> int | None:
    """When the next attempt is due (Unix ms, 0: never), if those of the window are used up; None while one is left."""
    if not _failed(scope, view):
        return None
    most, window = scope.judge.of(view, IDLE).reset_attempts if scope.judge else DEFAULT_ATTEMPTS
    tries = scope.observed.history.nodes.get(view.node.name, NodeMemory()).partitions
    recent = [at for at in tries if at > scope.now_ms - window]
    if len(recent) < most:
        return None
    return recent[len(recent) - most] + window if most else 0


def vnpus_on(scope: Scope, view: NodeView, chip: int) -> Iterator[Existing]:
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


def evidence(scope: Scope, layout: Declared[VNPULayout] | None) -> Evidence:
    """Which document asks for a partition; None: none does any more."""
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
