"""Make room for vNPUs that do not fit because free cores are fragmented: find the least change, and make it.

Two ways. A request for a template by name (``huawei.com/Ascend310P-4c``) gets a chip cut again: only chips without any
live pod or process, destroying as few idle vNPUs as possible. A request for AI cores (``huawei.com/npu-core``) gets as
few pods as possible moved to where they fit as well. Both happen only on chips that a VNPULayout declares ``dynamic``,
and count against the safety budgets. Pods are moved only for jobs of at least their priority, and not again soon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import ASCEND_REAL, NPU_CORE
from belay.engine.model.levels import IN_SERVICE, NORMAL
from belay.engine.model.pending_reasons import FRAGMENTED, SHORTAGE
from belay.engine.model.reasons import ActionReason
from belay.engine.model.repartition import ChipRepartition, allocate, repartitions
from belay.engine.model.vnpu import ExistingVNPU, TemplateSize, change
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.place.job import STATIC_VNPU, SchedulerJob
from belay.engine.plan.place.nodes import fit
from belay.engine.plan.place.nodes.table import MISSING
from belay.engine.plan.place.part_requests import DynamicVNPU
from belay.engine.plan.place.parts.shares import CoreNode
from belay.engine.plan.place.state import FormerPlacement, PlacementState
from belay.engine.plan.preempt import messages, moves
from belay.engine.plan.preempt.disruption_budgets import DisruptionBudgets
from belay.engine.plan.preempt.outcome import GangOutcome
from belay.engine.plan.preempt.search import Exhausted
from belay.engine.plan.rules.fault_rules import FaultRules
from belay.engine.plan.vnpu import layout
from belay.engine.plan.vnpu.templates import chip_totals, layouts_of, templates_of
from belay.engine.wire.parts import held_cores

if TYPE_CHECKING:
    from belay.engine.documents import VNPUTemplates
    from belay.engine.plan.preempt.what_if import WhatIf

ON_DEMAND: Final = ActionReason.LAYOUT_ON_DEMAND
#: Most jobs helped in one pass; chips and sets of pods weighed for one job; pods moved for one job.
MAX_JOBS: Final = 8
MAX_CHIPS: Final = 256
MAX_SETS: Final = 400
MAX_MOVED: Final = 3
MAX_NEW: Final = 16


class MoveSet(NamedTuple):
    """Pods whose move makes room; ``allowed``: documents permit it."""

    pods: tuple[Pod, ...]
    allowed: bool


class Repartition:
    """The cuts and moves of one pass for jobs whose vNPUs do not fit."""

    def __init__(
        self,
        facts: Facts,
        draft: Draft,
        nodes: PassNodes,
        gangs: PassGangs,
        rules: FaultRules | None,
        state: PlacementState,
        what_if: WhatIf,
    ) -> None:
        self._facts, self._draft, self._nodes, self._gangs, self._rules, self._state, self._what_if = (
            facts,
            draft,
            nodes,
            gangs,
            rules,
            state,
            what_if,
        )
        self._budgets = DisruptionBudgets(facts.observed, draft.evicting)
        self._stuck: list[GangOutcome] = []
        self._unsolvable: set[tuple[object, ...]] = set()
        self._cut: set[tuple[str, int]] = set()

    def record(self, outcome: GangOutcome) -> None:
        """Remember a gang that placement left waiting for want of chips."""
        if outcome.unplaced and outcome.reason in (FRAGMENTED, SHORTAGE) and outcome.job is not None:
            self._stuck.append(outcome)

    def run(self) -> None:
        """Order cuts and moves for stuck jobs where documents allow it; state them as a way out for the others."""
        helped = 0
        for outcome in self._stuck:
            job = outcome.job
            if job is None or helped >= MAX_JOBS:
                continue
            if STATIC_VNPU.match(job.resource):
                self._recut(outcome, job)
                helped += 1
            elif isinstance(job.shared, DynamicVNPU):
                try:
                    self._move(outcome, job)
                except Exhausted:
                    return
                helped += 1

    # ---- templates by name: chips are cut again

    def _recut(self, outcome: GangOutcome, job: SchedulerJob) -> None:
        gang, need = outcome.gang, len(moves.together(self._facts, outcome))
        pods = list(outcome.unplaced[:MAX_NEW])
        self._state.dry_run = True
        placed, without = self._state.place(job, pods, FormerPlacement())
        self._state.dry_run = False
        short = len(pods) - len(without)
        nodes = self._eligible(job, pods[0])
        coming = self._coming(job.resource, nodes)
        for allowed in (True, False):
            most, least = len(without) - coming, need - short - coming
            if most <= 0 or (least <= 0 and coming):
                text = f"{job.resource} is being made ready: an order or a report is on its way"
                messages.amend(self._draft, gang, text)
                break
            options = list(self._options(job.resource, nodes, most, allowed=allowed))
            counts = range(most if allowed else max(1, least), max(1, least) - 1, -1)
            chosen = next((found for count in counts if (found := allocate(options, count))), ())
            if chosen:
                self._order(gang, job, chosen) if allowed else self._advise(gang, job, chosen)
                break
        self._state.unassign(placed)

    def _eligible(self, job: SchedulerJob, pod: Pod) -> list[NodeView]:
        """Nodes that lack only the vNPU."""
        table = self._state.table(job, pod)
        needs = tuple((name, most) for name, most in pod.requests.items() if most and name != pod.resource)
        found = []
        for name, refusal in table.refusals.items():
            view = self._state.views[name]
            lacks = refusal.reason in (MISSING, SHORTAGE) and refusal.resource == job.resource
            if lacks and fit.room(pod, needs, view) is None and self._state.affinity_refusal(pod, name) is None:
                found.append(view)
        return sorted(found, key=lambda view: view.node.name)

    def _coming(self, resource: str, nodes: Sequence[NodeView]) -> int:
        """vNPUs of this size that are ordered, made but not yet offered, or held by terminating pods."""
        total = 0
        for view in nodes:
            template = self._template(view, resource)
            if template is None:
                continue
            agent = self._facts.observed.agents.get(view.node.name)
            made = sum(1 for device in agent.vnpus if device.template == template) if agent is not None else 0
            made += sum(rows.count(template) for rows in layout.pending_templates(self._facts, view).values())
            total += max(0, made - view.node.allocatable.get(resource, 0))
            total += sum(pod.count for pod in view.pods if pod.resource == resource and pod.deleting is not None)
        return total

    def _template(self, view: NodeView, resource: str) -> str | None:
        """The template behind a resource on the node's chips."""
        family = templates_of(self._facts.desired, view)
        if family is None or not family.spec.static or not resource.startswith(family.spec.resource_prefix):
            return None
        found = family.by_suffix.get(resource.removeprefix(family.spec.resource_prefix))
        return found.name if found is not None else None

    def _options(
        self, resource: str, nodes: Sequence[NodeView], wanted: int, *, allowed: bool
    ) -> Iterator[tuple[str, int, list[ChipRepartition]]]:
        """Unused chips with what each could be cut into; ``allowed``: only those that a document declares."""
        weighed = 0
        for view in nodes:
            family, template = templates_of(self._facts.desired, view), self._template(view, resource)
            if family is None or template is None or view.node.allocatable.get(NPU_CORE):
                continue
            if view.contradiction or (allowed and not (view.dynamic_chips and layout.orderable(self._facts, view))):
                continue
            chips = view.dynamic_chips if allowed else view.base & ~view.dynamic_chips & ~view.soft_chips
            for chip in ids_of(chips & view.base & ~view.unavailable):
                there = self._recuttable(view, chip, family)
                if there is None or (view.node.name, chip) in self._cut:
                    continue
                weighed += 1
                if weighed > MAX_CHIPS:
                    return
                totals = chip_totals(view, family)
                yield (
                    view.node.name,
                    chip,
                    repartitions(totals, there, family.by_name[template].size(totals.aicore), wanted),
                )

    def _recuttable(
        self, view: NodeView, chip: int, family: VNPUTemplates
    ) -> list[tuple[ExistingVNPU, TemplateSize]] | None:
        """The vNPUs of a chip that may be cut now, None when it may not."""
        if view.chip_level.get(chip, NORMAL) not in IN_SERVICE or layout.occupant_of(self._facts, view, chip):
            return None
        rows = list(layout.vnpus_on(self._facts, view, chip))
        if any(row.busy or row.template not in family.by_name for row in rows):
            return None
        cores = chip_totals(view, family).aicore
        return [(row, family.by_name[row.template].size(cores)) for row in rows]

    def _order(self, gang: Gang, job: SchedulerJob, chosen: Sequence[tuple[str, int, ChipRepartition]]) -> None:
        cuttings, waits = [], False
        for name, chip, cut in chosen:
            view = self._nodes[name]
            template = self._template(view, job.resource) or ""
            rows = list(layout.vnpus_on(self._facts, view, chip))
            wanted = (*(row.template for row in rows if row.id not in cut.destroy), *[template] * cut.more)
            epoch, pieces = layout.next_epoch(self._facts, view), ", ".join(wanted)
            document = next(d for d in layouts_of(self._facts.desired, view) if d.document.spec.mode == "dynamic")
            ordered = layout.order_partition(
                self._facts,
                self._draft,
                self._nodes,
                self._rules,
                view,
                chip,
                wanted,
                change(rows, wanted),
                epoch,
                reason=ON_DEMAND,
                message=f"chip {view.chip(chip)} of node {name} is cut into {pieces} for {messages.named(gang)}",
                evidence=layout.layout_evidence(self._facts, document),
            )
            if ordered:
                layout.remember_epoch(self._facts, self._draft, view, epoch)
            self._cut.add((name, chip))
            cuttings.append(_cutting(view, chip, template, cut))
            waits = waits or not ordered
        text = f"{'the attempts of the node are used up' if waits else 'room is being made'}: {'; '.join(cuttings)}"
        messages.amend(self._draft, gang, text, reason=FRAGMENTED, near=[name for name, _, _ in chosen])

    def _advise(self, gang: Gang, job: SchedulerJob, chosen: Sequence[tuple[str, int, ChipRepartition]]) -> None:
        cuttings = []
        for name, chip, cut in chosen:
            view = self._nodes[name]
            cuttings.append(_cutting(view, chip, self._template(view, job.resource) or "", cut))
        text = f"{'; '.join(cuttings)} would free enough; with a VNPULayout in mode dynamic Belay cuts them"
        messages.amend(self._draft, gang, text, reason=FRAGMENTED, near=[name for name, _, _ in chosen], waits=False)

    # ---- AI cores: pods are moved

    def _move(self, outcome: GangOutcome, job: SchedulerJob) -> None:
        gang, pods = outcome.gang, moves.together(self._facts, outcome)
        terminating = self._terminating(job, pods[0])
        if terminating and self._what_if.fits_with_moves(gang, pods, terminating, ()):
            messages.amend(
                self._draft, gang, messages.waits_for_evictions(terminating), near=messages.nodes_of(terminating)
            )
            return
        request_class = (self._what_if.request_class(gang, pods), len(pods))
        if request_class in self._unsolvable:
            return
        for option in self._move_sets(gang, job, pods[0], terminating):
            if not self._budgets.allow(option.pods):
                continue
            if not self._what_if.fits_with_moves(gang, pods, (*terminating, *option.pods), option.pods):
                continue
            names = ", ".join(f"{pod.key} away from {pod.node} chip {_chip(pod)}" for pod in option.pods)
            if not option.allowed:
                text = f"moving {names} would free enough; with a VNPULayout in mode dynamic Belay moves them"
                near = messages.nodes_of(option.pods)
                messages.amend(self._draft, gang, text, reason=FRAGMENTED, near=near, waits=False)
                return
            for pod in option.pods:
                self._evict(gang, pod)
            self._what_if.hold(gang, pods, (*terminating, *option.pods))
            text, near = f"room is being made: moving {names}", messages.nodes_of(option.pods)
            messages.amend(self._draft, gang, text, reason=FRAGMENTED, near=near)
            return
        self._unsolvable.add(request_class)

    def _terminating(self, job: SchedulerJob, pod: Pod) -> tuple[Pod, ...]:
        """Terminating pods with AI cores on nodes that refused the job for want of room."""
        nodes = (self._state.views[name] for name in self._refusing(job, pod))
        going = self._draft.evicting
        return tuple(
            one
            for view in nodes
            for one in view.pods
            if NPU_CORE in one.annotations and one.node and (one.deleting is not None or one.key in going)
        )

    def _refusing(self, job: SchedulerJob, pod: Pod) -> list[str]:
        table = self._state.table(job, pod)
        return sorted(name for name, why in table.refusals.items() if why.reason in (FRAGMENTED, SHORTAGE))

    def _move_sets(self, gang: Gang, job: SchedulerJob, pod: Pod, terminating: Sequence[Pod]) -> Iterator[MoveSet]:
        """Sets of pods that could move off a node, smallest first; allowed ones first among equal sizes."""
        gone = {one.key for one in terminating}
        nodes: list[tuple[NodeView, CoreNode, Mapping[int, list[Pod]]]] = []
        for name in self._refusing(job, pod):
            view = self._state.views[name]
            node = self._state.parts.core_node(view)
            if isinstance(node, CoreNode):
                nodes.append((view, node, self._on_chips(view, gone)))
        budget, free_cores = MAX_SETS, self._free_cores(gone)
        for size in range(1, MAX_MOVED + 1):
            sets = (
                (view, tuple(found))
                for view, node, chips in nodes
                for found in _sets(node, chips, pod.count, size)
                if free_cores.may_take(found, pod.count) and all(self._movable(gang, one) for one in found)
            )
            rows = list(islice(sets, budget))
            budget -= len(rows)
            ranked = sorted(rows, key=lambda row: (not _declared(row[0], row[1]), _cores(row[1])))
            yield from (MoveSet(found, _declared(view, found)) for view, found in ranked)

    def _free_cores(self, gone: set[str]) -> _FreeCores:
        free: dict[tuple[str, int], int] = {}
        for view in self._state.views.values():
            node = self._state.parts.core_node(view) if view.node.allocatable.get(NPU_CORE) else None
            if isinstance(node, CoreNode):
                there = self._on_chips(view, gone)
                most = node.totals.aicore
                free |= {(view.node.name, chip): most - _cores(there.get(chip, ())) for chip in ids_of(view.base)}
        return _FreeCores(free)

    def _on_chips(self, view: NodeView, gone: set[str]) -> dict[int, list[Pod]]:
        chips: dict[int, list[Pod]] = {}
        for pod in sorted(view.pods, key=lambda pod: pod.key):
            held = held_cores(pod) if pod.node and pod.key not in gone else None
            for chip in held.chips if held is not None else ():
                chips.setdefault(chip, []).append(pod)
        return chips

    def _movable(self, gang: Gang, pod: Pod) -> bool:
        """Whether a pod runs and may be moved for the gang."""
        held = held_cores(pod)
        settled = bool(held and held.template and pod.annotations.get(ASCEND_REAL)) and pod.deleting is None
        if not settled or pod.key in self._draft.evicting or self._state.parts.assigned(pod.key) is not None:
            return False
        return moves.owner_of(self._facts, self._draft, self._gangs, pod, gang) is not None

    def _evict(self, gang: Gang, pod: Pod) -> None:
        view = self._nodes[pod.node]
        document = next(d for d in layouts_of(self._facts.desired, view) if d.document.spec.mode == "dynamic")
        moves.order(self._draft, self._gangs, gang, pod, layout.layout_evidence(self._facts, document))


class _FreeCores:
    """The free cores of each chip: a cheap check that rules moves out before they are tried."""

    def __init__(self, free: Mapping[tuple[str, int], int]) -> None:
        self._free = free
        self._widest = sorted(free, key=lambda chip: -free[chip])
        self._total = sum(free.values())

    def may_take(self, movers: Sequence[Pod], cores: int) -> bool:
        """Whether a request for ``cores`` and the largest moved pod might both find a place."""
        own = {(pod.node, _chip(pod)) for pod in movers}
        left = sum(self._free.get(chip, 0) for chip in own) + _cores(movers) - cores
        elsewhere = next((self._free[chip] for chip in self._widest if chip not in own), 0)
        return self._total >= cores and max(pod.count for pod in movers) <= max(left, elsewhere)


def _sets(node: CoreNode, chips: Mapping[int, list[Pod]], cores: int, size: int) -> Iterator[Sequence[Pod]]:
    """Sets of ``size`` pods whose move may make room: some of one chip, or all of as many chips as are wanted."""
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
    """Whether documents allow the pods' chips to be cut on demand."""
    return all(view.dynamic_chips >> _chip(pod) & 1 for pod in pods)


def _cores(pods: Sequence[Pod]) -> int:
    return sum(pod.count for pod in pods)


def _chip(pod: Pod) -> int:
    held = held_cores(pod)
    return held.chips[0] if held is not None else 0


def _cutting(view: NodeView, chip: int, template: str, cut: ChipRepartition) -> str:
    where = f"chip {view.chip(chip)} of node {view.node.name}"
    instead = f" instead of idle vNPU {', '.join(map(str, cut.destroy))}" if cut.destroy else ""
    return f"cutting {cut.more} {template} on {where}{instead}"
