"""Candidates for pods that share a chip softly: a percentage of its AI cores and some of its memory.

Source: component/ascend-for-volcano/internal/npu/policy/chip1softsharedev (node.go, frame.go, utils.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model.labels import CHIP_MEMORY, SOFT_SHARING_ENABLED
from belay.engine.model.node_options import shares_chips
from belay.engine.model.pending_reasons import FRAGMENTED, NO_CHIP_MEMORY, SHARES_OFF, SHORTAGE
from belay.engine.model.quantities import whole_number
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal, ScoreOrRefusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes.table import MISSING, NodeTable, room
from belay.engine.plan.place.part_requests import FULL, SoftShare
from belay.engine.plan.place.parts.shares import ChipParts, usable_shares
from belay.engine.wire.parts import Share

MIB: Final = 1024
BEST: Final = 200
MAX_NODE: Final = 16

Used = tuple[int, int, str]
"""What is used of a chip: percent of AI cores, MiB of memory, policy of its shares."""


class SoftTable(NodeTable):
    """Used chips of the same policy with room come before untouched ones; among them, the fuller the better."""

    def __init__(self, parts: ChipParts, share: SoftShare, *rest: Any) -> None:
        """``share``: what each pod of the job asks for; the rest as for any table."""
        self._parts, self._share = parts, share
        self._chosen: dict[str, int] = {}
        job: SchedulerJob = rest[0]
        self._own = frozenset(job.gang.pods)
        super().__init__(*rest)

    def chips(self, name: str) -> int:
        """The chip that is shared."""
        return 1 << self._chosen[name]

    def _static_refusal(self, view: NodeView) -> Refusal | None:
        refusal = super()._static_refusal(view)
        if refusal is not None:
            return refusal
        if view.resource != self._sample.resource:
            return Refusal(MISSING, f"not has(or not same) {self._sample.resource}")
        if not shares_chips(view.node):
            return Refusal(SHARES_OFF, f"node label {SOFT_SHARING_ENABLED} not exist")
        if chip_memory(view) is None:
            text = view.node.labels.get(CHIP_MEMORY)
            why = "missing npu-chip-memory label" if text is None else f"invalid npu-chip-memory value: {text:.40}"
            return Refusal(NO_CHIP_MEMORY, why)
        return None

    def _score_npus(self, view: NodeView) -> ScoreOrRefusal:
        name = view.node.name
        self._chosen.pop(name, None)
        memory = chip_memory(view) or 0
        shares = self._parts.shares(view)
        chips = usable_shares(view, shares)
        used = {chip: usage(rows) for chip, rows in shares.items()}
        refusal = room(self._sample, view) or self._whole_job(view, chips, memory)
        if refusal is not None:
            return refusal
        chip = choose(chips, used, self._share, memory)
        if chip is None:
            return Refusal(FRAGMENTED, f"npu topology not meet share job: {self._sample.name} require")
        self._chosen[name] = chip
        return MAX_NODE * best(chips, used, self._share, memory)

    def _whole_job(self, view: NodeView, chips: Sequence[int], memory: int) -> Refusal | None:
        """Why the node lacks room for all pods of the job beside other jobs."""
        share = self._share
        others = self._parts.shares_of_others(view, self._own)
        cores = size = left = rest = 0
        for chip in chips:
            taken = usage(others[chip]) if others.get(chip) else None
            if taken is not None and taken[2] != share.policy:
                continue
            used_cores, used_memory = taken[:2] if taken is not None else (0, 0)
            cores += (FULL - used_cores) // share.cores * share.cores
            size += (memory - used_memory) // share.memory * share.memory
            left, rest = left + FULL - used_cores, rest + memory - used_memory
        if share.cores * share.pods <= cores and share.memory * share.pods <= size:
            return None
        text = (
            f"node not usable for task: the job wants {share.cores * share.pods} % and {share.memory * share.pods} MB"
        )
        return Refusal(SHORTAGE, f"{text}, {max(0, left)} % and {max(0, rest)} MB are left for policy {share.policy}")


def chip_memory(view: NodeView) -> int | None:
    """MiB of memory of one of the node's chips, by its label; None when the label is missing or unreadable."""
    number = whole_number(view.node.labels.get(CHIP_MEMORY, "").replace("G", ""), digits=6)
    return number * MIB if number is not None else None


def usage(shares: Sequence[Share]) -> Used:
    """The sum of a chip's shares; all have one policy, so the last names it."""
    return sum(share.cores for share in shares), sum(share.memory for share in shares), shares[-1].policy


def takes(used: Used | None, share: SoftShare, memory: int) -> bool:
    """Whether a chip has room for one more share: same policy, at most 100 percent, within its memory."""
    if used is None:
        return share.memory <= memory
    cores, size, policy = used
    return policy == share.policy and cores + share.cores <= FULL and size + share.memory <= memory


def choose(chips: Sequence[int], used: Mapping[int, Used], share: SoftShare, memory: int) -> int | None:
    """The used chip with the most AI cores taken that has room, else the lowest untouched one; None when there is
    none.
    """
    shared = [chip for chip in chips if chip in used and takes(used[chip], share, memory)]
    if shared:
        return min(shared, key=lambda chip: (-used[chip][0], chip))
    return min((chip for chip in chips if chip not in used and takes(None, share, memory)), default=None)


def best(chips: Sequence[int], used: Mapping[int, Used], share: SoftShare, memory: int) -> int:
    """The node's value before weighting: 200 less what would stay free on the best used chip, else the number of used
    chips.
    """
    fitting = (used[chip] for chip in chips if chip in used and takes(used[chip], share, memory))
    return max((BEST - (FULL - cores - share.cores) for cores, _, _ in fitting), default=0) or len(used)


def offered(parts: ChipParts, views: Mapping[str, NodeView], resource: str) -> int:
    """How many devices of a resource the cluster has for soft shares: a hundred per chip that has any left."""
    total = 0
    for view in views.values():
        if view.resource != resource or view.closed is not None or not shares_chips(view.node):
            continue
        shares = parts.shares(view)
        full = sum(1 for rows in shares.values() if usage(rows)[0] >= FULL)
        total += FULL * (len(usable_shares(view, shares)) - full)
    return total
