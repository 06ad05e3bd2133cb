"""Gangs whose nodes are chosen together: blocks of a super pod, groups of a topology tree.

Nodes where the gang already runs stay; the rest is completed around them. Sources: the super-pod and multilevel
handlers of component/ascend-for-volcano (selectNodeFromOriginVSuperPod, getSuperPodRanks, rescheduling).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

from belay.engine.gangs.forming import task_of
from belay.engine.model.cluster import Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.model.pod_options import super_pod_rank
from belay.engine.model.quantities import whole_number
from belay.engine.plan.place.causes import ParameterMissing
from belay.engine.plan.place.families import rack950, superpod
from belay.engine.plan.place.families.rack950 import RackBlocks
from belay.engine.plan.place.families.superpod import CHOSEN_SCORE, Block
from belay.engine.plan.place.gangs import returning, services, trees
from belay.engine.plan.place.gangs.slots import RankSlot, candidate_pools, reassigned, running_pods, with_replacements
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes.superpod_index import SuperPodIndex
from belay.engine.plan.place.state import Assignment, PlacementState

JobBlocks = superpod.Blocks | RackBlocks


def place(
    state: PlacementState, job: SchedulerJob, waiting: Sequence[Pod], ranks: Mapping[str, int], memory: JobMemory | None
) -> list[Assignment] | Refusal:
    """Assignments of all waiting pods, already in the state, or why there are none."""
    found = _slots(state, job, waiting, ranks, memory)
    placed = found if isinstance(found, Refusal) else _put(state, job, waiting, ranks, found)
    if not isinstance(placed, Refusal):
        return placed
    for slots in _alternatives(state, job, waiting, ranks, memory, found):
        again = _put(state, job, waiting, ranks, slots)
        if not isinstance(again, Refusal):
            return again
    return placed


def _slots(
    state: PlacementState,
    job: SchedulerJob,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    among: Sequence[str] | None = None,
) -> dict[str, RankSlot] | Refusal:
    """A slot for every waiting pod by its key; ``among``: the candidates, by default those of the first pod."""
    if job.topology in ("superpod", "rack"):
        found = _super_pods(state, job, waiting, ranks, memory, among)
    else:
        candidates = state.candidates(job, waiting[0]) if among is None else among
        found = trees.slots(state, job, waiting, ranks, memory, candidates)
    if isinstance(found, Refusal) or len(found) == len(waiting):
        return found
    text = f"{len(waiting)} pods wait, and the job's groups are {len(found)}: more pods than it has replicas"
    return Refusal(TOPOLOGY, text)


def _alternatives(
    state: PlacementState,
    job: SchedulerJob,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    first: dict[str, RankSlot] | Refusal,
) -> Iterator[dict[str, RankSlot]]:
    """Further slots to try, for pods that ask for different things or that exclude each other."""

    domains = _domains(state, job)
    wider = list(candidate_pools(state, job, waiting, domains))
    for among in (None, *wider) if wider else ():
        slots = first if among is None else _slots(state, job, waiting, ranks, memory, among)
        if not isinstance(slots, Refusal):
            # pods may change places within a block and rack, or within a unit of level1
            found = reassigned(
                state, job, waiting, slots, lambda slot: (slot.logical, domains[0](slot.node)), wider[-1]
            )
            if found is not None:
                yield found
    if not isinstance(first, Refusal):  # pods of the gang may exclude each other from nodes
        found = with_replacements(state, job, waiting, first, domains[0])
        if found is not None:
            yield found


def _domains(state: PlacementState, job: SchedulerJob) -> list[Callable[[str], Hashable]]:
    """The domains of a node, narrowest first: rack and super pod, or the units of a tree."""

    def super_pod(name: str) -> Hashable:
        report = state.views[name].report
        return report.super_pod_id if report is not None else -1

    def rack(name: str) -> Hashable:
        report = state.views[name].report
        return (report.super_pod_id, report.rack_id) if report is not None else -1

    if job.topology == "rack":
        return [rack, super_pod]
    if job.topology == "superpod":
        return [super_pod]
    depth = max((len(levels) for levels in state.trees.values()), default=1)
    return [partial(_unit, state, level) for level in range(1, depth + 1)]


def _unit(state: PlacementState, level: int, name: str) -> Hashable:
    return trees.unit(state, name, level)


def _put(
    state: PlacementState,
    job: SchedulerJob,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    found: Mapping[str, RankSlot],
) -> list[Assignment] | Refusal:
    """Assign every pod to its slot; undo all when one of them does not fit there."""
    chosen = _scores(job, waiting, ranks, found)
    placed: list[Assignment] = []
    for pod in waiting:
        slot = found[pod.key]
        table = state.table(job, pod)
        if slot.node not in table.scores or state.affinity_refusal(pod, slot.node) is not None:
            state.unassign(placed)
            state.forget([item.pod for item in placed])
            return Refusal(TOPOLOGY, f"node {slot.node} does not fit pod {pod.name}")
        state.record(job, pod, table, chosen[pod.key])
        item = Assignment(pod, slot.node, table.chips(slot.node), slot.logical, slot.super_pod)
        state.assign(item)
        placed.append(item)
    return placed


def _scores(
    job: SchedulerJob, waiting: Sequence[Pod], ranks: Mapping[str, int], slots: Mapping[str, RankSlot]
) -> dict[str, dict[str, int]]:
    """The raw score of each pod's node: 100 000 000; with batch scoring, the nodes of its task, less their rank."""
    if not job.gang.options.batch_scoring:
        return {pod.key: {slots[pod.key].node: CHOSEN_SCORE} for pod in waiting}
    rows: dict[str, dict[str, int]] = {}
    for pod in waiting:
        rows.setdefault(task_of(pod), {})[slots[pod.key].node] = CHOSEN_SCORE - ranks[pod.key]
    return {pod.key: rows[task_of(pod)] for pod in waiting}


def _super_pods(
    state: PlacementState,
    job: SchedulerJob,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    among: Sequence[str] | None,
) -> dict[str, RankSlot] | Refusal:
    cut = job.blocks
    if cut is None:
        raise ValueError(f"job {job.gang.key} has no blocks; super-pod rules need them")
    held = returning.not_released(state, job, waiting, memory)
    if held is not None:
        return held
    alone = job.request.pods <= 1 and not isinstance(cut, RackBlocks)
    free = _by_super_pod(state, job, waiting[0], among, least_idle=alone)
    if isinstance(cut, RackBlocks):
        return _RackPlan(state, job, waiting, ranks, memory, free).slots(cut)
    if isinstance(job.family, superpod.SuperPodNode):
        crowded = next((key for key, names in free.items() if len(names) > state.params.super_pod_nodes), None)
        if crowded is not None:
            text = f"super-pod-size is smaller than superPod's node size (super-pod-id {crowded})"
            return Refusal(TOPOLOGY, text, ParameterMissing("super-pod-size", str(len(free[crowded]))))
    plan = _SuperPodPlan(state, job, waiting, ranks, memory, free)
    return plan.slots(cut)


class _SuperPodPlan:
    """Slots for the waiting pods of a super-pod job: running blocks completed, former ones reused, new ones taken."""

    def __init__(
        self,
        state: PlacementState,
        job: SchedulerJob,
        waiting: Sequence[Pod],
        ranks: Mapping[str, int],
        memory: JobMemory | None,
        free: dict[int, Sequence[str]],
    ) -> None:
        self._state, self._job, self._ranks, self._memory, self._free = state, job, ranks, memory, free
        self._waiting = sorted(waiting, key=lambda pod: ranks[pod.key])
        self._failed = frozenset(memory.fault_nodes) if memory else frozenset()
        waiting_keys = {pod.key for pod in waiting}
        self._running = running_pods(job, waiting_keys)

    def slots(self, cut: JobBlocks) -> dict[str, RankSlot] | Refusal:
        """The slot of every waiting pod by its key."""
        domains = self._running_blocks(cut)
        sizes = self._sizes(cut, domains)
        groups: dict[int, list[Pod]] = {}
        for pod in self._waiting:
            groups.setdefault(_block_of(self._ranks[pod.key], sizes, cut.size), []).append(pod)
        out: dict[str, RankSlot] = {}
        running = [(logical, groups[logical]) for logical in sorted(groups) if logical in domains]
        for logical, pods in self._in_turn(cut, running):
            refusal = self._complete(cut, logical, domains[logical], pods, out)
            if refusal is not None:
                return refusal
        fresh = [logical for logical in sorted(groups) if logical not in domains]
        taken = self._former(fresh, cut)
        rest = [logical for logical in fresh if logical not in taken]
        if rest:
            partial = 1 < len(self._waiting) < self._job.request.pods
            found = self._fresh(cut, rest, max(cut.need, max(sizes) + 1, max(groups) + 1), partial)
            if isinstance(found, Refusal):
                return found
            taken.update(found)
        pods = [pod for logical in fresh for pod in groups[logical]]
        for pod, (logical, block, node) in zip(pods, superpod.slots(taken), strict=False):
            out[pod.key] = RankSlot(node, logical, block.super_pod)
        return out

    def _fresh(self, cut: JobBlocks, ids: list[int], first: int, partial: bool) -> dict[int, Block] | Refusal:
        """Nodes for blocks that have none; ``first`` is the lowest id for extra blocks of soft affinity."""
        job, state = self._job, self._state
        if services.is_service(job):
            domains = {super_pod for super_pod, _ in services.service_domains(state, job, rack=False)}
            return services.service_blocks(self._free, ids, cut.size, domains)
        if services.is_instance(job) and not isinstance(job.family, superpod.SuperPodNode):
            liked = services.affine_nodes(state, self._waiting[0], self._free)
            idlest = job.gang.options.sp_fit == services.IDLEST
            return services.instance_blocks(self._free, ids, cut.size, state.params.reserved_nodes, liked, idlest)
        wanted = superpod.Blocks(cut.size, len(ids), cut.soft)
        reserve = self._state.params.reserved_nodes
        return superpod.select(self._free, ids, wanted, reserve, fresh_id=first, partial=partial)

    def _running_blocks(self, cut: JobBlocks) -> dict[int, int]:
        """The physical super pod of every logical one that has running pods."""
        domains: dict[int, int] = {}
        for pod in self._running:
            stated = super_pod_rank(pod)
            view = self._state.views.get(pod.node)
            if view is None or view.report is None or pod.key not in self._ranks:
                continue
            logical = stated if stated is not None else self._ranks[pod.key] // cut.size
            domains[logical] = view.report.super_pod_id
        return domains

    def _sizes(self, cut: JobBlocks, domains: Mapping[int, int]) -> dict[int, int]:
        """Nodes per logical super pod: as remembered while pods run (soft blocks may be partial), else all full."""
        kept = self._memory.super_pods if self._memory and domains else {}
        remembered = {block: len(nodes) for key, nodes in kept.items() if (block := whole_number(key)) is not None}
        if remembered and sum(remembered.values()) == self._job.request.pods:
            return remembered
        return dict.fromkeys(range(max(1, cut.need)), cut.size)

    def _complete(
        self, cut: JobBlocks, logical: int, super_pod: int, pods: list[Pod], out: dict[str, RankSlot]
    ) -> Refusal | None:
        """Nodes for the missing pods of a running block, from its super pod: former healthy, unused, failed ones."""
        pool = list(self._free.get(super_pod, ()))
        for pod in pods:
            former = self._memory.nodes.get(str(self._ranks[pod.key]), "") if self._memory else ""
            ranked = sorted(pool, key=lambda name: (name in self._failed, name != former, pool.index(name)))
            if not ranked:
                head = f"select super pod failed, required {len(pods)} nodes"
                text = f"{head} in super pod {super_pod} for its block {logical}"
                return Refusal(TOPOLOGY, text)
            pool.remove(ranked[0])
            out[pod.key] = RankSlot(ranked[0], logical, super_pod)
        self._free[super_pod] = pool
        return None

    def _in_turn(self, cut: JobBlocks, running: list[tuple[int, list[Pod]]]) -> list[tuple[int, list[Pod]]]:
        """The missing pods of running blocks in the order in which they get nodes."""
        return running

    def _former(self, fresh: Sequence[int], cut: JobBlocks) -> dict[int, Block]:
        """Blocks of the job's last run that can be used again, whole or with replaced nodes."""
        if self._memory is None or not (self._failed or self._state.params.prefer_previous_node):
            return {}
        taken: dict[int, Block] = {}
        previous = {logical: self._memory.super_pods.get(str(logical), ()) for logical in fresh}
        known = {name for names in self._free.values() for name in names}
        if not self._failed and any(node not in known for nodes in previous.values() for node in nodes):
            return {}  # without a fault all former nodes are reused, or none
        for logical, nodes in previous.items():
            super_pod = next((key for key, names in self._free.items() if nodes and nodes[0] in names), None)
            usable = super_pod is not None and all(
                node in self._free[super_pod] and node not in self._failed for node in nodes
            )
            if super_pod is not None and usable and len(nodes) == cut.size:
                self._take(taken, logical, Block(super_pod, tuple(nodes)))
        for logical, nodes in previous.items():
            super_pod = next((key for key, names in self._free.items() if any(node in names for node in nodes)), None)
            if logical in taken or super_pod is None or not self._failed:
                continue
            if isinstance(cut, RackBlocks):
                continue  # a replaced node must also share its rack, which only a fresh choice ensures
            block = superpod.repair(Block(super_pod, tuple(nodes)), self._free, self._failed.__contains__, cut.size)
            if block is not None:
                self._take(taken, logical, block)
        return taken

    def _take(self, taken: dict[int, Block], logical: int, block: Block) -> None:
        taken[logical] = block
        self._free[block.super_pod] = [name for name in self._free[block.super_pod] if name not in block.nodes]


class _RackPlan(_SuperPodPlan):
    """The same on Atlas 950: parts of a block share a rack."""

    def _fresh(self, cut: JobBlocks, ids: list[int], first: int, partial: bool) -> dict[int, Block] | Refusal:
        if not isinstance(cut, RackBlocks):
            raise ValueError(f"job {self._job.gang.key} has no rack blocks")
        if services.is_service(self._job):
            domains = services.service_domains(self._state, self._job, rack=True)
            return services.rack_service_blocks(self._places(), ids, cut.size, domains)
        return rack950.select(self._places(), ids, cut, self._state.params.super_pod_nodes, self._job.request.pods)

    def _complete(
        self, cut: JobBlocks, logical: int, super_pod: int, pods: list[Pod], out: dict[str, RankSlot]
    ) -> Refusal | None:
        """Missing pods join the rack of their part, or a rack of the super pod with room for the whole part."""
        part, racks = self._racks(cut)
        wanted: dict[int, list[Pod]] = {}
        for pod in pods:
            wanted.setdefault(self._ranks[pod.key] // part, []).append(pod)
        for number, missing in sorted(wanted.items()):
            free = rack950.by_rack([place for place in self._places() if place.super_pod == super_pod])
            options = [racks[number]] if number in racks else sorted(free, key=lambda key: (len(free[key]), key))
            rack = next((key for key in options if len(free.get(key, [])) >= len(missing)), None)
            if rack is None:
                text = f"there is no enough nodes for whole rack schedule: block {logical} in super pod {super_pod}"
                return Refusal(TOPOLOGY, text)
            for pod, place in zip(missing, free[rack], strict=False):
                out[pod.key] = RankSlot(place.name, logical, super_pod)
                self._free[super_pod] = [name for name in self._free[super_pod] if name != place.name]
        return None

    def _in_turn(self, cut: JobBlocks, running: list[tuple[int, list[Pod]]]) -> list[tuple[int, list[Pod]]]:
        """First the pods whose part runs in a rack, so that only this rack serves; then parts that are missing
        whole.
        """
        part, racks = self._racks(cut)
        turns = []
        for tied in (True, False):
            for logical, pods in running:
                turns.append((logical, [pod for pod in pods if (self._ranks[pod.key] // part in racks) == tied]))
        return turns

    def _racks(self, cut: JobBlocks) -> tuple[int, dict[int, int]]:
        """(nodes of a part, the rack of every part that runs)."""
        part = cut.part if isinstance(cut, RackBlocks) else 1
        running = [pod for pod in self._running if pod.key in self._ranks]
        return part, {self._ranks[pod.key] // part: self._rack(pod.node) for pod in running}

    def _rack(self, name: str) -> int:
        view = self._state.views.get(name)
        return view.report.rack_id if view is not None and view.report is not None else -1

    def _places(self) -> list[rack950.CandidateNode]:
        return [
            rack950.CandidateNode(name, key, self._rack(name), not self._state.views[name].network)
            for key, names in sorted(self._free.items())
            for name in names
        ]


def _block_of(rank: int, sizes: Mapping[int, int], size: int) -> int:
    """The logical super pod of a rank: ids ascending, each with its real number of nodes; ranks beyond the job's
    replicas (until its controller deletes them) are in further blocks of ``size`` nodes.
    """
    for logical in sorted(sizes):
        if rank < sizes[logical]:
            return logical
        rank -= sizes[logical]
    return max(sizes) + 1 + rank // size


def _by_super_pod(
    state: PlacementState, job: SchedulerJob, pod: Pod, among: Sequence[str] | None, *, least_idle: bool
) -> dict[int, Sequence[str]]:
    """Candidates per physical super pod; sub-healthy nodes and those that failed before last, then by name.

    ``least_idle``, for single pods: only nodes with the fewest free chips, sub-healthy ones only where there is no
    other.
    """
    table = state.table(job, pod)
    if among is None and not state.pod_affinity.concerns(pod):
        return table.super_pods(by_idle=least_idle).by_super_pod()
    penalty = state.scope.recovery.penalty.get(job.gang.key, {})
    fitting = state.candidates(job, pod) if among is None else among
    return SuperPodIndex(state.views, penalty, fitting, by_idle=least_idle).by_super_pod()
