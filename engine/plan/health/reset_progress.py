"""Progress of ordered resets: from the order to the agent's answer, and from there to a newer device report.

Derived from the orders, the agent's report and the memory; decides no reset.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import AgentReport, Orders
from belay.engine.model.faults import moment
from belay.engine.model.history import ChipMemory, NodeMemory
from belay.engine.model.resets import group_of
from belay.engine.plan.node_view import FUTURE_TOLERANCE, NodeView

#: How long an agent may take an order without ``notAfter`` (docs: default 15 min).
ORDER_LIFE_MS: Final = 900_000
#: How far the clocks of machines may differ.
AHEAD_MS: Final = round(FUTURE_TOLERANCE * 1000)
#: How long an order that no agent took delays the next one.
UNTAKEN_MS: Final = 900_000


class ResetProgress(NamedTuple):
    """Masks of chips by progress of their reset.

    ``resetting``: ordered, not answered. ``recovering``: reset, awaiting a newer report. ``failed``: those of
    ``recovering`` whose reset failed, so that the whole group may be damaged. ``waiting``: refused, awaiting a newer
    report before the next try. ``untaken``: no agent took the order in time. ``memory``: new memory of chips, where
    it changes.
    """

    resetting: int
    recovering: int
    waiting: int
    untaken: int
    failed: int
    memory: dict[int, ChipMemory]


def of(
    view: NodeView,
    orders: Orders | None,
    agent: AgentReport | None,
    memory: NodeMemory,
    now_ms: int,
    *,
    agent_has_left: bool = False,
) -> ResetProgress:
    """Progress of a node's reset orders; where the agent has left, nothing waits for them any more."""
    if agent_has_left:
        return ResetProgress(0, 0, 0, 0, 0, _forgotten_orders(memory))
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
            if answered.recovering or (remembered.epoch < epoch and _shows_only_old_faults(view, chip, orders, agent)):
                if row.reset_result.startswith("refused"):
                    waiting |= group
                else:
                    recovering |= group
                    failed |= 0 if row.reset_result.startswith("ok") else group
        elif order is None and _withdrawn(orders, agent, remembered):
            changed[chip] = msgspec.structs.replace(remembered, ordered=0, recovering=0)
        elif now_ms <= (deadline := _deadline(orders if order else None, remembered, now_ms)):
            resetting |= group
        elif remembered.ordered or now_ms < deadline + UNTAKEN_MS:
            untaken |= group
    return ResetProgress(
        resetting, recovering & ~resetting, waiting, untaken & ~resetting, failed & recovering & ~resetting, changed
    )


def _forgotten_orders(memory: NodeMemory) -> dict[int, ChipMemory]:
    return {
        chip: msgspec.structs.replace(row, ordered=0, recovering=0)
        for chip, row in memory.chips.items()
        if row.ordered or row.recovering
    }


def _withdrawn(orders: Orders | None, agent: AgentReport | None, remembered: ChipMemory) -> bool:
    """Whether an absent order can no longer be taken: it was never written, or the agent has seen its withdrawal."""
    if orders is None or orders.issued_ms < remembered.ordered:
        return True
    return agent is not None and agent.orders_seen >= orders.generation


def _deadline(orders: Orders | None, remembered: ChipMemory, now_ms: int) -> int:
    """Until when an agent may take the order. Times of a clock that ran ahead count from the memory of the order."""
    if orders is not None and remembered.ordered and orders.issued_ms > now_ms + AHEAD_MS:
        life = orders.not_after_ms - orders.issued_ms
        return remembered.ordered + (life if life > 0 else ORDER_LIFE_MS)
    if orders is not None and orders.not_after_ms:
        return orders.not_after_ms
    return (orders.issued_ms if orders else remembered.ordered) + ORDER_LIFE_MS


def _answered(view: NodeView, chip: int, remembered: ChipMemory, agent: AgentReport | None, now_ms: int) -> ChipMemory:
    """The memory after an answer: keep its time until a newer report arrives, then close the order."""
    if not remembered.ordered:
        return remembered
    since = remembered.recovering or min(now_ms, agent.time_ms if agent and agent.time_ms else now_ms)
    if _report_is_newer(view, chip, remembered, since):
        return msgspec.structs.replace(remembered, ordered=0, recovering=0)
    return remembered if remembered.recovering else msgspec.structs.replace(remembered, recovering=since)


def _report_is_newer(view: NodeView, chip: int, remembered: ChipMemory, answered_ms: int) -> bool:
    """Whether the device report describes the chip after the reset.

    A report without the fault does when it was written after the order, since the fault lasted until the reset. A
    report with the fault does only when it was written after the answer.
    """
    report = view.report
    if report is None:
        return False
    written = report.update_time * 1000
    clean = not (report.unhealthy | report.recovering) >> chip & 1
    # reports carry whole seconds: one from the second of the order follows the faulty report that led to the order
    return written > answered_ms or (clean and written + 999 >= remembered.ordered)


def _shows_only_old_faults(view: NodeView, chip: int, orders: Orders | None, agent: AgentReport | None) -> bool:
    """Whether, with no memory of the order, the report shows only faults raised before the order."""
    report = view.report
    if report is None or orders is None or agent is None:
        return False
    written = round(report.update_time * 1000)
    if written > agent.time_ms or written > orders.issued_ms + ORDER_LIFE_MS:
        return False
    faults = [f for f in report.faults if f.chip == chip]
    return bool(faults) and all(moment(f.time_ms, written) <= orders.issued_ms for f in faults)
