"""What can be evicted: single pods that a job can spare, else whole jobs; and what that costs.

A gang is never left below its minimum: beyond its spare pods it is evicted as a whole. Cost, most important first:
whether a job ends, its priority, the number of pods, the work lost (chip-seconds since the pods started).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.gangs.forming import task_of
from belay.engine.gangs.owners import VOLCANO_API, spec_of, tasks_of
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.quantities import whole_number
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs

#: Events of a Volcano Job's policies that an eviction raises.
EVICTED_EVENTS: Final = frozenset({"PodEvicted", "AnyEvent", "*"})
RESTARTS: Final = frozenset({"RestartJob", "AbortJob", "TerminateJob", "CompleteJob"})


class VictimSet(NamedTuple):
    """Pods that are evicted together.

    ``ends_job``: the run of their job ends with them; ``lost``: chip-seconds; ``seconds``: how long the longest has
    run; ``key``: a total order, cheapest first.
    """

    gang: Gang
    pods: tuple[Pod, ...]
    ends_job: bool
    lost: int
    seconds: int
    key: tuple[Any, ...]

    @property
    def level(self) -> tuple[bool, int]:
        """The first criteria of cost: whether a job ends, and its priority."""
        return self.ends_job, self.gang.priority

    @property
    def budget(self) -> str:
        """What the safety budget counts: the gang when it is evicted as a whole, else the pod."""
        whole = self.ends_job and self.gang.kind not in INDEPENDENT_KINDS
        return self.gang.key if whole else self.pods[0].key

    @property
    def nodes(self) -> list[str]:
        """Where its eviction makes room: the nodes of its chips, else of its pods."""
        return list(dict.fromkeys(pod.node for pod in self.pods if pod.chips)) or [pod.node for pod in self.pods]


def cost(units: Iterable[VictimSet]) -> tuple[Any, ...]:
    """The cost of several evictions: the most important loss, jobs ended, pods, work lost; ties by node and chip."""
    rows = sorted((victim_set.key for victim_set in units), reverse=True)
    if not rows:
        return ()
    return (
        rows[0][:2],
        sum(row[0] for row in rows),
        sum(row[2] for row in rows),
        sum(row[3] for row in rows),
        sorted(row[4:] for row in rows),
    )


def victim_sets_of(facts: Facts, draft: Draft, gang: Gang) -> list[VictimSet]:
    """What of a running gang can be evicted: each spare pod, and the whole."""
    running = [pod for pod in map(facts.observed.pods.__getitem__, gang.pods) if _runs(draft, pod)]
    if not running:
        return []
    spare = [] if _all_or_nothing(facts, gang) else _spare(gang, running)
    found = [_victim_set(facts, gang, (pod,), ends_job=False) for pod in spare]
    if gang.kind in INDEPENDENT_KINDS:
        kept = {pod.key for pod in spare}
        return found + [_victim_set(facts, gang, (pod,), ends_job=True) for pod in running if pod.key not in kept]
    return [*found, _victim_set(facts, gang, tuple(running), ends_job=True)] if len(spare) < len(running) else found


def unfinished_evictions(facts: Facts, draft: Draft, gangs: PassGangs, pods: Sequence[Pod]) -> list[VictimSet]:
    """Pods whose decided eviction has not been carried out, as the victim sets they were decided in."""
    by_gang: dict[str, list[Pod]] = {}
    for pod in pods:
        key = gangs.of_pod.get(pod.key, "")
        if key in gangs:
            by_gang.setdefault(key, []).append(pod)
    found: list[VictimSet] = []
    for key in sorted(by_gang):
        whole = next(
            (row for row in victim_sets_of(facts, draft, gangs[key]) if row.ends_job and len(row.pods) > 1),
            None,
        )
        if whole is not None and {pod.key for pod in whole.pods} <= {pod.key for pod in by_gang[key]}:
            found.append(whole)
        else:
            singles = {row.pods[0].key: row for row in victim_sets_of(facts, draft, gangs[key]) if len(row.pods) == 1}
            found += [
                singles.get(pod.key) or victim_set(gangs[key], (pod,), ends_job=False, lost=0, seconds=0)
                for pod in by_gang[key]
            ]
    return found


def _runs(draft: Draft, pod: Pod) -> bool:
    return pod.holds_chips and pod.deleting is None and pod.key not in draft.evicting


def _spare(gang: Gang, running: Sequence[Pod]) -> list[Pod]:
    """The pods beyond the gang's minimum and its tasks' minimums, highest ranks first."""
    left = len(running) - gang.min_available
    counts: dict[str, int] = {}
    for pod in running:
        counts[task_of(pod)] = counts.get(task_of(pod), 0) + 1
    found: list[Pod] = []
    for pod in reversed(running):
        task = task_of(pod)
        if len(found) < left and counts[task] > gang.task_min.get(task, 0):
            counts[task] -= 1
            found.append(pod)
    return found


def _all_or_nothing(facts: Facts, gang: Gang) -> bool:
    """Whether the job's own policies restart or end it as a whole when one of its pods is evicted."""
    if gang.api_version != VOLCANO_API:
        return False
    raw = facts.observed.objects.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name))
    spec = spec_of(raw or {})
    rows = [*_policies(spec), *(row for task in tasks_of(spec) for row in _policies(task))]
    return any(_on_eviction(row) for row in rows)


def _on_eviction(policy: Mapping[str, Any]) -> bool:
    listed = policy.get("events")
    events = {str(policy.get("event"))} | {str(event) for event in (listed if isinstance(listed, list) else ())}
    return str(policy.get("action")) in RESTARTS and bool(events & EVICTED_EVENTS)


def _policies(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = spec.get("policies")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _victim_set(facts: Facts, gang: Gang, pods: tuple[Pod, ...], *, ends_job: bool) -> VictimSet:
    ages = [max(0, int(facts.now - (pod.started if pod.started is not None else pod.created))) for pod in pods]
    lost = sum(age * max(1, pod.count) for age, pod in zip(ages, pods, strict=True))
    return victim_set(gang, pods, ends_job=ends_job, lost=lost, seconds=max(ages))


def victim_set(gang: Gang, pods: Sequence[Pod], *, ends_job: bool, lost: int, seconds: int) -> VictimSet:
    """A victim set with its sort key."""
    ordered = tuple(sorted(pods, key=_location))
    key = (ends_job, gang.priority, len(ordered), lost, _location(ordered[0]), gang.key, ordered[0].name)
    return VictimSet(gang, ordered, ends_job, lost, seconds, key)


def _location(pod: Pod) -> tuple[str, int, str]:
    """Where a pod is: node, lowest chip, name."""
    numbers = [whole_number(name.rpartition("-")[2]) for name in pod.chips]
    return pod.node, min((number for number in numbers if number is not None), default=-1), pod.name
