"""Every pod deleted at once while a queue waits, and the same jobs again, on a real kube-apiserver 1.20.

48 servers hold 12 of 40 gangs of 4 pods, each of which takes a whole server. All pods are deleted, their PodGroups
after them, and the same gangs are created again three seconds later: freed servers are given to waiting pods that are
themselves being deleted, so chips are claimed for pods that go before a pass has seen their binding. The clock runs
from the last creation until 12 gangs are bound whole. Controller and worker run in this process, without Celery; nodes
are objects only. MindCluster's scheduler had them in its next session, an earlier Belay after 35 to 38 s (the claims
had to settle).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from belay.engine.kube import NODE, POD, Object, resource_for
from belay.engine.sandbox import definitions
from tests.bench.measure import Result, Skipped
from tests.kube_server import real_cluster
from tests.loop_world import Cluster, Loop, until
from tests.redis_server import start_redis

POD_GROUP = resource_for("scheduling.volcano.sh/v1beta1", "PodGroup")
SPACE = "default"
GANGS, SIZE, ROOM = 40, 4, 12
ROUNDS = 3
#: Seconds between the deletion and the next creation.
PAUSE = 3.0


def run() -> list[Result]:
    """Three rounds.

    Raises:
        Skipped: KUBEBUILDER_ASSETS does not name kube-apiserver and etcd.
    """
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent")
    if not (assets / "kube-apiserver").exists():
        raise Skipped("KUBEBUILDER_ASSETS does not name a folder with kube-apiserver and etcd")
    with (
        tempfile.TemporaryDirectory(prefix="belay-bench-") as folder,
        real_cluster(assets, Path(folder)) as kubeconfig,
        start_redis(Path(folder)) as redis,
    ):
        cluster = Cluster(Path(folder), kubeconfig)
        try:
            return _measure(cluster, redis.url, Path(folder))
        finally:
            cluster.close()


def _measure(cluster: Cluster, redis_url: str, folder: Path) -> list[Result]:
    again = Result(f"{GANGS} gangs deleted and created again: {ROOM} bound whole", "s", 5.0)
    torn = Result("the same: gangs bound in part", "", 0)
    again.remark = "MindCluster's scheduler: its next session"
    for one in definitions.shipped():
        if one["spec"]["names"]["kind"] == "PodGroup":
            cluster.run(cluster.kube.apply(one))
    until(lambda: cluster.run(cluster.kube.served(POD_GROUP)), what="PodGroups are served")
    for number in range(ROOM * SIZE):
        cluster.add_node(f"node-{number}")
        # what no node controller takes away here
        cluster.run(cluster.kube.patch(NODE, f"node-{number}", {"spec": {"taints": None}}))

    loop = Loop(cluster, redis_url, folder, resync=5.0, lease=15.0, claim=30.0, expiry=30.0)
    try:
        _create(cluster)
        _wait(cluster)
        for _ in range(ROUNDS):
            _delete(cluster)
            time.sleep(PAUSE)
            _create(cluster)
            began = time.monotonic()
            torn.runs.append(float(_wait(cluster)))
            again.runs.append(time.monotonic() - began)
    finally:
        loop.close()
    return [again, torn]


def _wait(cluster: Cluster) -> int:
    """Wait until as many gangs as there is room for are bound whole; how many were bound in part at the end."""
    until(lambda: sum(count == SIZE for count in _bound(cluster).values()) >= ROOM, what="every server is taken")
    return sum(0 < count < SIZE for count in _bound(cluster).values())


def _bound(cluster: Cluster) -> Counter[str]:
    """How many pods of each gang have a node."""
    found: Counter[str] = Counter()
    for pod in cluster.pods():
        if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
            found[pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]] += 1
    return found


def _create(cluster: Cluster) -> None:
    async def work() -> None:
        for gang in range(GANGS):
            await cluster.kube.create(POD_GROUP, _group(gang))
        await asyncio.gather(
            *(cluster.kube.create(POD, _pod(gang, rank)) for gang in range(GANGS) for rank in range(SIZE))
        )

    cluster.run(work())


def _delete(cluster: Cluster) -> None:
    async def work() -> None:
        names = [f"gang-{gang}-{rank}" for gang in range(GANGS) for rank in range(SIZE)]
        await asyncio.gather(*(cluster.kube.delete(POD, name, SPACE, grace=0) for name in names))
        await asyncio.gather(*(cluster.kube.delete(POD_GROUP, f"gang-{gang}", SPACE) for gang in range(GANGS)))

    cluster.run(work())


def _group(gang: int) -> Object:
    metadata = {"name": f"gang-{gang}", "namespace": SPACE}
    spec = {"minMember": SIZE}
    return {"apiVersion": POD_GROUP.api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def _pod(gang: int, rank: int) -> Object:
    sizes = {"huawei.com/Ascend910": "8"}
    container = {"name": "c", "image": "i", "resources": {"requests": sizes, "limits": sizes}}
    spec: dict[str, Any] = {"schedulerName": "belay", "containers": [container], "terminationGracePeriodSeconds": 0}
    notes = {"scheduling.k8s.io/group-name": f"gang-{gang}"}
    metadata = {"name": f"gang-{gang}-{rank}", "namespace": SPACE, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
