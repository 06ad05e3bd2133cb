"""Work on nodes that people planned: by an Isolation, by `kubectl drain`, by the conditions of a node's keeper."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from belay.engine.cli import coming
from belay.engine.model.actions import EvictPod, IsolateNode, ReleaseNode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.disruption import SETTLED
from belay.engine.model.history import JobMemory
from belay.engine.model.labels import CORDONED_ANNOTATION as CORDONED
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.plan.recover.maintenance import SHUTDOWN
from tests.golden.stories import compare, sample_files, sample_world
from tests.simworld import World

JOB = "default/AscendJob/pretrain"
DOCUMENT = b"""apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: new-optics}
spec: {nodes: [NODE], reason: optics are replaced}
"""


def isolated(*nodes: str) -> dict[str, bytes]:
    """The sample repository with these nodes taken out by hand."""
    document = DOCUMENT.replace(b"NODE", ", ".join(nodes).encode())
    return sample_files() | ({"desired/maintenance.yaml": document} if nodes else {})


def placement(world: World) -> dict[str, str]:
    return {name: pod["spec"].get("nodeName", "") for name, pod in world.pods().items() if name.startswith("pretrain")}


def node(world: World, name: str) -> dict[str, Any]:
    return world.objects[ObjectKey("v1", "Node", "", name)]


def cordoned(world: World, name: str) -> bool:
    return bool(node(world, name)["spec"].get("unschedulable"))


def cordon(world: World, name: str, wanted: bool = True) -> None:
    """What `kubectl cordon` and `uncordon` write."""
    live = copy.deepcopy(node(world, name))
    live["spec"]["unschedulable"] = wanted or None
    world.put(live)


def drain(world: World, name: str) -> None:
    """What `kubectl drain` does: it cordons the node and evicts the pods on it, one by one."""
    cordon(world, name)
    for key, pod in sorted(world.objects.items()):
        if key.kind == "Pod" and pod["spec"].get("nodeName") == name:
            world.evict(key, 30)


def memory(world: World) -> JobMemory:
    return world.observer.observed().history.jobs.get(JOB, JobMemory())


def whole(world: World) -> bool:
    pods = world.pods().values()
    return len(placement(world)) == 2 and all(pod["status"]["phase"] == "Running" for pod in pods)


def started(seed: int = 0) -> tuple[World, str, str]:
    """A world whose job runs, and the nodes of its two pods."""
    world = sample_world(seed)
    world.until_quiet()
    world.story.clear()
    where = placement(world)
    return world, where["pretrain-master-0"], where["pretrain-worker-0"]


def evictions(plans: list[Plan]) -> list[EvictPod]:
    return [action for plan in plans for action in plan.actions if isinstance(action, EvictPod)]


def test_an_isolation_cordons_moves_the_gang_whole_and_gives_the_node_back(update_golden: bool) -> None:
    world, first, other = started()
    world.push(isolated(first))
    plans = world.until_quiet()

    gone = evictions(plans)
    assert {one.pod for one in gone} == {"pretrain-master-0", "pretrain-worker-0"}
    assert {(one.reason, one.force, one.budget_unit) for one in gone} == {("Maintenance", False, JOB)}
    assert whole(world) and first not in placement(world).values()
    assert cordoned(world, first) and CORDONED in node(world, first)["metadata"]["annotations"]
    assert not cordoned(world, other)

    world.push(isolated())
    back = world.until_quiet()
    compare("maintenance", world.story, update_golden)
    assert not cordoned(world, first) and CORDONED not in node(world, first)["metadata"]["annotations"]
    assert sum(isinstance(action, ReleaseNode) for plan in back for action in plan.actions) == 1


def test_planned_work_is_no_fault_no_attempt_and_no_recovery() -> None:
    world, first, _ = started()
    for nodes in ((first,), ()) * 8:  # more often than a job is rescheduled for faults
        world.push(isolated(*nodes))
        world.until_quiet()
        assert whole(world)
    kept = memory(world)
    assert (kept.reschedules, kept.records, kept.recoveries, kept.fault_nodes) == ((), (), (), ())
    assert any("moved: Maintenance: node" in text and "optics are replaced" in text for _, text in kept.timeline)


def test_a_cordon_of_others_stays_when_the_isolation_ends() -> None:
    world, first, _ = started()
    cordon(world, first)
    for files in (isolated(first), isolated()):
        world.push(files)
        world.until_quiet()
        assert cordoned(world, first) and CORDONED not in node(world, first)["metadata"]["annotations"]


def test_a_person_who_uncordons_during_an_isolation_does_not_open_the_node() -> None:
    world, first, _ = started()
    world.push(isolated(first))
    world.until_quiet()
    cordon(world, first, wanted=False)
    plans = world.until_quiet()
    again = [action for plan in plans for action in plan.actions if isinstance(action, IsolateNode)]
    assert cordoned(world, first) and [one.cordon for one in again] == [True]


def test_an_isolation_of_chips_cordons_nothing() -> None:
    world, first, _ = started()
    document = DOCUMENT.replace(b"nodes: [NODE]", b"chips: [{node: " + first.encode() + b", chips: [0]}]")
    world.push(sample_files() | {"desired/maintenance.yaml": document})
    world.until_quiet()
    assert not cordoned(world, first)


def test_a_drain_by_others_moves_the_gang_whole(update_golden: bool) -> None:
    world, first, other = started()
    drain(world, first)
    plans = world.until_quiet()
    compare("drained-by-others", world.story, update_golden)
    assert {one.pod for one in evictions(plans)} == {"pretrain-worker-0" if other != first else "pretrain-master-0"}
    assert {one.reason for one in evictions(plans)} == {"Maintenance"}
    assert whole(world) and first not in placement(world).values()
    assert cordoned(world, first), "the cordon is theirs"


def test_a_pod_that_a_person_deletes_on_an_open_node_takes_no_other_with_it() -> None:
    world, _, _ = started()
    world.evict(ObjectKey("v1", "Pod", "default", "pretrain-master-0"), 30)
    assert evictions(world.until_quiet()) == [] and whole(world)


@pytest.mark.parametrize("kind", ["DrainInProgress", "Drained", "MaintenanceInProgress"])
def test_the_conditions_of_a_nodes_keeper_move_its_jobs(kind: str) -> None:
    world, first, _ = started()

    def condition(status: str) -> None:
        live = copy.deepcopy(node(world, first))
        rest = [row for row in live["status"]["conditions"] if row["type"] != kind]
        live["status"]["conditions"] = [*rest, {"type": kind, "status": status}]
        world.put(live)

    condition("True")
    gone = evictions(world.until_quiet())
    assert {one.reason for one in gone} == {"Maintenance"} and kind in gone[0].message
    assert whole(world) and first not in placement(world).values()
    assert not cordoned(world, first), "who writes the condition cordons"

    condition("False")
    released = [a for plan in world.until_quiet() for a in plan.actions if isinstance(a, ReleaseNode)]
    assert [one.node for one in released] == [first]


def test_planned_maintenance_alone_moves_nothing() -> None:
    world, first, _ = started()
    live = copy.deepcopy(node(world, first))
    live["status"]["conditions"].append({"type": "MaintenancePlanned", "status": "True"})
    world.put(live)
    assert [action for plan in world.until_quiet() for action in plan.actions] == []


# those who remove nodes


def taint(world: World, name: str, *keys: str, effect: str = "NoSchedule") -> None:
    """The taints of a node as others set them."""
    live = copy.deepcopy(node(world, name))
    live["spec"]["taints"] = [{"key": key, "effect": effect} for key in keys]
    world.put(live)


def taints(world: World, name: str) -> list[str]:
    return [row["key"] for row in node(world, name)["spec"].get("taints") or ()]


def explained(world: World, name: str) -> str:
    result = world.plan()
    state = next(one for one in result.nodes if one.node == name)
    return "; ".join(coming.of_node(state, result, world.observer.observed()))


@pytest.mark.parametrize(
    ("key", "who"),
    [
        ("ToBeDeletedByClusterAutoscaler", "the cluster autoscaler removes this node"),
        ("node.kubernetes.io/out-of-service", "an operator declared this node shut down"),
        ("node.cloudprovider.kubernetes.io/shutdown", "the cloud controller manager found this node shut down"),
    ],
)
def test_a_taint_by_which_a_node_goes_moves_its_gang_whole(key: str, who: str) -> None:
    world, first, _ = started()
    taint(world, first, key)
    assert who in explained(world, first)
    gone = evictions(world.until_quiet())
    assert {(one.pod, one.reason) for one in gone} == {
        ("pretrain-master-0", "Maintenance"), ("pretrain-worker-0", "Maintenance"),
    }  # fmt: skip
    assert who in gone[0].message and key in gone[0].message
    assert whole(world) and first not in placement(world).values()
    assert (taints(world, first), cordoned(world, first)) == ([key], False), "theirs"
    assert memory(world).reschedules == (), "no fault, and no attempt"

    taint(world, first)  # they thought better of it
    released = [a for plan in world.until_quiet() for a in plan.actions if isinstance(a, ReleaseNode)]
    assert [one.node for one in released] == [first]


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "karpenter.sh/disruption"])
def test_karpenters_taint_moves_a_gang_once_the_node_is_deleted(key: str) -> None:
    world, first, _ = started()
    taint(world, first, key)
    assert evictions(world.until_quiet()) == [], "its replacement may fail, and the taint be taken away"
    assert f"Karpenter is about to replace or remove this node (taint {key})" in explained(world, first)

    live = copy.deepcopy(node(world, first))
    live["metadata"] |= {"deletionTimestamp": rfc3339(world.now), "finalizers": ["karpenter.sh/termination"]}
    world.put(live)
    gone = evictions(world.until_quiet())
    assert len(gone) == 2 and {one.reason for one in gone} == {"Maintenance"}
    assert whole(world) and first not in placement(world).values()


def keep(world: World, name: str, key: str) -> None:
    """Annotate the pods of the job on a node, as its template would."""
    for pod, where in placement(world).items():
        if where == name:
            live = copy.deepcopy(world.objects[ObjectKey("v1", "Pod", "default", pod)])
            live["metadata"].setdefault("annotations", {})[key] = SETTLED[key]
            world.put(live)


@pytest.mark.parametrize("key", sorted(SETTLED))
def test_a_pod_that_its_annotation_keeps_leaves_a_deleted_node_once_others_delete_it(key: str) -> None:
    world, first, _ = started()
    keep(world, first, key)
    live = copy.deepcopy(node(world, first))
    live["metadata"] |= {"deletionTimestamp": rfc3339(world.now), "finalizers": ["karpenter.sh/termination"]}
    world.put(live)
    taint(world, first, "karpenter.sh/disrupted")
    assert evictions(world.until_quiet()) == [] and first in placement(world).values()
    said = explained(world, first)
    assert "takes no new work" in said and "kept on it until one of their pods is being deleted: default/pre" in said
    assert key in said and "they move within the budgets" not in said

    for pod, where in sorted(placement(world).items()):
        if where == first:
            world.evict(ObjectKey("v1", "Pod", "default", pod), 30)
    assert {one.reason for one in evictions(world.until_quiet())} == {"Maintenance"}
    assert whole(world) and first not in placement(world).values()


def test_no_annotation_keeps_a_pod_on_a_node_that_leaves_or_that_people_empty() -> None:
    for empties in (
        lambda world, name: taint(world, name, "node.kubernetes.io/out-of-service"),
        lambda world, name: world.push(isolated(name)),
    ):
        world, first, _ = started()
        keep(world, first, "karpenter.sh/do-not-disrupt")
        empties(world, first)
        assert len(evictions(world.until_quiet())) == 2 and first not in placement(world).values()


def test_an_eviction_from_a_node_that_others_tainted_moves_the_gang_whole() -> None:
    world, first, other = started()
    taint(world, first, "karpenter.sh/disrupted")
    world.until_quiet()
    for key, pod in sorted(world.objects.items()):
        if key.kind == "Pod" and pod["spec"].get("nodeName") == first:
            world.evict(key, 30)
    gone = evictions(world.until_quiet())
    assert {one.pod for one in gone} == {"pretrain-worker-0" if other != first else "pretrain-master-0"}
    assert whole(world) and first not in placement(world).values()


@pytest.mark.parametrize("key", ["node.kubernetes.io/memory-pressure", "node.kubernetes.io/unschedulable"])
def test_taints_that_pass_make_no_drain_of_a_deleted_pod(key: str) -> None:
    world, first, _ = started()
    taint(world, first, key)
    for pod in sorted(placement(world)):
        if placement(world)[pod] == first:
            world.evict(ObjectKey("v1", "Pod", "default", pod), 30)
    assert evictions(world.until_quiet()) == []


def test_a_candidate_of_the_autoscaler_takes_work_last_and_keeps_what_runs() -> None:
    world, first, _ = started()
    taint(world, first, "DeletionCandidateOfClusterAutoscaler", effect="PreferNoSchedule")
    assert evictions(world.until_quiet()) == []
    assert first in placement(world).values()


# servers that are shut down or restarted


def shut_down(world: World, name: str, reason: str) -> None:
    """What kubelet does as its server shuts down: its pods end as failed, and the node is not ready."""
    for key, pod in sorted(world.objects.items()):
        if key.kind != "Pod" or pod["spec"].get("nodeName") != name:
            continue
        ended = copy.deepcopy(pod)
        exit_code = {"state": {"terminated": {"exitCode": 143, "reason": "Error"}}, "name": "ascend"}
        ended["status"] |= {"phase": "Failed", "reason": reason, "containerStatuses": [exit_code]}
        world.put(ended)
    world.readiness(world.nodes[name], False)


@pytest.mark.parametrize("reason", sorted(SHUTDOWN))
def test_a_server_that_shuts_down_moves_its_gang_whole_and_fails_no_job(reason: str) -> None:
    world, first, other = started()
    shut_down(world, first, reason)
    gone = evictions(world.until_quiet())
    assert {(one.pod, one.reason) for one in gone} == {
        ("pretrain-master-0", "Maintenance"), ("pretrain-worker-0", "Maintenance"),
    }  # fmt: skip
    assert f"was ended by the shutdown of node {first}" in gone[0].message
    assert whole(world) and first not in placement(world).values() and first != other
    job = next(obj for key, obj in world.objects.items() if key.kind == "AscendJob" and key.name == "pretrain")
    assert {row["type"] for row in job["status"]["conditions"] if row["status"] == "True"} == {"Created", "Running"}
    kept = memory(world)
    assert (kept.reschedules, kept.records, kept.fault_nodes) == ((), (), ())


@pytest.mark.parametrize("kept_by", ["its job", "a finalizer"])
def test_a_failed_pod_of_an_earlier_shutdown_moves_no_gang_that_stands_again(kept_by: str) -> None:
    world, first, _ = started()
    name = next(name for name, where in placement(world).items() if where == first)
    rest = copy.deepcopy(world.objects[ObjectKey("v1", "Pod", "default", name)])
    rest["metadata"] |= {"name": f"{name}-before", "uid": "before"}
    rest["status"] |= {"phase": "Failed", "reason": "Terminated", "containerStatuses": []}
    if kept_by == "a finalizer":
        rest["metadata"] |= {"deletionTimestamp": rfc3339(world.now), "finalizers": ["example.org/accounts"]}
    world.put(rest)

    for _ in range(3):
        world.pass_time(61.0)
        assert evictions(world.until_quiet()) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("isolate", "end", "cordon", "uncordon", "drain", "taint", "untaint")), st.integers(1, 4)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
@example(steps=[("isolate", 2), ("isolate", 3), ("isolate", 1), ("isolate", 4)], seed=2)
def test_whatever_people_do_the_gang_is_whole_and_only_our_cordon_is_taken_back(
    steps: list[tuple[str, int]], seed: int
) -> None:
    world = sample_world(seed)
    world.until_quiet()
    taken: set[str] = set()
    tainted: set[str] = set()
    for what, number in steps:
        name = f"node-{number}"
        if what in ("isolate", "end"):
            taken = taken | {name} if what == "isolate" else taken - {name}
            world.push(isolated(*sorted(taken)))
        elif what == "drain":
            drain(world, name)
        elif what in ("taint", "untaint"):
            tainted = tainted | {name} if what == "taint" else tainted - {name}
            taint(world, name, *(["maker.example.org/burn-in"] if what == "taint" else []))
        else:
            cordon(world, name, wanted=what == "cordon")
        world.step(some=0.8)
        world.pass_time(61.0)
    world.until_quiet(ceiling=60)
    for _ in range(2):  # the budget lets two nodes of four be taken out within an hour
        world.pass_time(3600.0)
        world.until_quiet(ceiling=60)

    assert whole(world) and not taken & set(placement(world).values())
    theirs = {key.name for key in world.objects if key.kind == "Node" and cordoned(world, key.name)}
    ours = {name for name in theirs if CORDONED in (node(world, name)["metadata"].get("annotations") or {})}
    assert taken <= theirs and ours <= taken
    assert {f"node-{number}" for number in range(1, 5) if taints(world, f"node-{number}")} == tainted

    world.push(isolated())
    world.until_quiet(ceiling=60)
    left = {key.name for key in world.objects if key.kind == "Node" and cordoned(world, key.name)}
    assert left == theirs - ours
    assert {f"node-{number}" for number in range(1, 5) if taints(world, f"node-{number}")} == tainted
