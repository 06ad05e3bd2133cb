"""Gangs: their owners, sizes, and inherited fields."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.gangs.forming import in_rank_order
from belay.engine.gangs.grouping import group
from belay.engine.model.jobs import Gang
from tests import worlds


def _object(
    kind: str, name: str, spec: dict[str, Any], *, api: str, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"namespace": "train", "name": name, "uid": f"u-{name}"} | (meta or {}),
        "spec": spec,
    }


def _only(observed: Any) -> Gang:
    gangs, _ = group(observed)
    assert len(gangs) == 1, sorted(gangs)
    return next(iter(gangs.values()))


def test_ascend_job_wants_all_replicas_unless_it_says_less() -> None:
    pods = [worlds.pod(f"j-{i}", count=8, owner=("AscendJob", "j"), rank=i) for i in (1, 0)]
    specs = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
    job = _object("AscendJob", "j", {"replicaSpecs": specs}, api="mindxdl.gitee.com/v1")
    gang = _only(worlds.observed(pods=pods, objects=[job]))
    assert (gang.key, gang.min_available, gang.replicas) == ("train/AscendJob/j", 4, 4)
    assert gang.pods == ("train/j-0", "train/j-1")
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": 2, "queue": "q", "priorityClass": "high"}}
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 900}
    gang = _only(worlds.observed(pods=pods, objects=[job, high]))
    assert (gang.min_available, gang.queue, gang.priority) == (2, "q", 900)


@pytest.mark.parametrize("known", [True, False])
def test_deployment_is_found_behind_its_replica_set(known: bool) -> None:
    pods = [
        worlds.pod(
            f"d-5f-{i}", count=1, owner=("ReplicaSet", "d-5f"), owner_api="apps/v1", labels={"pod-template-hash": "5f"}
        )
        for i in "ab"
    ]
    reference = {"kind": "Deployment", "name": "d", "uid": "u-d", "controller": True}
    above = _object("ReplicaSet", "d-5f", {"replicas": 3}, api="apps/v1", meta={"ownerReferences": [reference]})
    objects = [_object("Deployment", "d", {"replicas": 3}, api="apps/v1")] + ([above] if known else [])
    gang = _only(worlds.observed(pods=pods, objects=objects))
    assert (gang.key, gang.uid, gang.min_available) == ("train/Deployment/d", "u-d", 3)


def test_annotation_lowers_a_generated_gang_but_not_a_declared_one() -> None:
    notes = {"huawei.com/schedule_minAvailable": "2"}
    pods = [
        worlds.pod(f"d-5f-{i}", count=1, owner=("ReplicaSet", "d-5f"), owner_api="apps/v1", annotations=notes)
        for i in "abc"
    ]
    assert _only(worlds.observed(pods=pods)).min_available == 2
    bare = [worlds.pod(f"p-{i}", count=1, annotations=notes | {"scheduling.k8s.io/group-name": "g"}) for i in range(3)]
    declared = _object("PodGroup", "g", {"minMember": 3, "queue": "slow"}, api="scheduling.volcano.sh/v1beta1")
    gang = _only(worlds.observed(pods=bare, objects=[declared]))
    assert (gang.key, gang.kind, gang.min_available, gang.queue) == ("train/PodGroup/g", "PodGroup", 3, "slow")
    generated = {**declared, "spec": {"minMember": 1, "queue": "slow"}}
    assert _only(worlds.observed(pods=bare, objects=[generated])).min_available == 2


def test_ordered_stateful_set_starts_one_by_one_and_a_parallel_one_together() -> None:
    pods = [worlds.pod("s-0", count=1, owner=("StatefulSet", "s"), owner_api="apps/v1")]
    ordered = _object("StatefulSet", "s", {"replicas": 3}, api="apps/v1")
    assert _only(worlds.observed(pods=pods, objects=[ordered])).min_available == 1
    parallel = _object("StatefulSet", "s", {"replicas": 3, "podManagementPolicy": "Parallel"}, api="apps/v1")
    assert _only(worlds.observed(pods=pods, objects=[parallel])).min_available == 3


def test_pod_group_takes_precedence_over_owner_and_owner_over_pod() -> None:
    note = {"sp-block": "pod", "ra-block": "pod", "x": "pod", "scheduling.k8s.io/group-name": "g"}
    pods = [worlds.pod("j-0", count=1, owner=("AscendJob", "j"), annotations=note)]
    job = _object(
        "AscendJob", "j", {}, api="mindxdl.gitee.com/v1", meta={"annotations": {"sp-block": "job", "ra-block": "job"}}
    )
    above = _object(
        "PodGroup",
        "g",
        {"minMember": 1},
        api="scheduling.volcano.sh/v1beta1",
        meta={"annotations": {"sp-block": "group"}},
    )
    gang = _only(worlds.observed(pods=pods, objects=[job, above]))
    assert [gang.annotations[key] for key in ("sp-block", "ra-block", "x")] == ["group", "job", "pod"]


def test_labels_of_tasks_are_joined() -> None:
    pods = [
        worlds.pod(
            f"j-{task}",
            count=1,
            owner=("AscendJob", "j"),
            labels={"tor": task},
            annotations={"volcano.sh/task-spec": task},
        )
        for task in ("a", "b")
    ]
    assert _only(worlds.observed(pods=pods)).labels["tor"] == "a|b"


def test_two_job_kinds_of_one_name_stay_apart_and_daemon_pods_form_no_gang() -> None:
    pods = [
        worlds.pod("v", count=1, owner=("Job", "same"), owner_api="batch.volcano.sh/v1alpha1"),
        worlds.pod("k", count=1, owner=("Job", "same"), owner_api="batch/v1"),
        worlds.pod("d", owner=("DaemonSet", "agent"), owner_api="apps/v1", scheduler="default-scheduler"),
        worlds.pod("bare", count=1),
    ]
    gangs, gang_of = group(worlds.observed(pods=pods))
    assert sorted(gangs) == ["train/Job.batch/same", "train/Job/same", "train/Pod/bare"]
    assert "train/d" not in gang_of


def test_finished_pods_belong_to_their_gang_but_are_not_in_it() -> None:
    pods = [
        worlds.pod(f"j-{i}", node="n0", chips=[i], owner=("AscendJob", "j"), phase=p)
        for i, p in enumerate(("Succeeded", "Running"))
    ]
    gangs, gang_of = group(worlds.observed(pods=pods))
    assert gangs["train/AscendJob/j"].pods == ("train/j-1",)
    assert gang_of["train/j-0"] == "train/AscendJob/j"


def test_order_is_by_rank_then_natural_name() -> None:
    names = ["w-10", "w-2", "a"]
    pods = [worlds.pod(name) for name in names] + [worlds.pod("z", rank=0)]
    assert [pod.name for pod in in_rank_order(pods)] == ["z", "a", "w-2", "w-10"]


@pytest.mark.parametrize("api", ["batch.volcano.sh/v1alpha1", "mindxdl.gitee.com/v1"])
def test_a_job_without_its_object_starts_with_all_its_pods(api: str) -> None:
    kind = "Job" if api.startswith("batch") else "AscendJob"
    pods = [worlds.pod(f"j-w-{i}", count=1, owner=(kind, "j"), owner_api=api) for i in range(3)]
    assert _only(worlds.observed(pods=pods)).min_available == 3


def test_workloads_without_npu_and_bare_pods_start_alone() -> None:
    pods = [worlds.pod(f"d-5f-{i}", owner=("ReplicaSet", "d-5f"), owner_api="apps/v1") for i in "ab"]
    assert _only(worlds.observed(pods=pods)).min_available == 1
    assert _only(worlds.observed(pods=[worlds.pod("p", count=8)])).min_available == 1


def test_a_volcano_job_declares_its_minimum_per_job_and_task() -> None:
    tasks = [{"name": "m", "replicas": 1, "minAvailable": 1}, {"name": "w", "replicas": 4}]
    job = _object("Job", "v", {"minAvailable": 3, "tasks": tasks, "queue": "q"}, api="batch.volcano.sh/v1alpha1")
    pods = [worlds.pod("v-m-0", count=1, owner=("Job", "v"), owner_api="batch.volcano.sh/v1alpha1")]
    gang = _only(worlds.observed(pods=pods, objects=[job]))
    assert (gang.min_available, gang.replicas, gang.task_min, gang.queue) == (3, 5, {"m": 1}, "q")


def test_task_minimums_above_the_jobs_own_minimum_do_not_hold_it_back() -> None:
    """Volcano's webhook gives each task a minimum of all its pods; ``minAvailable: 1`` still starts with one."""
    tasks = [{"name": "w", "replicas": 4, "minAvailable": 4}]
    pods = [worlds.pod("v-w-0", count=1, owner=("Job", "v"), owner_api="batch.volcano.sh/v1alpha1")]
    for least, minimums in ((1, {}), (4, {"w": 4})):
        job = _object("Job", "v", {"minAvailable": least, "tasks": tasks}, api="batch.volcano.sh/v1alpha1")
        gang = _only(worlds.observed(pods=pods, objects=[job]))
        assert (gang.min_available, gang.task_min) == (least, minimums)


LWS = "leaderworkerset.sigs.k8s.io/template-revision-hash"


def test_a_rolling_stateful_set_and_a_rolling_leader_worker_set_name_their_templates_newest_first() -> None:
    def pod(index: int, labels: dict[str, str], **more: Any) -> Any:
        return worlds.pod(
            f"s-{index}", count=1 + index, owner=("StatefulSet", "s"), owner_api="apps/v1", labels=labels, **more
        )

    parallel = {"replicas": 3, "podManagementPolicy": "Parallel"}
    owner = _object("StatefulSet", "s", parallel, api="apps/v1") | {"status": {"updateRevision": "new"}}
    hashes = [{"controller-revision-hash": name} for name in ("old", "old", "new")]
    gang = _only(worlds.observed(pods=[pod(index, row) for index, row in enumerate(hashes)], objects=[owner]))
    found = [(part.template, part.pods, part.wanted) for part in gang.rollout]
    assert found == [("new", ("train/s-2",), 1), ("old", ("train/s-0", "train/s-1"), 2)]
    assert {part.key for part in gang.rollout} == {gang.key}

    both = [{**row, LWS: "one"} for row in hashes]
    gang = _only(worlds.observed(pods=[pod(index, row) for index, row in enumerate(both)], objects=[owner]))
    assert not gang.rollout, "the LeaderWorkerSet's own revision decides"


def test_workloads_that_share_a_pod_group_are_not_split_by_their_templates() -> None:
    notes = {"scheduling.k8s.io/group-name": "g"}
    pods = [
        worlds.pod(
            f"{name}-5f-a", count=1, owner=("ReplicaSet", f"{name}-5f"), owner_api="apps/v1", annotations=notes,
            labels={"pod-template-hash": f"hash-{name}"},
        )
        for name in "de"
    ]  # fmt: skip
    declared = _object("PodGroup", "g", {"minMember": 2}, api="scheduling.volcano.sh/v1beta1")
    gang = _only(worlds.observed(pods=pods, objects=[declared]))
    assert gang.kind == "PodGroup" and len(gang.pods) == 2 and not gang.rollout
