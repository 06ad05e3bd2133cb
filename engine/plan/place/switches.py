"""Switch affinity of one job: which rule applies to it, what other jobs leave of each switch, where each rank goes.

Source: component/ascend-for-volcano/plugin/tor.go, internal/nslb/frame.go and nslbv1.go (checkTorJobSinglePodDelete).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from engine.model.cluster import Pod
from engine.model.history import JobMemory
from engine.model.switches import Switches
from engine.plan.place import nslb, torconfig
from engine.plan.place.bench import Bench, Seated
from engine.plan.place.job import Job
from engine.plan.place.leaves import Board
from engine.plan.place.nslb import Leaf, Part, Wish
from engine.plan.place.slots import pools
from engine.plan.place.torconfig import LABEL
from engine.plan.place.verdict import TOPOLOGY, Refusal

VERSION_2: Final = "2.0"


class Seating(NamedTuple):
    """Where each pod goes and what it is told, by pod key; raw scores of the nodes taken, and of each pod's own."""

    nodes: dict[str, str]
    notes: dict[str, dict[str, str]]
    scores: dict[str, int]
    own: int = 0


def place(
    bench: Bench, job: Job, waiting: Sequence[Pod], ranks: Mapping[str, int], memory: JobMemory | None
) -> list[Seated] | Refusal:
    """Nodes and chips for all waiting pods, one pod a node, or why there are none.

    What it returns is already put on the bench; ``memory`` says where the ranks were before. Candidates are those of
    the first pod, and where that fails and pods ask for different things, the nodes that fit all of them.
    """
    switches = torconfig.read(bench.scope.observed)
    if isinstance(switches, Refusal):
        return switches
    found = _placed(bench, job, switches, bench.candidates(job, waiting[0]), waiting, ranks, memory)
    if isinstance(found, Refusal):
        common = next(pools(bench, job, waiting), None)
        again = found if common is None else _placed(bench, job, switches, common, waiting, ranks, memory)
        return found if isinstance(again, Refusal) else again
    return found


def _placed(
    bench: Bench,
    job: Job,
    switches: Switches,
    candidates: Sequence[str],
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
) -> list[Seated] | Refusal:
    if len(candidates) < len(waiting):
        text = f"node num {len(candidates)} is not meet job require {len(waiting)}"
        return Refusal(TOPOLOGY, f"tor check failed not enough resource by {text}")
    failed = set(memory.fault_nodes) if memory else set()
    sound = [name for name in candidates if name not in failed]
    found = _Seater(bench, job, switches, sound, waiting, ranks, memory).run()
    if isinstance(found, Refusal) and len(sound) < len(candidates):  # where the job failed before comes last
        found = _Seater(bench, job, switches, candidates, waiting, ranks, memory).run()
    if isinstance(found, Refusal):
        return found
    placed: list[Seated] = []
    for pod in waiting:
        table, node = bench.table(job, pod), found.nodes[pod.key]
        if node not in table.scores or bench.allowed(pod, node) is not None:
            bench.take_back(placed)
            bench.forget([item.pod for item in placed])
            return Refusal(TOPOLOGY, f"node {node} does not fit pod {pod.name}")
        row: dict[str, int] = {}
        if bench.keeps_scores(table):
            row = {name: found.scores.get(name, 0) for name in candidates if name in table.scores}
            row[node] = found.own or row[node]
        bench.record(job, pod, table, row)
        item = Seated(pod, node, table.chips(node))
        bench.put(item)
        bench.given[pod.key] = found.notes[pod.key]
        placed.append(item)
    return placed


class _Seater:
    """One job on the switches."""

    def __init__(
        self,
        bench: Bench,
        job: Job,
        switches: Switches,
        candidates: Sequence[str],
        waiting: Sequence[Pod],
        ranks: Mapping[str, int],
        memory: JobMemory | None,
    ) -> None:
        self._bench, self._job, self._switches, self._memory = bench, job, switches, memory
        self._waiting = sorted(waiting, key=lambda pod: ranks[pod.key])
        self._ranks = ranks
        self._candidates = sorted(candidates)
        self._second = bench.params.nslb_version == VERSION_2 and not switches.single_layer
        keys = {pod.key for pod in waiting}
        self._staying = [pod for pod in job.pods if pod.key not in keys and pod.node and pod.deleting is None]
        self._wish = Wish(len(waiting), job.shape.labels[LABEL], job.shape.pods)
        if bench.board is None:
            bench.board = Board(bench, switches)
        self._board = bench.board
        self._board.refresh()
        self._place = self._board.place
        self._gangs = {gang: at for gang, at in self._board.spread.items() if gang != job.gang.key}
        self._leaves = self._read_leaves()

    def run(self) -> Seating | Refusal:
        width, most = self._switches.width, self._bench.params.shared_tor_num
        used = {self._place[pod.node][0] for pod in self._staying if pod.node in self._place}
        if self._staying and not self._second:
            return self._beside(used)
        if self._switches.single_layer:
            found = nslb.single_layer(self._leaves, width, self._wish)
        elif not self._second:
            found = nslb.version_1(self._leaves, width, self._wish)
        elif self._staying:
            found = self._complete(used, most)
        else:
            found = nslb.version_2(self._leaves, width, self._wish, most)
        if isinstance(found, Refusal):
            return found
        alone = len(used | {part.leaf.id for part in found if part.leaf}) == 1
        return self._seated(found, alone)

    def _seated(self, parts: Sequence[Part], alone: bool) -> Seating:
        """Ranks ascend along the parts, as upstream numbers the servers it selected."""
        seats = [(node, part) for part in parts for node in part.nodes]
        nodes, notes = {}, {}
        for pod, (node, part) in zip(self._waiting, seats, strict=True):
            nodes[pod.key] = node
            notes[pod.key] = nslb.notes(part, alone) if self._second else {}
        return Seating(nodes, notes, nslb.scores(parts), nslb.OWN_SCORE)

    def _read_leaves(self) -> list[Leaf]:
        leaves = {switch.id: Leaf(switch.id, switch.address, {}) for switch in self._switches.switches}
        for name in self._candidates:
            if name in self._place:
                switch, position = self._place[name]
                leaves[switch].nodes[position] = name
        crossing: dict[int, set[str]] = {}
        for gang, at in self._gangs.items():
            schema = self._bench.scope.gangs[gang].labels.get(LABEL, "")
            for switch in at if len(at) > 1 else ():
                crossing.setdefault(switch, set()).add(schema)
        leaving = {pod.key for pod in self._job.pods if pod.node} - {pod.key for pod in self._staying}
        for leaf in leaves.values():
            schemas = crossing.get(leaf.id, set())
            leaf.large = nslb.LARGE in schemas
            if self._second:
                leaf.kind, leaf.unhealthy = self._board.state(leaf.id, leaving)
            elif schemas and self._wish.pods > leaf.room and not self._staying:
                normal = self._wish.schema == nslb.NORMAL and schemas == {nslb.NORMAL}
                leaf.nodes = leaf.nodes if normal else {}
        return list(leaves.values())

    def _complete(self, used: set[int], most: int) -> list[Part] | Refusal:
        """Version 2.0: the switches of the job first; some others are closed to it."""
        mine = [leaf for leaf in self._leaves if leaf.id in used]
        shared = sum(1 for leaf in mine if leaf.kind == nslb.SHARED)
        alone = any(pod.annotations.get("isSharedTor") == "0" for pod in self._staying) or len(used) == 1
        others = [
            leaf
            for leaf in self._leaves
            if leaf.id not in used
            and not alone
            and leaf.kind != nslb.EXCLUSIVE
            and not (leaf.kind == nslb.SHARED and most <= shared)
        ]
        found = nslb.complete(mine, others, self._wish, most)
        closed = len(self._leaves) - len(mine) - len(others)
        if isinstance(found, Refusal) and closed:
            text = f"tor check failed node by nslb2.0: {closed} switches are closed to this job"
            return Refusal(found.reason, f"{found.message}; {text}")
        return found

    def _beside(self, used: set[int]) -> Seating | Refusal:
        """Version 1.0 and single layers: each missing pod keeps the positions under the switches that the job uses."""
        nodes: dict[str, str] = {}
        taken = {pod.node for pod in self._staying}
        for pod in self._waiting:
            node = self._replacement(pod, used, taken)
            if isinstance(node, Refusal):
                return node
            nodes[pod.key] = node
            taken.add(node)
        return Seating(nodes, {key: {} for key in nodes}, {})

    def _replacement(self, pod: Pod, used: set[int], taken: set[str]) -> str | Refusal:
        penalty = self._bench.scope.penalty.get(self._job.gang.key, {})
        free = [name for name in self._candidates if name not in taken and name in self._place]
        if self._wish.fills or self._switches.single_layer:
            options = [name for name in free if self._place[name][0] in used]
            words = "large model job can not over tor" if self._wish.fills else "job can not over tor"
        else:
            slices = self._slices(pod, taken)
            crossed = {switch for at in self._gangs.values() if len(at) > 1 for switch in at}
            options = [name for name in free if self._place[name][1] in slices and self._place[name][0] not in crossed]
            words = "node sliceId is not meet task require"
        if not options:
            return Refusal(TOPOLOGY, f"check node err by: {words}, no free node is left for pod {pod.name}")
        return min(options, key=lambda name: (abs(penalty.get(name, 0)), name))

    def _slices(self, pod: Pod, taken: set[str]) -> set[int]:
        """Positions that the pod may take: that of its former node, else those where the job has the fewest pods."""
        former = self._memory.nodes.get(str(self._ranks[pod.key]), "") if self._memory else ""
        if former in self._place:
            return {self._place[former][1]}
        counts: dict[int, int] = {}
        for name in taken:
            if name in self._place:
                position = self._place[name][1]
                counts[position] = counts.get(position, 0) + 1
        least = min(counts.values(), default=0)
        return {position for position, count in counts.items() if count == least}
