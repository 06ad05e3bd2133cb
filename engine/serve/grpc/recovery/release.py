"""Force release: ConfigMap ``cluster-system/fault-job-info`` makes the other nodes of a super-pod job release resources
that faulty chips hold.

NodeD marks the super devices that the ConfigMap names. A job's entry is written before its processes get the fault, and
removed when its recovery ends; entries of deleted jobs are removed once an hour. Source:
component/clusterd/pkg/application/recover (force release).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError, NotFound, Object
from belay.engine.log import get
from belay.engine.model.cluster import Node, Observed
from belay.engine.model.labels import NPU
from belay.engine.model.recovery.conversation import Release
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.wire import faultjob

_log = get("grpc.recover")
TRIES = 3
#: Seconds between purges of entries of deleted jobs.
PURGE = 3600.0
#: Ascend950 has no such marks.
_WITHOUT = NPU


def in_super_pod(observed: Observed, node: str) -> bool:
    """Whether the chips of a node hold resources of an A3 super pod."""
    report = observed.reports.get(node)
    return report is not None and report.super_pod_id >= 0 and report.resource != _WITHOUT


def devices(node: Node) -> tuple[str, ...]:
    """The super device ids of all chips of a node, in the order of the chips."""
    found: list[tuple[int, str]] = []
    for name, device in node.base_devices.items():
        chip, number = name.rpartition("-")[2], str(device.get("SuperDeviceID", ""))
        if chip.isascii() and chip.isdecimal() and number.isascii() and number.isdecimal():
            found.append((int(chip), number))
    return tuple(number for _, number in sorted(found))


def servers(view: JobView, observed: Observed) -> list[faultjob.JobServer]:
    """The nodes of a job as the entry needs them, in rank order."""
    found: dict[str, faultjob.JobServer] = {}
    for _, pod in sorted(view.by_rank().items()):
        node, report = observed.nodes.get(pod.node), observed.reports.get(pod.node)
        if pod.node and pod.node not in found and pod.count:
            pod_id = report.super_pod_id if report is not None else -1
            found[pod.node] = faultjob.JobServer(pod.node, pod_id, devices(node) if node is not None else ())
    return list(found.values())


class Releases:
    """Writes the entries; ``clock`` is milliseconds since 1970."""

    def __init__(self, kube: Kube, cluster: ObservedCluster, *, clock: Callable[[], int]) -> None:
        self._kube, self._cluster, self._clock = kube, cluster, clock
        self._purged = time.monotonic() - PURGE

    async def carry_out(self, job: str, view: JobView | None, effect: Release) -> bool:
        """Write a job's entry or remove it; returns whether the ConfigMap is as requested."""
        if effect.clear:
            return await self._change(lambda data: {name: text for name, text in data.items() if name != job})
        if view is None:
            return False
        per_pod = max(1, view.chips_per_pod)
        ranks = {int(rank) // per_pod for rank in effect.ranks if rank.isascii() and rank.isdecimal()}
        faulty = {pod.node for rank, pod in view.by_rank().items() if rank in ranks and pod.node}
        text = faultjob.release_entry(job, servers(view, self._cluster.observed), faulty, self._clock() // 1000)
        if not text:
            return False
        _log.info("the other nodes of the super pod release what faulty chips hold", job=job, nodes=sorted(faulty)[:20])
        return await self._change(lambda data: {**data, job: text})

    async def purge(self, *, known: Collection[str]) -> None:
        """Remove the entries of deleted jobs, once an hour."""
        if time.monotonic() - self._purged < PURGE:
            return
        self._purged = time.monotonic()
        await self._change(lambda data: faultjob.entries_of_known_jobs(data, known), create=False)

    async def _change(self, change: Callable[[Mapping[str, str]], dict[str, str]], *, create: bool = True) -> bool:
        """Read, change, and write over the version read, unless nothing changed."""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(0.2 * attempt)
            try:
                live = await self._kube.get(CONFIGMAP, faultjob.NAME, faultjob.NAMESPACE)
                before = dict((live or {}).get("data") or {})
                after = change(before)
                if after != before and (live is not None or create):
                    await self._write(live, after)
                return True
            except Conflict:
                continue  # another writer was faster: read again
            except NotFound:
                return False  # without the namespace nothing reads it
            except KubeError as error:
                _log.warning("not written", object=f"ConfigMap {faultjob.NAMESPACE}/{faultjob.NAME}", reason=str(error))
        return False

    async def _write(self, live: Object | None, data: dict[str, str]) -> None:
        if live is not None:
            await self._kube.replace(CONFIGMAP, {**live, "data": data})
            return
        metadata = {"name": faultjob.NAME, "namespace": faultjob.NAMESPACE}
        await self._kube.create(
            CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        )


__all__ = ["PURGE", "Releases", "devices", "in_super_pod", "servers"]
