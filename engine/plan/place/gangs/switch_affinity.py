"""Switch affinity of one job: which rule applies, what other jobs leave of each switch, which node each rank gets.

Source: component/ascend-for-volcano/plugin/tor.go, internal/nslb/frame.go and nslbv1.go (checkTorJobSinglePodDelete).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.model.cluster import Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.labels import IS_SHARED_TOR
from belay.engine.model.pending_reasons import TOPOLOGY
from belay.engine.model.switches import Switches
from belay.engine.plan.place import switch_config
from belay.engine.plan.place.gangs import nslb
from belay.engine.plan.place.gangs.nslb import LeafSwitch, NodeGroup, SwitchRequest
from belay.engine.plan.place.gangs.slots import candidate_pools
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes.switch_occupancy import SwitchOccupancy
from belay.engine.plan.place.state import Assignment, PlacementState
from belay.engine.plan.place.switch_config import LARGE, NORMAL

VERSION_2: Final = "2.0"


class SwitchPlacement(NamedTuple):
    """The node and annotations of each pod by its key; raw scores of the nodes taken, and the score of each pod's own
    node.
    """

    nodes: dict[str, str]
    annotations: dict[str, dict[str, str]]
    scores: dict[str, int]
    own: int = 0


def place(
    state: PlacementState, job: SchedulerJob, waiting: Sequence[Pod], ranks: Mapping[str, int], memory: JobMemory | None
) -> list[Assignment] | Refusal:
    """Assignments of all waiting pods, one pod per node, already in the state; or why there are none.

    ``memory`` has the former nodes of the ranks. Candidates are those of the first pod; where that fails and pods ask
    for different things, the nodes that fit all of them.
    """
    switches = switch_config.read(state.scope.facts.observed, state.scope.facts.cache)
    if isinstance(switches, Refusal):
        return switches
    found = _placed(state, job, switches, state.candidates(job, waiting[0]), waiting, ranks, memory)
    if isinstance(found, Refusal):
        common = next(candidate_pools(state, job, waiting), None)
        again = found if common is None else _placed(state, job, switches, common, waiting, ranks, memory)
        return found if isinstance(again, Refusal) else again
    return found


def _placed(
    state: PlacementState,
    job: SchedulerJob,
    switches: Switches,
    candidates: Sequence[str],
    waiting: Sequence[Pod],
    ranks: Mapping[str, int],
    memory: JobMemory | None,
) -> list[Assignment] | Refusal:
    if len(candidates) < len(waiting):
        text = f"node num {len(candidates)} is not meet job require {len(waiting)}"
        return Refusal(TOPOLOGY, f"tor check failed not enough resource by {text}")
    failed = set(memory.fault_nodes) if memory else set()
    sound = [name for name in candidates if name not in failed]
    found = _SwitchPlanner(state, job, switches, sound, waiting, ranks, memory).run()
    if isinstance(found, Refusal) and len(sound) < len(candidates):  # nodes where the job failed before come last
        found = _SwitchPlanner(state, job, switches, candidates, waiting, ranks, memory).run()
    if isinstance(found, Refusal):
        return found
    placed: list[Assignment] = []
    for pod in waiting:
        table, node = state.table(job, pod), found.nodes[pod.key]
        if node not in table.scores or state.affinity_refusal(pod, node) is not None:
            state.unassign(placed)
            state.forget([item.pod for item in placed])
            return Refusal(TOPOLOGY, f"node {node} does not fit pod {pod.name}")
        row: dict[str, int] = {}
        if state.keeps_scores(table):
            row = {name: found.scores.get(name, 0) for name in candidates if name in table.scores}
            row[node] = found.own or row[node]
        state.record(job, pod, table, row)
        item = Assignment(pod, node, table.chips(node))
        state.assign(item)
        state.pod_annotations[pod.key] = found.annotations[pod.key]
        placed.append(item)
    return placed


class _SwitchPlanner:
    """The placement of one job under the switches."""

    def __init__(
        self,
        state: PlacementState,
        job: SchedulerJob,
        switches: Switches,
        candidates: Sequence[str],
        waiting: Sequence[Pod],
        ranks: Mapping[str, int],
        memory: JobMemory | None,
    ) -> None:
        self._state, self._job, self._switches, self._memory = state, job, switches, memory
        self._waiting = sorted(waiting, key=lambda pod: ranks[pod.key])
        self._ranks = ranks
        self._candidates = sorted(candidates)
        self._version_2 = state.params.nslb_version == VERSION_2 and not switches.single_layer
        keys = {pod.key for pod in waiting}
        self._running = [pod for pod in job.pods if pod.key not in keys and pod.node and pod.deleting is None]
        self._request = SwitchRequest(len(waiting), job.gang.options.switch_affinity, job.request.pods)
        if state.switch_occupancy is None:
            state.switch_occupancy = SwitchOccupancy(
                state.views, switches, state.scope.gangs.of_pod, state.pod_annotations, state.changed_nodes,
                _promised(state),
            )  # fmt: skip
        self._occupancy = state.switch_occupancy
        self._occupancy.refresh()
        self._position_of = self._occupancy.position_of
        self._gangs = {gang: at for gang, at in self._occupancy.switches_of.items() if gang != job.gang.key}
        self._leaves = self._leaf_switches()

    def run(self) -> SwitchPlacement | Refusal:
        width, most = self._switches.width, self._state.params.shared_tor_num
        used = {self._position_of[pod.node][0] for pod in self._running if pod.node in self._position_of}
        if self._running and not self._version_2:
            return self._add_to_running(used)
        if self._switches.single_layer:
            found = nslb.single_layer(self._leaves, width, self._request)
        elif not self._version_2:
            found = nslb.version_1(self._leaves, width, self._request)
        elif self._running:
            found = self._complete(used, most)
        else:
            found = nslb.version_2(self._leaves, width, self._request, most)
        if isinstance(found, Refusal):
            return found
        alone = len(used | {part.leaf.id for part in found if part.leaf}) == 1
        return self._placement(found, alone)

    def _placement(self, parts: Sequence[NodeGroup], alone: bool) -> SwitchPlacement:
        """Ranks ascend along the groups, as MindCluster numbers the servers that it selected."""
        ranked = [(node, part) for part in parts for node in part.nodes]
        nodes, annotations = {}, {}
        for pod, (node, part) in zip(self._waiting, ranked, strict=True):
            nodes[pod.key] = node
            annotations[pod.key] = nslb.pod_annotations(part, alone) if self._version_2 else {}
        return SwitchPlacement(nodes, annotations, nslb.scores(parts), nslb.OWN_SCORE)

    def _leaf_switches(self) -> list[LeafSwitch]:
        leaves = {switch.id: LeafSwitch(switch.id, switch.address, {}) for switch in self._switches.switches}
        for name in self._candidates:
            if name in self._position_of:
                switch, position = self._position_of[name]
                leaves[switch].nodes[position] = name
        crossing: dict[int, set[str]] = {}
        for gang, at in self._gangs.items():
            schema = self._state.scope.gangs[gang].options.switch_affinity
            for switch in at if len(at) > 1 else ():
                crossing.setdefault(switch, set()).add(schema)
        chosen_before = self._memory is not None and self._memory.switches
        own = {pod.key for pod in self._job.pods if pod.node or chosen_before} - {pod.key for pod in self._running}
        for leaf in leaves.values():
            schemas = crossing.get(leaf.id, set())
            leaf.large = LARGE in schemas
            if self._version_2:
                leaf.kind, leaf.unhealthy = self._occupancy.state(leaf.id, own)
            elif schemas and self._request.pods > leaf.room and not self._running:
                normal = self._request.schema == NORMAL and schemas == {NORMAL}
                leaf.nodes = leaf.nodes if normal else {}
        return list(leaves.values())

    def _complete(self, used: set[int], most: int) -> list[NodeGroup] | Refusal:
        """Version 2.0: the switches of the job first; some others are closed to it."""
        mine = [leaf for leaf in self._leaves if leaf.id in used]
        shared = sum(1 for leaf in mine if leaf.kind == nslb.SHARED)
        alone = any(pod.annotations.get(IS_SHARED_TOR) == "0" for pod in self._running) or len(used) == 1
        others = [
            leaf
            for leaf in self._leaves
            if leaf.id not in used
            and not alone
            and leaf.kind != nslb.EXCLUSIVE
            and not (leaf.kind == nslb.SHARED and most <= shared)
        ]
        found = nslb.complete(mine, others, self._request, most)
        closed = len(self._leaves) - len(mine) - len(others)
        if isinstance(found, Refusal) and closed:
            text = f"tor check failed node by nslb2.0: {closed} switches are closed to this job"
            return Refusal(found.reason, f"{found.message}; {text}")
        return found

    def _add_to_running(self, used: set[int]) -> SwitchPlacement | Refusal:
        """Version 1.0 and single layers: each missing pod takes a position that the job uses under its switches."""
        nodes: dict[str, str] = {}
        taken = {pod.node for pod in self._running}
        for pod in self._waiting:
            node = self._replacement(pod, used, taken)
            if isinstance(node, Refusal):
                return node
            nodes[pod.key] = node
            taken.add(node)
        return SwitchPlacement(nodes, {key: {} for key in nodes}, {})

    def _replacement(self, pod: Pod, used: set[int], taken: set[str]) -> str | Refusal:
        penalty = self._state.scope.recovery.penalty.get(self._job.gang.key, {})
        free = [name for name in self._candidates if name not in taken and name in self._position_of]
        if self._request.fills or self._switches.single_layer:
            options = [name for name in free if self._position_of[name][0] in used]
            problem = "large model job can not over tor" if self._request.fills else "job can not over tor"
        else:
            slices = self._slices(pod, taken)
            crossed = {switch for at in self._gangs.values() if len(at) > 1 for switch in at}
            options = [
                name
                for name in free
                if self._position_of[name][1] in slices and self._position_of[name][0] not in crossed
            ]
            problem = "node sliceId is not meet task require"
        if not options:
            return Refusal(TOPOLOGY, f"check node err by: {problem}, no free node is left for pod {pod.name}")
        return min(options, key=lambda name: (abs(penalty.get(name, 0)), name))

    def _slices(self, pod: Pod, taken: set[str]) -> set[int]:
        """Positions that the pod may take: that of its former node, else those where the job has the fewest pods."""
        former = self._memory.nodes.get(str(self._ranks[pod.key]), "") if self._memory else ""
        if former in self._position_of:
            return {self._position_of[former][1]}
        counts: dict[int, int] = {}
        for name in taken:
            if name in self._position_of:
                position = self._position_of[name][1]
                counts[position] = counts.get(position, 0) + 1
        least = min(counts.values(), default=0)
        return {position for position, count in counts.items() if count == least}


def _promised(state: PlacementState) -> dict[str, list[tuple[Pod, Mapping[str, str]]]]:
    """Pods that are bound once their claims name them, with the annotations that they get, by the claims' node."""
    found: dict[str, list[tuple[Pod, Mapping[str, str]]]] = {}
    for key, memory in state.scope.draft.memory.jobs.items():
        gang = state.scope.gangs.get(key) if memory.switches else None
        for name in gang.pods if gang is not None else ():
            pod = state.scope.facts.observed.pods.get(name)
            node = state.scope.facts.claims.node_of(pod) if pod is not None and not pod.node and pod.count else ""
            if pod is not None and node in memory.switches:
                found.setdefault(node, []).append((pod, memory.switches[node]))
    return found
