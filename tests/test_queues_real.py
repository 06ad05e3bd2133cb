"""Queues, generated PodGroups and Commands on a real kube-apiserver, with the definitions that Belay ships."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from belay.engine.act.batch import Batch, run
from belay.engine.act.edge import Edge, Fence
from belay.engine.kube import NAMESPACE, POD, Kube, Object, resource_for
from belay.engine.kube.lease import shard_lease
from belay.engine.load import load
from belay.engine.model.actions import CreateObject, DeleteObject, PatchObject
from belay.engine.observe.observed import observe
from belay.engine.observe.resources import fetch
from belay.engine.plan import plan
from belay.engine.sandbox.definitions import ensure
from belay.engine.store import PassRecord

PATIENCE = 90.0
QUEUE = resource_for("scheduling.volcano.sh/v1beta1", "Queue")
GROUP = resource_for("scheduling.volcano.sh/v1beta1", "PodGroup")
COMMAND = resource_for("bus.volcano.sh/v1alpha1", "Command")
SEEN = {"Queue", "PodGroup", "Command"}


def test_a_queue_is_made_counted_and_closed_on_the_api_server(kubeconfig: str) -> None:
    mark = uuid.uuid4().hex[:6]
    namespace = f"queues-{mark}"
    desired = load({}, revision="r1").desired

    async def passes(kube: Kube, edge: Edge, queue: str, *, asked: int = 0, **wanted: Any) -> Object:
        """Passes until the status of the queue is as wanted, and at most so many Commands are left."""
        ends = time.monotonic() + PATIENCE
        while True:
            found = await kube.get(QUEUE, queue)
            status = (found or {}).get("status") or {}
            left = len((await kube.list(COMMAND, namespace)).items)
            if found is not None and left <= asked and all(status.get(key) == value for key, value in wanted.items()):
                return found
            assert time.monotonic() < ends, f"queue {queue}: {status}, {left} Commands"
            made = plan(desired, observe(await fetch(kube)), time.time())
            objects = [a for a in made.actions if isinstance(a, CreateObject | PatchObject | DeleteObject)]
            ours = [a for a in objects if a.object_kind in SEEN and a.namespace in ("", namespace)]
            await run(edge, Batch(PassRecord("p", mark, 1, "d", 1, 0.0, 30.0), 1, list(enumerate(ours))))
            await asyncio.sleep(0.2)

    async def main() -> None:
        async with Kube.from_config(kubeconfig) as kube:
            await ensure(kube)
            for name in (namespace, "belay-system"):
                await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            epoch = await shard_lease(kube, mark, "me").acquire()
            assert epoch is not None
            edge = Edge(kube, mark, Fence(kube, mark, epoch, seconds=0.0))
            await passes(kube, edge, "default", state="Open")
            await kube.create(QUEUE, {"apiVersion": QUEUE.api_version, "kind": "Queue", "metadata": {"name": mark},
                                      "spec": {"weight": 1}})  # fmt: skip
            owner = {"apiVersion": "orchestration.aibrix.ai/v1alpha1", "kind": "RoleSet", "name": "r",
                     "uid": str(uuid.uuid4()), "controller": True}  # fmt: skip
            await kube.create(POD, {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "r-0", "namespace": namespace, "ownerReferences": [owner],
                             "annotations": {"scheduling.volcano.sh/queue-name": mark}},
                "spec": {"schedulerName": "belay", "nodeSelector": {"none": mark},
                         "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}]},
            })  # fmt: skip
            await passes(kube, edge, mark, state="Open", inqueue=1)
            group = await kube.get(GROUP, f"podgroup-{owner['uid']}", namespace)
            assert group is not None and group["spec"]["minResources"] == {"cpu": "500m"}
            found = await kube.get(QUEUE, mark)
            assert found is not None
            await kube.create(COMMAND, {
                "apiVersion": COMMAND.api_version, "kind": "Command",
                "metadata": {"name": "close", "namespace": namespace}, "action": "CloseQueue",
                "target": {"apiVersion": QUEUE.api_version, "kind": "Queue", "name": mark,
                           "uid": found["metadata"]["uid"]},
            })  # fmt: skip
            await passes(kube, edge, mark, state="Closing")
            await kube.delete(POD, "r-0", namespace, grace=0)
            await kube.delete(GROUP, f"podgroup-{owner['uid']}", namespace)
            await passes(kube, edge, mark, state="Closed", inqueue=None)
            await kube.delete(QUEUE, mark)
            await kube.delete(NAMESPACE, namespace)

    asyncio.run(main())
