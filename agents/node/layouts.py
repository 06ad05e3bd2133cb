"""From the vNPUs of a chip to the ones ordered, and who is in the way."""

from __future__ import annotations

from collections.abc import Sequence

from agents.drivers.base import VNPU
from agents.node.state import NodeState
from engine.model.vnpu import Change, Existing, change


def needed_change(state: NodeState, chip: int, templates: Sequence[str]) -> Change:
    """Return what to create and destroy on a chip; a vNPU in use is never among what is destroyed."""
    mine = [vnpu for vnpu in state.vnpus if vnpu.chip == chip]
    return change([Existing(vnpu.id, vnpu.template, _busy(state, vnpu)) for vnpu in mine], templates)


def blocked_by(state: NodeState, chip: int, wanted: Change) -> str:
    """Say who is in the way of a change, empty when nobody is."""
    if wanted.blocked:
        users = {state.users.vnpus.get(vnpu, "a process") for vnpu in wanted.blocked}
        return f"vNPU {wanted.blocked[0]} of {state.name(chip)} is in use by {', '.join(sorted(users))}"
    mine = [vnpu for vnpu in state.vnpus if vnpu.chip == chip]
    on_parts = {user for vnpu in mine if (user := state.users.vnpus.get(vnpu.id))}
    whole = [user for user in state.users.chips.get(chip, ()) if user not in on_parts]
    if whole or (not mine and state.processes.get(chip, 0)):
        return f"{state.name(chip)} is in use by {', '.join(whole) or 'a process'}"
    return ""


def _busy(state: NodeState, vnpu: VNPU) -> bool:
    """A process on the chip that no pod explains may be on any of its vNPUs."""
    unexplained = state.processes.get(vnpu.chip, 0) > 0 and not state.users.chips.get(vnpu.chip)
    return vnpu.id in state.users.vnpus or unexplained
