"""Run the controllers, each with its own queue; a failure in one never stops the others."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from belay.engine.kube import Conflict, Key, KubeError, NotFound, run_all
from belay.engine.log import get
from belay.engine.sandbox.cache import RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Cache, uid_of
from belay.engine.sandbox.controllers import node_lifecycle, owner_gc, pod_gc, resource_claim, volume
from belay.engine.sandbox.controllers.executor import WriteExecutor
from belay.engine.sandbox.controllers.queue import WorkQueue
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.workloads import deployment, job, objects, replicaset, statefulset
from belay.engine.workloads.writes import Json, Reconciled, Write

_log = get("sandbox.controllers")
_ORPHAN_QUARANTINE_S = 40.0
_SWEEP_S = 20.0
_OWNER_SWEEP_S = 2.0
_CLAIM_SWEEP_S = 1.0
_SWEEP: Key = ("", "sweep")
_WORKLOADS = ("ReplicaSet", "Deployment", "StatefulSet", "Job")


class Controllers:
    """All controllers over one cache. ``clock`` is wall time in Unix seconds."""

    def __init__(self, cache: Cache, settings: SandboxSettings, clock: Callable[[], float] = time.time) -> None:
        self._cache = cache
        self._settings = settings
        self._clock = clock
        self._executor = WriteExecutor(cache)
        self._lease_moved: dict[str, tuple[str, float]] = {}
        self._missing: dict[str, float] = {}
        self._has_claims = False
        self._reconcilers: dict[str, Callable[[Key], Awaitable[Reconciled] | Reconciled]] = {
            "ReplicaSet": self._replica_set,
            "Deployment": self._deployment,
            "StatefulSet": self._stateful_set,
            "Job": self._job,
            "Node": self._node,
            "PersistentVolumeClaim": self._claim,
            "PersistentVolume": self._volume,
            "PodGC": self._pod_gc,
            "ResourceClaims": self._resource_claims,
        }
        if settings.owner_gc:
            self._reconcilers["OwnerGC"] = self._owner_gc
        self._queues: dict[str, WorkQueue[Key]] = {name: WorkQueue(time.monotonic) for name in self._reconcilers}
        for store in cache.stores.values():
            store.listeners.append(self._changed)

    async def run(self) -> None:
        """Reconcile until cancelled, beginning when every kind has been listed once."""
        await self._cache.wait_synced()
        for name in ("PodGC", "OwnerGC", "ResourceClaims"):
            if name in self._queues:
                self._queues[name].add(_SWEEP)
        await run_all(*(self._work(name) for name in self._reconcilers))

    # which change wakes which controller

    def _changed(self, kind: str, key: Key, old: Json | None, new: Json | None) -> None:
        thing = new or old
        if thing is None:
            return
        if kind in _WORKLOADS or kind == "Node":
            self._queues[kind].add(key)
        for reference in thing["metadata"].get("ownerReferences") or ():
            if reference.get("controller") and str(reference.get("kind")) in _WORKLOADS:
                self._owner_changed(str(reference["kind"]), (key[0], str(reference.get("name"))))
        if kind in ("PersistentVolumeClaim", "PersistentVolume", "StorageClass"):
            for claim in [key] if kind == "PersistentVolumeClaim" else self._cache["PersistentVolumeClaim"].objects:
                self._queues["PersistentVolumeClaim"].add(claim)
        if kind == "PersistentVolume" or (kind == "PersistentVolumeClaim" and new is None):
            for volume_key in [key] if kind == "PersistentVolume" else self._cache["PersistentVolume"].objects:
                self._queues["PersistentVolume"].add(volume_key)
        if kind == "Pod" and resource_claim.wanted(thing):
            self._queues["ResourceClaims"].add(_SWEEP)
        if kind == "Lease" and key[0] == "kube-node-lease":
            self._heartbeat(key[1], new)
        if (kind == "Node" and new is None) or (kind == "Pod" and _unplaced_and_deleting(new)):
            self._queues["PodGC"].add(_SWEEP)

    def _owner_changed(self, kind: str, key: Key) -> None:
        self._queues[kind].add(key)
        if kind == "ReplicaSet" and (replica_set := self._cache["ReplicaSet"].objects.get(key)):
            for reference in replica_set["metadata"].get("ownerReferences") or ():
                if reference.get("kind") == "Deployment":
                    self._queues["Deployment"].add((key[0], str(reference.get("name"))))

    def _heartbeat(self, node: str, lease: Json | None) -> None:
        if lease is None:
            return
        renewed = str((lease.get("spec") or {}).get("renewTime"))
        seen = self._lease_moved.get(node)
        if seen is None or seen[0] != renewed:
            self._lease_moved[node] = (renewed, self._clock())
            if self._silent(node):
                self._queues["Node"].add(("", node))

    def _silent(self, node: str) -> bool:
        found = objects.condition(self._cache["Node"].objects.get(("", node), {"metadata": {}}), "Ready")
        return bool(found and found.get("status") != "True")

    # one reconcile each

    async def _work(self, name: str) -> None:
        queue, reconcile = self._queues[name], self._reconcilers[name]
        while True:
            key = await queue.get()
            try:
                step = reconcile(key)
                if not isinstance(step, Reconciled):
                    step = await step
                failed = await self._executor.execute(step.writes)
            except KubeError as error:
                _log.warning(
                    "reconcile failed",
                    controller=name,
                    object="/".join(key),
                    reason=str(error),
                    retry_in_s=queue.failed(key),
                )
                continue
            except Exception:  # a bug in one object's reconcile must not end the controller
                _log.exception("reconcile broke", controller=name, object="/".join(key), retry_in_s=queue.failed(key))
                continue
            await self._settle(name, key, step, failed)

    async def _settle(self, name: str, key: Key, step: Reconciled, failed: list[tuple[Write, KubeError]]) -> None:
        queue = self._queues[name]
        if failed:
            write, error = failed[0]
            if name == "Deployment" and await self._collided(key, write, error):
                queue.add(key)
                return
            _log.info(
                "write refused",
                controller=name,
                object="/".join(key),
                verb=write.verb,
                reason=str(error),
                count=len(failed),
            )
            queue.failed(key)
            return
        queue.succeeded(key)
        if step.again_in is not None:
            queue.add_after(key, max(0.05, step.again_in))

    async def _collided(self, key: Key, write: Write, error: KubeError) -> bool:
        """Count a collision of two templates in one ReplicaSet name, so that the next try uses another digest."""
        if not (write.verb == "create" and isinstance(error, Conflict) and error.already_exists):
            return False
        present = self._cache["ReplicaSet"].objects.get((key[0], write.name))
        owner = self._cache["Deployment"].objects.get(key)
        if owner is None or present is None or objects.controller_uid(present) == uid_of(owner):
            return False
        return not await self._executor.execute((deployment.collided(owner),))

    def _replica_set(self, key: Key) -> Reconciled:
        thing = self._cache["ReplicaSet"].objects.get(key)
        return (
            replicaset.reconcile(thing, self._cache["Pod"].owned(uid_of(thing)), self._clock())
            if thing
            else Reconciled()
        )

    def _deployment(self, key: Key) -> Reconciled:
        thing = self._cache["Deployment"].objects.get(key)
        if thing is None:
            return Reconciled()
        sets = self._cache["ReplicaSet"].owned(uid_of(thing))
        pods = [pod for rs in sets for pod in self._cache["Pod"].owned(uid_of(rs))]
        return deployment.reconcile(thing, sets, pods, self._clock())

    def _stateful_set(self, key: Key) -> Reconciled:
        thing = self._cache["StatefulSet"].objects.get(key)
        if thing is None:
            return Reconciled()
        uid = uid_of(thing)
        return statefulset.reconcile(
            thing,
            self._cache["Pod"].owned(uid),
            self._cache["ControllerRevision"].owned(uid),
            self._clock(),
            {name for namespace, name in self._cache["PersistentVolumeClaim"].objects if namespace == key[0]},
        )

    def _claim(self, key: Key) -> Reconciled:
        claim = self._cache["PersistentVolumeClaim"].objects.get(key)
        if claim is None:
            return Reconciled()
        storage = self._cache["StorageClass"].objects.get(("", volume.class_of(claim)))
        volumes = self._cache["PersistentVolume"].objects
        return volume.reconcile(claim, storage, [volumes[name] for name in sorted(volumes)])

    def _volume(self, key: Key) -> Reconciled:
        thing = self._cache["PersistentVolume"].objects.get(key)
        return volume.offer(thing, self._cache["PersistentVolumeClaim"].objects) if thing else Reconciled()

    def _job(self, key: Key) -> Reconciled:
        thing = self._cache["Job"].objects.get(key)
        if thing is None:
            return Reconciled()
        return job.reconcile(thing, self._cache["Pod"].owned(uid_of(thing)), self._clock(), self._settings.time_scale)

    def _node(self, key: Key) -> Reconciled:
        name = key[1]
        node = self._cache["Node"].objects.get(key)
        if node is None:
            self._lease_moved.pop(name, None)
            self._missing.setdefault(name, self._clock())
            return Reconciled()
        self._missing.pop(name, None)
        # a node that never had a Lease is given the same grace from now on
        moved = self._lease_moved.setdefault(name, ("", self._clock()))[1]
        return node_lifecycle.reconcile(
            node,
            moved,
            self._cache["Pod"].on_node(name),
            self._clock(),
            self._settings.silence,
            self._settings.time_scale,
        )

    def _pod_gc(self, _: Key) -> Reconciled:
        now = self._clock()
        pods = list(self._cache["Pod"].objects.values())
        nodes = {name for _, name in self._cache["Node"].objects}
        for pod in pods:
            name = str((pod.get("spec") or {}).get("nodeName") or "")
            if name and name not in nodes:
                self._missing.setdefault(name, now)
        step = pod_gc.reconcile(pods, nodes, self._missing, now, self._settings.scaled(_ORPHAN_QUARANTINE_S, least=1.0))
        return Reconciled(step.writes, min(step.again_in if step.again_in is not None else _SWEEP_S, _SWEEP_S))

    async def _resource_claims(self, _: Key) -> Reconciled:
        """Claims are listed while pods name some, since older API servers do not serve them."""
        pods = {uid_of(pod): pod for pod in self._cache["Pod"].objects.values()}
        named = [pod for pod in pods.values() if resource_claim.wanted(pod)]
        if not named and not self._has_claims:
            return Reconciled((), _CLAIM_SWEEP_S)
        try:
            claims = (await self._cache.kube.list(RESOURCE_CLAIM)).items
            templates = (await self._cache.kube.list(RESOURCE_CLAIM_TEMPLATE)).items
        except NotFound:
            return Reconciled((), _SWEEP_S)
        self._has_claims = bool(claims)
        writes: list[Write] = []
        for pod in named:
            place = pod["metadata"]["namespace"]
            there = {one["metadata"]["name"]: one for one in templates if one["metadata"]["namespace"] == place}
            own = [one for one in claims if one["metadata"]["namespace"] == place]
            writes += resource_claim.of_pod(pod, there, own).writes
        for claim in claims:
            writes += resource_claim.of_claim(claim, pods).writes
        return Reconciled(tuple(writes), _CLAIM_SWEEP_S)

    async def _owner_gc(self, _: Key) -> Reconciled:
        kube = self._cache.kube
        candidates = [
            thing
            for kind in ("Pod", "ReplicaSet", "ControllerRevision")
            for thing in self._cache[kind].objects.values()
        ]
        for kind in ("Service", "ConfigMap"):
            candidates += (await kube.list(await kube.resource("v1", kind))).items
        dead = set()
        for owner in owner_gc.owners(candidates):
            try:
                found = await kube.get(
                    await kube.resource(owner.api_version, owner.kind), owner.name, owner.namespace or None
                )
            except NotFound:  # the kind is not served, so its objects are unknown
                continue
            if found is None or uid_of(found) != owner.uid:
                dead.add(owner.uid)
        return Reconciled(owner_gc.reconcile(candidates, dead).writes, _OWNER_SWEEP_S)


def _unplaced_and_deleting(pod: Json | None) -> bool:
    return pod is not None and objects.deleting(pod) and not (pod.get("spec") or {}).get("nodeName")
