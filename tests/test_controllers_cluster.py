"""Node life cycle, pod clean-up, owners, and the queue and cache beneath all controllers."""

from __future__ import annotations

import asyncio
from typing import Any

from belay.engine.kube import WatchChange, resource_for
from belay.engine.model.labels import NODE_NOT_READY, NODE_UNREACHABLE
from belay.engine.model.times import rfc3339
from belay.engine.sandbox.cache import Indexer
from belay.engine.sandbox.controllers import node_lifecycle, owner_gc, pod_gc
from belay.engine.sandbox.controllers.queue import WorkQueue

NOW = 1788249600.0
Json = dict[str, Any]


def node(ready: str = "True", taints: list[Json] | None = None, since: float = NOW) -> Json:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": rfc3339(since)}]
    return {
        "metadata": {"name": "n1", "resourceVersion": "5"},
        "spec": {"taints": taints or []},
        "status": {"conditions": conditions},
    }


def pod(name: str = "p", on: str = "n1", **more: Any) -> Json:
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(NOW)}],
    }
    meta = {"namespace": "default", "name": name, "uid": f"uid-{name}", "creationTimestamp": rfc3339(NOW)}
    out: Json = {"metadata": meta, "spec": {"nodeName": on}, "status": status}
    out["spec"] |= more.get("spec", {})
    out["metadata"] |= more.get("metadata", {})
    return out


def test_a_node_that_reports_is_left_alone_and_looked_at_again() -> None:
    step = node_lifecycle.reconcile(node(), NOW - 5, [pod()], NOW, 40)
    assert step.writes == () and step.again_in == 35


def test_a_silent_node_becomes_unknown_tainted_and_its_pods_unready() -> None:
    step = node_lifecycle.reconcile(node(), NOW - 41, [pod()], NOW, 40)
    kinds = [(write.verb, write.kind) for write in step.writes]
    assert kinds == [("status", "Node"), ("patch", "Node"), ("status", "Pod")]
    ready = step.writes[0].body["status"]["conditions"][-1]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "NodeStatusUnknown")
    taints = step.writes[1].body["spec"]["taints"]
    assert {(t["key"], t["effect"]) for t in taints} == {
        (NODE_UNREACHABLE, "NoSchedule"),
        (NODE_UNREACHABLE, "NoExecute"),
    }
    assert step.again_in == node_lifecycle.DEFAULT_TOLERATION_S


def test_pods_leave_when_their_toleration_runs_out() -> None:
    taints = [
        {"key": NODE_UNREACHABLE, "effect": "NoSchedule"},
        {"key": NODE_UNREACHABLE, "effect": "NoExecute", "timeAdded": rfc3339(NOW - 60)},
    ]
    short = pod(
        "short",
        spec={"tolerations": [{"key": NODE_UNREACHABLE, "operator": "Exists", "tolerationSeconds": 30}]},
    )
    ever = pod("ever", spec={"tolerations": [{"operator": "Exists"}]})
    step = node_lifecycle.reconcile(node("Unknown", taints), NOW - 100, [short, ever, pod("plain")], NOW, 40)
    assert [w.name for w in step.writes if w.verb == "delete"] == ["short"]
    assert step.again_in == 240


def test_taints_go_when_the_node_is_back() -> None:
    taints = [
        {"key": "dedicated", "effect": "NoSchedule"},
        {"key": NODE_UNREACHABLE, "effect": "NoSchedule"},
        {"key": NODE_UNREACHABLE, "effect": "NoExecute"},
    ]
    step = node_lifecycle.reconcile(node("True", taints), NOW, [pod()], NOW, 40)
    assert [w.body["spec"]["taints"] for w in step.writes] == [[{"key": "dedicated", "effect": "NoSchedule"}]]
    tainted = node_lifecycle.reconcile(node("False"), NOW, [], NOW, 40).writes[0].body["spec"]["taints"]
    assert {t["key"] for t in tainted} == {NODE_NOT_READY}


def test_pods_of_vanished_nodes_are_failed_and_removed_after_quarantine() -> None:
    lost, kept, unplaced = (
        pod("lost", on="gone"),
        pod("kept"),
        pod("unplaced", on="", metadata={"deletionTimestamp": rfc3339(NOW)}),
    )
    early = pod_gc.reconcile([lost, kept], {"n1"}, {"gone": NOW - 10}, NOW, 40)
    assert early.writes == () and early.again_in == 30
    late = pod_gc.reconcile([lost, kept, unplaced], {"n1"}, {"gone": NOW - 40}, NOW, 40)
    assert [(w.verb, w.name, w.grace_seconds) for w in late.writes] == [
        ("status", "lost", None),
        ("delete", "lost", 0),
        ("delete", "unplaced", 0),
    ]
    assert late.writes[0].body["status"]["phase"] == "Failed"


def test_owned_objects_go_only_when_every_owner_is_dead() -> None:
    def child(name: str, *uids: str) -> Json:
        references = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": u, "uid": u} for u in uids]
        return pod(name, metadata={"ownerReferences": references}) | {"kind": "Pod", "apiVersion": "v1"}

    things = [child("a", "dead"), child("b", "dead", "alive"), child("c")]
    assert [owner.uid for owner in owner_gc.owners(things)] == ["alive", "dead"]
    assert [write.name for write in owner_gc.reconcile(things, {"dead"}).writes] == ["a"]


def test_queue_takes_each_key_once_and_later_when_asked() -> None:
    async def run() -> None:
        now = [0.0]
        queue: WorkQueue[str] = WorkQueue(lambda: now[0])
        queue.add("a")
        queue.add("a")
        queue.add_after("b", 5)
        queue.add_after("b", 50)
        assert await queue.get() == "a"
        now[0] = 5.0
        assert await queue.get() == "b"
        now[0] = 100.0
        queue.add("c")
        assert await queue.get() == "c", "b was asked for twice and is done once"
        first = queue.failed("c")
        assert 0 < first <= 20

    asyncio.run(run())


class FakeReflector:
    watermark = "0"


def seen(name: str, version: int, uid: str = "u1", **metadata: Any) -> Json:
    return pod(name, metadata={"resourceVersion": str(version), "uid": uid, **metadata})


def test_cache_holds_own_writes_until_the_watch_is_newer() -> None:
    store, reflector = Indexer(resource_for("v1", "Pod")), FakeReflector()
    owner = [{"uid": "rs", "controller": True}]
    store.record(seen("a", 10, ownerReferences=owner))
    assert [p["metadata"]["name"] for p in store.owned("rs")] == ["a"] and len(store.on_node("n1")) == 1
    store.follow(reflector, WatchChange(("default", "a"), seen("a", 9, phase="old"), "9"))  # type: ignore[arg-type]
    assert store.objects["default", "a"]["metadata"]["resourceVersion"] == "10"
    store.follow(reflector, WatchChange(("default", "a"), seen("a", 12), "12"))  # type: ignore[arg-type]
    assert store.owned("rs") == []
    store.record_deletion(seen("a", 12))
    store.follow(reflector, WatchChange(("default", "a"), seen("a", 13), "13"))  # type: ignore[arg-type]
    assert store.objects == {}, "a late event does not raise the dead"
    store.follow(reflector, WatchChange(("default", "a"), seen("a", 14, uid="u2"), "14"))  # type: ignore[arg-type]
    assert store.objects["default", "a"]["metadata"]["uid"] == "u2"


def test_cache_drops_what_the_watch_passed_without_showing() -> None:
    store, reflector = Indexer(resource_for("v1", "Pod")), FakeReflector()
    store.record(seen("ghost", 10))
    reflector.watermark = "10"
    store.progress(reflector)  # type: ignore[arg-type]
    assert store.objects, "the event may still come in this batch"
    reflector.watermark = "11"
    store.progress(reflector)  # type: ignore[arg-type]
    assert not store.objects
    store.record(seen("shown", 20))
    store.follow(reflector, WatchChange(("default", "shown"), seen("shown", 20), "20"))  # type: ignore[arg-type]
    reflector.watermark = "21"
    store.progress(reflector)  # type: ignore[arg-type]
    assert store.objects, "the watch has shown it"
