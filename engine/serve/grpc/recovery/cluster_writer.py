"""Write to the cluster for a conversation: reset ConfigMap, labels and annotations, pods, nodes.

Every write carries its precondition (uid, resourceVersion) and is tried three times. A refusal by the cluster is an
outcome, never an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from belay.engine.kube import CONFIGMAP, NODE, POD, Conflict, Kube, KubeError, NotFound, Object, resource_for
from belay.engine.log import get
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import (
    BACKUP_NEW_POD,
    FAULT_TYPE,
    IN_HOT_SWITCH_FLOW,
    NEED_OPERATOR,
    NEED_VOLCANO,
    NODE_HEALTHY_STATUS,
)
from belay.engine.model.recovery import FaultyRank
from belay.engine.model.recovery.conversation import MarkPods, Reset
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.serve.grpc.recovery.job_facts import backup_of
from belay.engine.wire import resetinfo
from belay.engine.wire.errors import WireError

_log = get("grpc.recover")
POD_GROUP: Final = resource_for("scheduling.volcano.sh/v1beta1", "PodGroup")
TRIES: Final = 3
_SIGNALS: Final = {"flush": "flush", "faults": "fault", "restart": "restart", "clear": "clear"}
_FLOW: Final = (IN_HOT_SWITCH_FLOW, NEED_OPERATOR, NEED_VOLCANO, BACKUP_NEW_POD)
#: Label value of pods whose processes failed without a hardware fault.
SOFTWARE: Final = "software"
STRESSED: Final = {NODE_HEALTHY_STATUS: "UnHealthy"}


class ClusterWriter:
    """Writes to the cluster for the recovery of jobs. ``pause`` waits between tries; ``wall`` gives Unix seconds."""

    def __init__(
        self,
        kube: Kube,
        cluster: ObservedCluster,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._pause = pause
        self._wall = wall

    async def reset(self, view: JobView | None, effect: Reset) -> bool:
        """Write the job's reset ConfigMap; False when it has none or cannot take it."""
        if view is None:
            return False
        name = resetinfo.PREFIX + view.name
        ranks = [int(rank) for rank in effect.ranks if rank.isascii() and rank.isdecimal()]

        async def once() -> bool:
            live = await self._kube.get(CONFIGMAP, name, view.namespace)
            if live is None:
                return effect.operation == "clear"
            data = resetinfo.with_signal(
                live,
                _SIGNALS[effect.operation],
                ranks,
                int(self._wall()),
                in_place=effect.restart_process,
                keeps_type=False,
            )
            if data is not None:
                await self._kube.replace(CONFIGMAP, {**live, "data": data})
            return True

        return await self._tried(f"ConfigMap {view.namespace}/{name}", once)

    async def mark_group(
        self, view: JobView | None, *, labels: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None
    ) -> bool:
        """Label or annotate the job's PodGroup, or the pod of rank 0 in a cluster without PodGroups."""
        if view is None:
            return False
        body = {"metadata": {"labels": dict(labels or {}), "annotations": dict(notes or {})}}
        if view.group:
            return await self._tried(
                f"PodGroup {view.namespace}/{view.group}",
                lambda: self._patched(POD_GROUP, view.group, view.namespace, body),
            )
        first = view.by_rank().get(0)
        if self._cluster.pod_groups or first is None:
            return False
        return await self._tried(f"pod {first.key}", lambda: self._patched(POD, first.name, first.namespace, body))

    async def mark_pods(self, view: JobView | None, effect: MarkPods, per_pod: int) -> bool:
        """Label and annotate the pods of ranks, or one pod by name; pods that are gone are skipped."""
        if view is None:
            return False
        wanted = {int(rank) // max(1, per_pod) for rank in effect.ranks if rank.isascii() and rank.isdecimal()}
        pods = [pod for rank, pod in view.by_rank().items() if rank in wanted]
        pods += [pod for pod in view.pods if pod.name == effect.pod]
        outcomes = [await self._mark(pod, effect.labels, effect.annotations) for pod in pods]
        return bool(outcomes) and all(outcomes)

    async def degrade(self, view: JobView | None, source: str) -> None:
        """Clean up after a failed hot switch: remove its annotations and have the backup pod deleted."""
        if view is None:
            return
        backup = backup_of(view, source)
        for pod in view.pods:
            if pod.name == source:
                await self._mark(pod, {}, dict.fromkeys(_FLOW, ""))
        if backup is not None:
            await self._mark(backup, {}, {NEED_OPERATOR: "delete"})

    async def isolate(self, nodes: tuple[str, ...]) -> None:
        """Keep new work off nodes on which a stress test found a fault."""
        body = {"metadata": {"annotations": STRESSED}}
        for node in nodes:
            await self._tried(f"node {node}", lambda node=node: self._patched(NODE, node, None, body))  # type: ignore[misc]

    async def _mark(self, pod: Pod, labels: Mapping[str, str], notes: Mapping[str, str]) -> bool:
        body = {
            "metadata": {
                "uid": pod.uid,
                "labels": {key: value or None for key, value in labels.items()},
                "annotations": {key: value or None for key, value in notes.items()},
            }
        }
        return await self._tried(f"pod {pod.key}", lambda: self._patched(POD, pod.name, pod.namespace, body))

    async def _patched(self, resource: Any, name: str, namespace: str | None, body: Object) -> bool:
        # By their status, whose update leaves the spec alone: a server needs no right to change images or taints.
        # Metadata of custom kinds cannot be changed so.
        subresource = "status" if resource in (POD, NODE) else None
        await self._kube.patch(resource, name, body, namespace, subresource=subresource)
        return True

    async def _tried(self, what: str, write: Callable[[], Awaitable[bool]]) -> bool:
        for attempt in range(TRIES):
            if attempt:
                await self._pause(float(attempt))
            try:
                return await write()
            except NotFound:
                return False
            except WireError as error:
                _log.warning("not written", object=what, reason=str(error))
                return False
            except Conflict:
                continue  # another writer was faster: read again
            except KubeError as error:
                _log.warning("not written", object=what, attempt=attempt + 1, reason=str(error))
        return False


def fault_labels(ranks: Iterable[FaultyRank]) -> list[MarkPods]:
    """The labels by which the planner replaces pods whose processes failed."""
    by_kind: dict[str, list[str]] = {}
    for rank in ranks:
        by_kind.setdefault("retry-fault" if rank.retryable else SOFTWARE, []).append(rank.rank)
    return [MarkPods(tuple(numbers), labels={FAULT_TYPE: value}) for value, numbers in sorted(by_kind.items())]


__all__ = ["POD_GROUP", "SOFTWARE", "ClusterWriter", "fault_labels"]
