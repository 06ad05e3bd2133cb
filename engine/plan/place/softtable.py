"""Candidates for pods that share a chip softly: a percentage of its AI cores and some of its memory.

Source: component/ascend-for-volcano/internal/npu/policy/chip1softsharedev (node.go, frame.go, utils.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.plan.place.job import Job
from engine.plan.place.parts import Parts, usable_shares
from engine.plan.place.sharing import FULL, Soft
from engine.plan.place.table import MISSING, SHARE_LABEL, Table, room
from engine.plan.place.verdict import FRAGMENTED, SHORTAGE, Refusal, Verdict
from engine.plan.scope import NodeView
from engine.wire.parts import Share

MEMORY_LABEL: Final = "mind-cluster/npu-chip-memory"
NOT_ENABLED: Final = "SoftShareNotEnabled"
NO_MEMORY: Final = "ChipMemoryUnknown"
MIB: Final = 1024
BEST: Final = 200
MAX_NODE: Final = 16

Used = tuple[int, int, str]
"""What is used of a chip: percent of AI cores, MiB, and the policy of those who share it."""


class SoftTable(Table):
    """Any used chip of the same policy with room is better than an untouched one, the fuller the better."""

    def __init__(self, parts: Parts, wish: Soft, *rest: Any) -> None:
        """``wish`` is what each pod of the job wants; the rest is as for any table."""
        self._parts, self._wish = parts, wish
        self._chosen: dict[str, int] = {}
        job: Job = rest[0]
        self._own = frozenset(job.gang.pods)
        super().__init__(*rest)

    def chips(self, name: str) -> int:
        """The chip that is shared."""
        return 1 << self._chosen[name]

    def _unchanging(self, view: NodeView) -> Refusal | None:
        refusal = super()._unchanging(view)
        if refusal is not None:
            return refusal
        if view.resource != self._sample.resource:
            return Refusal(MISSING, f"not has(or not same) {self._sample.resource}")
        if view.node.labels.get(SHARE_LABEL) != "true":
            return Refusal(NOT_ENABLED, f"node label {SHARE_LABEL} not exist")
        if chip_memory(view) is None:
            text = view.node.labels.get(MEMORY_LABEL)
            why = "missing npu-chip-memory label" if text is None else f"invalid npu-chip-memory value: {text:.40}"
            return Refusal(NO_MEMORY, why)
        return None

    def _npu(self, view: NodeView) -> Verdict:
        name = view.node.name
        self._chosen.pop(name, None)
        memory = chip_memory(view) or 0
        shares = self._parts.shares(view)
        chips = usable_shares(view, shares)
        used = {chip: usage(rows) for chip, rows in shares.items()}
        refusal = room(self._sample, view) or self._whole_job(view, chips, memory)
        if refusal is not None:
            return refusal
        chip = choose(chips, used, self._wish, memory)
        if chip is None:
            return Refusal(FRAGMENTED, f"npu topology not meet share job: {self._sample.name} require")
        self._chosen[name] = chip
        return MAX_NODE * best(chips, used, self._wish, memory)

    def _whole_job(self, view: NodeView, chips: Sequence[int], memory: int) -> Refusal | None:
        """All pods of the job must find room on the node, beside everybody else."""
        wish = self._wish
        others = self._parts.shares_of_others(view, self._own)
        cores = size = left = rest = 0
        for chip in chips:
            taken = usage(others[chip]) if others.get(chip) else None
            if taken is not None and taken[2] != wish.policy:
                continue
            used_cores, used_memory = taken[:2] if taken is not None else (0, 0)
            cores += (FULL - used_cores) // wish.cores * wish.cores
            size += (memory - used_memory) // wish.memory * wish.memory
            left, rest = left + FULL - used_cores, rest + memory - used_memory
        if wish.cores * wish.pods <= cores and wish.memory * wish.pods <= size:
            return None
        text = f"node not usable for task: the job wants {wish.cores * wish.pods} % and {wish.memory * wish.pods} MB"
        return Refusal(SHORTAGE, f"{text}, {max(0, left)} % and {max(0, rest)} MB are left for policy {wish.policy}")


def chip_memory(view: NodeView) -> int | None:
    """MiB of memory of one of the node's chips by its label; None when it has none that can be read."""
    text = view.node.labels.get(MEMORY_LABEL, "").replace("G", "")
    return int(text) * MIB if text.isascii() and text.isdecimal() and len(text) <= 6 else None


def usage(shares: Sequence[Share]) -> Used:
    """What the shares of a chip add up to; the last one names the policy, since all have the same."""
    return sum(share.cores for share in shares), sum(share.memory for share in shares), shares[-1].policy


def takes(used: Used | None, wish: Soft, memory: int) -> bool:
    """Whether a chip takes one more share: of the same policy, within 100 percent and its memory."""
    if used is None:
        return wish.memory <= memory
    cores, size, policy = used
    return policy == wish.policy and cores + wish.cores <= FULL and size + wish.memory <= memory


def choose(chips: Sequence[int], used: Mapping[int, Used], wish: Soft, memory: int) -> int | None:
    """The used chip with the most AI cores taken that has room, else the lowest untouched one; None: none."""
    shared = [chip for chip in chips if chip in used and takes(used[chip], wish, memory)]
    if shared:
        return min(shared, key=lambda chip: (-used[chip][0], chip))
    return min((chip for chip in chips if chip not in used and takes(None, wish, memory)), default=None)


def best(chips: Sequence[int], used: Mapping[int, Used], wish: Soft, memory: int) -> int:
    """The node's value before it is weighed: 200 less what would stay free on the best used chip, else how many chips
    are used at all.
    """
    fitting = (used[chip] for chip in chips if chip in used and takes(used[chip], wish, memory))
    return max((BEST - (FULL - cores - wish.cores) for cores, _, _ in fitting), default=0) or len(used)


def offered(parts: Parts, views: Mapping[str, NodeView], resource: str) -> int:
    """How many devices of a resource the cluster has for sharers: a hundred per chip that has any left."""
    total = 0
    for view in views.values():
        if view.resource != resource or view.closed is not None or view.node.labels.get(SHARE_LABEL) != "true":
            continue
        shares = parts.shares(view)
        full = sum(1 for rows in shares.values() if usage(rows)[0] >= FULL)
        total += FULL * (len(usable_shares(view, shares)) - full)
    return total
