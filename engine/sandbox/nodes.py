"""Simulated kubelets, many in one process: they register nodes, send heartbeats, and take, run and end pods.

They see a new pod, and a deletion, only after a seeded delay, as kubelets do behind a slow watch. A kubelet's state is
in the status of its pods, so that a new process continues after a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import orjson

from belay.engine.kube import (
    CONFIGMAP,
    LEASE,
    NODE,
    Conflict,
    Key,
    Kube,
    KubeError,
    NotFound,
    Reflector,
    run_all,
    run_many,
)
from belay.engine.log import get
from belay.engine.model.labels import BASE_DEVICES, CIM_CONSUMER
from belay.engine.model.times import rfc3339
from belay.engine.sandbox import nodes_admission, nodes_devices, nodes_pods, nodes_shape
from belay.engine.sandbox.cache import Cache, Indexer, uid_of
from belay.engine.sandbox.containers import Training
from belay.engine.sandbox.controllers.executor import WriteExecutor
from belay.engine.sandbox.controllers.queue import WorkQueue
from belay.engine.sandbox.node_control import Control, SandboxNode, parse_control
from belay.engine.sandbox.nodes_devices import Devices, PodRejection
from belay.engine.sandbox.nodes_pods import PodHost, PodTimes
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.wire import deviceinfo, names, orders
from belay.engine.wire.errors import WireError
from belay.engine.wire.podannotations import chip_names
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, patch_status

_log = get("sandbox.nodes")
LEASES: Final = "kube-node-lease"
FIELD_MANAGER: Final = "kubelet"
_WORKERS: Final = 8
_STATUS_EVERY_S: Final = 300.0
_TICK_S: Final = 0.25


class Kubelets:
    """All kubelets of this process. ``suffixes`` maps vNPU templates to tails of resource names; ``clock`` is wall
    time; ``training`` runs containers with `belay train` as real processes."""

    def __init__(
        self,
        cache: Cache,
        members: Iterable[SandboxNode],
        settings: SandboxSettings,
        suffixes: Mapping[str, str],
        clock: Callable[[], float] = time.time,
        training: Training | None = None,
    ) -> None:
        self.members = {member.name: member for member in members}
        self._cache = cache
        self._kube: Kube = cache.kube
        self._settings = settings
        self._suffixes = dict(suffixes)
        self._clock = clock
        self._executor = WriteExecutor(cache, FIELD_MANAGER)
        self._queues = [WorkQueue[str](time.monotonic) for _ in range(_WORKERS)]
        self._times: dict[str, PodTimes] = {}
        self._addresses: dict[str, int] = {}
        self.registered = asyncio.Event()
        self._beats: dict[str, float] = {}
        self._posted: dict[str, float] = {}
        self._parsed: dict[Key, tuple[str, Any]] = {}
        self._maps = Indexer(CONFIGMAP)
        self._maps.listeners.append(self._map_changed)
        cache["Pod"].listeners.append(self._pod_changed)
        cache["Node"].listeners.append(self._node_changed)
        self._containers = training.containers(self._kube, self._touch) if training is not None else None
        self._reflectors = [
            Reflector(self._kube, CONFIGMAP, names.NODES, on_change=self._maps.follow),
            Reflector(
                self._kube,
                CONFIGMAP,
                names.DEVICE_NAMESPACE,
                labels=f"{CIM_CONSUMER}=true",
                on_change=self._maps.follow,
            ),
        ]

    async def run(self) -> None:
        """Run all kubelets until cancelled."""
        await self._cache.wait_synced()
        try:
            await run_all(*(reflector.run() for reflector in self._reflectors), self._serve())
        finally:
            if self._containers is not None:
                await self._containers.close()

    async def _serve(self) -> None:
        while not all(reflector.synced for reflector in self._reflectors):
            await asyncio.sleep(0.02)
        await self.register()
        for name in self.members:
            self._touch(name)
        await run_all(*(self._work(queue) for queue in self._queues), self._heartbeats())

    async def register(self) -> None:
        """Create missing nodes; complete existing ones and renew their heartbeat."""
        async for outcome in run_many([lambda m=member: self._register(m) for member in self.members.values()], 16):  # type: ignore[misc]
            if outcome.error is not None:
                raise outcome.error
        self.registered.set()

    async def _register(self, member: SandboxNode) -> None:
        now = self._clock()
        await self._renew(member.name, now)
        fresh = nodes_shape.node_object(member.name, member.index, member.shape, now)
        try:
            answer = await self._kube.create(NODE, fresh, field_manager=FIELD_MANAGER)
        except Conflict:
            answer = await self._rejoin(member, fresh)
        self._cache["Node"].record(answer)

    async def _rejoin(self, member: SandboxNode, fresh: Json) -> Json:
        present = await self._kube.get(NODE, member.name)
        if present is None:
            return await self._kube.create(NODE, fresh, field_manager=FIELD_MANAGER)
        lacking = {
            part: {k: v for k, v in fresh["metadata"][part].items() if k not in (present["metadata"].get(part) or {})}
            for part in ("labels", "annotations")
        }
        if any(lacking.values()):
            present = await self._kube.patch(NODE, member.name, {"metadata": lacking}, field_manager=FIELD_MANAGER)
        return present

    # which change wakes which node

    def _pod_changed(self, _: str, __: Key, old: Json | None, new: Json | None) -> None:
        pod = new or old
        node = str(((pod or {}).get("spec") or {}).get("nodeName") or "")
        if node not in self.members or pod is None:
            return
        if new is None:
            self._times.pop(uid_of(pod), None)
            self._addresses.pop(uid_of(pod), None)
            if self._containers is not None:
                self._containers.forget(uid_of(pod))
        self._touch(node)

    def _node_changed(self, _: str, key: Key, __: Json | None, new: Json | None) -> None:
        if key[1] in self.members and new is not None:
            self._touch(key[1])

    def _map_changed(self, _: str, key: Key, __: Json | None, ___: Json | None) -> None:
        for prefix in (names.SIM_PREFIX, names.REPORT_PREFIX, names.DEVICE_PREFIX):
            node = key[1].removeprefix(prefix)
            if node != key[1] and node in self.members:
                self._touch(node)

    def _touch(self, node: str) -> None:
        self._queue(node).add(node)

    def _queue(self, node: str) -> WorkQueue[str]:
        return self._queues[self.members[node].index % _WORKERS]

    # the node's state

    def control(self, node: str) -> Control:
        """The injected state of the node; by default ready and running."""
        return self._read((names.NODES, names.SIM_PREFIX + node), parse_control) or Control()

    def devices(self, node: str) -> Devices:
        """The node's devices by its newest reports."""
        shape = self.members[node].shape
        report = self._read((names.DEVICE_NAMESPACE, names.DEVICE_PREFIX + node), deviceinfo.parse)
        agent = self._read((names.NODES, names.REPORT_PREFIX + node), orders.parse_report)
        bad = report.unhealthy | report.recovering if report else 0
        return Devices(
            shape=shape,
            unhealthy=frozenset(name for chip, name in enumerate(shape.names) if bad >> chip & 1),
            vnpus=agent.vnpus if agent else (),
            suffixes=self._suffixes,
            base=self._base(node),
        )

    def _base(self, node: str) -> dict[str, dict[str, Any]]:
        thing = self._cache["Node"].objects.get(("", node)) or {"metadata": {}}
        text = (thing["metadata"].get("annotations") or {}).get(BASE_DEVICES, "{}")
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    def _read(self, key: Key, parse: Callable[[Json], Any]) -> Any:
        """A parsed ConfigMap, parsed once per version; the last valid version if the newest is invalid."""
        thing = self._maps.objects.get(key)
        if thing is None:
            self._parsed.pop(key, None)
            return None
        version = str(thing["metadata"].get("resourceVersion"))
        known = self._parsed.get(key)
        if known is None or known[0] != version:
            try:
                known = (version, parse(thing))
            except (WireError, ValueError) as error:
                _log.warning(
                    "ConfigMap is invalid, the last valid version stays", object="/".join(key), reason=str(error)
                )
                known = (version, known[1] if known else None)
            self._parsed[key] = known
        return known[1]

    # the kubelet's loop

    async def _work(self, queue: WorkQueue[str]) -> None:
        while True:
            node = await queue.get()
            try:
                again, clean = await self._sync(node)
            except KubeError as error:
                _log.warning("kubelet stalled", node=node, reason=str(error), retry_in_s=queue.failed(node))
                continue
            except Exception:  # one node's bug must not end the others
                _log.exception("kubelet broke", node=node, retry_in_s=queue.failed(node))
                continue
            if not clean:
                queue.failed(node)
                continue
            queue.succeeded(node)
            if again is not None:
                queue.add_after(node, max(0.02, again))

    async def _sync(self, name: str) -> tuple[float | None, bool]:
        """Do what is due on this node; returns when to run again, and whether every write succeeded."""
        control = self.control(name)
        thing = self._cache["Node"].objects.get(("", name))
        if control.paused or thing is None:
            return None, True
        devices = self.devices(name)
        clean = await self._post(name, thing, devices, control)
        thing = self._cache["Node"].objects.get(("", name)) or thing
        waits: list[float] = []
        now = self._clock()
        for pod in self._in_order(name):
            if (lag := self._lag(name, pod, now)) > 0:
                waits.append(lag)
                continue
            step = self._step(name, thing, pod, devices, control, now)
            failed = await self._executor.execute(step.writes)
            for write, error in failed:
                clean = False
                _log.info("kubelet write refused", node=name, pod=write.name, verb=write.verb, reason=str(error))
            if step.again_in is not None:
                waits.append(step.again_in)
            if self._containers is not None and (again := await self._follow(pod, now)) is not None:
                waits.append(again)
        return min(waits, default=None), clean

    async def _follow(self, pod: Json, now: float) -> float | None:
        """Start or end the pod's process according to its status; returns when to run again."""
        assert self._containers is not None
        live = self._cache["Pod"].objects.get((str(pod["metadata"].get("namespace")), str(pod["metadata"]["name"])))
        if live is None or uid_of(live) != uid_of(pod) or self._containers.process_of(live) is None:
            return None
        writes, again = await self._containers.advance(live, now)
        await self._executor.execute(writes)
        return again

    def _in_order(self, name: str) -> list[Json]:
        """Pods of the node: terminating ones first, new ones last in random order, since kubelet promises none."""

        def rank(pod: Json) -> tuple[bool, bool, str]:
            taken = bool((pod.get("status") or {}).get("startTime"))
            return not taken, not o.deleting(pod), "" if taken else self._mix(name, uid_of(pod))

        return sorted(self._cache["Pod"].on_node(name), key=rank)

    def _step(self, name: str, node: Json, pod: Json, devices: Devices, control: Control, now: float) -> Reconciled:
        member = self.members[name]
        key = (str(pod["metadata"].get("namespace")), str(pod["metadata"]["name"]))
        pod = self._cache["Pod"].objects.get(key) or pod
        times = self._times.setdefault(uid_of(pod), PodTimes())
        host = PodHost(name, nodes_shape.address(member.index), self._settings, devices.unhealthy, control.ready)
        if self._containers is not None:
            host = msgspec.structs.replace(host, ran=self._containers.process_of(pod))
        taken = (pod.get("status") or {}).get("startTime")
        if taken or o.deleting(pod) or o.finished(pod):
            resource, _ = nodes_devices.requested(pod)
            held = chip_names(pod["metadata"].get("annotations") or {}, resource)
            return nodes_pods.advance(pod, host, times, self._pod_ip(member, pod, host), held, now)
        if not control.ready:
            return Reconciled()
        others = [p for p in self._cache["Pod"].on_node(name) if uid_of(p) != uid_of(pod)]
        running = [p for p in others if (p.get("status") or {}).get("startTime") and not o.finished(p)]
        waiting = [p for p in others if p not in running and o.active(p)]
        if refusal := nodes_admission.admit(pod, running, node):
            return self._refuse(name, pod, refusal)
        given = nodes_devices.allocate(
            pod,
            [pod, *waiting, *running],
            devices,
            nodes_devices.held(running),
            host.ip,
            f"{self._settings.seed}/{name}",
        )
        if isinstance(given, PodRejection):
            return self._refuse(name, pod, given)
        return nodes_pods.admit(pod, given, host, times, now)

    def _refuse(self, name: str, pod: Json, refusal: PodRejection) -> Reconciled:
        _log.info(
            "pod refused", node=name, pod=pod["metadata"]["name"], reason=refusal.reason, message_=refusal.message
        )
        return nodes_pods.refuse(pod, refusal)

    def _pod_ip(self, member: SandboxNode, pod: Json, host: PodHost) -> str:
        if (pod.get("spec") or {}).get("hostNetwork"):
            return host.ip
        if known := (pod.get("status") or {}).get("podIP"):
            return str(known)
        number = self._addresses.setdefault(uid_of(pod), len(self._addresses))
        return nodes_shape.pod_address(member.index, number)

    def _lag(self, node: str, pod: Json, now: float) -> float:
        """Seconds until this node notices a new pod, or a deletion."""
        times = self._times.setdefault(uid_of(pod), PodTimes())
        if o.deleting(pod):
            return self._noticed(times, "deletion_seen", node, pod, now)
        if (pod.get("status") or {}).get("startTime") or o.finished(pod):
            return 0.0
        return self._noticed(times, "seen", node, pod, now)

    def _noticed(self, times: PodTimes, field: str, node: str, pod: Json, now: float) -> float:
        if not getattr(times, field):
            setattr(times, field, now)
        share = int(self._mix(node, f"{field}/{pod['metadata']['name']}")[:8], 16) / 0xFFFFFFFF
        return float(getattr(times, field) + share * self._settings.scaled(self._settings.watch_lag) - now)

    def _mix(self, node: str, text: str) -> str:
        return hashlib.blake2b(f"{self._settings.seed}/{node}/{text}".encode(), digest_size=8).hexdigest()

    # the node's status and heartbeat

    async def _post(self, name: str, node: Json, devices: Devices, control: Control) -> bool:
        """Write the node's status if it differs, or after a while to renew its heartbeat time. Returns True on
        success."""
        member, now = self.members[name], self._clock()
        capacity, allocatable = devices.counts()
        present = node.get("status") or {}
        body = nodes_shape.status(name, member.index, member.shape, capacity, allocatable, control.ready, now)
        for part in ("capacity", "allocatable"):  # a merge patch removes a resource only by name
            body[part] |= {key: None for key in present.get(part) or {} if key not in body[part]}
        body["conditions"] = nodes_shape.conditions(control.ready, now, list(present.get("conditions") or ()))
        due = now - self._posted.get(name, 0.0) >= self._settings.scaled(_STATUS_EVERY_S, least=60.0)
        if not due and not _differs(present, body):
            return True
        failed = await self._executor.execute((patch_status(node, "Node", body),))
        if not failed:
            self._posted[name] = now
        return not failed

    async def _heartbeats(self) -> None:
        """Renew every node's Lease in its turn, the nodes spread over the interval."""
        interval = max(self._settings.lease_interval, len(self.members) / 25)
        for number, name in enumerate(self.members):
            self._beats[name] = time.monotonic() + interval * number / max(1, len(self.members))
        while True:
            now = time.monotonic()
            due = [name for name, when in self._beats.items() if when <= now]
            for name in due:
                self._beats[name] = now + interval
            live = [name for name in due if not self.control(name).paused and ("", name) in self._cache["Node"].objects]
            async for outcome in run_many([lambda n=name: self._renew(n, self._clock()) for name in live], 8):  # type: ignore[misc]
                if outcome.error is not None:
                    _log.warning("heartbeat not written", node=live[outcome.index], reason=str(outcome.error))
            await asyncio.sleep(_TICK_S)

    async def _renew(self, name: str, now: float) -> None:
        stamp = rfc3339(float(int(now))).removesuffix("Z") + f".{int(now * 1e6) % 1_000_000:06d}Z"
        seconds = max(1, int(self._settings.silence))
        body = {"spec": {"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": stamp}}
        try:
            await self._kube.patch(LEASE, name, body, LEASES, field_manager=FIELD_MANAGER)
        except NotFound:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": LEASES},
            }
            await self._kube.create(LEASE, lease | body, field_manager=FIELD_MANAGER)


def _differs(present: Json, body: Json) -> bool:
    """Whether a status differs apart from heartbeat times."""

    def essence(status: Json) -> Any:
        conditions = {c.get("type"): (c.get("status"), c.get("reason")) for c in status.get("conditions") or ()}
        parts = [{k: v for k, v in (status.get(p) or {}).items() if v is not None} for p in ("capacity", "allocatable")]
        return parts, conditions, status.get("addresses")

    return bool(essence(present) != essence(body))
