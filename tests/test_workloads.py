"""Pods of every kind of workload start together or not at all; names are those of the objects that people made."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.gangs.grouping import group
from belay.engine.model.actions import EvictPod
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import key_of
from tests import workload_pages
from tests.simworld import A2, Node, World
from tests.workload_cases import SPACE, WorkloadCase, body, cases, names, pods_of, template

CASES = cases()
IDS = [case.name for case in CASES]


class Cluster(World):
    """A cluster in which only the engine moves: the tests are the controllers."""

    def move(self) -> None:
        """Nothing beside the engine."""


def world_of(servers: int, files: dict[str, bytes] | None = None) -> Cluster:
    nodes = [Node(f"n{index}", labels=A2) for index in range(servers)]
    return Cluster(files or {}, nodes)


def put(world: Cluster, thing: dict[str, Any]) -> None:
    status = {"phase": "Pending"} if thing["kind"] == "Pod" else {}
    world.put({**thing, "metadata": dict(thing["metadata"]), "status": status})


def bound(world: Cluster) -> set[str]:
    pods = world.observed().pods.values()
    return {pod.name for pod in pods if pod.node and pod.count and pod.namespace == SPACE}


def bring(world: Cluster, case: WorkloadCase) -> Plan:
    for one in [*case.objects, *case.pods]:
        put(world, one)
    world.step()
    world.pass_time(10.0)
    return world.step()


def test_the_page_is_what_the_rows_say() -> None:
    """On failure: `make reference`."""
    assert workload_pages.PAGE.read_text() == workload_pages.text()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_five_pods_on_four_servers_hold_no_chip_and_on_five_all_run(case: WorkloadCase) -> None:
    world = world_of(4)
    plan = bring(world, case)
    assert bound(world) == set(), "a gang is placed in part"

    waits = [entry for entry in plan.pending if case.pods[1]["metadata"]["name"] in entry.pods]
    assert [entry.kind for entry in waits] == [case.owner.split("/")[1].partition(".")[0]], plan.pending
    assert [entry.name for entry in waits] == [case.owner.split("/")[2]]
    gangs, _ = group(world.observed())
    assert case.owner in gangs, sorted(gangs)

    whole = world_of(5)
    bring(whole, case)
    assert len(bound(whole)) == 5, [(entry.reason, entry.message) for entry in plan.pending]
    assert not any(isinstance(action, EvictPod) for action in whole.plan().actions)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_pods_that_come_one_by_one_hold_no_chip_until_all_are_there(case: WorkloadCase) -> None:
    world = world_of(5)
    for one in case.objects:
        put(world, one)
    for index, pod in enumerate(case.pods):
        put(world, pod)
        world.step()
        chips = [one for one in case.pods[: index + 1] if one["spec"]["nodeSelector"]]
        assert len(bound(world)) in (0, 5), f"{len(bound(world))} of {len(chips)} pods hold chips"
    world.pass_time(10.0)
    world.step()
    assert len(bound(world)) == 5


@pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob"])
def test_pods_whose_object_was_not_seen_yet_wait_for_it(kind: str) -> None:
    """The kind has just come to be served, or the engine may not read it."""
    case = next(one for one in CASES if one.name == kind)
    world = world_of(4)
    for pod in case.pods[:4]:
        put(world, pod)
    world.step()
    world.pass_time(30.0)
    plan = world.step()
    assert bound(world) == set() and "was not seen yet" in " ".join(one.message for one in plan.pending)

    for one in case.objects:
        put(world, one)
    world.pass_time(60.0)
    world.step()
    assert bound(world) == set(), "its object says that a fifth one comes"
    for one in case.objects:
        world.delete(key_of(one))
    world.step()
    assert len(bound(world)) == 4, "nothing says any more that others come"


def at_once() -> dict[str, list[dict[str, Any]]]:
    """Pods of which nothing says that others come, and of kinds whose object says that they are all there."""
    deployment = body("apps/v1", "Deployment", "serve", {"replicas": 2, "template": template()})
    replica_set = body("apps/v1", "ReplicaSet", "serve-5f", {"replicas": 2, "template": template()}, deployment)
    job = body("batch/v1", "Job", "ix", {"parallelism": 2, "completions": 2, "completionMode": "Indexed"})
    tasks = [{"name": "w", "replicas": 2, "template": template()}]
    volcano = body("batch.volcano.sh/v1alpha1", "Job", "vc", {"tasks": tasks, "schedulerName": "belay"})
    step = body("argoproj.io/v1alpha1", "Workflow", "flow", {})
    replicas = {"Worker": {"replicas": 2, "template": template()}}
    torch = body("kubeflow.org/v1", "PyTorchJob", "pt", {"pytorchReplicaSpecs": replicas})
    hashed = {"pod-template-hash": "5f"}
    return {
        "a bare pod": pods_of(None, ["alone"]),
        "a pod of a step": [step, *pods_of(step, ["flow-1"])],
        "Deployment": [deployment, replica_set, *pods_of(replica_set, names("serve-5f", 2), labels=hashed)],
        "Job": [job, *pods_of(job, names("ix", 2))],
        "Volcano Job": [volcano, *pods_of(volcano, names("vc-w", 2))],
        "PyTorchJob": [torch, *pods_of(torch, names("pt-worker", 2))],
    }


@pytest.mark.parametrize("kind", sorted(at_once()))
def test_pods_that_wait_for_no_others_are_bound_in_the_first_pass(kind: str) -> None:
    world = world_of(2)
    bodies = at_once()[kind]
    for one in bodies:
        put(world, one)
    world.step()
    assert bound(world) == {one["metadata"]["name"] for one in bodies if one["kind"] == "Pod"}
