"""Jobs as the gRPC services see them: the faults of a job are those in its status, from however few pods."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.recovery import Conversation, FaultyRank, JobFacts
from belay.engine.model.recovery.conversation import Faults, SubHealthy
from belay.engine.serve.grpc.job_view import JobView, impact, views
from belay.engine.serve.grpc.recovery.job_facts import new_faults, wait_of
from belay.engine.status import jobs
from belay.engine.wire.recoveryrecord import Record
from tests.worlds import fault, node, node_report, observed, pod, report

PODS = 6
LEVELS = ("NotHandleFault", "SubHealthFault", "RestartRequest", "RestartNPU", "SeparateNPU")


def world(broken: dict[tuple[int, int], str], lost: set[int], sick: set[int], labels: dict[int, str]) -> Observed:
    pods = [
        msgspec.structs.replace(
            pod(f"j-{i}", node=f"n{i}", chips=[0, 1], owner=("AscendJob", "j"), rank=i),
            labels={"fault-type": labels[i]} if i in labels else {},
        )
        for i in range(PODS)
    ]
    reports = [
        report(f"n{i}", faults=[fault(chip, f"C{chip}", level) for (at, chip), level in broken.items() if at == i])
        for i in range(PODS)
    ]
    seen = observed([node(f"n{i}", ready=i not in lost) for i in range(PODS)], reports, pods)
    return msgspec.structs.replace(seen, node_reports={f"n{i}": node_report(f"n{i}") for i in sick})


def only(seen: Observed) -> JobView:
    (view,) = views(seen, PlanCache()).values()
    return view


@given(
    st.dictionaries(st.tuples(st.integers(0, PODS - 1), st.integers(0, 1)), st.sampled_from(LEVELS), max_size=4),
    st.sets(st.integers(0, PODS - 1), max_size=2),
    st.sets(st.integers(0, PODS - 1), max_size=2),
    st.dictionaries(st.integers(0, PODS - 1), st.sampled_from(("Separate", "SubHealth", "software")), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_checking_few_pods_finds_the_faults_of_all(
    broken: dict[tuple[int, int], str], lost: set[int], sick: set[int], labels: dict[int, str]
) -> None:
    seen = world(broken, lost, sick, labels)
    pods: list[Pod] = list(seen.pods.values())
    assert impact(only(seen), seen, PlanCache()) == jobs.impact(pods, seen)


def test_a_fault_that_appears_or_ends_is_seen_at_once() -> None:
    """What was worked out for one snapshot must not outlive it."""
    states = []
    for level in ("", "RestartNPU", "SeparateNPU", "SubHealthFault", ""):
        seen = world({(2, 1): level} if level else {}, set(), set(), {})
        health, ranks = impact(only(seen), seen, PlanCache())
        states.append((health, [(row.rank, row.level) for row in ranks]))
    assert states == [
        ("Healthy", []), ("UnHealthy", [(5, "RestartNPU")]), ("UnHealthy", [(5, "SeparateNPU")]),
        ("SubHealthy", [(5, "SubHealthFault")]), ("Healthy", []),
    ]  # fmt: skip


def told(broken: dict[tuple[int, int], str]) -> object:
    """The faults that the conversation of a job gets (pod and chip to level)."""
    seen = world(broken, set(), set(), {})
    record = Record(conversation=Conversation(job="j"))
    return new_faults(
        only(seen),
        record,
        JobFacts(sub_health="hotSwitch", devices_per_pod=2),
        impact(only(seen), seen, PlanCache()),
        0,
    )


def test_the_pod_of_rank_0_is_none_of_those_that_may_be_switched() -> None:
    found = told(dict.fromkeys(((0, 0), (2, 1), (3, 0)), "SubHealthFault"))
    assert isinstance(found, SubHealthy) and (found.pods, found.ranks) == (2, (FaultyRank("5", "1"),))
    assert told({(0, 0): "SubHealthFault"}) is None


def test_a_sub_healthy_chip_is_no_fault_beside_one_that_broke() -> None:
    assert told({(2, 1): "SubHealthFault", (3, 0): "RestartNPU"}) == Faults((FaultyRank("6", "1"),))


def test_a_job_runs_when_as_many_pods_as_it_needs_run_and_stay() -> None:
    seen = world({}, set(), set(), {})
    view = only(seen)
    assert (view.running, view.up, view.chips_per_pod) == (True, PODS, 2)
    leaving = {key: msgspec.structs.replace(one, deleting=1.0) for key, one in list(seen.pods.items())[:1]}
    assert not only(msgspec.structs.replace(seen, pods=seen.pods | leaving)).running


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("270", 270), ("29", 270), ("271", 270), ("-40", 270), ("a", 270), ("", 270)]
)
def test_a_time_for_rescheduling_out_of_its_range_does_not_count(text: str, seconds: int) -> None:
    assert wait_of({"wait-reschedule-timeout": text}) == seconds
