"""Candidates for pods that ask for AI cores: which template, on which chip, and how good the node is among the others.

Source: component/ascend-for-volcano/internal/npu/vnpu/vdynamic.go and plugin/vnode.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from engine.model.cores import Tenant, left, why_not
from engine.model.vnpu import Size
from engine.plan.place.parts import CoreNode, Parts, Tenants
from engine.plan.place.sharing import ILLEGAL, SMALL_KIND, Dynamic, dvpp_of, illegal, level_of
from engine.plan.place.table import MISSING, Table, room
from engine.plan.place.verdict import FRAGMENTED, INVALID_REQUEST, SHORTAGE, Refusal, Verdict
from engine.plan.scope import NodeView
from engine.wire.parts import NPU_CORE

#: A node that holds a vNPU still being made takes no other template meanwhile.
IN_FLIGHT: Final = "VNPUInFlight"
BONUS: Final = 8


class Fit(NamedTuple):
    """Where a request goes on a node: chips, and the template (empty for whole chips)."""

    chips: tuple[int, ...]
    template: str = ""


class CoreTable(Table):
    """Scores are of the node among all candidates: the one with the fewest idle cores gets 8; where some nodes would
    give less than was asked for, those get 8 and the first that need not gets 16.
    """

    def __init__(self, parts: Parts, kind: Dynamic, *rest: Any) -> None:
        """``kind`` says which chips the job means; the rest is as for any table."""
        self._parts, self._kind = parts, kind.kind
        self._fits: dict[str, Fit] = {}
        self._downgraded: set[str] = set()
        self._off: set[str] = set()
        self._order: list[tuple[int, str]] = []
        self._best = ""
        self._mixed = False
        super().__init__(*rest)
        self._rescore()

    def refresh(self, log: list[str]) -> None:
        """Judges again the nodes that were touched since the last look."""
        if self._seen != len(log):
            super().refresh(log)
            self._rescore()

    def offer(self, name: str) -> None:
        """Puts a node back among the candidates."""
        self._off.discard(name)

    def best_first(self) -> Iterator[str]:
        """Fitting nodes, best rank first; each is taken off until it is offered again."""
        plain = not (self._downgraded or self._penalty or self._liked)
        if plain and self._best in self.scores and self._best not in self._off:
            self._off.add(self._best)
            yield self._best
        while True:
            there = [(self._entry(name, score), name) for name, score in self.scores.items() if name not in self._off]
            if not there:
                return
            name = min(there)[1]
            self._off.add(name)
            yield name

    def best(self) -> str | None:
        """The first of ``best_first``, left where it is; None when nothing fits."""
        found = next(self.best_first(), None)
        if found is not None:
            self.offer(found)
        return found

    def chips(self, name: str) -> int:
        """The chip of the vNPU, or the whole ones."""
        return sum(1 << chip for chip in self._fits[name].chips)

    def part(self, name: str) -> str:
        """The template that the pod would get on a fitting node; empty for whole chips."""
        return self._fits[name].template

    def _unchanging(self, view: NodeView) -> Refusal | None:
        refusal = super()._unchanging(view)
        if refusal is not None:
            return refusal
        node = self._parts.core_node(view)
        if isinstance(node, Refusal):
            return node
        if node.kind != self._kind:
            return Refusal(MISSING, f"not has(or not same) {NPU_CORE}: its chips are {node.kind}")
        why = illegal(node.kind, node.templates, node.totals.aicore, self._sample)
        return Refusal(INVALID_REQUEST, f"{ILLEGAL}: {why}") if why is not None else None

    def _npu(self, view: NodeView) -> Verdict:
        name = view.node.name
        self._fits.pop(name, None)
        self._downgraded.discard(name)
        found = room(self._sample, view) or self._fit(view)
        if isinstance(found, Refusal):
            return found
        self._fits[name] = found
        heappush(self._order, (_idle(view), name))
        return 0

    def _fit(self, view: NodeView) -> Fit | Refusal:
        node = self._parts.core_node(view)
        if isinstance(node, Refusal):
            return node
        tenants = self._parts.tenants(view, node)
        cores = node.totals.aicore
        if self._sample.count % cores == 0:
            return self._whole(node, tenants, self._sample.count // cores)
        template = node.templates.choice(self._sample.count, level_of(self._sample), dvpp_of(self._sample))
        if template is None:
            return Refusal(INVALID_REQUEST, f"{ILLEGAL}: task<{self._sample.name}> get virTemplate is null")
        size = template.size(cores)
        chip = choose(node, tenants, size)
        smaller = node.templates.smaller(size.name) if chip is None and node.kind == SMALL_KIND else None
        if smaller is not None:
            self._downgraded.add(view.node.name)
            size = smaller.size(cores)
            chip = choose(node, tenants, size)
        if chip is None:
            return lacking(node, tenants, size)
        return in_flight(view, tenants, size.name) or Fit((chip,), size.name)

    def _whole(self, node: CoreNode, tenants: Tenants, wanted: int) -> Fit | Refusal:
        free = [chip for chip, there in tenants.items() if not there]
        if len(free) < wanted:
            text = f"resource not enough: {wanted} whole chips wanted, {len(free)} free and uncut"
            cut = [chip for chip, there in tenants.items() if there and left(node.totals, there).cut]
            spare = sum(max(0, left(node.totals, tenants[chip]).aicore) for chip in cut)
            enough = len(free) * node.totals.aicore + spare >= wanted * node.totals.aicore
            return Refusal(FRAGMENTED if enough else SHORTAGE, text)
        busy = next((there for there in tenants.values() if any(one.coming and not one.whole for one in there)), None)
        if busy is not None:
            return Refusal(IN_FLIGHT, f"another template is being made there, and {self._sample.name} waits for it")
        return Fit(tuple(free[:wanted]))

    def _rescore(self) -> None:
        """The raw scores; nodes in the order of idle cores, then of names."""
        if not self.scores:
            return
        if not self._downgraded:
            self._crown()
            return
        before = dict(self.scores)
        self.scores.update(dict.fromkeys(self.scores, 0))
        self._best = ""
        for name in sorted(self.scores, key=lambda name: (_idle(self._views[name]), name)):
            if name not in self._downgraded:
                self.scores[name] = 2 * BONUS
                break
            self.scores[name] = BONUS
        self.revision += before != self.scores
        self._mixed = True

    def _crown(self) -> None:
        """The first node alone gets the bonus; the heap forgets entries that have become old only when they come up."""
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
        self.scores[name] = BONUS

    def _stale(self, idle: int, name: str) -> bool:
        return name not in self.scores or idle != _idle(self._views[name])


def choose(node: CoreNode, tenants: Tenants, size: Size) -> int | None:
    """The chip for a vNPU: of those where it fits beside settled neighbours the one with the least left; None: none.

    A node whose chips together have too little is not looked at further.
    """
    rooms = {chip: left(node.totals, there) for chip, there in tenants.items()}
    if sum(row.aicore for row in rooms.values()) < size.aicore or sum(row.aicpu for row in rooms.values()) < size.aicpu:
        return None
    order = sorted(rooms, key=lambda chip: (rooms[chip].aicore, rooms[chip].aicpu, chip))
    fits = (c for c in order if not rooms[c].unstable and fits_beside(node, tenants[c], size))
    return next(fits, None)


def fits_beside(node: CoreNode, there: Sequence[Tenant], size: Size) -> bool:
    """Whether a vNPU fits on a chip beside those who are there."""
    return why_not(node.totals, there, size, vgroups=node.vgroups) is None


def lacking(node: CoreNode, tenants: Tenants, size: Size) -> Refusal:
    """Why no chip of a node takes a vNPU: too little in all, in pieces, or only for the moment."""
    rooms = [left(node.totals, there) for there in tenants.values()]
    cores, cpus = sum(max(0, row.aicore) for row in rooms), sum(max(0, row.aicpu) for row in rooms)
    wanted = f"{size.name} takes {size.aicore} AI cores and {size.aicpu} AI CPUs"
    if cores < size.aicore or cpus < size.aicpu:
        return Refusal(SHORTAGE, f"resource not enough: {wanted}, {cores} and {cpus} are left")
    if any(fits_beside(node, there, size) for there in tenants.values()):
        return Refusal(IN_FLIGHT, f"{wanted}, and on the chips with room a vNPU is still being made")
    most, there = max(
        zip(rooms, tenants.values(), strict=True), key=lambda row: (row[0].aicore, row[0].aicpu, -len(row[1]))
    )
    told = f"{cores} and {cpus} are left in all, on one chip at most {most.aicore} and {most.aicpu}"
    if most.aicore >= size.aicore and most.aicpu >= size.aicpu:  # there is room, but the chip's cuts forbid it
        told += f": {why_not(node.totals, there, size, vgroups=node.vgroups)}"
    return Refusal(FRAGMENTED, f"resource not enough: {wanted}, {told}")


def in_flight(view: NodeView, tenants: Tenants, template: str) -> Refusal | None:
    """Why the node waits: it makes another template for somebody else."""
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
