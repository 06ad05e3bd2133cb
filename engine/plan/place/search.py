"""Mixed gangs that no simple order places: a bounded search, largest pods first, that takes back what led nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.model.cluster import Pod
from engine.plan.place.bench import Bench, Seated
from engine.plan.place.job import Job
from engine.plan.place.table import Table

#: Gangs of more pods are not searched; their number of orders is beyond any budget.
MAX_PODS: Final = 64
#: Most seats tried for one gang; a pass has ``Bench.trials`` of them for all its gangs.
MAX_TRIALS: Final = 500
#: Looking at so many candidates costs as much as trying one.
NODES_A_TRIAL: Final = 50


def seat_all(bench: Bench, job: Job, pods: Sequence[Pod]) -> list[Seated]:
    """Seats for all pods, already put on the bench; empty when the budget ends or there are none."""
    if len(pods) > MAX_PODS or sum(pod.count for pod in pods) > bench.free_chips(job.resource):
        return []
    return _Search(bench, job, pods).run() if _has_room(bench, job, pods) else []


def _has_room(bench: Bench, job: Job, pods: Sequence[Pod]) -> bool:
    """Whether the nodes hold, size by size, as many pods of at least that size as the gang has."""
    free = [view.free.bit_count() for view in bench.views.values() if view.resource == job.resource]
    for size in sorted({pod.count for pod in pods if pod.count}):
        if sum(count // size for count in free) < sum(1 for pod in pods if pod.count >= size):
            return False
    return True


class _Search:
    """Depth first over pods; nodes in the same state are tried once."""

    def __init__(self, bench: Bench, job: Job, pods: Sequence[Pod]) -> None:
        self._bench, self._job = bench, job
        self._pods = sorted(pods, key=lambda pod: -pod.count)
        self._left = min(MAX_TRIALS, bench.trials)
        self._placed: list[Seated] = []
        self._kinds = list({id(bench.table(job, pod)): pod for pod in self._pods}.values())

    def run(self) -> list[Seated]:
        before = self._left
        found = self._from(0)
        self._bench.trials -= before - self._left
        return self._placed if found else []

    def _from(self, index: int) -> bool:
        if index == len(self._pods):
            return True
        pod = self._pods[index]
        table = self._bench.table(self._job, pod)
        for name in self._options(pod, table):
            if self._left <= 0:
                return False
            self._left -= 1
            self._bench.record(self._job, pod, table)
            item = self._bench.seated(self._job, pod, name, table)
            self._bench.put(item)
            self._placed.append(item)
            if self._from(index + 1):
                return True
            self._bench.take_back([self._placed.pop()])
            self._bench.forget([pod])
            table = self._bench.table(self._job, pod)
        return False

    def _options(self, pod: Pod, table: Table) -> Iterator[str]:
        """Fitting nodes, best first, one of each state."""
        seen: set[tuple[object, ...]] = set()
        tables = [self._bench.table(self._job, one) for one in self._kinds]
        self._left -= len(table.scores) // NODES_A_TRIAL
        ranked = sorted(table.scores, key=lambda name: (-table.rank(name, table.scores[name]), name))
        for name in ranked:
            view = self._bench.views[name]
            fits = tuple(name in other.scores for other in tables)
            state = (view.free, view.network, tuple(sorted(view.requested.items())), fits)
            if state not in seen and self._bench.allowed(pod, name) is None:
                seen.add(state)
                yield name
