"""Gangs whose nodes are chosen together: blocks of a super pod, groups of a topology tree.

What a gang already runs on stays; the rest is completed around it. Sources: the super-pod and multilevel handlers of
component/ascend-for-volcano (selectNodeFromOriginVSuperPod, getSuperPodRanks, rescheduling).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from engine.model.cluster import Pod
from engine.model.history import JobMemory
from engine.plan.gangs import task_of
from engine.plan.place import rack950, regroup, services, superpod, treewise
from engine.plan.place.bench import Bench, Seated
from engine.plan.place.job import Job
from engine.plan.place.rack950 import RackBlocks
from engine.plan.place.shelves import Shelves
from engine.plan.place.slots import Slot, exchanged, one_by_one, pools, staying_pods
from engine.plan.place.superpod import CHOSEN_SCORE, Block
from engine.plan.place.verdict import TOPOLOGY, Refusal

RANK_KEY: Final = "super-pod-rank"

Cut = superpod.Blocks | RackBlocks


def seat(
    bench: Bench, job: Job, waiting: Sequence[Pod], ranks: Mapping[str, int], memory: JobMemory | None
) -> list[Seated] | Refusal:
    """Nodes and chips for all waiting pods, or why there are none; what it returns is already put on the bench."""
    found = _slots(bench, job, waiting, ranks, memory)
    placed = found if isinstance(found, Refusal) else _put(bench, job, waiting, ranks, found)
    if not isinstance(placed, Refusal):
        return placed
    for slots in _otherwise(bench, job, waiting, ranks, memory, found):
        again = _put(bench, job, waiting, ranks, slots)
        if not isinstance(again, Refusal):
            return again
    return placed


def _slots(
    bench: Bench,
    job: Job,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    among: Sequence[str] | None = None,
) -> dict[str, Slot] | Refusal:
    """A slot for every waiting pod by its key; ``among``: the candidates, by default those of the first pod."""
    if job.topology in ("superpod", "rack"):
        found = _super_pods(bench, job, waiting, ranks, memory, among)
    else:
        candidates = bench.candidates(job, waiting[0]) if among is None else among
        found = treewise.slots(bench, job, waiting, ranks, memory, candidates)
    if isinstance(found, Refusal) or len(found) == len(waiting):
        return found
    text = f"{len(waiting)} pods wait, and the job's groups are {len(found)}: more pods than it has replicas"
    return Refusal(TOPOLOGY, text)


def _otherwise(
    bench: Bench,
    job: Job,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    first: dict[str, Slot] | Refusal,
) -> Iterator[dict[str, Slot]]:
    """Further ways, for pods that do not all ask for the same, or that do not go beside each other."""

    homes = _homes(bench, job)
    wider = list(pools(bench, job, waiting, homes))
    for among in (None, *wider) if wider else ():
        slots = first if among is None else _slots(bench, job, waiting, ranks, memory, among)
        if not isinstance(slots, Refusal):
            # pods change places within a block and rack, or within a unit of level1
            found = exchanged(bench, job, waiting, slots, lambda slot: (slot.logical, homes[0](slot.node)), wider[-1])
            if found is not None:
                yield found
    if not isinstance(first, Refusal):  # pods of the gang itself keep others off nodes
        found = one_by_one(bench, job, waiting, first, homes[0])
        if found is not None:
            yield found


def _homes(bench: Bench, job: Job) -> list[Callable[[str], Hashable]]:
    """Where a node stands, the narrowest place first: rack and super pod, or the units of a tree."""

    def super_pod(name: str) -> Hashable:
        report = bench.views[name].report
        return report.super_pod_id if report is not None else -1

    def rack(name: str) -> Hashable:
        report = bench.views[name].report
        return (report.super_pod_id, report.rack_id) if report is not None else -1

    if job.topology == "rack":
        return [rack, super_pod]
    if job.topology == "superpod":
        return [super_pod]
    depth = max((len(levels) for levels in bench.trees.values()), default=1)
    return [partial(_unit, bench, level) for level in range(1, depth + 1)]


def _unit(bench: Bench, level: int, name: str) -> Hashable:
    return treewise.unit(bench, name, level)


def _put(
    bench: Bench, job: Job, waiting: Sequence[Pod], ranks: Mapping[str, int], found: Mapping[str, Slot]
) -> list[Seated] | Refusal:
    """Puts every pod into its slot; none when one of them does not fit there."""
    chosen = _scores(job, waiting, ranks, found)
    placed: list[Seated] = []
    for pod in waiting:
        slot = found[pod.key]
        table = bench.table(job, pod)
        if slot.node not in table.scores or bench.allowed(pod, slot.node) is not None:
            bench.take_back(placed)
            bench.forget([item.pod for item in placed])
            return Refusal(TOPOLOGY, f"node {slot.node} does not fit pod {pod.name}")
        bench.record(job, pod, table, chosen[pod.key])
        item = Seated(pod, slot.node, table.chips(slot.node), slot.logical, slot.super_pod)
        bench.put(item)
        placed.append(item)
    return placed


def _scores(
    job: Job, waiting: Sequence[Pod], ranks: Mapping[str, int], slots: Mapping[str, Slot]
) -> dict[str, dict[str, int]]:
    """The chosen node of each pod gets 100 000 000; with batch scoring all nodes of its task, less their rank."""
    if job.shape.labels.get("podgroup-sched-enable") != "true":
        return {pod.key: {slots[pod.key].node: CHOSEN_SCORE} for pod in waiting}
    rows: dict[str, dict[str, int]] = {}
    for pod in waiting:
        rows.setdefault(task_of(pod), {})[slots[pod.key].node] = CHOSEN_SCORE - ranks[pod.key]
    return {pod.key: rows[task_of(pod)] for pod in waiting}


def _super_pods(
    bench: Bench,
    job: Job,
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
    among: Sequence[str] | None,
) -> dict[str, Slot] | Refusal:
    cut = job.blocks
    if cut is None:
        raise ValueError(f"job {job.gang.key} has no blocks; super-pod rules need them")
    held = regroup.not_released(bench, job, waiting, memory)
    if held is not None:
        return held
    alone = job.shape.pods <= 1 and not isinstance(cut, RackBlocks)
    free = _by_super_pod(bench, job, waiting[0], among, least_idle=alone)
    if isinstance(cut, RackBlocks):
        return _RackPlan(bench, job, waiting, ranks, memory, free).slots(cut)
    if isinstance(job.family, superpod.SuperPodNode):
        crowded = next((key for key, names in free.items() if len(names) > bench.params.super_pod_nodes), None)
        if crowded is not None:
            return Refusal(TOPOLOGY, f"super-pod-size is smaller than superPod's node size (super-pod-id {crowded})")
    plan = _Plan(bench, job, waiting, ranks, memory, free)
    return plan.slots(cut)


class _Plan:
    """Slots for the waiting pods of a super-pod job: running blocks completed, former ones reused, new ones taken."""

    def __init__(
        self,
        bench: Bench,
        job: Job,
        waiting: Sequence[Pod],
        ranks: Mapping[str, int],
        memory: JobMemory | None,
        free: dict[int, Sequence[str]],
    ) -> None:
        self._bench, self._job, self._ranks, self._memory, self._free = bench, job, ranks, memory, free
        self._waiting = sorted(waiting, key=lambda pod: ranks[pod.key])
        self._failed = frozenset(memory.fault_nodes) if memory else frozenset()
        waiting_keys = {pod.key for pod in waiting}
        self._staying = staying_pods(job, waiting_keys)

    def slots(self, cut: Cut) -> dict[str, Slot] | Refusal:
        """The slot of every waiting pod by its key."""
        homes = self._running_blocks(cut)
        sizes = self._sizes(cut, homes)
        groups: dict[int, list[Pod]] = {}
        for pod in self._waiting:
            groups.setdefault(_block_of(self._ranks[pod.key], sizes, cut.size), []).append(pod)
        out: dict[str, Slot] = {}
        running = [(logical, groups[logical]) for logical in sorted(groups) if logical in homes]
        for logical, pods in self._in_turn(cut, running):
            refusal = self._complete(cut, logical, homes[logical], pods, out)
            if refusal is not None:
                return refusal
        fresh = [logical for logical in sorted(groups) if logical not in homes]
        taken = self._former(fresh, cut)
        rest = [logical for logical in fresh if logical not in taken]
        if rest:
            partial = 1 < len(self._waiting) < self._job.shape.pods
            found = self._fresh(cut, rest, max(cut.need, max(sizes) + 1, max(groups) + 1), partial)
            if isinstance(found, Refusal):
                return found
            taken.update(found)
        pods = [pod for logical in fresh for pod in groups[logical]]
        for pod, (logical, block, node) in zip(pods, superpod.slots(taken), strict=False):
            out[pod.key] = Slot(node, logical, block.super_pod)
        return out

    def _fresh(self, cut: Cut, ids: list[int], first: int, partial: bool) -> dict[int, Block] | Refusal:
        """Nodes for blocks that have none; ``first`` is the lowest id for extra blocks of soft affinity."""
        job, bench = self._job, self._bench
        if services.is_service(job):
            homes = {home for home, _ in services.service_homes(bench, job, rack=False)}
            return services.service_blocks(self._free, ids, cut.size, homes)
        if services.is_instance(job) and not isinstance(job.family, superpod.SuperPodNode):
            liked = services.friends(bench, self._waiting[0], self._free)
            idlest = job.shape.annotations.get(services.FIT_KEY) == services.IDLEST
            return services.instance_blocks(self._free, ids, cut.size, bench.params.reserved_nodes, liked, idlest)
        wanted = superpod.Blocks(cut.size, len(ids), cut.soft)
        reserve = self._bench.params.reserved_nodes
        return superpod.select(self._free, ids, wanted, reserve, fresh_id=first, partial=partial)

    def _running_blocks(self, cut: Cut) -> dict[int, int]:
        """The physical super pod of every logical one that has staying pods."""
        homes: dict[int, int] = {}
        for pod in self._staying:
            text = pod.annotations.get(RANK_KEY, "")
            view = self._bench.views.get(pod.node)
            if view is None or view.report is None or pod.key not in self._ranks:
                continue
            known = text.isascii() and text.isdecimal() and len(text) <= 9
            logical = int(text) if known else self._ranks[pod.key] // cut.size
            homes[logical] = view.report.super_pod_id
        return homes

    def _sizes(self, cut: Cut, homes: Mapping[int, int]) -> dict[int, int]:
        """Nodes per logical super pod: as remembered while pods stay (soft blocks may be partial), else all full."""
        kept = self._memory.super_pods if self._memory and homes else {}
        remembered = {int(key): len(nodes) for key, nodes in kept.items() if key.isdecimal()}
        if remembered and sum(remembered.values()) == self._job.shape.pods:
            return remembered
        return dict.fromkeys(range(max(1, cut.need)), cut.size)

    def _complete(self, cut: Cut, logical: int, home: int, pods: list[Pod], out: dict[str, Slot]) -> Refusal | None:
        """Nodes for the missing pods of a running block, from its super pod: former healthy, unused, failed ones."""
        pool = list(self._free.get(home, ()))
        for pod in pods:
            former = self._memory.nodes.get(str(self._ranks[pod.key]), "") if self._memory else ""
            ranked = sorted(pool, key=lambda name: (name in self._failed, name != former, pool.index(name)))
            if not ranked:
                text = (
                    f"select super pod failed, required {len(pods)} nodes in super pod {home} for its block {logical}"
                )
                return Refusal(TOPOLOGY, text)
            pool.remove(ranked[0])
            out[pod.key] = Slot(ranked[0], logical, home)
        self._free[home] = pool
        return None

    def _in_turn(self, cut: Cut, running: list[tuple[int, list[Pod]]]) -> list[tuple[int, list[Pod]]]:
        """The missing pods of running blocks in the order in which they are seated."""
        return running

    def _former(self, fresh: Sequence[int], cut: Cut) -> dict[int, Block]:
        """Blocks of the job's last run that can be used again, whole or with replaced nodes."""
        if self._memory is None or not (self._failed or self._bench.params.prefer_previous_node):
            return {}
        taken: dict[int, Block] = {}
        previous = {logical: self._memory.super_pods.get(str(logical), ()) for logical in fresh}
        known = {name for names in self._free.values() for name in names}
        if not self._failed and any(node not in known for nodes in previous.values() for node in nodes):
            return {}  # without a fault it is all former nodes or none
        for logical, nodes in previous.items():
            home = next((key for key, names in self._free.items() if nodes and nodes[0] in names), None)
            usable = home is not None and all(node in self._free[home] and node not in self._failed for node in nodes)
            if home is not None and usable and len(nodes) == cut.size:
                self._take(taken, logical, Block(home, tuple(nodes)))
        for logical, nodes in previous.items():
            home = next((key for key, names in self._free.items() if any(node in names for node in nodes)), None)
            if logical in taken or home is None or not self._failed:
                continue
            if isinstance(cut, RackBlocks):
                continue  # a replaced node must also share its rack; that is a fresh choice
            block = superpod.repair(Block(home, tuple(nodes)), self._free, self._failed.__contains__, cut.size)
            if block is not None:
                self._take(taken, logical, block)
        return taken

    def _take(self, taken: dict[int, Block], logical: int, block: Block) -> None:
        taken[logical] = block
        self._free[block.super_pod] = [name for name in self._free[block.super_pod] if name not in block.nodes]


class _RackPlan(_Plan):
    """The same on Atlas 950: parts of a block share a rack."""

    def _fresh(self, cut: Cut, ids: list[int], first: int, partial: bool) -> dict[int, Block] | Refusal:
        if not isinstance(cut, RackBlocks):
            raise ValueError(f"job {self._job.gang.key} has no rack blocks")
        if services.is_service(self._job):
            homes = services.service_homes(self._bench, self._job, rack=True)
            return services.rack_service_blocks(self._places(), ids, cut.size, homes)
        return rack950.select(self._places(), ids, cut, self._bench.params.super_pod_nodes, self._job.shape.pods)

    def _complete(self, cut: Cut, logical: int, home: int, pods: list[Pod], out: dict[str, Slot]) -> Refusal | None:
        """Missing pods join the rack of their part, or a rack of the super pod with room for the whole part."""
        part, racks = self._racks(cut)
        wanted: dict[int, list[Pod]] = {}
        for pod in pods:
            wanted.setdefault(self._ranks[pod.key] // part, []).append(pod)
        for number, missing in sorted(wanted.items()):
            free = rack950.by_rack([place for place in self._places() if place.super_pod == home])
            options = [racks[number]] if number in racks else sorted(free, key=lambda key: (len(free[key]), key))
            rack = next((key for key in options if len(free.get(key, [])) >= len(missing)), None)
            if rack is None:
                text = f"there is no enough nodes for whole rack schedule: block {logical} in super pod {home}"
                return Refusal(TOPOLOGY, text)
            for pod, place in zip(missing, free[rack], strict=False):
                out[pod.key] = Slot(place.name, logical, home)
                self._free[home] = [name for name in self._free[home] if name != place.name]
        return None

    def _in_turn(self, cut: Cut, running: list[tuple[int, list[Pod]]]) -> list[tuple[int, list[Pod]]]:
        """First those that only one rack is left for, then parts that are missing whole."""
        part, racks = self._racks(cut)
        turns = []
        for tied in (True, False):
            for logical, pods in running:
                turns.append((logical, [pod for pod in pods if (self._ranks[pod.key] // part in racks) == tied]))
        return turns

    def _racks(self, cut: Cut) -> tuple[int, dict[int, int]]:
        """(nodes of a part, the rack of every part that runs)."""
        part = cut.part if isinstance(cut, RackBlocks) else 1
        staying = [pod for pod in self._staying if pod.key in self._ranks]
        return part, {self._ranks[pod.key] // part: self._rack(pod.node) for pod in staying}

    def _rack(self, name: str) -> int:
        view = self._bench.views.get(name)
        return view.report.rack_id if view is not None and view.report is not None else -1

    def _places(self) -> list[rack950.Place]:
        return [
            rack950.Place(name, key, self._rack(name), not self._bench.views[name].network)
            for key, names in sorted(self._free.items())
            for name in names
        ]


def _block_of(rank: int, sizes: Mapping[int, int], size: int) -> int:
    """The logical super pod of a rank: ids in numeric order, each with the nodes it really has; pods beyond what the
    job has replicas (until its controller takes them away) are in further ones of ``size`` nodes.
    """
    for logical in sorted(sizes):
        if rank < sizes[logical]:
            return logical
        rank -= sizes[logical]
    return max(sizes) + 1 + rank // size


def _by_super_pod(
    bench: Bench, job: Job, pod: Pod, among: Sequence[str] | None, *, least_idle: bool
) -> dict[int, Sequence[str]]:
    """Candidates per physical super pod; sub-healthy nodes and those that failed before last, then by name.

    ``least_idle``, for single pods: nodes with the fewest free chips, sub-healthy ones only where there is no other.
    """
    table = bench.table(job, pod)
    if among is None and not bench.neighbours.concerns(pod):
        return table.shelves(by_idle=least_idle).pools()
    penalty = bench.scope.penalty.get(job.gang.key, {})
    fitting = bench.candidates(job, pod) if among is None else among
    return Shelves(bench.views, penalty, fitting, by_idle=least_idle).pools()
