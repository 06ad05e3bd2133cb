"""Observed from plain objects: one parse per version, bad ones named, the last good report kept."""

from __future__ import annotations

import random
from typing import Any

import yaml

from belay.engine.cli.rights import rendered
from belay.engine.load import load
from belay.engine.model.actions import BindPod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import History
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import Observer, key_of, observe
from belay.engine.observe.workload_watches import served_kinds
from belay.engine.plan import plan
from belay.engine.status import memory_bodies
from belay.engine.wire import deviceinfo, ledger


def node(name: str, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "1", "annotations": annotations},
        "status": {
            "allocatable": {"cpu": "192", "memory": "1536Gi", "huawei.com/Ascend910": "8"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-08-02T08:00:00Z"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }


def device(name: str, free: str = "Ascend910-0", at: int = 100) -> dict[str, Any]:
    return deviceinfo.build(name, device_list={"huawei.com/Ascend910": free}, update_time=at)


def pod(name: str, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "uid": f"u-{name}", "annotations": changes.pop("annotations", {})},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "resources": {
                        "limits": {"huawei.com/Ascend910": "2", "cpu": "500m"},
                        "requests": {"memory": "1Gi"},
                    },
                },
                {"name": "d", "resources": {"requests": {"cpu": 1}}},
            ],
            "initContainers": [{"name": "i", "resources": {"requests": {"memory": "3Gi"}}}],
            **changes,
        },
        "status": {"phase": "Pending"},
    }
    return body


def test_requests_are_summed_and_init_containers_take_the_largest() -> None:
    seen = observe([pod("p")]).pods["a/p"]
    assert seen.requests == {"huawei.com/Ascend910": 2, "cpu": 1500, "memory": 3 << 30}
    assert (seen.resource, seen.count) == ("huawei.com/Ascend910", 2)


def test_the_really_allocated_chips_win_over_the_planned_ones() -> None:
    annotations = {
        "huawei.com/Ascend910": "Ascend910-0,Ascend910-1",
        "huawei.com/AscendReal": "Ascend910-4,Ascend910-5",
    }
    assert observe([pod("p", annotations=annotations)]).pods["a/p"].chips == ("Ascend910-4", "Ascend910-5")


def test_order_of_arrival_does_not_matter() -> None:
    items = [
        *(node(f"n{i}") for i in range(5)),
        *(device(f"n{i}") for i in range(5)),
        *(pod(f"p{i}") for i in range(5)),
    ]
    first = observe(items)
    random.Random(7).shuffle(items)
    second = observe(items)
    assert first == second
    assert list(second.nodes) == sorted(second.nodes)
    assert list(second.pods) == sorted(second.pods)


def test_a_refused_report_is_named_and_the_last_good_one_stays() -> None:
    observer = Observer()
    observer.put(node("n1"))
    observer.put(device("n1", at=100))
    bad = device("n1", at=200)
    bad["data"]["DeviceInfoCfg"] = bad["data"]["DeviceInfoCfg"].replace("200", "201")
    observer.put(bad)
    seen = observer.observed()
    assert seen.reports["n1"].update_time == 100
    assert "CheckCode" in seen.problems["n1"]
    assert [d.object for d in seen.diagnostics] == ["ConfigMap/kube-system/mindx-dl-deviceinfo-n1"]
    observer.put(device("n1", at=300))
    healed = observer.observed()
    assert (healed.problems, healed.diagnostics, healed.reports["n1"].update_time) == ({}, (), 300)


def test_a_record_that_was_made_for_its_writer_is_none_until_it_is_written() -> None:
    """Where RBAC alone bounds names, the installation makes reports, empty: that is no broken report."""
    observer = Observer()
    observer.put(node("n1"))
    made = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": one["metadata"]}
        for one in yaml.safe_load_all(rendered(["n1"], [], [])) if one["kind"] == "ConfigMap"
    ]  # fmt: skip
    for one in made:
        observer.put(one)
    seen = observer.observed()
    assert (seen.reports, seen.node_reports, seen.agents, seen.problems, seen.diagnostics) == ({}, {}, {}, {}, ())

    observer.put(device("n1", at=100))
    (emptied,) = [one for one in made if one["metadata"]["name"] == "mindx-dl-deviceinfo-n1"]
    observer.put(emptied)
    seen = observer.observed()
    assert seen.reports["n1"].update_time == 100
    assert seen.problems["n1"], "what was there and is empty now is refused"


def test_a_report_of_an_unknown_node_is_named() -> None:
    assert ["does not exist" in d.message for d in observe([device("ghost")]).diagnostics] == [True]


def test_a_lookalike_in_another_namespace_is_no_report() -> None:
    stray = device("n1")
    stray["metadata"]["namespace"] = "default"
    assert observe([node("n1"), stray]).reports == {}


def test_a_deleted_report_is_gone() -> None:
    observer = Observer()
    observer.put(node("n1"))
    observer.put(device("n1"))
    observer.delete(ObjectKey("v1", "ConfigMap", "kube-system", "mindx-dl-deviceinfo-n1"))
    assert observer.observed().reports == {}


def test_objects_with_fields_of_a_wrong_type_are_named_not_fatal() -> None:
    broken = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}, "spec": {"containers": 5}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q", "namespace": "a", "creationTimestamp": "soon"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "many"}}},
        node("m", baseDeviceInfos="{"),
    ]
    seen = observe(broken)
    assert len(seen.diagnostics) == 4
    assert list(seen.nodes) == ["m"], "a node does not vanish for a broken annotation"
    assert any("allocatable[cpu]" in d.field for d in seen.diagnostics)


def test_what_an_unreadable_pod_runs_on_is_not_free() -> None:
    chips, now = ",".join(f"Ascend910-{n}" for n in range(8)), 1788249600.0
    server = node("n1")
    server["status"]["allocatable"]["pods"] = "110"
    server["status"]["capacity"] = server["status"]["allocatable"]
    cluster = [server, device("n1", free=chips, at=1788249598), pod("new", schedulerName="volcano")]
    holder = pod("old", annotations={"huawei.com/AscendReal": chips}, nodeName="n1", containers=5)
    for nothing in ([], [pod("old", annotations=holder["metadata"]["annotations"], containers=5)]):
        done = plan(load({}).desired, observe([*cluster, *nothing]), now)
        assert [a.node for a in done.actions if isinstance(a, BindPod)] == ["n1"], "no pod is on a chip"
    observer = Observer()
    observer.put(pod("old"))
    for item in (*cluster, holder):
        observer.put(item)
    for seen in (observe([*cluster, holder]), observer.observed()):
        assert seen.pods["a/old"].chips == tuple(chips.split(","))
        assert [d.field for d in seen.diagnostics] == ["spec.containers"]
        done = plan(load({}).desired, seen, now)
        assert [a for a in done.actions if isinstance(a, BindPod)] == []
    observer.delete(ObjectKey("v1", "Pod", "a", "old"))
    assert "a/old" not in observer.observed().pods


def test_negative_amounts_are_refused_by_name() -> None:
    less = pod("p", containers=[{"name": "c", "resources": {"requests": {"cpu": "-500m"}}}])
    offered = node("n")
    offered["status"]["allocatable"]["huawei.com/Ascend910"] = -8
    assert [(d.object, d.field, d.message) for d in observe([less, offered]).diagnostics] == [
        ("Node/n", "status.allocatable[huawei.com/Ascend910]", "'-8' is negative"),
        ("Pod/a/p", "spec.containers[c].resources[cpu]", "'-500m' is negative"),
    ]


def test_a_jobs_memory_that_names_no_job_is_refused_by_name() -> None:
    for name in ("{}", "a/b", "a/b/c/d", "a//c", 7):
        memory = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "belay-job-x", "namespace": "belay-system"},
            "data": {"job": name, "memory.json": "{}"},
        }
        seen = observe([memory])
        assert [(d.object, d.field) for d in seen.diagnostics] == [("ConfigMap/belay-system/belay-job-x", "data.job")]
        assert plan(load({}).desired, seen, 100.0).actions == ()


def test_scheduler_arguments_come_as_text() -> None:
    conf = (
        "actions: allocate\nconfigurations:\n- name: init-params\n"
        "  arguments:\n    super-pod-size: 8\n    forceEnqueue: true\n"
    )
    cm = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"},
        "data": {"volcano-scheduler.conf": conf},
    }
    assert observe([cm]).init_params == {"super-pod-size": "8", "forceEnqueue": "true"}
    cm["data"] = {"volcano-scheduler.conf": "a: ["}
    seen = observe([cm])
    assert seen.init_params == {}
    assert "not valid YAML" in seen.diagnostics[0].message


def test_claims_of_the_ledger_are_chips_taken() -> None:
    cm = ledger.build("main", {"u-p": ledger.Claim("a/p", "n1", "Ascend910-", "3", 1)})
    assert observe([cm]).ledger == {"n1/Ascend910-0": "u-p", "n1/Ascend910-1": "u-p"}


def test_a_snapshot_does_not_change_when_the_world_does() -> None:
    observer = Observer()
    observer.put(node("n1"))
    before = observer.observed()
    observer.put(node("n2"))
    observer.delete(ObjectKey("v1", "Node", "", "n1"))
    assert list(before.nodes) == ["n1"]


def test_while_the_ledger_is_unreadable_nothing_is_placed() -> None:
    observer = Observer()
    free = ",".join(f"Ascend910-{i}" for i in range(8))
    server = node("n1")
    server["status"]["capacity"] = {**server["status"]["allocatable"], "pods": "110"}
    server["status"]["allocatable"] = server["status"]["capacity"]
    for item in (server, device("n1", free, at=1788249598), pod("p", schedulerName="volcano")):
        observer.put(item)
    desired = load({}, has_git=False).desired
    bound = [a for a in plan(desired, observer.observed(), 1788249600.0).actions if isinstance(a, BindPod)]
    assert len(bound) == 1
    broken = ledger.build("main", {})
    broken["data"]["claims.json"] = "{"
    observer.put(broken)
    result = plan(desired, observer.observed(), 1788249600.0)
    assert not any(isinstance(a, BindPod) for a in result.actions)
    assert any("nothing is placed" in d.message for d in result.diagnostics)
    observer.put(ledger.build("main", {}))
    assert any(isinstance(a, BindPod) for a in plan(desired, observer.observed(), 1788249600.0).actions)


def test_each_shard_keeps_its_own_memory_of_the_cluster() -> None:
    mine = Plan(revision="r", now=0.0, history=History(ready_drops={"a": (1,)}, policy_revision="A"))
    theirs = Plan(revision="r", now=0.0, history=History(ready_drops={"b": (2,)}, policy_revision="B"))
    written: list[dict[str, Any]] = []
    for shard, result in (("main", mine), ("edge", theirs)):
        written += memory_bodies(result, observe(written, shard), shard)
    assert [body["metadata"]["name"] for body in written] == ["belay-history", "belay-history.edge"]
    assert observe(written).history == mine.history and observe(written, "edge").history == theirs.history
    for shard, result in (("main", mine), ("edge", theirs)):
        assert memory_bodies(result, observe(written, shard), shard) == [], "and so none overwrites the other's"
    observer = Observer()
    for body in written:
        observer.put(body)
    observer.delete(key_of(written[1]))
    assert observer.observed("edge").history == History() and observer.observed().history == mine.history


def test_a_kind_is_watched_by_the_row_in_the_cluster_before_the_one_that_ships() -> None:
    def row(name: str, version: str, **spec: object) -> dict[str, object]:
        body = {"group": "jobset.x-k8s.io", "versions": [version], "kind": "JobSet", "plural": "jobsets", **spec}
        return {
            "apiVersion": "belay.dev/v1alpha1", "kind": "WorkloadKind", "metadata": {"name": name}, "spec": body,
        }  # fmt: skip

    served = [{"name": name, "served": True} for name in ("v1alpha2", "v2")]
    names = {"kind": "JobSet", "plural": "jobsets"}
    definition = {
        "kind": "CustomResourceDefinition",
        "spec": {"group": "jobset.x-k8s.io", "names": names, "scope": "Namespaced", "versions": served},
    }
    refused = row("a", "v3", together="groups")

    found = [[one.resource.api_version for one in served_kinds(objects)] for objects in (
        [definition], [row("b", "v2"), definition], [refused, definition], [refused, row("b", "v2")],
    )]  # fmt: skip

    assert found == [["jobset.x-k8s.io/v1alpha2"], ["jobset.x-k8s.io/v2"], ["jobset.x-k8s.io/v1alpha2"], []]
