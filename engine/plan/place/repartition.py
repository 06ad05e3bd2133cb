"""Makes room for vNPUs that do not fit because what is free is in pieces: says the least change, and makes it.

Two ways. A request for a size by its name (``huawei.com/Ascend310P-4c``) gets a chip cut anew: only chips without any
live pod or process, as few idle vNPUs as possible. A request for AI cores (``huawei.com/npu-core``) gets as few pods as
possible moved to where they fit as well. Both are done only on chips that a VNPULayout declares ``dynamic``; what they
disrupt is counted by the safety budgets. Pods are only moved for others that are at least as important, and not again
soon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.model.cluster import Pod, ids_of
from engine.model.jobs import Gang
from engine.model.levels import IN_SERVICE, NORMAL
from engine.model.recut import Cut, cuts, share_out
from engine.model.vnpu import Existing, Size, change
from engine.plan import layout
from engine.plan.cutting import chip_totals, layouts_of, templates_of
from engine.plan.place import fit, moves
from engine.plan.place.bench import Bench, Wishes
from engine.plan.place.job import STATIC_VNPU, Job
from engine.plan.place.moves import Placing
from engine.plan.place.parts import CoreNode
from engine.plan.place.sharing import Dynamic
from engine.plan.place.table import MISSING
from engine.plan.place.verdict import FRAGMENTED, SHORTAGE
from engine.plan.queue import words
from engine.plan.queue.search import Exhausted
from engine.plan.queue.shields import Shields
from engine.plan.scope import NodeView, Scope
from engine.wire.parts import NPU_CORE, parse_cores
from engine.wire.podannotations import ASCEND_REAL

if TYPE_CHECKING:
    from engine.documents import VNPUTemplates
    from engine.plan.place.trial import Trials

ON_DEMAND: Final = "LayoutOnDemand"
#: Most jobs that are helped in one pass, chips and sets of pods that are weighed for one, pods that are moved for one.
MAX_JOBS: Final = 8
MAX_CHIPS: Final = 256
MAX_SETS: Final = 400
MAX_MOVED: Final = 3
MAX_NEW: Final = 16


class Way(NamedTuple):
    """Pods whose move makes room, and whether it may be done without asking."""

    pods: tuple[Pod, ...]
    allowed: bool


class Room:
    """One pass's answers to jobs whose vNPUs do not fit."""

    def __init__(self, scope: Scope, bench: Bench, trials: Trials) -> None:
        self._scope, self._bench, self._trials = scope, bench, trials
        self._shields = Shields(scope.observed, scope.evicting)
        self._stuck: list[Placing] = []
        self._in_vain: set[tuple[object, ...]] = set()
        self._cut: set[tuple[str, int]] = set()

    def seen(self, placing: Placing) -> Placing:
        """Takes down what became of a gang in its turn; returns it."""
        if placing.left and placing.why in (FRAGMENTED, SHORTAGE) and placing.job is not None:
            self._stuck.append(placing)
        return placing

    def make(self) -> None:
        """Orders cuts and moves for those who are stuck, as far as documents allow it; says it to the others."""
        helped = 0
        for placing in self._stuck:
            job = placing.job
            if job is None or helped >= MAX_JOBS:
                continue
            if STATIC_VNPU.match(job.resource):
                self._recut(placing, job)
                helped += 1
            elif isinstance(job.shared, Dynamic):
                try:
                    self._move(placing, job)
                except Exhausted:
                    return
                helped += 1

    # ---- sizes by name: chips are cut anew

    def _recut(self, placing: Placing, job: Job) -> None:
        gang, need = placing.gang, len(moves.together(self._scope, placing))
        pods = list(placing.left[:MAX_NEW])
        self._bench.quiet = True
        seated, without = self._bench.seat(job, pods, Wishes())
        self._bench.quiet = False
        short = len(pods) - len(without)
        nodes = self._eligible(job, pods[0])
        coming = self._on_the_way(job.resource, nodes)
        for allowed in (True, False):
            most, least = len(without) - coming, need - short - coming
            if most <= 0 or (least <= 0 and coming):
                text = f"{job.resource} is being made ready: an order or a report is on its way"
                words.amend(self._scope, gang, text)
                break
            options = list(self._options(job.resource, nodes, most, allowed=allowed))
            counts = range(most if allowed else max(1, least), max(1, least) - 1, -1)
            chosen = next((found for count in counts if (found := share_out(options, count))), ())
            if chosen:
                self._order(gang, job, chosen) if allowed else self._advise(gang, job, chosen)
                break
        self._bench.take_back(seated)

    def _eligible(self, job: Job, pod: Pod) -> list[NodeView]:
        """Nodes that lack nothing but the vNPU."""
        table = self._bench.table(job, pod)
        needs = tuple((name, most) for name, most in pod.requests.items() if most and name != pod.resource)
        found = []
        for name, refusal in table.refusals.items():
            view = self._bench.views[name]
            lacks = refusal.reason in (MISSING, SHORTAGE) and job.resource in refusal.message
            if lacks and fit.room(pod, needs, view) is None and self._bench.allowed(pod, name) is None:
                found.append(view)
        return sorted(found, key=lambda view: view.node.name)

    def _on_the_way(self, resource: str, nodes: Sequence[NodeView]) -> int:
        """vNPUs of this size that are ordered, made but not yet offered, or about to be left by their pods."""
        total = 0
        for view in nodes:
            template = self._template(view, resource)
            if template is None:
                continue
            agent = self._scope.observed.agents.get(view.node.name)
            made = sum(1 for device in agent.vnpus if device.template == template) if agent is not None else 0
            made += sum(rows.count(template) for rows in layout.coming(self._scope, view).values())
            total += max(0, made - view.node.allocatable.get(resource, 0))
            total += sum(pod.count for pod in view.pods if pod.resource == resource and pod.deleting is not None)
        return total

    def _template(self, view: NodeView, resource: str) -> str | None:
        """The template behind a resource on the node's chips."""
        family = templates_of(self._scope.desired, view)
        if family is None or not family.spec.static or not resource.startswith(family.spec.resource_prefix):
            return None
        found = family.by_suffix.get(resource.removeprefix(family.spec.resource_prefix))
        return found.name if found is not None else None

    def _options(
        self, resource: str, nodes: Sequence[NodeView], wanted: int, *, allowed: bool
    ) -> Iterator[tuple[str, int, list[Cut]]]:
        """Chips that nobody uses, with what each could be cut into; ``allowed``: only those a document declares."""
        weighed = 0
        for view in nodes:
            family, template = templates_of(self._scope.desired, view), self._template(view, resource)
            if family is None or template is None or view.node.allocatable.get(NPU_CORE):
                continue
            if allowed and not (view.dynamic_chips and layout.orderable(self._scope, view)):
                continue
            chips = view.dynamic_chips if allowed else view.base & ~view.dynamic_chips & ~view.soft_chips
            for chip in ids_of(chips & view.base & ~view.unavailable):
                there = self._there(view, chip, family)
                if there is None or (view.node.name, chip) in self._cut:
                    continue
                weighed += 1
                if weighed > MAX_CHIPS:
                    return
                totals = chip_totals(view, family)
                yield view.node.name, chip, cuts(totals, there, family.by_name[template].size(totals.aicore), wanted)

    def _there(self, view: NodeView, chip: int, family: VNPUTemplates) -> list[tuple[Existing, Size]] | None:
        """The vNPUs of a chip that may be cut now, None when it may not."""
        if view.chip_level.get(chip, NORMAL) not in IN_SERVICE or layout.user_of(self._scope, view, chip):
            return None
        rows = list(layout.vnpus_on(self._scope, view, chip))
        if any(row.busy or row.template not in family.by_name for row in rows):
            return None
        cores = chip_totals(view, family).aicore
        return [(row, family.by_name[row.template].size(cores)) for row in rows]

    def _order(self, gang: Gang, job: Job, chosen: Sequence[tuple[str, int, Cut]]) -> None:
        told, waits = [], False
        for name, chip, cut in chosen:
            view = self._scope.nodes[name]
            template = self._template(view, job.resource) or ""
            rows = list(layout.vnpus_on(self._scope, view, chip))
            wanted = (*(row.template for row in rows if row.id not in cut.destroy), *[template] * cut.more)
            epoch, pieces = layout.next_epoch(self._scope, view), ", ".join(wanted)
            document = next(d for d in layouts_of(self._scope.desired, view) if d.document.spec.mode == "dynamic")
            ordered = layout.partition(
                self._scope,
                view,
                chip,
                wanted,
                change(rows, wanted),
                epoch,
                reason=ON_DEMAND,
                message=f"chip {view.chip(chip)} of node {name} is cut into {pieces} for {words.named(gang)}",
                evidence=layout.evidence(self._scope, document),
            )
            if ordered:
                layout.remember_epoch(self._scope, view, epoch)
            self._cut.add((name, chip))
            told.append(_cutting(view, chip, template, cut))
            waits = waits or not ordered
        text = f"{'the attempts of the node are used up' if waits else 'room is being made'}: {'; '.join(told)}"
        words.amend(self._scope, gang, text, reason=FRAGMENTED)

    def _advise(self, gang: Gang, job: Job, chosen: Sequence[tuple[str, int, Cut]]) -> None:
        told = []
        for name, chip, cut in chosen:
            view = self._scope.nodes[name]
            told.append(_cutting(view, chip, self._template(view, job.resource) or "", cut))
        text = f"{'; '.join(told)} would do; a VNPULayout in mode dynamic would let that happen by itself"
        words.amend(self._scope, gang, text, reason=FRAGMENTED)

    # ---- AI cores: pods are moved

    def _move(self, placing: Placing, job: Job) -> None:
        gang, pods = placing.gang, moves.together(self._scope, placing)
        leaving = self._leaving(job, pods[0])
        if leaving and self._trials.moves(gang, pods, leaving, ()):
            words.amend(self._scope, gang, words.waits_for(leaving))
            return
        kind = (self._trials.kind(gang, pods), len(pods))
        if kind in self._in_vain:
            return
        for way in self._ways(gang, job, pods[0], leaving):
            if not self._shields.let(way.pods):
                continue
            if not self._trials.moves(gang, pods, (*leaving, *way.pods), way.pods):
                continue
            names = ", ".join(f"{pod.key} away from {pod.node} chip {_chip(pod)}" for pod in way.pods)
            if not way.allowed:
                text = f"moving {names} would do; a VNPULayout in mode dynamic would let that happen by itself"
                words.amend(self._scope, gang, text, reason=FRAGMENTED)
                return
            for pod in way.pods:
                self._evict(gang, pod)
            self._trials.hold(gang, pods, (*leaving, *way.pods))
            words.amend(self._scope, gang, f"room is being made: moving {names}", reason=FRAGMENTED)
            return
        self._in_vain.add(kind)

    def _leaving(self, job: Job, pod: Pod) -> tuple[Pod, ...]:
        """Pods with AI cores that are on their way out, on nodes that refused the job for want of room."""
        nodes = (self._bench.views[name] for name in self._refusing(job, pod))
        going = self._scope.evicting
        return tuple(
            one
            for view in nodes
            for one in view.pods
            if NPU_CORE in one.annotations and one.node and (one.deleting is not None or one.key in going)
        )

    def _refusing(self, job: Job, pod: Pod) -> list[str]:
        table = self._bench.table(job, pod)
        return sorted(name for name, why in table.refusals.items() if why.reason in (FRAGMENTED, SHORTAGE))

    def _ways(self, gang: Gang, job: Job, pod: Pod, leaving: Sequence[Pod]) -> Iterator[Way]:
        """Sets of pods that stand in the way on a node, fewest first; allowed ones first among equally many."""
        gone = {one.key for one in leaving}
        nodes: list[tuple[NodeView, CoreNode, Mapping[int, list[Pod]]]] = []
        for name in self._refusing(job, pod):
            view = self._bench.views[name]
            node = self._bench.parts.core_node(view)
            if isinstance(node, CoreNode):
                nodes.append((view, node, self._on_chips(view, gone)))
        budget, room = MAX_SETS, self._loose(gone)
        for size in range(1, MAX_MOVED + 1):
            sets = (
                (view, tuple(found))
                for view, node, chips in nodes
                for found in _sets(node, chips, pod.count, size)
                if room.may_take(found, pod.count) and all(self._movable(gang, one) for one in found)
            )
            rows = list(islice(sets, budget))
            budget -= len(rows)
            ranked = sorted(rows, key=lambda row: (not _declared(row[0], row[1]), _cores(row[1])))
            yield from (Way(found, _declared(view, found)) for view, found in ranked)

    def _loose(self, gone: set[str]) -> _Loose:
        free: dict[tuple[str, int], int] = {}
        for view in self._bench.views.values():
            node = self._bench.parts.core_node(view) if view.node.allocatable.get(NPU_CORE) else None
            if isinstance(node, CoreNode):
                there = self._on_chips(view, gone)
                most = node.totals.aicore
                free |= {(view.node.name, chip): most - _cores(there.get(chip, ())) for chip in ids_of(view.base)}
        return _Loose(free)

    def _on_chips(self, view: NodeView, gone: set[str]) -> dict[int, list[Pod]]:
        chips: dict[int, list[Pod]] = {}
        for pod in sorted(view.pods, key=lambda pod: pod.key):
            held = parse_cores(pod.annotations.get(NPU_CORE, "")) if pod.node and pod.key not in gone else None
            for chip in held.chips if held is not None else ():
                chips.setdefault(chip, []).append(pod)
        return chips

    def _movable(self, gang: Gang, pod: Pod) -> bool:
        """Whether a pod may go for the gang and runs."""
        held = parse_cores(pod.annotations.get(NPU_CORE, ""))
        settled = bool(held and held.template and pod.annotations.get(ASCEND_REAL)) and pod.deleting is None
        if not settled or pod.key in self._scope.evicting or self._bench.parts.given(pod.key) is not None:
            return False
        return moves.owner_of(self._scope, pod, gang) is not None

    def _evict(self, gang: Gang, pod: Pod) -> None:
        view = self._scope.nodes[pod.node]
        document = next(d for d in layouts_of(self._scope.desired, view) if d.document.spec.mode == "dynamic")
        moves.order(self._scope, gang, pod, layout.evidence(self._scope, document))


class _Loose:
    """The cores that are free on each chip: a cheap reason why a move can never work, before it is tried."""

    def __init__(self, free: Mapping[tuple[str, int], int]) -> None:
        self._free = free
        self._widest = sorted(free, key=lambda chip: -free[chip])
        self._total = sum(free.values())

    def may_take(self, movers: Sequence[Pod], cores: int) -> bool:
        """Whether a request for ``cores`` and the largest of those who go for it might find a place."""
        own = {(pod.node, _chip(pod)) for pod in movers}
        left = sum(self._free.get(chip, 0) for chip in own) + _cores(movers) - cores
        elsewhere = next((self._free[chip] for chip in self._widest if chip not in own), 0)
        return self._total >= cores and max(pod.count for pod in movers) <= max(left, elsewhere)


def _sets(node: CoreNode, chips: Mapping[int, list[Pod]], cores: int, size: int) -> Iterator[Sequence[Pod]]:
    """Sets of ``size`` pods whose going may make room: of one chip, or all those of as many chips as are wanted."""
    if cores % node.totals.aicore:
        for chip in sorted(chips):
            least = cores - node.totals.aicore + _cores(chips[chip])
            yield from (found for found in combinations(chips[chip], size) if _cores(found) >= least)
        return
    wanted = cores // node.totals.aicore
    for count in range(1, min(wanted, size) + 1):
        for picked in combinations(sorted(chips), count):
            pods = [pod for chip in picked for pod in chips[chip]]
            if len(pods) == size:
                yield pods


def _declared(view: NodeView, pods: Sequence[Pod]) -> bool:
    """Whether documents allow the pods' chips to be cut as is needed."""
    return all(view.dynamic_chips >> _chip(pod) & 1 for pod in pods)


def _cores(pods: Sequence[Pod]) -> int:
    return sum(pod.count for pod in pods)


def _chip(pod: Pod) -> int:
    held = parse_cores(pod.annotations.get(NPU_CORE, ""))
    return held.chips[0] if held is not None else 0


def _cutting(view: NodeView, chip: int, template: str, cut: Cut) -> str:
    where = f"chip {view.chip(chip)} of node {view.node.name}"
    instead = f" instead of idle vNPU {', '.join(map(str, cut.destroy))}" if cut.destroy else ""
    return f"cutting {cut.more} {template} on {where}{instead}"
