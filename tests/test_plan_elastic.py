"""Elastic training in the plan: in when chips are lost and no room is left, out when they return."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.cluster import Pod
from belay.engine.model.history import History
from belay.engine.model.jobs import Gang
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.plan.recover import elastic
from tests.test_plan_costing import PROCESS, gang, world
from tests.worlds import NOW, desired

JOB = "train/AscendJob/j"


def decided(pods: list[Pod], bad: tuple[str, ...], history: History, now: float, count: int = 4) -> Plan:
    return plan(desired(), world(pods, bad=bad, count=count, history=history), now)


def job(*nodes: str, strategies: str, created: float = NOW, **more: Any) -> list[Pod]:
    return gang(nodes=nodes, labels=PROCESS, strategies=strategies, age=None, created=created, **more)


def says(made: Plan) -> list[str]:
    return [text for _, text in made.history.jobs[JOB].timeline]


@pytest.mark.parametrize(("strategies", "wait"), [("elastic-training", 0), ("recover,elastic-training", 270)])
def test_a_job_shrinks_when_chips_are_lost_and_grows_when_they_return(strategies: str, wait: int) -> None:
    names = ("n0", "n1", "n2", "n3")
    lost = decided(job(*names, strategies=strategies), ("n2",), History(), NOW)
    assert [a.pod for a in lost.actions if isinstance(a, EvictPod)] == ["j-2"]
    small = job("n0", "n1", "-", "n3", strategies=strategies, created=NOW + 1)
    if wait:
        early = decided(small, ("n2",), lost.history, NOW + wait - 5)
        assert not any("scaled in" in text for text in says(early))
    going = decided(small, ("n2",), lost.history, NOW + wait + 30)
    assert not any(isinstance(a, EvictPod) for a in going.actions), "the healthy pods stay, however long it lasts"
    assert says(going)[-1] == ("scaled in: training goes on with 3 of 4 pods, without pod ranks 2 (elastic-training)")
    (pending,) = going.pending
    assert pending.message.startswith(
        "training goes on with 3 of 4 pods, without pod ranks 2 (elastic-training), until"
    )
    assert going.history.jobs[JOB].recoveries[-1].level == "shrink"
    again = decided(small, ("n2",), going.history, NOW + wait + 60)
    assert again.history.jobs[JOB] == going.history.jobs[JOB], "nothing is announced twice"
    back = decided(small, (), going.history, NOW + wait + 100)
    assert [(a.pod, a.node) for a in back.actions if isinstance(a, BindPod)] == [("j-2", "n2")]
    anew = job(*names, strategies=strategies)
    anew[2] = msgspec.structs.replace(anew[2], uid="new-j-2")
    whole = decided(anew, (), back.history, NOW + wait + 130)
    assert "scaled out: all 4 pods train again after 100 s" in says(whole)
    assert whole.history.jobs[JOB].small == 0
    assert whole.history.jobs[JOB].recoveries[-1].back


def test_missing_pods_return_together() -> None:
    small = job("n0", "-", "-", "n3", strategies="elastic-training")
    lost = decided(job("n0", "n1", "n2", "n3", strategies="elastic-training"), ("n1", "n2"), History(), NOW)
    made = decided(small, ("n2",), lost.history, NOW + 60)
    assert not any(isinstance(a, BindPod) for a in made.actions), "one of the two would be of no use"
    assert "without pod ranks 1, 2" in made.pending[0].message


def test_a_job_that_states_very_many_replicas_costs_no_memory() -> None:
    many = 10**12
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "train"},
        "spec": {"minMember": many},
    }
    elastic: dict[str, Any] = {"strategies": "elastic-training", "annotations": {"scheduling.k8s.io/group-name": "g"}}
    whole = world(job("n0", "n1", "n2", **elastic), bad=("n2",), objects=[group])
    lost = plan(desired(), whole, NOW)
    small = job("n0", "n1", "-", created=NOW + 1, **elastic)
    seen = world(small, bad=("n2",), objects=[group], history=lost.history)
    going = plan(desired(), seen, NOW + 30)
    assert says(going)[-1].startswith(f"scaled in: training goes on with 2 of {many} pods, without pod ranks 2, 3, ")
    assert f"17 and {many - 2 - 16} more" in says(going)[-1]


def test_a_job_without_rank_zero_does_not_go_on() -> None:
    lost = decided(job("n0", "n1", strategies="elastic-training"), ("n0",), History(), NOW, count=2)
    gone = sorted(a.pod for a in lost.actions if isinstance(a, EvictPod))
    assert gone == ["j-0", "j-1"]
    made = decided(job("-", "n1", strategies="elastic-training"), ("n0",), lost.history, NOW + 60, count=2)
    assert not any("scaled in" in text for text in says(made))


@pytest.mark.parametrize(
    ("strategies", "timeout", "wanted"),
    [
        ("elastic-training", "", 0), ("elastic-training,dump", "60", 0), ("recover,elastic-training", "", 270),
        ("recover,elastic-training", "30", 30), ("recover,elastic-training", "29", 270),
        ("recover,elastic-training", "271", 270), ("recover,elastic-training", "soon", 270),
        ("recover-in-place,elastic-training", "100", 100),
    ],
)  # fmt: skip
def test_a_job_waits_for_its_configured_time_first(strategies: str, timeout: str, wanted: int) -> None:
    notes = {"recover-strategy": strategies} | ({"wait-reschedule-timeout": timeout} if timeout else {})
    one = Gang("k", "v", "AscendJob", "n", "j", "u", PROCESS, notes, "q", 0, "", 0.0, 2, 2, {}, ())
    assert elastic.wait_seconds(one) == wanted
    assert elastic.configured(one)
