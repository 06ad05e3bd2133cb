"""The nearest legal blocks of a job that cannot be divided as its annotations ask: found by trying, not by formula.

Every family has rules of its own about blocks, racks and trees, which say only that a number is wrong. The rules
themselves are asked here about other numbers, the nearest first, so that the way out is one that they accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import msgspec

from belay.engine.model.job_options import stated_chips
from belay.engine.model.labels import AFFINITY_CONFIG, RA_BLOCK, SCHEDULE_UB_MEMORY, SP_BLOCK
from belay.engine.model.quantities import whole_number
from belay.engine.plan.place.causes import OtherBlocks
from belay.engine.plan.place.families.rack950 import RACK_CHIPS
from belay.engine.plan.place.handler import JobRequest, Refusal, TaskRequest

#: Whether a job's request is refused.
Rule = Callable[[JobRequest], Refusal | None]

#: Sizes of blocks that are tried.
MAX_TRIED: Final = 64
_RACK_BLOCKS: Final = tuple(1 << bit for bit in range(RACK_CHIPS.bit_length()))


def with_way_out(refusal: Refusal, job: JobRequest, node_chips: int, rule: Rule) -> Refusal:
    """The refusal with the nearest change that the rule accepts, where one is found and nothing else is wrong.

    Args:
        node_chips: the chips of one of the job's servers.
    """
    if refusal.cause is not None:
        return refusal
    found = next((change for change in _changes(job, node_chips) if rule(_changed(job, change)) is None), None)
    return refusal._replace(cause=found) if found is not None else refusal


def _changes(job: JobRequest, node_chips: int) -> Iterator[OtherBlocks]:
    """Other annotations first, the nearest sizes first; then other numbers of chips in a pod."""
    whole = max((task.chips for task in job.tasks), default=0)
    wanted = stated_chips(job.options.sp_block, 0) or job.total
    blocks = nearest({job.total, *range(node_chips, job.total + 1, node_chips)}, wanted)
    racks = nearest(set(_RACK_BLOCKS), stated_chips(job.options.ra_block, 0) or node_chips)

    yield from (OtherBlocks({SP_BLOCK: str(size)}) for size in blocks)
    if job.options.ra_block is not None:
        yield from (OtherBlocks({RA_BLOCK: str(size)}) for size in racks)
        for block, rack in product(blocks[:8], racks):
            yield OtherBlocks({SP_BLOCK: str(block), RA_BLOCK: str(rack)})
    if job.options.ub_memory is not None:
        yield OtherBlocks({}, (SCHEDULE_UB_MEMORY,))

    for chips in nearest(set(range(1, node_chips + 1)), whole):
        yield OtherBlocks({}, (), chips)
        for size in {chips * job.pods, node_chips}:
            yield OtherBlocks({SP_BLOCK: str(size)}, (), chips)


def _changed(job: JobRequest, change: OtherBlocks) -> JobRequest:
    """The request as it would be."""
    annotations = {key: text for key, text in job.annotations.items() if key not in change.remove} | change.values
    if not change.chips:
        return msgspec.structs.replace(job, annotations=annotations)
    tasks = tuple(TaskRequest(task.name, change.chips if task.chips else 0) for task in job.tasks)
    return msgspec.structs.replace(job, annotations=annotations, tasks=tasks, total=change.chips * job.pods)


def of_groups(refusal: Refusal, job: JobRequest) -> Refusal:
    """The refusal of a multilevel job with the nearest groups of its pods: each divides the pods, and is a multiple of
    the one below.
    """
    found: list[int] = []
    for part in (job.options.affinity_config or "").split(","):
        wanted, below = whole_number(part.partition("=")[2].strip()) or 1, found[-1] if found else 1
        legal = {size for size in range(below, job.pods + 1, below) if not job.pods % size}
        found.append(nearest(legal or {below}, wanted)[0])

    text = ",".join(f"level{number}={size}" for number, size in enumerate(found, 1))
    return refusal._replace(cause=OtherBlocks({AFFINITY_CONFIG: text}))


def nearest(sizes: set[int], wanted: int) -> list[int]:
    """The sizes, those next to the wanted one first; of two that are as near the smaller one."""
    return sorted(sizes, key=lambda size: (abs(size - wanted), size))[:MAX_TRIED]


__all__ = ["Rule", "of_groups", "with_way_out"]
