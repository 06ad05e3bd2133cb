"""Gangs of mixed pod sizes that no simple order places: a bounded search with backtracking, largest pods first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from belay.engine.model.cluster import Pod
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes.table import NodeTable
from belay.engine.plan.place.state import Assignment, PlacementState

#: Gangs of more pods are not searched: they have too many orders for any budget.
MAX_PODS: Final = 64
#: Most assignments tried for one gang; ``PlacementState.search_steps`` limits all gangs of a pass together.
MAX_STEPS: Final = 500
#: Ranking so many candidates costs as much as trying one.
NODES_PER_STEP: Final = 50


def place_all(state: PlacementState, job: SchedulerJob, pods: Sequence[Pod]) -> list[Assignment]:
    """Assignments of all pods, already in the state; empty when there are none or the budget ends first."""
    if len(pods) > MAX_PODS or sum(pod.count for pod in pods) > state.free_chips(job.resource):
        return []
    return _Search(state, job, pods).run() if _has_room(state, job, pods) else []


def _has_room(state: PlacementState, job: SchedulerJob, pods: Sequence[Pod]) -> bool:
    """Whether the nodes hold, size by size, as many pods of at least that size as the gang has."""
    free = [view.free.bit_count() for view in state.views.values() if view.resource == job.resource]
    for size in sorted({pod.count for pod in pods if pod.count}):
        if sum(count // size for count in free) < sum(1 for pod in pods if pod.count >= size):
            return False
    return True


class _Search:
    """Depth-first search over pods; of nodes in the same state one is tried."""

    def __init__(self, state: PlacementState, job: SchedulerJob, pods: Sequence[Pod]) -> None:
        self._state, self._job = state, job
        self._pods = sorted(pods, key=lambda pod: -pod.count)
        self._steps_left = min(MAX_STEPS, state.search_steps)
        self._placed: list[Assignment] = []
        self._distinct = list({id(state.table(job, pod)): pod for pod in self._pods}.values())

    def run(self) -> list[Assignment]:
        before = self._steps_left
        found = self._from(0)
        self._state.search_steps -= before - self._steps_left
        return self._placed if found else []

    def _from(self, index: int) -> bool:
        if index == len(self._pods):
            return True
        pod = self._pods[index]
        table = self._state.table(self._job, pod)
        for name in self._options(pod, table):
            if self._steps_left <= 0:
                return False
            self._steps_left -= 1
            self._state.record(self._job, pod, table)
            item = self._state.assignment(self._job, pod, name, table)
            self._state.assign(item)
            self._placed.append(item)
            if self._from(index + 1):
                return True
            self._state.unassign([self._placed.pop()])
            self._state.forget([pod])
            table = self._state.table(self._job, pod)
        return False

    def _options(self, pod: Pod, table: NodeTable) -> Iterator[str]:
        """Fitting nodes, best first, one of each state."""
        seen: set[tuple[object, ...]] = set()
        tables = [self._state.table(self._job, one) for one in self._distinct]
        self._steps_left -= len(table.scores) // NODES_PER_STEP
        ranked = sorted(table.scores, key=lambda name: (-table.less_penalty(name, table.scores[name]), name))
        for name in ranked:
            view = self._state.views[name]
            fits = tuple(name in other.scores for other in tables)
            state = (view.free, view.network, tuple(sorted(view.requested.items())), fits)
            if state not in seen and self._state.affinity_refusal(pod, name) is None:
                seen.add(state)
                yield name
