"""Pods of every kind of workload start together or not at all; names are those of the objects that people made."""

from __future__ import annotations

from typing import Any

import pytest

from engine.gangs.grouping import group
from engine.model.actions import EvictPod
from engine.model.plan import Plan
from tests import workload_pages
from tests.simworld import A2, Node, World
from tests.workload_cases import SPACE, WorkloadCase, cases

CASES = cases()
IDS = [case.name for case in CASES]


class Cluster(World):
    """A cluster in which only the engine moves: the tests are the controllers."""

    def move(self) -> None:
        """Nothing beside the engine."""


def world_of(servers: int, files: dict[str, bytes] | None = None) -> Cluster:
    nodes = [Node(f"n{index}", labels=A2) for index in range(servers)]
    return Cluster(files or {}, nodes)


def put(world: Cluster, body: dict[str, Any]) -> None:
    status = {"phase": "Pending"} if body["kind"] == "Pod" else {}
    world.put({**body, "metadata": dict(body["metadata"]), "status": status})


def bound(world: Cluster) -> set[str]:
    pods = world.observed().pods.values()
    return {pod.name for pod in pods if pod.node and pod.count and pod.namespace == SPACE}


def bring(world: Cluster, case: WorkloadCase) -> Plan:
    for body in [*case.objects, *case.pods]:
        put(world, body)
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
    for body in case.objects:
        put(world, body)
    for index, pod in enumerate(case.pods):
        put(world, pod)
        world.step()
        chips = [one for one in case.pods[: index + 1] if one["spec"]["nodeSelector"]]
        assert len(bound(world)) in (0, 5), f"{len(bound(world))} of {len(chips)} pods hold chips"
    world.pass_time(10.0)
    world.step()
    assert len(bound(world)) == 5
