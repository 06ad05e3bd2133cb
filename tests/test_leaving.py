"""Nobody is evicted for room that comes by itself: terminating pods are counted first, and so is what evictions of this
pass leave over.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.model.actions import BindPod
from engine.model.history import History
from engine.model.times import rfc3339
from engine.plan.queue.leaving import OVERDUE
from engine.plan.scope import Scope
from tests import placing, worlds
from tests.placing import edited, gang
from tests.test_preempt import A2, CLASSES, evicted, planned, running, wanting
from tests.worlds import desired, document

EIGHT, FOUR, REST = range(8), range(4), range(4, 8)
LATE = "2026-09-01T07:59:00Z"


def low(name: str, *seats: tuple[str, range]) -> Any:
    return running(name, list(seats), priorityClassName="low")


def leaving(name: str, node: str, chips: range, since: float = -20.0) -> Any:
    """A job of somebody whose pod was deleted; its grace ended ``since`` seconds ago."""
    pods, group = low(name, (node, chips))
    return [edited(pods[0], deleting=worlds.NOW - since)], group


def way_out(scope: Scope, name: str = "want") -> str:
    return next(entry.unblock or "" for entry in scope.pending if entry.name == name)


def test_a_terminating_pod_makes_the_room_that_is_needed() -> None:
    scope = planned(leaving("old", "n0", FOUR), low("v", ("n0", REST)), wanting(each=4), objects=CLASSES)
    assert not evicted(scope)
    assert way_out(scope) == "nobody is evicted for it: room comes with the end of pod train/old-0, which is leaving"
    elsewhere = planned(leaving("old", "n1", EIGHT), low("v", ("n0", EIGHT)), wanting(), objects=CLASSES, nodes=2)
    assert not evicted(elsewhere) and "train/old-0" in way_out(elsewhere)


def test_only_what_terminating_pods_do_not_make_room_for_goes() -> None:
    rows = [leaving("old", "n0", range(2)), low("large", ("n0", REST)), low("small", ("n0", range(2, 4)))]
    assert evicted(planned(*rows, wanting(each=4), objects=CLASSES)) == ["small-0"]


def test_one_terminating_pod_is_counted_once() -> None:
    second = wanting("want2")
    second[1]["metadata"]["creationTimestamp"] = LATE
    rows = [leaving("old", "n1", EIGHT), low("v", ("n0", EIGHT)), wanting(), second]
    scope = planned(*rows, objects=CLASSES, nodes=2)
    assert evicted(scope) == ["v-0"]
    assert "old-0" in way_out(scope) and "told to go for it (train/v-0)" in way_out(scope, "want2")


@pytest.mark.parametrize("since", [OVERDUE - 1, OVERDUE])
def test_a_pod_that_does_not_end_is_not_counted_on_for_ever(since: float) -> None:
    rows = [leaving("old", "n0", FOUR, since), low("v", ("n0", REST)), wanting(each=4)]
    assert evicted(planned(*rows, objects=CLASSES)) == (["v-0"] if since >= OVERDUE else [])


def test_what_is_left_over_of_a_victim_serves_the_next_job() -> None:
    rows = [low("v0", ("n0", EIGHT)), low("v1", ("n1", EIGHT)), wanting(each=4), wanting("want2", each=4)]
    scope = planned(*rows, objects=CLASSES, nodes=2)
    assert len(evicted(scope)) == 1
    third = planned(*rows, wanting("want3", each=4), objects=CLASSES, nodes=2)
    assert len(evicted(third)) == 2, "the first victim has no more than two times four chips"


def test_nobody_takes_what_waits_for_the_end_of_a_pod() -> None:
    """Half of the node is free: a later job that would fit there would have to be evicted again."""
    later = gang(1, 4, name="later", annotations=A2)
    later[1]["spec"]["priorityClassName"] = "low"
    rows = [leaving("old", "n0", FOUR), low("v", ("n1", EIGHT)), wanting(), later]
    scope = planned(*rows, objects=CLASSES, nodes=2)
    assert not [action for action in scope.actions if isinstance(action, BindPod)] and not evicted(scope)
    alone = planned(leaving("old", "n0", FOUR), later, objects=CLASSES)
    assert [action.pod for action in alone.actions if isinstance(action, BindPod)] == ["later-0"]


def test_who_may_evict_nobody_is_told_what_leaves() -> None:
    rows = [leaving("old", "n0", FOUR), low("v", ("n0", REST)), wanting(each=4)]
    scope = planned(*rows, objects=CLASSES, desired=placing.shipped())
    assert not evicted(scope) and "room comes with the end of pod train/old-0" in way_out(scope)


def test_who_has_nobody_to_evict_keeps_nothing_from_others() -> None:
    """What is free now is used now: only what would else cost an eviction is kept."""
    equal = gang(1, 4, name="later", annotations=A2)
    equal[1]["spec"]["priorityClassName"] = "high"
    equal[1]["metadata"]["creationTimestamp"] = LATE
    scope = planned(leaving("old", "n0", FOUR), wanting(), equal, objects=CLASSES)
    assert [action.pod for action in scope.actions if isinstance(action, BindPod)] == ["later-0"]


def test_an_eviction_under_way_still_makes_the_room_together_with_pods_that_leave() -> None:
    """Decided last pass, not carried out yet: what else leaves is part of the same room, and nobody more goes."""
    rows = [leaving("old", "n0", range(2)), low("large", ("n0", REST)), low("small", ("n0", range(2, 4)))]
    history = planned(*rows, wanting(each=4), objects=CLASSES).memory.frozen()
    scope = planned(*rows, wanting(each=4), objects=CLASSES, history=history)
    assert evicted(scope) == ["small-0"] and "train/small-0" in way_out(scope)
    gone = [edited(rows[2][0][0], deleting=worlds.NOW + 30)], rows[2][1]
    scope = planned(rows[0], rows[1], gone, wanting(each=4), objects=CLASSES, history=history)
    assert not evicted(scope)


def test_room_that_a_budget_does_not_let_be_made_is_told_as_such() -> None:
    rows = [low(f"v{node}{chip}", (f"n{node}", range(chip, chip + 1))) for node in (0, 1) for chip in EIGHT]
    scope = planned(*rows, wanting(count=2), objects=CLASSES, nodes=2)
    assert not evicted(scope) and len(scope.deferred) == 16
    assert {(row.budget, row.until) for row in scope.deferred} == {("default", None)}
    assert way_out(scope).startswith("16 evictions would make room, default holds them back for good")


def test_evictions_that_go_together_wait_until_the_window_has_room_for_all() -> None:
    """One more would pass as soon as the oldest of the spent ones ends; two may have to wait longer."""
    limit = {"actions": ["EvictPod"], "per": "cluster", "max": 3, "window": "10m"}
    settings = document("SchedulingSettings", "own", queues=[{"name": "default", "preemptable": True}])
    own = desired(document("SafetyBudget", "default", limits=[limit]), settings)
    rows = [low("v0", ("n0", FOUR)), low("v1", ("n0", REST)), wanting()]

    def put_off(*ago: int) -> tuple[Scope, set[str | None]]:
        spent = tuple((int((worlds.NOW - seconds) * 1000), f"unit{seconds}", 1) for seconds in ago)
        history = History(budgets={"default#0/cluster/cluster": spent})
        scope = planned(*rows, objects=CLASSES, desired=own, history=history)
        return scope, {row.until for row in scope.deferred}

    scope, until = put_off(540, 300)
    assert not evicted(scope) and until == {rfc3339(worlds.NOW + 60)}
    assert f"2 evictions would make room, default holds them back until {rfc3339(worlds.NOW + 60)}" in way_out(scope)
    assert put_off(540, 300, 120)[1] == {rfc3339(worlds.NOW + 300)}
    assert evicted(put_off(540)[0]) == ["v0-0", "v1-0"]
