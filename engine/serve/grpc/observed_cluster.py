"""The cluster as the services see it: one list+watch per kind, parsed as the planner parses it, and jobs by id.

A snapshot is made at most every quarter of a second, and only after a change that matters to jobs. After one that took
long (thousands of jobs, a busy machine) the next waits twice as long, so that calls are answered in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine import freed_memory
from belay.engine.kube import CONFIGMAP, NODE, POD, Kube, Object, Reflector, WatchChange, cancel_all, resource_for
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.labels import SERVICE_JOB_ID
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer, key_of
from belay.engine.observe.resources import Watched
from belay.engine.observe.watch_events import ChangeSignal, essence, has_heartbeats, wanted
from belay.engine.serve.grpc.grading import Grading
from belay.engine.serve.grpc.job_view import JobFaults, JobView, impact, views
from belay.engine.wire import globaltable, names, recoveryrecord

#: Least seconds between two snapshots, and the wait as a multiple of the time that the last one took.
MIN_INTERVAL: Final = 0.25
REST_FACTOR: Final = 2.0
#: Seconds between two snapshots while only heartbeats come: no service asks how old a report is.
HEARTBEAT_SECONDS: Final = 10.0
WATCHED: Final[tuple[Watched, ...]] = (
    Watched(NODE),
    Watched(POD),
    # no service reads what agents say of themselves: most of what changes in a quiet cluster
    Watched(CONFIGMAP, fields=f"metadata.namespace!={names.NODES}"),
    Watched(resource_for("v1", "Service")),
    Watched(resource_for("apps/v1", "Deployment")),
    Watched(resource_for("apps/v1", "StatefulSet")),
    Watched(resource_for("apps/v1", "ReplicaSet")),
    Watched(resource_for("mindxdl.gitee.com/v1", "AscendJob"), optional=True),
    Watched(resource_for("batch.volcano.sh/v1alpha1", "Job"), optional=True),
    Watched(resource_for("scheduling.volcano.sh/v1beta1", "PodGroup"), optional=True),
)
_OWN_PLACES: Final = frozenset({names.SYSTEM, names.RECOVERIES})
_OWN_OUTPUT: Final = (
    names.JOB_PREFIX, names.POOL_PREFIX, names.LEDGER_PREFIX, names.SYNC, names.BUDGET,
    recoveryrecord.PREFIX, names.ORDERS_PREFIX, names.POLICY_PREFIX, names.SLOW_NODES, names.SLOW_NETWORKS,
    names.FAULT_SUBSCRIBERS,
)  # fmt: skip
_DATA_TRACE: Final = "/user/cluster-info/datatrace-config"
_MINDIO_WAIT: Final = "MINDIO_WAIT_MINDX_TIME"
_MASTER_ADDR: Final = "MASTER_ADDR"


class ContainerSettings(NamedTuple):
    """Settings of a pod and its containers that the services need and the planner does not; ``account`` is the name of
    its ServiceAccount.
    """

    mindio_wait: int | None = None
    master_addr: str = ""
    data_trace: bool = False
    account: str = "default"


_NO_SETTINGS: Final = ContainerSettings()


class ObservedCluster:
    """The observed cluster, its faults graded by the policies in force. ``observed`` and ``jobs`` change together, then
    waiting tasks wake. ``cache`` keeps results from snapshot to snapshot.
    """

    def __init__(self, kube: Kube, watched: Iterable[Watched] = WATCHED) -> None:
        self.observed = Observed()
        self.jobs: dict[str, JobView] = {}
        self.version = 0
        #: Whether the newest snapshot was made after every kind was listed.
        self.whole = False
        self.cache = PlanCache()
        self._observer = Observer()
        self._grading = Grading()
        self._container_settings: dict[tuple[str, str], ContainerSettings] = {}
        self._tables: dict[tuple[str, str], Object] = {}
        self._resets: dict[tuple[str, str], Object] = {}
        self._job_faults: dict[str, JobFaults] = {}
        self._essence: dict[tuple[str, str, str], bytes] = {}
        self._signal = ChangeSignal()
        self._waiting: set[asyncio.Event] = set()
        self._listeners: list[Callable[[], None]] = []
        self._reflectors = [
            Reflector(kube, one.resource, one.namespace, one.labels, one.fields, on_change=self._take)
            for one in watched
        ]

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        tasks = [asyncio.ensure_future(one.run()) for one in self._reflectors]
        try:
            while True:
                await self._signal.wait(HEARTBEAT_SECONDS)
                begin, whole = time.monotonic(), self.whole
                self.refresh()
                if self.whole and not whole:
                    freed_memory.give_back()
                await asyncio.sleep(max(MIN_INTERVAL, REST_FACTOR * (time.monotonic() - begin)))
        finally:
            await cancel_all(*tasks)

    @property
    def synced(self) -> bool:
        """Whether every kind has been listed, or is not served."""
        return all(one.synced or one.absent for one in self._reflectors)

    @property
    def stale(self) -> bool:
        """Whether the API server did not answer the last call."""
        return any(one.stale and not one.absent for one in self._reflectors)

    @property
    def pod_groups(self) -> bool:
        """Whether the cluster serves PodGroups."""
        return any(one.res.kind == "PodGroup" and not one.absent for one in self._reflectors)

    async def wait_synced(self, seconds: float) -> bool:
        """Whether every kind was listed within ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.synced:
                    await asyncio.sleep(0.05)
        return self.synced

    def refresh(self) -> None:
        """Make the next snapshot now and call the listeners."""
        self._signal.clear()
        self.whole = self.synced
        self.observed = self._grading.of(self._observer.observed())
        self.jobs = views(self.observed, self.cache)
        self._job_faults.clear()
        self.version += 1
        for each in list(self._waiting):
            each.set()
        for listener in self._listeners:
            listener()

    def on_refresh(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every new snapshot; it must not wait."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def refreshes(self) -> Iterator[asyncio.Event]:
        """An event that every new snapshot sets, while the context lasts."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def job_faults(self, view: JobView) -> JobFaults:
        """How healthy a job is and which faults hit its ranks, derived once per snapshot."""
        known = self._job_faults.get(view.id)
        if known is None:
            known = self._job_faults[view.id] = impact(view, self.observed, self.cache)
        return known

    def container_settings(self, pod: Pod) -> ContainerSettings:
        """The settings of the pod's containers."""
        return self._container_settings.get((pod.namespace, pod.name), _NO_SETTINGS)

    def reset_config(self, namespace: str, name: str) -> Object | None:
        """A job's reset ConfigMap, as last seen."""
        return self._resets.get((namespace, name))

    def rank_tables(self, service: str) -> Sequence[Object]:
        """The rank tables' ConfigMaps with label ``jobID=<service>``, by namespace and name."""
        return [
            raw
            for _, raw in sorted(self._tables.items())
            if ((raw.get("metadata") or {}).get("labels") or {}).get(SERVICE_JOB_ID) == service
        ]

    def put(self, obj: Object) -> None:
        """Receive an object's newest state, as from a watch."""
        self._put(obj)

    def delete(self, obj: Object) -> None:
        """Remove an object that is gone."""
        self._forget(str(obj["apiVersion"]), str(obj["kind"]), *_key(obj))

    def _take(self, reflector: Reflector, change: WatchChange) -> None:
        if change.obj is None:
            self._forget(reflector.res.api_version, reflector.res.kind, *change.key)
        else:
            self._put(change.obj)

    def _put(self, obj: Object) -> None:
        kind, key = obj.get("kind"), _key(obj)
        if kind == "ConfigMap":
            name = key[1]
            if name.startswith(globaltable.PREFIX):
                self._tables[key] = obj
            elif name.startswith("reset-config-"):
                self._resets[key] = obj
            elif not wanted(obj) or (key[0] in _OWN_PLACES and name.startswith(_OWN_OUTPUT)):
                return
        elif kind == "Pod":
            self._container_settings[key] = _settings_of(obj)
        self._observer.put(obj)
        if has_heartbeats(obj) and not self._says_something_new((str(kind), *key), obj):
            self._signal.heartbeat()
        else:
            self._signal.news()

    def _says_something_new(self, key: tuple[str, str, str], obj: Object) -> bool:
        digest = essence(obj)
        before, self._essence[key] = self._essence.get(key), digest
        return digest != before

    def _forget(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        key = (namespace, name)
        self._essence.pop((kind, *key), None)
        if kind == "Pod":
            self._container_settings.pop(key, None)
        elif kind == "ConfigMap":
            self._tables.pop(key, None)
            self._resets.pop(key, None)
        metadata = {"namespace": namespace, "name": name}
        self._observer.delete(key_of({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
        self._signal.news()


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _settings_of(pod: Mapping[str, Any]) -> ContainerSettings:
    wait, address, traced = None, "", False
    spec = pod.get("spec") or {}
    account = str(spec.get("serviceAccountName") or "default")
    for container in spec.get("containers") or ():
        for row in container.get("env") or ():
            name, value = row.get("name"), str(row.get("value") or "")
            if name == _MINDIO_WAIT and value.isascii() and value.isdecimal() and len(value) <= 9:
                wait = int(value)
            elif name == _MASTER_ADDR and value:
                address = value
        mounts = container.get("volumeMounts") or ()
        traced = traced or any(str(row.get("mountPath", "")).rstrip("/") == _DATA_TRACE for row in mounts)
    found = ContainerSettings(wait, address, traced, account)
    return found if found != _NO_SETTINGS else _NO_SETTINGS


def clock_ms() -> int:
    """Return the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


__all__ = ["MIN_INTERVAL", "WATCHED", "ObservedCluster", "ContainerSettings", "clock_ms"]
