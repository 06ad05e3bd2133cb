"""Candidates for pods that ask for AI cores: the template, the chip, and the score of the node among all candidates.

Source: component/ascend-for-volcano/internal/npu/vnpu/vdynamic.go and plugin/vnode.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from belay.engine.model.cores import ChipUse, free_capacity, unfit_reason
from belay.engine.model.labels import NPU_CORE
from belay.engine.model.pending_reasons import FRAGMENTED, IN_FLIGHT, INVALID_REQUEST, SHORTAGE
from belay.engine.model.vnpu import TemplateSize
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal, ScoreOrRefusal
from belay.engine.plan.place.nodes.table import MISSING, NodeTable, room
from belay.engine.plan.place.part_requests import (
    ILLEGAL,
    SMALL_KIND,
    DynamicVNPU,
    dvpp_of,
    illegal,
    illegal_cores,
    level_of,
)
from belay.engine.plan.place.parts.shares import ChipParts, CoreNode, Tenants

BEST_BONUS: Final = 8


class CoreFit(NamedTuple):
    """Where a request fits on a node: chips, and the template (empty for whole chips)."""

    chips: tuple[int, ...]
    template: str = ""


class CoreTable(NodeTable):
    """Scores compare nodes: the one with the fewest idle cores gets 8, all others 0.

    Where some nodes would give less than the pod asks for, those before the first node that would not get 8, and that
    node gets 16.
    """

    def __init__(self, parts: ChipParts, kind: DynamicVNPU, *rest: Any) -> None:
        """``kind``: the kind of chip that the job means; the rest as for any table."""
        self._parts, self._kind = parts, kind.kind
        self._fits: dict[str, CoreFit] = {}
        self._downgraded: set[str] = set()
        self._taken_off: set[str] = set()
        self._order: list[tuple[int, str]] = []
        self._best = ""
        self._mixed = False
        super().__init__(*rest)
        self._rescore()

    def refresh(self, log: list[str]) -> None:
        """Score the nodes that changed since the last call again."""
        if self._seen != len(log):
            super().refresh(log)
            self._rescore()

    def put_back(self, name: str) -> None:
        """Put a node back among the candidates."""
        self._taken_off.discard(name)

    def best_first(self) -> Iterator[str]:
        """Fitting nodes, best first; each is taken off until it is put back."""
        plain = not (self._downgraded or self._penalty or self._preferences)
        if plain and self._best in self.scores and self._best not in self._taken_off:
            self._taken_off.add(self._best)
            yield self._best
        while True:
            there = [
                (self._entry(name, score), name) for name, score in self.scores.items() if name not in self._taken_off
            ]
            if not there:
                return
            name = min(there)[1]
            self._taken_off.add(name)
            yield name

    def best(self) -> str | None:
        """The first node of ``best_first``, without taking it off; None when no node fits."""
        found = next(self.best_first(), None)
        if found is not None:
            self.put_back(found)
        return found

    def chips(self, name: str) -> int:
        """The chip of the vNPU, or the whole chips."""
        return sum(1 << chip for chip in self._fits[name].chips)

    def part(self, name: str) -> str:
        """The template that the pod would get on a fitting node; empty for whole chips."""
        return self._fits[name].template

    def _static_refusal(self, view: NodeView) -> Refusal | None:
        refusal = super()._static_refusal(view)
        if refusal is not None:
            return refusal
        node = self._parts.core_node(view)
        if isinstance(node, Refusal):
            return node
        if node.kind != self._kind:
            return Refusal(MISSING, f"not has(or not same) {NPU_CORE}: its chips are {node.kind}")
        return illegal(node.kind, node.templates, node.totals.aicore, self._sample)

    def _score_npus(self, view: NodeView) -> ScoreOrRefusal:
        name = view.node.name
        self._fits.pop(name, None)
        self._downgraded.discard(name)
        found = room(self._sample, view) or self._fit(view)
        if isinstance(found, Refusal):
            return found
        self._fits[name] = found
        heappush(self._order, (_idle(view), name))
        return 0

    def _fit(self, view: NodeView) -> CoreFit | Refusal:
        node = self._parts.core_node(view)
        if isinstance(node, Refusal):
            return node
        tenants = self._parts.tenants(view, node)
        cores = node.totals.aicore
        if self._sample.count % cores == 0:
            return self._whole(node, tenants, self._sample.count // cores)
        template = node.templates.choice(self._sample.count, level_of(self._sample), dvpp_of(self._sample))
        if template is None:
            text = f"{ILLEGAL}: task<{self._sample.name}> get virTemplate is null"
            return Refusal(INVALID_REQUEST, text, illegal_cores(node.templates, cores, self._sample))
        size = template.size(cores)
        chip = choose(node, tenants, size)
        smaller = node.templates.smaller(size.name) if chip is None and node.kind == SMALL_KIND else None
        if smaller is not None:
            self._downgraded.add(view.node.name)
            size = smaller.size(cores)
            chip = choose(node, tenants, size)
        if chip is None:
            return lacking(node, tenants, size)
        return in_flight(view, tenants, size.name) or CoreFit((chip,), size.name)

    def _whole(self, node: CoreNode, tenants: Tenants, wanted: int) -> CoreFit | Refusal:
        free = [chip for chip, there in tenants.items() if not there]
        if len(free) < wanted:
            text = f"resource not enough: {wanted} whole chips wanted, {len(free)} free and uncut"
            cut = [chip for chip, there in tenants.items() if there and free_capacity(node.totals, there).cut]
            spare = sum(max(0, free_capacity(node.totals, tenants[chip]).aicore) for chip in cut)
            enough = len(free) * node.totals.aicore + spare >= wanted * node.totals.aicore
            return Refusal(FRAGMENTED if enough else SHORTAGE, text)
        busy = next((there for there in tenants.values() if any(one.coming and not one.whole for one in there)), None)
        if busy is not None:
            return Refusal(IN_FLIGHT, f"another template is being made there, and {self._sample.name} waits for it")
        return CoreFit(tuple(free[:wanted]))

    def _rescore(self) -> None:
        """Compute the raw scores; nodes are ordered by idle cores, then by name."""
        if not self.scores:
            return
        if not self._downgraded:
            self._mark_best()
            return
        before = dict(self.scores)
        self.scores.update(dict.fromkeys(self.scores, 0))
        self._best = ""
        for name in sorted(self.scores, key=lambda name: (_idle(self._views[name]), name)):
            if name not in self._downgraded:
                self.scores[name] = 2 * BEST_BONUS
                break
            self.scores[name] = BEST_BONUS
        self.revision += before != self.scores
        self._mixed = True

    def _mark_best(self) -> None:
        """Give the first node the bonus; the heap drops outdated entries only when they come up."""
        if self._mixed:
            self.scores.update(dict.fromkeys(self.scores, 0))
            self._mixed = False
        while self._order and self._stale(*self._order[0]):
            heappop(self._order)
        if not self._order:
            self._order = sorted((_idle(self._views[name]), name) for name in self.scores)
        name = self._order[0][1]
        if self._best != name:
            if self._best in self.scores:
                self.scores[self._best] = 0
            self._best = name
            self.revision += 1
        self.scores[name] = BEST_BONUS

    def _stale(self, idle: int, name: str) -> bool:
        return name not in self.scores or idle != _idle(self._views[name])


def choose(node: CoreNode, tenants: Tenants, size: TemplateSize) -> int | None:
    """The chip for a vNPU: the one with the least left of those where it fits beside settled neighbours; None when
    there is none.

    A node whose chips together have too little is not searched further.
    """
    rooms = {chip: free_capacity(node.totals, there) for chip, there in tenants.items()}
    if sum(row.aicore for row in rooms.values()) < size.aicore or sum(row.aicpu for row in rooms.values()) < size.aicpu:
        return None
    order = sorted(rooms, key=lambda chip: (rooms[chip].aicore, rooms[chip].aicpu, chip))
    fits = (c for c in order if not rooms[c].unstable and fits_beside(node, tenants[c], size))
    return next(fits, None)


def fits_beside(node: CoreNode, there: Sequence[ChipUse], size: TemplateSize) -> bool:
    """Whether a vNPU fits on a chip beside its tenants."""
    return unfit_reason(node.totals, there, size, vgroups=node.vgroups) is None


def lacking(node: CoreNode, tenants: Tenants, size: TemplateSize) -> Refusal:
    """Why no chip of a node takes a vNPU: too little in all, fragmented, or not yet."""
    rooms = [free_capacity(node.totals, there) for there in tenants.values()]
    cores, cpus = sum(max(0, row.aicore) for row in rooms), sum(max(0, row.aicpu) for row in rooms)
    wanted = f"{size.name} takes {size.aicore} AI cores and {size.aicpu} AI CPUs"
    if cores < size.aicore or cpus < size.aicpu:
        return Refusal(SHORTAGE, f"resource not enough: {wanted}, {cores} and {cpus} are left")
    if any(fits_beside(node, there, size) for there in tenants.values()):
        return Refusal(IN_FLIGHT, f"{wanted}, and on the chips with room a vNPU is still being made")
    most, there = max(
        zip(rooms, tenants.values(), strict=True), key=lambda row: (row[0].aicore, row[0].aicpu, -len(row[1]))
    )
    detail = f"{cores} and {cpus} are left in all, on one chip at most {most.aicore} and {most.aicpu}"
    if most.aicore >= size.aicore and most.aicpu >= size.aicpu:  # there is room, but the chip's cuts forbid it
        detail += f": {unfit_reason(node.totals, there, size, vgroups=node.vgroups)}"
    return Refusal(FRAGMENTED, f"resource not enough: {wanted}, {detail}")


def in_flight(view: NodeView, tenants: Tenants, template: str) -> Refusal | None:
    """Why the node must wait: it is making another template for another pod."""
    other = next(
        (
            one.size.name
            for there in tenants.values()
            for one in there
            if one.coming and one.size is not None and one.size.name != template
        ),
        None,
    )
    if other is None:
        return None
    return Refusal(IN_FLIGHT, f"{view.node.name} is using {other}, and not rewrite")


def _idle(view: NodeView) -> int:
    return view.node.allocatable.get(NPU_CORE, 0) - view.requested.get(NPU_CORE, 0)
