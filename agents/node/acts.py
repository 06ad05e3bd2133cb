"""The acts that orders require: one per reset group, one for the vNPU layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from belay.agents.node.journal import LAYOUT, Done, Journal
from belay.agents.node.state import NodeState
from belay.engine.model.cluster import AgentReport, InPlaceReset, Orders, ResetOrder


class Act(msgspec.Struct, frozen=True):
    """One ordered act: a reset of `chips` (keys are their names), or the layout (key LAYOUT).

    `online`: the chips are in use and are healed under their job. `left`: resets the group has left, -1 unknown. `own`:
    the agent decided on it itself, no order asks for it."""

    keys: tuple[str, ...]
    chips: tuple[int, ...]
    epoch: int
    not_before_ms: int = 0
    layout: bool = False
    online: InPlaceReset | None = None
    left: int = -1
    own: bool = False


def ordered(state: NodeState, orders: Orders | None) -> list[Act]:
    """Return the acts that orders name, resets by group first.

    Orders for one chip of a group and for all of them are the same.
    """
    if orders is None:
        return []
    groups: dict[tuple[int, ...], ResetOrder] = {}
    for chip, reset in sorted(orders.resets.items()):
        group = tuple(sorted({chip, *reset.group}))
        if group not in groups or reset.epoch > groups[group].epoch:
            groups[group] = reset
    acts = [
        Act(
            tuple(state.name(c) for c in group),
            group,
            reset.epoch,
            reset.not_before_ms,
            False,
            reset.online,
            reset.left,
        )
        for group, reset in groups.items()
        if reset.epoch > 0
    ]
    if orders.vnpu_epoch > 0:
        acts.append(Act((LAYOUT,), tuple(sorted(orders.vnpu_layout)), orders.vnpu_epoch, layout=True))
    return acts


RESULT_JOURNAL_LOST: Final = "refused: journal lost"


def baseline(state: NodeState, reported: Mapping[str, Done], orders: Orders | None) -> dict[str, Done]:
    """Return the epochs that count as done when the journal is lost.

    The larger of the last report and of every epoch now ordered.
    """
    done = {key: entry for key, entry in reported.items() if entry.epoch > 0}
    for act in ordered(state, orders):
        for key in act.keys:
            if act.epoch > done.get(key, Done(0, "")).epoch:
                done[key] = Done(act.epoch, RESULT_JOURNAL_LOST)
    return done


def reported(state: NodeState, report: AgentReport) -> dict[str, Done]:
    """Return the acts that a report lists as done, by key."""
    done = {state.name(c): Done(chip.reset_epoch_done, chip.reset_result) for c, chip in report.chips.items()}
    return done | {LAYOUT: Done(report.vnpu_epoch_done, report.vnpu_result)}


def catch_up(journal: Journal, done: Mapping[str, Done]) -> None:
    """Adopt the last report's results that the journal lacks, because it came from an old backup. Raises OSError."""
    for key, entry in sorted(done.items()):
        if entry.epoch > journal.last(key):
            journal.end([key], entry.epoch, entry.result or RESULT_JOURNAL_LOST)
