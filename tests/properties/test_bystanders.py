"""Pods that are none of Belay's business stay untouched, whatever happens on their nodes and waits for room."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import AnyAction, BindPod, CreatePod, DeleteObject, EvictPod, PatchObject
from belay.engine.model.cluster import Observed, Pod
from belay.engine.plan import plan
from belay.engine.wire.reserved import SYSTEM_NAMESPACES
from tests.properties.test_health_properties import NODES, faults
from tests.worlds import NOW, agent, desired, document, node, observed, pod, report

#: Whose pods stand beside those of Belay's jobs: another scheduler's, a DaemonSet's, ones without an owner.
OWNERS = (("ReplicaSet", "web"), ("DaemonSet", "logs"), ("AscendJob", "theirs"), None)
BELAY = ("volcano", "belay")


@st.composite
def bystanders(draw: st.DrawFn, number: int) -> Pod:
    """A pod of another scheduler or of the system, with or without chips, running or not."""
    place = draw(st.sampled_from(["team", "train", *sorted(SYSTEM_NAMESPACES)]))
    scheduler = draw(st.sampled_from(["default-scheduler", "kueue", *(BELAY if place in SYSTEM_NAMESPACES else ())]))
    where = draw(st.sampled_from(["", *(f"n{i}" for i in range(NODES))]))
    owner = draw(st.sampled_from(OWNERS))
    return pod(
        f"other-{number}", namespace=place, node=where, scheduler=scheduler, owner=owner,
        chips=draw(st.sampled_from([(), (0,), (6, 7)])) if where else (),
        count=None if where else draw(st.sampled_from([0, 1, 8])),
        phase=draw(st.sampled_from(["", "", "Failed", "Succeeded"])) if where else "",
        deleting=draw(st.sampled_from([None, None, NOW - 600])) if where else None,
        labels={"fault-scheduling": draw(st.sampled_from(["force", "off"]))},
        priority=draw(st.sampled_from([0, -10])),
    )  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Observed, frozenset[str]]:
    """Faulty, silent, cordoned and full nodes; jobs of Belay on them, one that waits for room, and bystanders."""
    others = [draw(bystanders(number)) for number in range(draw(st.integers(1, 5)))]
    mine, reports, nodes = [], [], []
    for i in range(NODES):
        age = draw(st.sampled_from([2, 2, 700]))
        reports.append(report(f"n{i}", faults=draw(st.lists(faults, max_size=2)), update_time=NOW - age))
        nodes.append(node(f"n{i}", ready=draw(st.booleans()), unschedulable=draw(st.booleans())))
        if draw(st.booleans()):
            owner = ("AscendJob", f"j{draw(st.integers(0, 1))}")
            labels = {"fault-scheduling": draw(st.sampled_from(["force", "grace", "off"]))}
            mine.append(pod(f"mine-{i}", node=f"n{i}", chips=(1, 2, 3), owner=owner, labels=labels, rank=i))
    mine.append(pod("waiting", count=draw(st.sampled_from([1, 8])), owner=("AscendJob", "urgent"), priority=1000))
    agents = [agent(f"n{i}") for i in range(NODES)]
    return observed(nodes, reports, [*mine, *others], agents=agents), frozenset(one.key for one in others)


def touched(action: AnyAction) -> str:
    """The pod that an action ends, starts or changes; empty where it is about none."""
    match action:
        case EvictPod() | BindPod() | CreatePod():
            return f"{action.namespace}/{action.pod}"
        case DeleteObject() | PatchObject() if action.object_kind == "Pod":
            return f"{action.namespace}/{action.name}"
    return ""


BUDGET = desired(
    document("SafetyBudget", "wide", limits=[{"actions": ["EvictPod"], "per": "cluster", "max": 100, "window": "10m"}])
)


def test_a_job_in_a_namespace_of_the_system_waits_and_says_why() -> None:
    job = pod("p", namespace="kube-system", count=1, owner=("AscendJob", "j"))
    decided = plan(desired(), observed([node("n0")], [report("n0")], [job], agents=[agent("n0")]), NOW)
    (entry,) = decided.pending
    assert entry.reason == "InvalidRequest" and "namespace kube-system belongs to Kubernetes or Belay" in entry.state
    assert entry.unblock == "create the job in a namespace of its own" and decided.actions == ()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_no_action_is_about_a_pod_of_another_scheduler_or_of_the_system(case: tuple[Observed, frozenset[str]]) -> None:
    snapshot, others = case
    decided = plan(BUDGET, snapshot, NOW)
    hit = [action for action in decided.actions if touched(action) in others]
    assert hit == []
