"""Evictions that a PodDisruptionBudget refuses: they are reported, tried again at a pace, and the way out is named."""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.model.actions import EvictPod
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.plan import plan
from belay.engine.status.events import repeat_events
from tests.test_plan_recover import JOB, gang, world
from tests.worlds import NOW, desired


def budget(allowed: int) -> dict[ObjectKey, dict[str, Any]]:
    metadata = {"name": "keep", "namespace": "train"}
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"fault-scheduling": "grace"}}},
        "status": {"disruptionsAllowed": allowed},
    }
    return {ObjectKey("policy/v1", "PodDisruptionBudget", "train", "keep"): body}


class Refusing:
    """A cluster whose API server evicts no pod: the same world, with the memory of the pass before."""

    def __init__(self, allowed: int = 0) -> None:
        self.observed: Observed = world(gang(labels={"fault-scheduling": "grace"}))
        self.allow(allowed)

    def allow(self, allowed: int) -> None:
        objects = dict(self.observed.objects) | budget(allowed)
        self.observed = msgspec.structs.replace(self.observed, objects=objects)

    def step(self, after: float) -> Any:
        found = plan(desired(), self.observed, NOW + after)
        self.observed = msgspec.structs.replace(self.observed, history=found.history)
        return found


def evicted(found: Any) -> list[str]:
    return [action.pod for action in found.actions if isinstance(action, EvictPod)]


def test_a_refused_eviction_is_reported_and_waits_for_its_next_try() -> None:
    cluster = Refusing()
    assert evicted(cluster.step(0)) == ["j-0", "j-1"]
    found = cluster.step(1)
    assert evicted(found) == []
    assert {(row.action.pod, row.budget) for row in found.deferred if isinstance(row.action, EvictPod)} == {
        ("j-0", "PodDisruptionBudget/keep"),
        ("j-1", "PodDisruptionBudget/keep"),
    }
    told = [d for d in found.diagnostics if d.object == "Pod/train/j-0"]
    assert len(told) == 1 and told[0].severity == "warning"
    for words in ("refused after 1 try", "PodDisruptionBudget keep allows 0 more pods", "raise maxUnavailable"):
        assert words in told[0].message
    events = repeat_events(found)
    assert [event["reason"] for event in events] == ["EvictionRefused"] * 2
    assert {event["metadata"]["name"] for event in repeat_events(cluster.step(2))} == {
        event["metadata"]["name"] for event in events
    }, "the same refusal has one Event"


def test_the_tries_come_ever_more_rarely_and_spend_no_budget_twice() -> None:
    cluster = Refusing()
    tries = [second for second in range(600) if evicted(cluster.step(second))]
    assert tries == [0, 10, 30, 70, 150, 310]
    spent = [row for rows in cluster.observed.history.budgets.values() for row in rows]
    assert len(spent) == 1, "a gang that is asked again is one unit still"


def test_it_goes_at_once_when_the_budget_allows_it_and_the_history_says_the_truth() -> None:
    cluster = Refusing()
    cluster.step(0)
    cluster.step(1)
    lines = [text for _, text in cluster.observed.history.jobs[JOB].timeline]
    assert lines[0].startswith("eviction decided: ") and lines[1].startswith(
        "eviction refused: PodDisruptionBudget keep"
    )
    assert not any(line.startswith("rescheduled: ") for line in lines)
    assert cluster.observed.history.jobs[JOB].came_about == ()
    cluster.allow(2)
    assert evicted(cluster.step(2)) == ["j-0", "j-1"]
    pods = gang(labels={"fault-scheduling": "grace"}, deleting={0: NOW, 1: NOW})
    cluster.observed = msgspec.structs.replace(cluster.observed, pods={pod.key: pod for pod in pods})
    cluster.step(3)
    memory = cluster.observed.history.jobs[JOB]
    assert memory.came_about == memory.reschedules == (NOW * 1000,)
    assert memory.asked == {} and memory.timeline[-1][1].startswith("rescheduled: ")


def test_an_eviction_that_was_only_lost_is_repeated_at_once() -> None:
    cluster = Refusing(allowed=2)
    assert evicted(cluster.step(0)) == evicted(cluster.step(1)) == ["j-0", "j-1"]
