"""Where ordered resets stand: from the write of an order to its answer, and from there to a report that is newer.

Everything follows from the orders, the agent's report and the memory; nothing here decides a reset.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from engine.model.cluster import AgentReport, Orders, mask_of
from engine.model.faults import moment
from engine.model.history import ChipMemory, NodeMemory
from engine.model.resets import group_of
from engine.plan.scope import NodeView

#: How long an order may be taken when its ConfigMap does not say (docs: notAfter, default 15 min).
ORDER_LIFE_MS: Final = 900_000
#: How long an order that nobody took keeps the next one back.
UNTAKEN_MS: Final = 900_000


class Progress(NamedTuple):
    """Masks of chips. ``resetting``: ordered, not answered. ``recovering``: reset, awaiting a newer report.

    ``failed``: those of them whose reset failed, so that all of the group may be in a bad way. ``waiting``: refused,
    awaiting a newer report before the next try. ``untaken``: nobody took the order in its time. ``memory`` holds the
    chips whose memory changes.
    """

    resetting: int
    recovering: int
    waiting: int
    untaken: int
    failed: int
    memory: dict[int, ChipMemory]


def of(view: NodeView, orders: Orders | None, agent: AgentReport | None, memory: NodeMemory, now_ms: int) -> Progress:
    """How far the node's reset orders are."""
    resetting = recovering = waiting = untaken = failed = 0
    changed: dict[int, ChipMemory] = {}
    standing = orders.resets if orders else {}
    for chip in sorted({*standing, *(c for c, m in memory.chips.items() if m.ordered)}):
        remembered = memory.chips.get(chip, ChipMemory())
        order = standing.get(chip)
        group = mask_of(list(order.group)) if order and order.group else group_of(chip, view.groups)
        epoch = order.epoch if order else remembered.epoch
        row = agent.chips.get(chip) if agent else None
        if row is not None and row.reset_epoch_done >= epoch:
            answered = _answered(view, chip, remembered, agent, now_ms)
            if answered is not remembered:
                changed[chip] = answered
            if answered.recovering or (remembered.epoch < epoch and _unremembered(view, chip, orders, agent)):
                if row.reset_result.startswith("refused"):
                    waiting |= group
                else:
                    recovering |= group
                    failed |= 0 if row.reset_result.startswith("ok") else group
        elif order is None and _withdrawn(orders, agent, remembered):
            changed[chip] = msgspec.structs.replace(remembered, ordered=0, recovering=0)
        elif now_ms <= (deadline := _deadline(orders if order else None, remembered)):
            resetting |= group
        elif remembered.ordered or now_ms < deadline + UNTAKEN_MS:
            untaken |= group
    return Progress(
        resetting, recovering & ~resetting, waiting, untaken & ~resetting, failed & recovering & ~resetting, changed
    )


def _withdrawn(orders: Orders | None, agent: AgentReport | None, remembered: ChipMemory) -> bool:
    """Whether an order that does not stand cannot be taken any more: never written, or the agent knows it is gone."""
    if orders is None or orders.issued_ms < remembered.ordered:
        return True
    return agent is not None and agent.orders_seen >= orders.generation


def _deadline(orders: Orders | None, remembered: ChipMemory) -> int:
    if orders is not None and orders.not_after_ms:
        return orders.not_after_ms
    return (orders.issued_ms if orders else remembered.ordered) + ORDER_LIFE_MS


def _answered(view: NodeView, chip: int, remembered: ChipMemory, agent: AgentReport | None, now_ms: int) -> ChipMemory:
    """The memory after an answer: its time is kept until a newer report is in, then the order is closed."""
    if not remembered.ordered:
        return remembered
    since = remembered.recovering or min(now_ms, agent.time_ms if agent and agent.time_ms else now_ms)
    if _newer(view, chip, remembered, since):
        return msgspec.structs.replace(remembered, ordered=0, recovering=0)
    return remembered if remembered.recovering else msgspec.structs.replace(remembered, recovering=since)


def _newer(view: NodeView, chip: int, remembered: ChipMemory, answered_ms: int) -> bool:
    """Whether the device report tells of the time after the reset.

    A report without the fault tells of it if it was written after the order: the fault was there until the reset. One
    that still shows it may be of the time before, and counts only when it was written after the answer.
    """
    report = view.report
    if report is None:
        return False
    written = report.update_time * 1000
    clean = not (report.unhealthy | report.recovering) >> chip & 1
    # reports carry whole seconds: one of the order's own second was written after the faulty one that led to the order
    return written > answered_ms or (clean and written + 999 >= remembered.ordered)


def _unremembered(view: NodeView, chip: int, orders: Orders | None, agent: AgentReport | None) -> bool:
    """Without a memory of the order: whether the report still shows only what was there before the order."""
    report = view.report
    if report is None or orders is None or agent is None:
        return False
    written = round(report.update_time * 1000)
    if written > agent.time_ms or written > orders.issued_ms + ORDER_LIFE_MS:
        return False
    faults = [f for f in report.faults if f.chip == chip]
    return bool(faults) and all(moment(f.time_ms, written) <= orders.issued_ms for f in faults)
