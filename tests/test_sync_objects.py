"""Git against live objects: create, patch, prune, and no action when nothing differs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from belay.engine.documents import SHIPPED, Declared, Desired, NodePool
from belay.engine.model.actions import CreateObject, DeleteObject, Evidence, PatchObject
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.observe.observed import key_of
from belay.engine.plan.sync.drift import first_difference
from belay.engine.plan.sync.objects import declared_keys
from tests.jobs import World, ascend_job, config_map, manifest, template

DIGEST = "belay.dev/applied-digest"


def deployment() -> dict[str, Any]:
    pod = template(container="main", env=[{"name": "A", "value": "1"}])
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": "vision", "labels": {"team": "a"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "train"}}, "template": pod},
    }


def namespace(name: str = "vision") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def declared(*bodies: dict[str, Any], **more: Any) -> Desired:
    manifests = sorted((manifest(body) for body in bodies), key=lambda m: m.key)
    return Desired(revision="r1", manifests=tuple(manifests), **more)


def settled(*bodies: dict[str, Any]) -> World:
    """A world in which the manifests have been applied."""
    world = World(desired=declared(*bodies))
    world.step()
    assert world.plan() == []
    return world


def test_missing_objects_are_created_in_order_of_dependency() -> None:
    world = World(desired=declared(ascend_job(), deployment(), config_map("a", {"k": "v"}), namespace()))
    actions = world.step()
    assert [a.object_kind for a in actions if isinstance(a, CreateObject)] == [
        "Namespace",
        "ConfigMap",
        "Deployment",
        "AscendJob",
    ]
    first = actions[1]
    assert isinstance(first, CreateObject)
    assert first.evidence == Evidence(rule="sync", file="desired/jobs/job.yaml", line=1, revision="r1")
    assert first.object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "belay"
    assert first.object["metadata"]["annotations"][DIGEST] == manifest(config_map("a", {"k": "v"})).digest
    assert first.object["data"] == {"k": "v"}


def test_nothing_is_synced_without_git() -> None:
    desired = declared(deployment())
    world = World(desired=Desired(has_git=False, manifests=desired.manifests))
    world.inventory = (key_of(namespace()),)
    world.put(namespace())
    assert world.plan() == []


def test_a_changed_manifest_is_applied() -> None:
    world = settled(deployment())
    changed = deployment()
    changed["spec"]["replicas"] = 3
    world.desired = declared(changed)
    (action,) = world.plan()
    assert isinstance(action, PatchObject)
    assert (action.reason, action.patch_type) == ("ManifestChanged", "apply")
    assert action.patch["spec"]["replicas"] == 3
    world.settle()


def test_an_object_created_by_hand_is_adopted() -> None:
    world = World(deployment(), desired=declared(deployment()))
    (action,) = world.plan()
    assert (action.reason, action.message.split(";")[0]) == (
        "ManifestChanged",
        "Deployment/vision/serve: it was not applied yet",
    )


def change(path: str, value: Any) -> Any:
    """Sets a field of a live object, by a path of names and list positions; ``...`` deletes it."""

    def edit(body: Any) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        for parent in parents:
            body = body.setdefault(parent, {}) if isinstance(body, dict) else body[parent]
        if value is ...:
            del body[last]
        else:
            body[last] = value

    return edit


CONTAINER = "spec/template/spec/containers/0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/replicas", 5),
        ("metadata/labels/team", "b"),
        ("metadata/labels/team", ...),
        (f"{CONTAINER}/image", "evil:1"),
        (f"{CONTAINER}/env/0/value", "2"),
        (f"{CONTAINER}/env", []),
        (f"{CONTAINER}/resources/limits", {}),
        (f"{CONTAINER}/resources", {"limits": {"huawei.com/Ascend910": "4"}}),
        ("spec/template/spec/containers", []),
    ],
)
def test_drift_of_declared_fields_is_reverted(path: str, value: Any) -> None:
    world = settled(deployment())
    world.edit("Deployment", "serve", change(path, value))
    (action,) = world.plan()
    assert isinstance(action, PatchObject)
    assert action.reason == "Drifted"
    world.objects[key_of(deployment())] = copy.deepcopy(action.patch)
    assert world.plan() == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status", {"replicas": 1}),
        ("spec/progressDeadlineSeconds", 600),
        ("metadata/labels/other", "x"),
        ("metadata/annotations/revision", "1"),
        ("metadata/managedFields", [{"manager": "x"}]),
        (f"{CONTAINER}/terminationMessagePath", "/dev/termination-log"),
        (f"{CONTAINER}/resources", {
            "limits": {"huawei.com/Ascend910": "8", "cpu": "1"}, "requests": {"huawei.com/Ascend910": "8"}}),
        (f"{CONTAINER}/env", [{"name": "B", "value": "9"}, {"name": "A", "value": "1"}]),
        ("spec/template/spec/dnsPolicy", "ClusterFirst"),
    ],
)  # fmt: skip
def test_fields_that_others_add_are_kept(path: str, value: Any) -> None:
    world = settled(deployment())
    world.edit("Deployment", "serve", change(path, value))
    assert world.plan() == []


@pytest.mark.parametrize(
    ("want", "have", "path"),
    [
        ({"resources": {"limits": {"cpu": "1000m", "memory": "1Gi"}}},
         {"resources": {"limits": {"cpu": "1", "memory": "1024Mi"}}}, ""),
        ({"resources": {"limits": {"cpu": 2}}}, {"resources": {"limits": {"cpu": "2"}}}, ""),
        ({"resources": {"limits": {"cpu": "2"}}}, {"resources": {"limits": {"cpu": "3"}}}, "spec.resources.limits.cpu"),
        ({"a": 1}, {"a": "1"}, ""),
        ({"a": True}, {"a": "true"}, "spec.a"),
        ({"a": False, "b": {}, "c": [], "d": "", "e": None}, {}, ""),
        ({"args": ["a", "b"]}, {"args": ["a"]}, "spec.args"),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, "spec.args[0]"),
        ({"ports": [{"containerPort": 80}]},
         {"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81, "protocol": "TCP"}]}, ""),
        ({"ports": [{"port": 80}]}, {"ports": [{"port": 81, "protocol": "TCP"}]}, "spec.ports[80,TCP]"),
        ({"rows": [{"x": 1}, {"x": 2}]}, {"rows": [{"x": 1, "y": 0}, {"x": 2}]}, ""),
        ({"deep": {"er": 1}}, {"deep": "x"}, "spec.deep"),
    ],
)  # fmt: skip
def test_values_are_compared_as_kubernetes_compares_them(want: Any, have: Any, path: str) -> None:
    assert first_difference({"spec": want}, {"spec": have}) == path


def test_rank_tables_are_not_reverted() -> None:
    rings = config_map("rings-config-train", {"hccl.json": '{"status":"initializing"}'})
    world = World(desired=declared(rings, ascend_job()))
    world.settle()
    world.run_all()
    world.settle()
    live = world.find("ConfigMap", "rings-config-train")
    assert "completed" in live["data"]["hccl.json"]
    changed = copy.deepcopy(rings)
    changed["metadata"]["labels"] = {"ring-controller.atlas": "ascend-910b"}
    world.desired = declared(changed, ascend_job())
    (action,) = world.plan()
    assert isinstance(action, PatchObject)
    assert "completed" in action.patch["data"]["hccl.json"]


def test_a_terminating_object_is_waited_for() -> None:
    world = settled(deployment())
    world.edit("Deployment", "serve", change("metadata/deletionTimestamp", "2026-09-01T08:00:00Z"))
    world.edit("Deployment", "serve", change("spec/replicas", 9))
    assert world.plan() == []


def pruned(*bodies: dict[str, Any], keep: dict[str, Any] | None = None) -> World:
    """A world whose inventory holds the bodies, of which Git keeps one."""
    kept = keep or config_map("kept", {})
    world = settled(kept, *bodies)
    world.inventory = declared_keys(world.desired, world.scope().observed)
    world.desired = declared(kept)
    return world


def test_undeclared_objects_are_deleted_dependents_first() -> None:
    world = pruned(deployment(), config_map("a", {}), namespace("old"))
    actions = world.plan()
    assert [(type(a), a.reason) for a in actions] == [(DeleteObject, "Pruned")] * 2
    assert [a.object_kind for a in actions if isinstance(a, DeleteObject)] == ["Deployment", "ConfigMap"]
    assert actions[0].evidence.rule == "sync"
    assert actions[0].preconditions.uid
    world.step()
    assert world.plan() == []


def test_a_renamed_object_is_deleted_once_the_new_one_exists() -> None:
    world = pruned(deployment(), config_map("a", {}))
    world.desired = declared(config_map("kept", {}), config_map("b", {}))
    deletions = {a.name: a for a in world.plan() if isinstance(a, DeleteObject)}
    assert deletions["a"].preconditions.after == (("v1", "ConfigMap", "vision", "b"),)
    assert "once ConfigMap b exists" in deletions["a"].message
    assert not deletions["serve"].preconditions.after, "nothing new is of its kind"


def test_without_an_inventory_nothing_is_pruned() -> None:
    world = pruned(deployment())
    world.inventory = None
    assert world.plan() == []


def test_pruning_can_be_refused_by_annotation() -> None:
    world = pruned(deployment())
    note = {"belay.dev/prune": "disabled"}
    world.edit("Deployment", "serve", lambda body: body["metadata"]["annotations"].update(note))
    assert world.plan() == []


def test_objects_that_belay_no_longer_manages_stay_and_are_named() -> None:
    world = pruned(deployment())
    world.edit("Deployment", "serve", lambda body: body["metadata"]["labels"].pop("app.kubernetes.io/managed-by"))
    assert world.plan() == []
    assert any("Belay no longer manages it" in line for line in world.diagnostics)


def test_a_namespace_stays_and_is_named_with_the_way_to_delete_it() -> None:
    world = pruned(namespace("vision"))
    assert world.plan() == []
    assert any("still holds objects: kubectl delete namespace vision" in line for line in world.diagnostics)
    world = pruned(namespace("lonely"))
    assert world.plan() == []
    assert any("looks empty: kubectl delete namespace lonely" in line for line in world.diagnostics)


def test_an_empty_tree_prunes_nothing() -> None:
    world = pruned(deployment())
    shipped = Declared(_pool("p"), Origin(SHIPPED + "pools.yaml"))
    world.desired = Desired(revision="r2", pools=(shipped,))
    assert world.plan() == []
    assert any("the repository declares nothing" in line for line in world.diagnostics)
    world.desired = Desired(revision="r2", pools=(Declared(_pool("p"), Origin("desired/pools.yaml")),))
    assert {a.reason for a in world.plan()} == {"Pruned"}


def _pool(name: str) -> NodePool:
    return NodePool.model_validate(
        {
            "apiVersion": "belay.dev/v1alpha1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"pool": name}}},
        }
    )


def test_belays_own_documents_are_copied_where_their_kind_is_known() -> None:
    pool = Declared(_pool("a2"), Origin("desired/pools/a2.yaml", 3))
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodepools.belay.dev"},
        "spec": {"group": "belay.dev", "names": {"kind": "NodePool"}},
    }
    world = World(desired=Desired(revision="r", pools=(pool,)))
    assert world.plan() == []
    world.put(crd)
    (action,) = world.step()
    assert isinstance(action, CreateObject)
    assert action.object["spec"] == {"selector": {"matchLabels": {"pool": "a2"}}}
    assert (action.evidence.file, action.evidence.line) == ("desired/pools/a2.yaml", 3)
    assert world.plan() == []
    world.edit("NodePool", "a2", change("spec/selector/matchLabels/pool", "hacked"))
    assert [a.reason for a in world.plan()] == ["Drifted"]
    assert declared_keys(world.desired, world.scope().observed) == (
        ObjectKey("belay.dev/v1alpha1", "NodePool", "", "a2"),
    )
