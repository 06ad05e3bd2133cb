"""The sandbox's cluster on a virtual clock: its API server, its workload controllers, the engine's planner and act.

What `belay plan` foretells is compared with what happens here. Real are the API server with server-side apply, defaults
and garbage collection, the controllers, the planner and every write of ``belay.engine.act``; played are HTTP, kubelets
and the servers with their agents.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from belay.engine.act import Batch, Edge, Fence
from belay.engine.act import run as carry_out
from belay.engine.documents import Desired
from belay.engine.kube import Kube
from belay.engine.kube.endpoint import Endpoint
from belay.engine.kube.errors import from_answer
from belay.engine.kube.lease import shard_lease
from belay.engine.kube.transport import Transport
from belay.engine.load import LoadCache, load
from belay.engine.load.cluster import foreign_documents
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.observe.observed import Observer, key_of
from belay.engine.observe.resources import WATCHED
from belay.engine.observe.watch_events import slimmed
from belay.engine.plan import declared_keys, plan
from belay.engine.sandbox.api.errors import ApiError
from belay.engine.sandbox.api.store import ObjectChanged
from belay.engine.sandbox.definitions import shipped
from belay.engine.simulate import SimulatedServer
from belay.engine.status import forgotten, memory_bodies
from belay.engine.store import PassRecord
from belay.engine.wire import names, orders, sync
from belay.engine.workloads import deployment, job, objects, replicaset, statefulset
from belay.engine.workloads.writes import Reconciled, Write
from tests.sim.cluster import Api

Json = dict[str, Any]
RESYNC = 120.0
"""Seconds between two passes of a cluster at rest; duration rules last minutes."""
GRACE_OVER_TIME = 900.0
PATIENCE = 7 * 86_400.0
NAMESPACES = (names.SYSTEM, names.NODES, names.NODE_NAMESPACE, names.SCHEDULER_NAMESPACE, "kube-system", "default")
KINDS = {watched.resource.kind for watched in WATCHED}
_PLURALS = {
    "Deployment": "/apis/apps/v1/namespaces/{0}/deployments",
    "ReplicaSet": "/apis/apps/v1/namespaces/{0}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{0}/statefulsets",
    "ControllerRevision": "/apis/apps/v1/namespaces/{0}/controllerrevisions",
    "Job": "/apis/batch/v1/namespaces/{0}/jobs",
    "Pod": "/api/v1/namespaces/{0}/pods",
    "PersistentVolumeClaim": "/api/v1/namespaces/{0}/persistentvolumeclaims",
}
_DEFINITIONS = shipped()
_READ = LoadCache()


class InProcess(Transport):
    """The engine's transport, answered by the API server's core in this process."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        super().__init__(lambda: Endpoint("reference"), clock=clock)
        self._api = api

    async def open(self) -> None:
        self._endpoint = Endpoint("reference")

    async def close(self) -> None:
        return

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        withhold: bool,
        ends: float,
    ) -> Any:
        try:
            return self._api.answer(method, path, params or {}, data or b"", content_type)
        except ApiError as error:
            raise from_answer(error.code, orjson.dumps(error.status()), f"{method} {path}") from None


class Watched:
    """What the engine's reflectors would hold: each change is read once, when it is asked for."""

    def __init__(self, api: Api) -> None:
        self._observer = Observer()
        self._shown: dict[ObjectKey, Json] = {}
        self._snapshot: Observed | None = None
        api.store.listeners.append(self._changed)

    def items(self) -> list[Json]:
        """Every watched object, as a list of them shows it."""
        return list(self._shown.values())

    def observed(self) -> Observed:
        if self._snapshot is None:
            self._snapshot = self._observer.observed()
        return self._snapshot

    def _changed(self, event: ObjectChanged) -> None:
        item = event.entry.obj
        if item.get("kind") not in KINDS:
            return
        self._snapshot = None
        key = key_of(item)
        if event.type == "DELETED":
            self._shown.pop(key, None)
            self._observer.delete(key)
        else:
            shown = self._shown[key] = slimmed(item)
            self._observer.put(shown)


class ReferenceCluster:
    """One cluster; ``seed`` decides the order in which its parts move."""

    def __init__(self, servers: Iterable[SimulatedServer], *, now: float, seed: int = 0) -> None:
        self.now = now
        self.random = random.Random(seed)
        self.api = Api(lambda: self.now)
        self.watched = Watched(self.api)
        self.servers = {server.name: server for server in servers}
        self.files: dict[str, bytes] = {}
        self.number = 0
        self.cache = PlanCache()
        self.wakes: list[float] = []
        self.last: Plan | None = None
        self.loaded: tuple[int, Mapping[str, bytes], Desired] | None = None
        self._loop = asyncio.new_event_loop()
        self._kube = Kube(lambda: None, transport=InProcess(self.api, lambda: self.now))  # type: ignore[arg-type,return-value]
        self._loop.run_until_complete(self._kube.__aenter__())
        for name in NAMESPACES:
            if self.api.find("namespaces", name) is None:
                self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for definition in _DEFINITIONS:
            self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        epoch = self._loop.run_until_complete(shard_lease(self._kube, "main", "reference").acquire())
        assert epoch is not None
        self._epoch = epoch
        for number, server in enumerate(self.servers.values()):
            self._register(server, number)
            self.report(server)

    def fork(self, seed: int) -> ReferenceCluster:
        """The same cluster at the same moment, whose parts move in another order from now on."""
        other = copy.copy(self)
        other.random = random.Random(seed)
        other.api = Api(lambda: other.now)
        other.watched = Watched(other.api)
        for definition in _DEFINITIONS:  # the server must know the kinds before it holds their objects
            other.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        for entries in self.api.store.collections.values():
            for entry in list(entries.entries()):
                other.api.store.put(entry.storage, entry.key, entry.copy())
        other.servers = copy.deepcopy(self.servers)
        other.cache, other.wakes = PlanCache(), list(self.wakes)
        other._loop = asyncio.new_event_loop()
        other._kube = Kube(lambda: None, transport=InProcess(other.api, lambda: other.now))  # type: ignore[arg-type,return-value]
        other._loop.run_until_complete(other._kube.__aenter__())
        return other

    def close(self) -> None:
        self._loop.run_until_complete(self._kube.__aexit__(None, None, None))
        self._loop.close()

    def call(self, method: str, path: str, body: Json | None = None, manager: str = "reference") -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self.api.answer(method, path, {"fieldManager": manager}, json.dumps(body or {}).encode(), kind)

    def apply(self, body: Json, manager: str = "reference") -> None:
        """Server-side apply."""
        self._loop.run_until_complete(self._kube.apply(body, field_manager=manager))

    # Git

    def push(self, files: Mapping[str, bytes]) -> None:
        self.files, self.number = dict(files), self.number + 1

    # the servers

    def _register(self, server: SimulatedServer, number: int) -> None:
        base = {server.device_name(c): {"IP": f"192.168.{c}.{number}", "SuperDeviceID": 0} for c in server.ids}
        sizes = {"cpu": "192", "memory": "1536Gi", "pods": "110", server.resource: str(server.chips)}
        metadata = {
            "name": server.name,
            "labels": {"kubernetes.io/hostname": server.name, **server.labels},
            "annotations": {"baseDeviceInfos": json.dumps(base)},
        }
        since = rfc3339(self.now - 3600)
        status = {
            "capacity": sizes,
            "allocatable": sizes,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
            "addresses": [{"type": "InternalIP", "address": f"10.0.0.{number + 1}"}],
        }
        self.call("POST", "/api/v1/nodes", {"metadata": metadata, "spec": {}})
        self.call("PATCH", f"/api/v1/nodes/{server.name}/status", {"status": status})

    def readiness(self, server: SimulatedServer, ready: bool) -> None:
        """The node's Ready condition changes; a node that is not ready is silent."""
        server.ready, server.silent = ready, not ready
        body = self.api.find("nodes", server.name)
        assert body is not None
        body["status"]["conditions"] = [
            {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": rfc3339(self.now)}
        ]
        self.api.put("nodes", body)

    def report(self, server: SimulatedServer) -> None:
        taken = self.taken(server)
        server.reported = self.now
        self._write_report(server.device_report(taken, self.now), "device-plugin")
        seen = server.agent_report(taken, self.now)
        self._write_report(orders.build_report(seen, server.prefix, {"name": "simulated"}), "agent")

    def _write_report(self, body: Json, manager: str) -> None:
        """A report: the first is an object of its author's, the data of the next take its place."""
        live = self.api.find("configmaps", body["metadata"]["name"], body["metadata"]["namespace"])
        if live is None:
            self.apply(body, manager)
        else:
            self.api.put("configmaps", {**live, "data": body["data"]})

    def taken(self, server: SimulatedServer) -> dict[str, str]:
        """Chip name → live pod that holds it."""
        found: dict[str, str] = {}
        for pod in self.api.objects("pods"):
            if pod["spec"].get("nodeName") != server.name or objects.finished(pod):
                continue
            notes = pod["metadata"].get("annotations") or {}
            for chip in filter(None, str(notes.get(server.resource) or "").split(",")):
                assert chip not in found, f"{server.name}/{chip} has two owners"
                found[chip] = pod["metadata"]["name"]
        return found

    # the engine

    def items(self) -> list[Json]:
        """Every object that the engine watches, as a list of them shows it."""
        return self.watched.items()

    def observed(self) -> Observed:
        return self.watched.observed()

    def one_pass(self) -> Plan:
        """Read, plan, write: as the loop does."""
        seen, desired = self.observed(), self._declared()
        result = plan(desired, seen, self.now, cache=self.cache)
        for body in memory_bodies(result, seen, cache=self.cache):
            self._keep(body)
        for name in forgotten(result, seen, self.cache):
            self.api.drop("configmaps", name, names.SYSTEM)
        fence = Fence(self._kube, "main", self._epoch, seconds=float("inf"))
        edge = Edge(self._kube, "main", fence, now=lambda: self.now, revision=desired.revision)
        record = PassRecord("p", "main", self._epoch, "d", 1, 0.0, 30.0)
        batch = Batch(record, 1, list(enumerate(result.actions)))
        self._loop.run_until_complete(carry_out(edge, batch))
        self._record_inventory(desired)
        self.last = result
        return result

    def _declared(self) -> Desired:
        """What the repository and the cluster's own documents declare; read again where either has changed."""
        foreign = foreign_documents(self.items())
        known = self.loaded
        if known is None or known[:2] != (self.number, foreign):
            read = load(self.files, revision=f"{self.number:040d}", cache=_READ, foreign=foreign)
            known = self.loaded = (self.number, foreign, read.desired)
        return known[2]

    def _record_inventory(self, desired: Desired) -> None:
        seen = self.observed()
        keys = {*declared_keys(desired, seen, self.cache)}
        keys |= {key for key in seen.inventory or () if key in seen.objects}
        data = {sync.APPLIED: desired.revision, sync.INVENTORY: sync.inventory_text(keys)}
        metadata = {"name": names.SYNC, "namespace": names.SYSTEM}
        self._keep({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def _keep(self, body: Json) -> None:
        """Write a record of the engine's where its data have changed, as the engine does."""
        live = self.api.store.get("configmaps", (body["metadata"]["namespace"], body["metadata"]["name"]))
        if live is None or live.obj.get("data") != body["data"]:
            self.apply(body, "belay")

    # what else is in a cluster

    def move(self) -> None:
        """Kubelets, agents, controllers and the garbage collector, in a random order."""
        parts: list[Callable[[], None]] = [self._kubelets, self._agents, self._controllers, self._collect]
        self.random.shuffle(parts)
        for part in parts:
            part()

    def _kubelets(self) -> None:
        for pod in self.api.objects("pods"):
            node = self.servers.get(str(pod["spec"].get("nodeName") or ""))
            if node is None or not node.ready:
                continue
            meta = pod["metadata"]
            ends = meta.get("deletionTimestamp")
            if ends:
                if parse_rfc3339(ends) <= self.now:
                    self.api.drop("pods", meta["name"], meta["namespace"])
            elif objects.phase(pod) == "Pending":
                now = rfc3339(self.now)
                fresh = copy.deepcopy(pod)
                fresh["status"] |= {
                    "phase": "Running",
                    "startTime": now,
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
                }
                self.api.put("pods", fresh)

    def _agents(self) -> None:
        standing = self.observed().orders
        for server in self.servers.values():
            if server.silent:
                continue
            given = standing.get(server.name)
            if given is not None and server.orders_seen != given.generation:
                server.orders_seen = given.generation
                taken = self.taken(server)
                for chip, order in sorted(given.resets.items()) if self.now * 1000 <= given.not_after_ms else ():
                    if order.epoch > server.done.get(chip, 0):
                        server.reset(order, [c for c in order.group if server.device_name(c) in taken], self.now)
                if given.vnpu_epoch > server.vnpu_done:
                    server.partition(given.vnpu_epoch, given.vnpu_layout)
                self.report(server)

    def _collect(self) -> None:
        self.api.collect()

    def _controllers(self) -> None:
        for _ in range(10):
            if not sum([self._reconcile(kind) for kind in ("Deployment", "ReplicaSet", "StatefulSet", "Job")]):
                return

    def _reconcile(self, kind: str) -> int:
        """One turn of every object of a kind; the number of writes."""
        plural = _PLURALS[kind].rpartition("/")[2]
        storage = f"{plural}.batch" if kind == "Job" else f"{plural}.apps"
        written = 0
        for thing in self.api.objects(storage):
            step = self._step(kind, thing)
            written += len(step.writes)
            if step.again_in is not None:
                self.wakes.append(self.now + step.again_in)
            for write in step.writes:
                self._write(write)
        return written

    def _step(self, kind: str, thing: Json) -> Reconciled:
        pods = objects.children(thing, self.api.objects("pods"))
        if kind == "ReplicaSet":
            return replicaset.reconcile(thing, pods, self.now)
        if kind == "Job":
            return job.reconcile(thing, pods, self.now)
        if kind == "StatefulSet":
            revisions = objects.children(thing, self.api.objects("controllerrevisions.apps"))
            return statefulset.reconcile(thing, pods, revisions, self.now)
        sets = objects.children(thing, self.api.objects("replicasets.apps"))
        below = [pod for one in sets for pod in objects.children(one, self.api.objects("pods"))]
        return deployment.reconcile(thing, sets, below, self.now)

    def _write(self, write: Write) -> None:
        path = _PLURALS[write.kind].format(write.namespace)
        try:
            if write.verb == "create":
                self.call("POST", path, write.body, "controllers")
            elif write.verb == "delete":
                grace = {} if write.grace_seconds is None else {"gracePeriodSeconds": write.grace_seconds}
                body = {**grace, "preconditions": {"uid": write.uid}} if write.uid else grace
                self.api.answer("DELETE", f"{path}/{write.name}", {}, json.dumps(body).encode(), "application/json")
            else:
                below = "/status" if write.verb == "status" else ""
                self.call("PATCH", f"{path}/{write.name}{below}", write.body, "controllers")
        except ApiError as error:
            assert error.code in (404, 409), error

    # time

    def until_quiet(self, *, most: int = 400, rest: int = 6) -> bool:
        """Passes until nothing is left to do; False when it does not come to rest."""
        quiet = 0
        for _ in range(most):
            version = self.api.store.rv
            result = self.one_pass()
            self.move()
            quiet = 0 if result.actions or self.api.store.rv != version else quiet + 1
            due = self._due(result)
            if quiet >= rest and not due:
                return True
            self.now = self.now + 1.0 if quiet == 0 else min([*due, *([self.now + RESYNC] * (quiet < rest))])
            for server in self.servers.values():
                if not server.silent and self.now - server.reported >= 50.0:
                    self.report(server)
        return False

    def _due(self, result: Plan) -> list[float]:
        """Times at which something happens without a change: graces, holds, budgets, orders, back-offs."""
        found = [*self.wakes, *(order.not_after_ms / 1000 for order in self.observed().orders.values())]
        found += [parse_rfc3339(row.until) for row in result.deferred if row.until is not None]
        for pod in self.api.objects("pods"):
            ends = pod["metadata"].get("deletionTimestamp")
            found += [parse_rfc3339(ends), parse_rfc3339(ends) + GRACE_OVER_TIME] if ends else []
        for memory in result.history.nodes.values():
            found += [hold.until / 1000 for chip in memory.chips.values() for hold in chip.holds if hold.until]
        for row in result.pending:  # nodes are reserved for a job that has waited long
            made = [pod.created for pod in self.observed().pods.values() if pod.name in row.pods]
            found += [max(made) + 1800.0] if made else []
        self.wakes = [at for at in self.wakes if at > self.now]
        return [at + 1.0 for at in found if self.now < at <= self.now + PATIENCE]
