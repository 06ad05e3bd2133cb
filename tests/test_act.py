"""Every kind of action at the edge: what it checks again, what it writes, and that repeating it changes nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from belay.engine.act import (
    SETTLE_SECONDS,
    TABLE,
    Batch,
    Edge,
    Fence,
    Refused,
    SettlingClaims,
    claim,
    claims,
    decode,
    dropped,
    run,
    split,
)
from belay.engine.act.budget import KEY, reserve
from belay.engine.act.orders import set_policy
from belay.engine.kube import CONFIGMAP, NODE, POD, KubeError, Object, resource_for
from belay.engine.kube.lease import Lease, shard_lease
from belay.engine.model import actions as act
from belay.engine.model.action_documents import document
from belay.engine.model.actions import AnyAction, Owner
from belay.engine.model.cluster import InPlaceReset
from belay.engine.model.history import History
from belay.engine.sandbox import definitions
from belay.engine.store import ActionOutcome, PassRecord
from belay.engine.wire import ledger, rankfile, resetinfo
from belay.engine.wire.gojson import check_code
from tests import worlds
from tests.loop_world import Cluster

WHY: dict[str, Any] = {"reason": "Test", "message": "a test"}
RECORD = PassRecord("p", "main", 1, "d", 1, 0.0, 30.0)
NOW = 1_800_000_000.0
DEPLOYMENT = resource_for("apps/v1", "Deployment")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("api"))
    made.lease = shard_lease(made.kube, "main", "me")  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture
def edge(cluster: Cluster) -> Edge:
    """A fresh edge whose epoch is the newest."""
    for pod in cluster.pods():
        cluster.run(cluster.kube.delete(POD, pod["metadata"]["name"], "default", grace=0))
    for config_map in cluster.run(cluster.kube.list(CONFIGMAP)).items:
        meta = config_map["metadata"]
        cluster.run(cluster.kube.delete(CONFIGMAP, meta["name"], meta["namespace"]))
    lease: Lease = cluster.lease  # type: ignore[attr-defined]
    epoch = cluster.run(lease.acquire())
    assert epoch is not None
    return Edge(cluster.kube, "main", Fence(cluster.kube, "main", epoch, seconds=0.0), now=lambda: NOW, revision="c1")


def outcomes(cluster: Cluster, edge: Edge, *actions: AnyAction) -> list[ActionOutcome]:
    result = cluster.run(run(edge, Batch(RECORD, 1, list(enumerate(actions)))))
    return result.outcomes


def words(cluster: Cluster, edge: Edge, *actions: AnyAction) -> list[str]:
    return [outcome.result for outcome in outcomes(cluster, edge, *actions)]


def bind(pod: Object, node: str = "node-1", chips: tuple[str, ...] = ("Ascend910-0",)) -> act.BindPod:
    return act.BindPod(
        **WHY,
        namespace="default",
        pod=pod["metadata"]["name"],
        node=node,
        chips=chips,
        annotations={"huawei.com/Ascend910": ",".join(chips)},
        preconditions=act.Preconditions(uid=pod["metadata"]["uid"]),
    )


def reset(epoch: int, *chips: str, **more: Any) -> act.ResetChips:
    return act.ResetChips(**WHY, node="node-1", chips=chips, epoch=epoch, out_of_band=False, **more)


def test_every_kind_of_the_contract_has_its_function() -> None:
    assert {kind.__name__ for kind in TABLE} == {kind.__name__ for kind in get_args(AnyAction)}


def test_a_binding_carries_its_chips_and_twice_is_once(cluster: Cluster, edge: Edge) -> None:
    pod = cluster.add_pod("p", 1)
    assert words(cluster, edge, bind(pod)) == ["done"]
    assert words(cluster, edge, bind(pod)) == ["unchanged"]
    assert cluster.chips() == {"node-1/Ascend910-0": ["p"]}
    assert [write.name for write in edge.writes] == ["p"]
    assert words(cluster, edge, bind(pod, "node-2")) == ["refused"]


def test_a_pod_that_is_another_by_now_is_not_bound(cluster: Cluster, edge: Edge) -> None:
    pod = cluster.add_pod("p", 1)
    cluster.run(cluster.kube.delete(POD, "p", "default", grace=0))
    assert words(cluster, edge, bind(pod)) == ["refused"]
    cluster.add_pod("p", 1)
    assert words(cluster, edge, bind(pod)) == ["refused"]
    assert cluster.bound() == set()


def test_a_pod_recreated_between_reading_and_binding_is_deleted_at_once(cluster: Cluster, edge: Edge) -> None:
    pod = cluster.add_pod("p", 1)
    kube, original = cluster.kube, cluster.kube.bind

    async def swap(ns: str, name: str, uid: str, node: str, annotations: Any = None) -> None:
        await kube.delete(POD, name, ns, grace=0)
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": ns}, "spec": pod["spec"]}
        made = await kube.create(POD, body)
        await original(ns, name, made["metadata"]["uid"], node, annotations)  # a 1.20 server ignores the wrong uid

    kube.bind = swap  # type: ignore[method-assign]
    try:
        assert words(cluster, edge, bind(pod)) == ["refused"]
    finally:
        kube.bind = original  # type: ignore[method-assign]
    live = [pod for pod in cluster.pods() if not pod["metadata"].get("deletionTimestamp")]
    assert live == []


def test_a_superseded_epoch_writes_nothing(cluster: Cluster, edge: Edge) -> None:
    pod = cluster.add_pod("p", 1)
    assert cluster.run(cluster.lease.acquire())  # type: ignore[attr-defined]
    assert words(cluster, edge, bind(pod), reset(1, "Ascend910-0")) == ["dropped", "dropped"]
    assert words(cluster, edge, reset(1, "Ascend910-0")) == ["dropped"], "nor does one that holds orders alone"
    assert cluster.bound() == set() and cluster.orders("node-1") == {}


def test_evictions_check_the_uid_and_forced_ones_take_the_grace(cluster: Cluster, edge: Edge) -> None:
    def evict(uid: str, force: bool = False) -> act.EvictPod:
        return act.EvictPod(
            **WHY,
            namespace="default",
            pod="p",
            grace_period_seconds=0,
            force=force,
            owner=None,
            budget_unit="default/Pod/p",
            preconditions=act.Preconditions(uid=uid),
        )

    pod = cluster.add_pod("p", 1)
    assert words(cluster, edge, evict("other")) == ["refused"]
    assert words(cluster, edge, evict(pod["metadata"]["uid"])) == ["done"]
    assert words(cluster, edge, evict(pod["metadata"]["uid"])) == ["unchanged"]
    second = cluster.add_pod("p", 1)
    assert words(cluster, edge, evict(second["metadata"]["uid"], force=True)) == ["done"]
    assert cluster.pods() == []


def test_pods_are_created_for_their_owner_only(cluster: Cluster, edge: Edge) -> None:
    metas = [{"name": name, "namespace": "default"} for name in ("o1", "o2")]
    owners = [cluster.create(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": m}) for m in metas]
    names = {owner["metadata"]["uid"]: owner["metadata"]["name"] for owner in owners}
    one, other = names

    def create(uid: str) -> act.CreatePod:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": names[uid], "uid": uid}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "worker-0", "namespace": "default", "ownerReferences": [owner]},
            "spec": spec,
        }
        return act.CreatePod(
            **WHY,
            namespace="default",
            pod="worker-0",
            owner=Owner("AscendJob", "job"),
            object=body,
            preconditions=act.Preconditions(owner_uid=uid),
        )

    assert words(cluster, edge, create(one)) == ["done"]
    assert words(cluster, edge, create(one)) == ["unchanged"]
    assert words(cluster, edge, create(other)) == ["refused"]


def test_actions_for_one_node_become_one_write(cluster: Cluster, edge: Edge) -> None:
    isolate = [act.IsolateChip(**WHY, node="node-1", chips=(f"Ascend910-{n}",), level="SeparateNPU") for n in range(4)]
    part = act.PartitionChip(
        **WHY, node="node-1", chip="Ascend910-7", templates=("vir04",), create=("vir04",), destroy=(), epoch=1
    )
    group = reset(7, "Ascend910-2", "Ascend910-3")
    assert words(cluster, edge, *isolate, group, part) == ["done"] * 6
    orders = cluster.orders("node-1")
    assert orders["generation"] == 1 and orders["revision"] == "c1"
    assert orders["chips"]["Ascend910-0"]["isolate"] == "SeparateNPU"
    assert orders["chips"]["Ascend910-2"]["reset"]["epoch"] == 7
    assert orders["chips"]["Ascend910-3"]["reset"]["group"] == ["Ascend910-2", "Ascend910-3"]
    assert orders["vnpu"] == {"epoch": 1, "layout": {"Ascend910-7": ["vir04"]}}
    assert orders["notAfter"] - orders["issued"] == 900_000
    stored = cluster.get(CONFIGMAP, "belay-orders-node-1", "belay-system")
    assert stored is not None
    attempts = json.loads(stored["metadata"]["annotations"]["belay.dev/reset-attempts"])
    assert attempts == {"Ascend910-2": [int(NOW * 1000)], "Ascend910-3": [int(NOW * 1000)]}
    assert words(cluster, edge, *isolate, group, part) == ["unchanged"] * 6
    release = act.ReleaseChip(**WHY, node="node-1", chips=("Ascend910-0",), level="SeparateNPU")
    assert words(cluster, edge, release, release) == ["done", "unchanged"]
    assert "Ascend910-0" not in cluster.orders("node-1")["chips"]


def test_other_orders_written_meanwhile_do_not_waste_a_reset(cluster: Cluster, edge: Edge) -> None:
    """A refused reset would have spent one of its attempts; what guards it is its epoch, the Lease and the agent."""
    assert words(cluster, edge, reset(1, "Ascend910-0")) == ["done"]
    isolate = act.IsolateChip(**WHY, node="node-1", chips=("Ascend910-4",), level="RestartNPU")
    assert words(cluster, edge, isolate) == ["done"]
    assert words(cluster, edge, reset(1, "Ascend910-4", "Ascend910-5")) == ["done"]


def test_epochs_only_grow_and_a_chip_in_use_is_not_reset(cluster: Cluster, edge: Edge) -> None:
    assert words(cluster, edge, reset(5, "Ascend910-0")) == ["done"]
    assert words(cluster, edge, reset(5, "Ascend910-0", "Ascend910-1")) == ["refused"]
    assert words(cluster, edge, reset(4, "Ascend910-0")) == ["refused"]
    assert words(cluster, edge, bind(cluster.add_pod("p", 1))) == ["done"]
    assert words(cluster, edge, reset(6, "Ascend910-0", "Ascend910-1")) == ["refused"]
    assert cluster.orders("node-1")["chips"]["Ascend910-0"]["reset"]["epoch"] == 5


def test_chips_in_use_are_healed_only_under_the_pod_that_was_named(cluster: Cluster, edge: Edge) -> None:
    pod = cluster.add_pod("p", 1)
    assert words(cluster, edge, bind(pod)) == ["done"]
    online = InPlaceReset("default/p", pod["metadata"]["uid"], "reset", heal_seconds=5, boot_seconds=90)

    def heal(epoch: int, **change: Any) -> act.ResetChips:
        under = msgspec.structs.replace(online, **change)
        return reset(epoch, "Ascend910-0", "Ascend910-1", online=under, not_before=int(NOW * 1000) + 30_000)

    assert words(cluster, edge, heal(1, uid="another")) == ["refused"]
    assert words(cluster, edge, heal(1), heal(1)) == ["done", "unchanged"]
    order = cluster.orders("node-1")["chips"]["Ascend910-1"]["reset"]
    assert (order["online"], order["notBefore"], order["left"]) == (
        msgspec.to_builtins(online),
        int(NOW * 1000) + 30_000,
        2,
    )
    assert words(cluster, edge, bind(cluster.add_pod("q", 1), chips=("Ascend910-1",))) == ["done"]
    assert words(cluster, edge, heal(2)) == ["refused"]  # another pod came onto the ring


def test_the_resets_left_are_counted_down(cluster: Cluster, edge: Edge) -> None:
    for epoch, left in ((1, 2), (2, 1), (3, 0), (4, 0)):
        edge.now = lambda at=NOW + epoch: at  # type: ignore[misc]
        assert words(cluster, edge, reset(epoch, "Ascend910-0")) == ["done"]
        assert cluster.orders("node-1")["chips"]["Ascend910-0"]["reset"]["left"] == left
    edge.now = lambda: NOW + 6 * 3600 + 5
    assert words(cluster, edge, reset(5, "Ascend910-0")) == ["done"]
    assert cluster.orders("node-1")["chips"]["Ascend910-0"]["reset"]["left"] == 2


def test_orders_that_ran_out_do_not_come_alive_with_new_ones(cluster: Cluster, edge: Edge) -> None:
    assert words(cluster, edge, reset(1, "Ascend910-0")) == ["done"]
    edge.now = lambda: NOW + 1000
    assert words(cluster, edge, reset(2, "Ascend910-4")) == ["done"]
    assert list(cluster.orders("node-1")["chips"]) == ["Ascend910-4"]


def test_many_writers_of_one_nodes_orders_all_get_through(cluster: Cluster, edge: Edge) -> None:
    async def all_at_once() -> list[Any]:
        from belay.engine.act.orders import order_chips

        isolate = [act.IsolateChip(**WHY, node="node-1", chips=(f"Ascend910-{n}",), level="L") for n in range(5)]
        return await asyncio.gather(*(order_chips(edge, "node-1", [one]) for one in isolate))

    assert cluster.run(all_at_once()) == [[True]] * 5
    assert len(cluster.orders("node-1")["chips"]) == 5 and cluster.orders("node-1")["generation"] == 5


def test_a_policy_is_named_in_the_orders_and_stays_there(cluster: Cluster, edge: Edge) -> None:
    assert cluster.run(set_policy(edge, "node-1", "gpu", "d1"))
    assert not cluster.run(set_policy(edge, "node-1", "gpu", "d1"))
    assert words(cluster, edge, reset(1, "Ascend910-0")) == ["done"]
    assert cluster.run(set_policy(edge, "node-1", "gpu", "d2"))
    orders = cluster.orders("node-1")
    assert (orders["policyDigest"], orders["generation"]) == ("d2", 3)
    assert orders["chips"]["Ascend910-0"]["reset"]["epoch"] == 1
    stored = cluster.get(CONFIGMAP, "belay-orders-node-1", "belay-system")
    assert stored is not None and stored["metadata"]["labels"]["belay.dev/pool"] == "gpu"


def test_unreadable_orders_stop_everything_for_the_node(cluster: Cluster, edge: Edge) -> None:
    meta = {"name": "belay-orders-node-1", "namespace": "belay-system"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"orders.json": "{"}}
    cluster.create(CONFIGMAP, body)
    found = outcomes(cluster, edge, reset(1, "Ascend910-0"))
    assert found[0].result == "refused" and "cannot be read" in found[0].message


def test_objects_are_applied_patched_and_deleted_under_their_uid(cluster: Cluster, edge: Edge) -> None:
    meta = {"name": "c", "namespace": "default"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "1"}}
    names: dict[str, Any] = {"api_version": "v1", "object_kind": "ConfigMap", "namespace": "default", "name": "c"}
    assert words(cluster, edge, act.CreateObject(**WHY, **names, object=body)) == ["done"]
    live = cluster.get(CONFIGMAP, "c", "default")
    assert live is not None
    uid = live["metadata"]["uid"]
    merge, same = act.PatchType.MERGE, act.Preconditions(uid=uid)
    other = act.Preconditions(uid="other")
    patch = act.PatchObject(**WHY, **names, patch={"data": {"b": "2"}}, patch_type=merge, preconditions=same)
    foreign = act.PatchObject(**WHY, **names, patch={"data": {"x": "9"}}, patch_type=merge, preconditions=other)
    apply = act.PatchObject(**WHY, **names, patch={"data": {"a": "3"}})
    assert words(cluster, edge, patch, foreign, apply) == ["done", "refused", "done"]
    live = cluster.get(CONFIGMAP, "c", "default")
    assert live is not None and live["data"] == {"a": "3", "b": "2"}
    stranger = act.DeleteObject(**WHY, **names, preconditions=other)
    own = act.DeleteObject(**WHY, **names, preconditions=same)
    awaited = act.Preconditions(uid=uid, after=(("v1", "ConfigMap", "default", "new"),))
    renamed = act.DeleteObject(**WHY, **names, preconditions=awaited)
    assert words(cluster, edge, stranger, renamed) == ["refused", "refused"]
    assert words(cluster, edge, own) == ["done"]
    assert words(cluster, edge, own) == ["unchanged"]
    assert edge.writes[-1].deleted


def test_a_patch_of_status_alone_goes_to_the_status(cluster: Cluster, edge: Edge) -> None:
    queue = resource_for("scheduling.volcano.sh/v1beta1", "Queue")
    cluster.run(definitions.ensure(cluster.kube))
    body = {"apiVersion": queue.api_version, "kind": "Queue", "metadata": {"name": "told"}, "spec": {"weight": 2}}
    cluster.create(queue, body)
    patch = act.PatchObject(
        **WHY,
        api_version=queue.api_version,
        object_kind="Queue",
        namespace="",
        name="told",
        patch={"status": {"running": 1}},
        patch_type=act.PatchType.MERGE,
    )
    assert words(cluster, edge, patch) == ["done"]
    live = cluster.get(queue, "told")
    assert live is not None and live["status"]["running"] == 1 and live["spec"]["weight"] == 2


def test_a_pod_is_marked_by_its_status_so_that_its_image_cannot_change(cluster: Cluster, edge: Edge) -> None:
    metadata = {"name": "marked", "namespace": "default"}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    live = cluster.get(POD, "marked", "default")
    assert live is not None

    def patch(uid: str, body: dict[str, Any]) -> act.PatchObject:
        return act.PatchObject(
            **WHY, api_version="v1", object_kind="Pod", namespace="default", name="marked",
            patch=body, patch_type=act.PatchType.MERGE, preconditions=act.Preconditions(uid=uid),
        )  # fmt: skip

    marks = {"metadata": {"labels": {"l": "1"}, "annotations": {"a": "2"}}}
    own = live["metadata"]["uid"]
    assert words(cluster, edge, patch(own, marks), patch("other", {"metadata": {"labels": {"l": "9"}}})) == [
        "done", "refused",
    ]  # fmt: skip
    live = cluster.get(POD, "marked", "default")
    assert live is not None and live["metadata"]["labels"]["l"] == "1" and live["metadata"]["annotations"]["a"] == "2"


def test_nodes_are_marked_and_jobs_scaled(cluster: Cluster, edge: Edge) -> None:
    cluster.ensure(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-9"}})
    isolate = act.IsolateNode(**WHY, node="node-9", level="SeparateNPU")
    release = act.ReleaseNode(**WHY, node="node-9", level="SeparateNPU")
    assert words(cluster, edge, isolate, isolate) == ["done", "unchanged"]
    live = cluster.get(NODE, "node-9")
    assert live is not None and live["metadata"]["annotations"]["belay.dev/isolated"] == "SeparateNPU"
    assert words(cluster, edge, release) == ["done"]
    live = cluster.get(NODE, "node-9")
    assert live is not None and "belay.dev/isolated" not in (live["metadata"].get("annotations") or {})
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": "d", "namespace": "default"}
    cluster.ensure(DEPLOYMENT, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
    scale = act.ScaleJob(**WHY, job_kind="Deployment", namespace="default", name="d", replicas=3)
    odd = act.ScaleJob(**WHY, job_kind="AscendJob", namespace="default", name="d", replicas=3)
    assert words(cluster, edge, scale, odd) == ["done", "refused"]
    deployment = cluster.get(DEPLOYMENT, "d", "default")
    assert deployment is not None and deployment["spec"]["replicas"] == 3


def test_a_node_is_cordoned_for_maintenance_and_only_our_own_cordon_is_taken_back(cluster: Cluster, edge: Edge) -> None:
    isolate = act.IsolateNode(**WHY, node="ours", level="SeparateFault", cordon=True)
    release = act.ReleaseNode(**WHY, node="ours", level="SeparateFault", uncordon=True)
    cluster.ensure(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ours"}})
    assert words(cluster, edge, isolate, isolate) == ["done", "unchanged"]
    live = cluster.get(NODE, "ours")
    assert live is not None and live["spec"]["unschedulable"] is True
    assert live["metadata"]["annotations"]["belay.dev/cordoned"] == "SeparateFault"
    assert words(cluster, edge, release, release) == ["done", "unchanged"]
    live = cluster.get(NODE, "ours")
    assert live is not None and not live.get("spec", {}).get("unschedulable")
    assert not live["metadata"].get("annotations")

    # a person ended our cordon, and cordoned the node again for reasons of their own
    assert words(cluster, edge, isolate) == ["done"]
    for wanted in (None, True):
        change = {"spec": {"unschedulable": wanted}}
        cluster.run(cluster.kube.patch(NODE, "ours", change, field_manager="kubectl-cordon"))
    assert words(cluster, edge, release, release) == ["done", "unchanged"]
    live = cluster.get(NODE, "ours")
    assert live is not None and live["spec"]["unschedulable"] is True and not live["metadata"].get("annotations")

    # cordoned by a person between the plan and the act
    theirs = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}, "spec": {"unschedulable": True}}
    cluster.ensure(NODE, theirs)
    again = [msgspec.structs.replace(one, node="theirs") for one in (isolate, release)]
    assert words(cluster, edge, *again) == ["done", "done"]
    live = cluster.get(NODE, "theirs")
    assert live is not None and live["spec"]["unschedulable"] is True and not live["metadata"].get("annotations")


def test_a_table_for_a_file_goes_to_the_agents(cluster: Cluster, edge: Edge) -> None:
    write = act.WriteRankTable(
        **WHY, namespace="default", name="j", table={"status": "completed"}, file="default.j/hccl.json",
        config_map="belay-ranktable-default.j", version="3", preconditions=act.Preconditions(job_uid="u"),
    )  # fmt: skip
    assert words(cluster, edge, write, write) == ["done", "unchanged"]
    live = cluster.get(CONFIGMAP, "belay-ranktable-default.j", "belay-system")
    assert live is not None
    assert rankfile.parse(live) == rankfile.RankFile("default", "j", '{"status":"completed"}', "3", "u")
    cleared = msgspec.structs.replace(write, table={"status": "initializing"})
    assert words(cluster, edge, cleared) == ["done"]


def test_key_pairs_are_made_at_the_edge_and_once(cluster: Cluster, edge: Edge) -> None:
    meta = {"name": "d-keys", "namespace": "default"}
    job = cluster.ensure(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    owner = act.OwnerReference("v1", "ConfigMap", "d-keys", job["metadata"]["uid"])
    body = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "d-ssh", "namespace": "default"}, "type": "Opaque",
        "data": {"config": "aGk="},
    }  # fmt: skip
    make = act.CreateObject(
        **WHY, api_version="v1", object_kind="Secret", namespace="default", name="d-ssh", object=body,
        generate=act.Generate("ssh-keys", owner),
    )  # fmt: skip
    carry_out = TABLE[act.CreateObject]
    assert cluster.run(carry_out(edge, make)) is True  # type: ignore[arg-type]
    secret = cluster.get(resource_for("v1", "Secret"), "d-ssh", "default")
    assert secret is not None and body["data"] == {"config": "aGk="}
    data = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    assert data["id_rsa"].startswith(b"-----BEGIN RSA PRIVATE KEY-----")
    assert data["id_rsa.pub"].startswith(b"ssh-rsa ") and data["authorized_keys"] == data["id_rsa.pub"]
    marked = cluster.get(CONFIGMAP, "d-keys", "default")
    assert marked is not None and marked["metadata"]["annotations"]["belay.dev/ssh-keys"] == "d-ssh"
    assert cluster.run(carry_out(edge, make)) is False  # type: ignore[arg-type]
    again = cluster.get(resource_for("v1", "Secret"), "d-ssh", "default")
    assert again is not None and again["data"] == secret["data"], "keys in use are never replaced"
    stranger = act.Generate("ssh-keys", msgspec.structs.replace(owner, uid="another-life"))
    make = msgspec.structs.replace(make, generate=stranger)
    with pytest.raises((Refused, KubeError)):
        cluster.run(carry_out(edge, make))  # type: ignore[arg-type]
    assert words(cluster, edge, make) == ["refused"], "keys of what is no Volcano Job are in no plan"


def test_rank_tables_and_signals_go_into_the_jobs_config_maps(cluster: Cluster, edge: Edge) -> None:
    for name in ("rings-config-j", "reset-config-j"):
        meta = {"name": name, "namespace": "default"}
        cluster.create(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    table = act.WriteRankTable(**WHY, namespace="default", name="j", table={"status": "completed"})
    assert words(cluster, edge, table) == ["done"]
    assert words(cluster, edge, table) == ["unchanged"]
    rings = cluster.get(CONFIGMAP, "rings-config-j", "default")
    assert rings is not None and json.loads(rings["data"]["hccl.json"]) == {"status": "completed"}
    other = act.Preconditions(uid="other")
    moved = act.WriteRankTable(**WHY, namespace="default", name="j", table={}, preconditions=other)
    nowhere = act.WriteRankTable(**WHY, namespace="default", name="none", table={})
    assert words(cluster, edge, moved, nowhere) == ["refused", "refused"]
    fault = act.SignalJob(**WHY, namespace="default", name="j", signal="fault", ranks=(1, 2))
    assert words(cluster, edge, fault) == ["done"]
    told = cluster.get(CONFIGMAP, "reset-config-j", "default")
    assert told is not None
    assert [rank["RankId"] for rank in json.loads(told["data"]["reset.json"])["RankList"]] == [1, 2]
    for signal, expected in (("gracefulExit", 1), ("clear", 0)):
        assert words(cluster, edge, act.SignalJob(**WHY, namespace="default", name="j", signal=signal, ranks=())) == [
            "done"
        ]
        told = cluster.get(CONFIGMAP, "reset-config-j", "default")
        assert told is not None and json.loads(told["data"]["reset.json"])["GracefulExit"] == expected
    assert words(cluster, edge, act.SignalJob(**WHY, namespace="default", name="j", signal="?", ranks=())) == [
        "refused"
    ]


def test_older_managers_get_an_episode_where_the_jobs_owner_requested_it(cluster: Cluster, edge: Edge) -> None:
    """``fault-config-<job>`` goes before ``reset-config-<job>``: what is cut off in between is done again whole."""
    for name in ("reset-config-old", "fault-config-old", "reset-config-new"):
        meta = {"name": name, "namespace": "default"}
        cluster.create(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})

    def tell(job: str, signal: str, ranks: tuple[int, ...]) -> list[str]:
        listed = [resetinfo.rank(r, r, status=signal, policy="reset", initial="reset") for r in ranks]
        rank_list = msgspec.convert(listed, tuple[act.RankStatus, ...]) if signal != "clear" else None
        one = act.SignalJob(**WHY, namespace="default", name=job, signal=signal, ranks=ranks, rank_list=rank_list)
        return words(cluster, edge, one)

    def told() -> list[int]:
        live = cluster.get(CONFIGMAP, "fault-config-old", "default")
        assert live is not None
        body = json.loads(live["data"]["fault-npus"])
        assert live["data"]["checkCode"] == check_code(body) and list(body) == ["FaultRank", "UpdateTime"]
        ranks: list[int] = body["FaultRank"]
        return ranks

    assert tell("old", "unrecovered", (4, 5)) == ["done"] and told() == [4, 5]
    assert tell("old", "unrecovered", (4, 5)) == ["unchanged"]
    assert tell("old", "recovered", (4, 5)) == ["done"] and told() == []
    assert tell("new", "unrecovered", (0,)) == ["done"]
    assert cluster.get(CONFIGMAP, "fault-config-new", "default") is None, "only the job's owner makes it"
    live = cluster.get(CONFIGMAP, "fault-config-old", "default")
    assert live is not None
    cluster.run(cluster.kube.replace(CONFIGMAP, live | {"data": {}}))
    assert tell("old", "clear", ()) == ["done"]
    live = cluster.get(CONFIGMAP, "fault-config-old", "default")
    assert live is not None and not live.get("data"), "without a signal there is no signal of its end"


def test_chips_are_claimed_once_and_claims_end(cluster: Cluster, edge: Edge) -> None:
    clock = [100.0]
    settling = SettlingClaims(lambda: clock[0])

    def claimed(binds: list[act.BindPod], pods: list[Any]) -> dict[str, str]:
        return cluster.run(claim(cluster.kube, "main", binds, pods, NOW, settling)).refused

    def held() -> dict[str, Any]:
        live = cluster.get(CONFIGMAP, "belay-ledger-main", "belay-system")
        return dict(ledger.parse(live)) if live else {}

    first, second = worlds.pod("a", uid="ua", node=""), worlds.pod("b", uid="ub", node="")
    ask = [
        act.BindPod(
            **WHY,
            namespace="default",
            pod=pod.name,
            node="node-1",
            chips=chips,
            annotations={},
            preconditions=act.Preconditions(uid=pod.uid),
        )
        for pod, chips in ((first, ("Ascend910-0", "Ascend910-1")), (second, ("Ascend910-1", "Ascend910-2")))
    ]
    refused = claimed(ask, [first, second])
    assert set(refused) == {"ub"} and "default/a" in refused["ub"]
    assert set(held()) == {"ua"} and held()["ua"].chips() == ("node-1/Ascend910-0", "node-1/Ascend910-1")
    assert claimed(ask[1:], [first, second]) == {"ub": refused["ub"]}, "a later pass must not take it either"
    bound = worlds.pod("a", uid="ua", node="node-1")
    assert claimed(ask[1:], [bound, second]) == {}
    assert set(held()) == {"ub"}
    claimed([], [])
    assert set(held()) == {"ub"}, "the pod has gone, a binding may be under way"
    clock[0] += SETTLE_SECONDS - 0.1
    again = msgspec.structs.replace(ask[1], preconditions=act.Preconditions(uid="again"))
    waiting = worlds.pod("b", uid="again")
    assert set(claimed([again], [waiting])) == {"again"}, "the pod made in its place would get it on these chips too"
    clock[0] += 0.1
    assert claimed([again], [waiting]) == {} and set(held()) == {"again"}


def test_chips_of_a_moved_claim_stay_claimed_while_its_binding_may_be_under_way(cluster: Cluster, edge: Edge) -> None:
    clock = [100.0]
    settling = SettlingClaims(lambda: clock[0])

    def bind(name: str, chip: int) -> act.BindPod:
        wanted = act.Preconditions(uid=f"u{name}")
        return act.BindPod(
            **WHY, namespace="default", pod=name, node="node-1", chips=(f"Ascend910-{chip}",), annotations={},
            preconditions=wanted,
        )  # fmt: skip

    def claimed(binds: list[act.BindPod], *pods: Any) -> dict[str, str]:
        return cluster.run(claim(cluster.kube, "main", binds, pods, NOW, settling)).refused

    def held() -> set[str]:
        live = cluster.get(CONFIGMAP, "belay-ledger-main", "belay-system")
        assert live is not None
        return {chip for one in ledger.parse(live).values() for chip in one.chips()}

    pods = [worlds.pod(name, uid=f"u{name}") for name in "ab"]
    assert claimed([bind("a", 0)], *pods) == claimed([bind("a", 3)], *pods) == {}
    assert held() == {"node-1/Ascend910-0", "node-1/Ascend910-3"}
    assert "default/a" in claimed([bind("b", 0)], *pods)["ub"]
    bound = worlds.pod("a", uid="ua", node="node-1")
    assert claimed([bind("a", 0)], *pods) == {}, "the pod itself may go back"
    claimed([], bound, pods[1])
    assert held() == {"node-1/Ascend910-0", "node-1/Ascend910-3"}, "bound, by one of several bindings"
    clock[0] += SETTLE_SECONDS
    claimed([], bound, pods[1])
    clock[0] += SETTLE_SECONDS
    claimed([], bound, pods[1])
    assert held() == set()


def test_a_full_ledger_keeps_gangs_whole_and_leaves_the_rest_to_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(gang: str, count: int) -> list[act.BindPod]:
        return [
            act.BindPod(
                **WHY,
                namespace="default",
                pod=f"{gang}-{index}",
                node=f"node-{gang}-{index}",
                chips=("Ascend910-0",),
                annotations={},
                preconditions=act.Preconditions(uid=f"u-{gang}-{index}"),
                gang=gang,
            )
            for index in range(count)
        ]

    one = claims._size(claims.claim_of(ask("a", 1)[0], 0))  # type: ignore[arg-type]
    monkeypatch.setattr(claims, "LIMIT", 10 * one)
    after, refused = claims._added({}, [*ask("a", 6), *ask("b", 5), *ask("c", 4)], 0)
    assert {uid.split("-")[1] for uid in after} == {"a", "c"} and len(after) == 10
    assert set(refused) == {f"u-b-{index}" for index in range(5)} and "ledger is full" in refused["u-b-0"]
    after, refused = claims._added(after, ask("b", 5), 0)
    assert len(after) == 10 and len(refused) == 5, "open claims count"
    after, refused = claims._added({}, ask("d", 15), 0)
    assert (len(after), len(refused)) == (10, 5), "what is larger than the ledger is claimed in parts"
    after, refused = claims._added({}, [*ask("a", 1), *ask("d", 15)], 0)
    assert len(after) == 1, "but not beside others"


def test_sharers_of_a_chip_need_no_claim(cluster: Cluster, edge: Edge) -> None:
    pods = [worlds.pod(name, uid=f"u{name}") for name in "ab"]
    share = {"huawei.com/scheduler.softShareDev.aicoreQuota": "50"}
    ask = [
        act.BindPod(
            **WHY,
            namespace="default",
            pod=pod.name,
            node="node-1",
            chips=("Ascend910-0",),
            annotations=share,
            preconditions=act.Preconditions(uid=pod.uid),
        )
        for pod in pods
    ]
    assert cluster.run(claim(cluster.kube, "main", ask, pods, NOW, SettlingClaims())).refused == {}


def test_a_chip_with_a_vnpu_in_use_is_neither_cut_nor_reset(cluster: Cluster, edge: Edge) -> None:
    pod = cluster.add_pod("p", 1)
    part = bind(pod, chips=("Ascend910-3",))
    part = msgspec.structs.replace(part, annotations={"huawei.com/npu-core": "3-vir05_1c_16g"}, template="vir05_1c_16g")
    assert words(cluster, edge, part) == ["done"]
    cut = act.PartitionChip(**WHY, node="node-1", chip="Ascend910-3", templates=(), create=(), destroy=(), epoch=1)
    assert words(cluster, edge, cut, reset(1, "Ascend910-2", "Ascend910-3")) == ["refused", "refused"]
    assert words(cluster, edge, msgspec.structs.replace(cut, chip="Ascend910-1")) == ["done"]


def test_budgets_are_reserved_only_on_what_the_plan_saw(cluster: Cluster, edge: Edge) -> None:
    after = History(budgets={"b#0/cluster/": ((5, "gang", 1),)})
    write = cluster.run(reserve(cluster.kube, "main", History(), after, "", NOW))
    assert write is not None
    live = cluster.get(CONFIGMAP, "belay-budget", "belay-system")
    assert live is not None and "b#0/cluster/" in json.loads(live["data"][KEY])
    with pytest.raises(Refused):
        cluster.run(reserve(cluster.kube, "other", History(), after, "", NOW))
    assert cluster.run(reserve(cluster.kube, "other", History(), after, write.rv, NOW)) is not None
    assert cluster.run(reserve(cluster.kube, "main", after, after, "whatever", NOW)) is None


def test_batches_keep_the_order_and_survive_the_wire() -> None:
    many: list[AnyAction] = [reset(n, f"Ascend910-{n}") for n in range(25)]
    texts = split(RECORD, list(enumerate(many)), "c1", 10, 10_000_000)
    parts = [decode(text) for text in texts]
    whole = [msgspec.to_builtins(p) | {"actions": [(n, document(a)) for n, a in p.actions]} for p in parts]
    assert texts == [msgspec.json.encode(part).decode() for part in whole], "as workers of every version write and read"
    assert [len(part.actions) for part in parts] == [10, 10, 5]
    assert [part.number for part in parts] == [1, 2, 3] and {part.record.batches for part in parts} == {4}
    assert [numbered for part in parts for numbered in part.actions] == list(enumerate(many))
    assert {(part.revision, part.record.pass_id) for part in parts} == {("c1", RECORD.pass_id)}
    assert {outcome.result for outcome in dropped(parts[0], "late").outcomes} == {"dropped"}
    assert len(split(RECORD, list(enumerate(many)), "c1", 100, 300)) > 5


def test_an_api_server_that_is_away_is_an_outcome(tmp_path: Path) -> None:
    lost = Cluster(tmp_path)
    lost.run(shard_lease(lost.kube, "main", "me").acquire())
    lost.kube._transport._deadline = 0.2
    edge = Edge(lost.kube, "main", Fence(lost.kube, "main", 1))
    lost.run(lost.server.stop())
    pod: Object = {"metadata": {"name": "p", "uid": "u"}}
    assert words(lost, edge, bind(pod)) == ["failed"]


def test_a_pod_seen_deleted_gives_its_chips_back_at_once_when_its_binding_was_answered(
    cluster: Cluster, edge: Edge
) -> None:
    """Before any pass has seen it bound: its chips are not claimed for the time that a lost binding may take."""
    settling = SettlingClaims(lambda: 100.0)

    def claimed(name: str, *pods: Any) -> dict[str, str]:
        one = act.BindPod(
            **WHY, namespace="default", pod=name, node="node-1", chips=("Ascend910-0",), annotations={},
            preconditions=act.Preconditions(uid=f"u{name}"),
        )  # fmt: skip
        return cluster.run(claim(cluster.kube, "main", [one], pods, NOW, settling)).refused

    first, second, third = (worlds.pod(name, uid=f"u{name}", node="") for name in "abc")
    assert claimed("a", first) == {}
    assert set(claimed("b", second)) == {"ub"}, "nothing is known of its binding"
    settling.answer({"ua"})
    assert claimed("b", second) == {}

    assert claimed("b", second) == {}, "it is claimed for a second binding"
    settling.answer({"ub"})
    assert set(claimed("c", third)) == {"uc"}, "one answer does not show what becomes of the other binding"
