"""PodGroups of Kubernetes itself: as many pods as they say start together, and their condition is as upstream's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from belay.engine.act import permitted
from belay.engine.act.edge import Refused
from belay.engine.gangs.grouping import group
from belay.engine.model.actions import PatchObject
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.native_groups import NATIVE_GROUP_APIS
from belay.engine.model.plan import Plan
from tests.test_workloads import Cluster, bound, put, world_of
from tests.workload_cases import SPACE, body, names, pods_of, reference

BETA, ALPHA = NATIVE_GROUP_APIS[0], NATIVE_GROUP_APIS[-1]
GANG = {"gang": {"minCount": 5}}


def pod_group(policy: dict[str, Any], api: str = BETA, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    return body(api, "PodGroup", "g", {"schedulingPolicy": policy}, owner)


def members(count: int, owner: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    pods = pods_of(owner, names("w", count))
    for pod in pods:
        pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    return pods


def brought(servers: int, *objects: dict[str, Any]) -> tuple[Cluster, Plan]:
    world = world_of(servers)
    for one in objects:
        put(world, one)
    world.step()
    world.pass_time(10.0)
    return world, world.step()


def condition(world: Cluster, kind: str = "PodGroupInitiallyScheduled") -> tuple[str, str, str]:
    (found,) = (raw for key, raw in world.observed().objects.items() if key.kind == "PodGroup")
    rows = [row for row in found["status"].get("conditions", []) if row["type"] == kind]
    return (rows[0]["status"], rows[0]["reason"], rows[0]["message"]) if rows else ("", "", "")


@pytest.mark.parametrize("api", NATIVE_GROUP_APIS)
def test_five_that_start_together_hold_no_chip_on_four_servers(api: str) -> None:
    world, plan = brought(4, pod_group(GANG, api), *members(5))
    assert bound(world) == set(), "a gang is placed in part"
    (entry,) = plan.pending
    assert (entry.kind, entry.name, len(entry.pods)) == ("PodGroup", "g", 5)
    assert f"{SPACE}/PodGroup.scheduling.k8s.io/g" in group(world.observed())[0]

    whole, _ = brought(5, pod_group(GANG, api), *members(5))
    assert len(bound(whole)) == 5


def test_pods_beyond_the_number_may_wait_and_pods_short_of_it_wait_for_the_others() -> None:
    world, _ = brought(5, pod_group(GANG), *members(6))
    assert len(bound(world)) == 5

    short, plan = brought(5, pod_group(GANG), *members(4))
    assert bound(short) == set()
    assert [entry.name for entry in plan.pending] == ["g"]


def test_a_policy_that_demands_nothing_leaves_pods_as_they_are() -> None:
    world, _ = brought(4, pod_group({"basic": {}}), *members(5))
    assert len(bound(world)) == 4
    assert condition(world) == ("True", "Scheduled", "")


def test_pods_wait_for_a_group_that_is_not_there_yet() -> None:
    world, plan = brought(5, *members(5))
    assert bound(world) == set()
    (entry,) = plan.pending
    assert entry.reason == "PodGroupMissing" and "spec.schedulingGroup" in str(entry.unblock)

    put(world, pod_group(GANG))
    world.step()
    assert len(bound(world)) == 5


def test_a_job_that_has_its_group_made_keeps_its_name_and_the_groups_number() -> None:
    job = body("batch/v1", "Job", "train", {"parallelism": 6, "completions": 6, "completionMode": "Indexed"})
    made = pod_group(GANG)
    made["metadata"]["ownerReferences"] = [reference(job)]
    world, _ = brought(5, job, made, *members(6, job))
    assert len(bound(world)) == 5
    assert f"{SPACE}/Job.batch/train" in group(world.observed())[0]


def test_the_condition_says_why_and_then_from_then_on_that_it_was_scheduled() -> None:
    world, _ = brought(4, pod_group(GANG), *members(5))
    status, reason, message = condition(world)
    assert (status, reason) == ("False", "Unschedulable") and message
    assert not [action for action in world.plan().actions if isinstance(action, PatchObject)], "one patch is enough"

    enough, _ = brought(5, pod_group(GANG), *members(5))
    enough.step()
    assert condition(enough) == ("True", "Scheduled", "")
    enough.delete(ObjectKey("v1", "Pod", SPACE, "w-0"))
    enough.step()
    assert condition(enough) == ("True", "Scheduled", "")


def test_the_oldest_version_has_its_own_name_for_the_condition() -> None:
    world, _ = brought(4, pod_group(GANG, ALPHA), *members(5))
    assert condition(world, "PodGroupScheduled")[:2] == ("False", "Unschedulable")


def test_a_plan_writes_nothing_but_the_status_of_such_a_group() -> None:
    world = world_of(4)
    for one in (pod_group(GANG), *members(5)):
        put(world, one)
    patches = [action for action in world.plan().actions if isinstance(action, PatchObject)]
    (action,) = (action for action in patches if action.object_kind == "PodGroup")
    permitted.check(action)
    for patch in ({"spec": {"schedulingPolicy": {"basic": {}}}}, {"metadata": {"labels": {"a": "b"}}}):
        with pytest.raises(Refused):
            permitted.check(replace(action, patch=patch))
    with pytest.raises(Refused):
        permitted.check(replace(action, namespace="kube-system"))
