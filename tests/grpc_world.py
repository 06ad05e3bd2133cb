"""A cluster and a gRPC server for tests, all in one event loop: jobs are objects, clients talk over loopback.

``World`` is the sandbox's API server with the job's definitions; ``Time`` is a clock that only the test moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from belay.engine.kube import CONFIGMAP, NAMESPACE, NODE, POD, Kube, Object, resource_for
from belay.engine.sandbox import definitions
from belay.engine.sandbox.api import ApiServer
from belay.engine.serve.grpc.server import GrpcServer
from belay.engine.wire import recoveryrecord
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.worlds import A2_LABELS, device_report

NS = "train"
ASCEND_JOB = resource_for("mindxdl.gitee.com/v1", "AscendJob")
POD_GROUP = resource_for("scheduling.volcano.sh/v1beta1", "PodGroup")
CRD = resource_for("apiextensions.k8s.io/v1", "CustomResourceDefinition")
PATIENCE = 150.0


class Time:
    """Milliseconds since 1970 that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_788_249_600_000

    def __call__(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


class World:
    """The cluster. Pods are placed by hand: rank r on node ``n<r>`` with all its chips."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = ApiServer()
        self.kube: Kube = None  # type: ignore[assignment]
        self.pod_groups = True
        self.recoveries = "belay-system"
        self.custom = True
        self.uids: dict[str, str] = {}

    async def start(self, *, pod_groups: bool = True) -> None:
        self.pod_groups = pod_groups
        await self.api.start()
        path = self.folder / "kubeconfig"
        self.api.write_kubeconfig(path)
        self.kube = Kube.from_config(str(path))
        await self.kube.__aenter__()
        await self.prepare()

    async def prepare(self) -> None:
        for name in {"belay-system", self.recoveries, "belay-nodes", "mindx-dl", "cluster-system", NS}:
            await self.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        kinds = ("AscendJob", "PodGroup") if self.pod_groups else ("AscendJob",)
        for one in definitions.shipped() if self.custom else ():
            if one["spec"]["names"]["kind"] in kinds:
                await self.kube.apply(one)
        for kind in (ASCEND_JOB, POD_GROUP)[: len(kinds)] if self.custom else ():
            await until(lambda kind=kind: self.kube.served(kind), f"{kind.kind} is served")  # type: ignore[misc]

    async def stop(self) -> None:
        await self.kube.__aexit__()
        await self.api.stop()

    @contextlib.asynccontextmanager
    async def server(self, name: str = "server-0", **options: Any) -> AsyncIterator[GrpcServer]:
        async with GrpcServer(
            self.kube, identity=name, **{"callers": "any", "recoveries": self.recoveries, **options}
        ) as server:
            assert server.leader is not None
            assert await server.leader.known(PATIENCE)
            await until(lambda: server.cluster.synced, "the cluster is listed")
            yield server

    # objects

    async def node(self, name: str, chips: int = 8) -> None:
        devices = {f"Ascend910-{i}": {"IP": f"10.1.0.{i}", "SuperDeviceID": i} for i in range(chips)}
        notes = {"baseDeviceInfos": json.dumps(devices), "product-serial-number": f"sn-{name}"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": A2_LABELS, "annotations": notes},
        }
        await self.kube.create(NODE, body)
        await self.ready(name)
        await self.report(name, chips)

    async def ready(self, name: str, ready: bool = True) -> None:
        status = {
            "addresses": [{"type": "InternalIP", "address": "10.0.0." + "".join(c for c in name if c.isdigit())}],
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }
        await self.kube.patch_status(NODE, name, {"status": status})

    async def report(
        self,
        name: str,
        chips: int = 8,
        bad: dict[int, tuple[str, str]] | None = None,
        *,
        at: int = 0,
        super_pod: int = -2,
    ) -> None:
        """The node's device report; ``bad`` gives code and level of faulty chips."""
        body = device_report(name, chips, bad or {}, int(time.time()), at=at, super_pod=super_pod)
        await self.kube.apply(body, field_manager="device-plugin")

    async def job(
        self,
        name: str = "pretrain",
        *,
        pods: int = 2,
        strategy: str = "recover,dump,exit",
        labels: dict[str, str] | None = None,
        notes: dict[str, str] | None = None,
        chips: int = 8,
        reset: bool = True,
        nodes: bool = True,
    ) -> str:
        """A running job with its PodGroup (or, where there are none, its marks on the pods); its id."""
        uid = self.uids[name] = await self._owner(name)
        own = {"fault-scheduling": "grace", "process-recover-enable": "on", "framework": "pytorch", **(labels or {})}
        own = {key: value for key, value in own.items() if value}
        marks = {"recover-strategy": strategy, **(notes or {})}
        owner = {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "name": name,
            "uid": uid,
            "controller": True,
        }
        if self.pod_groups:
            body = {
                "apiVersion": POD_GROUP.api_version, "kind": "PodGroup",
                "metadata": {
                    "name": f"{name}-{uid}", "namespace": NS, "labels": own, "annotations": marks,
                    "ownerReferences": [owner],
                },
                "spec": {"minMember": pods},
            }  # fmt: skip
            await self.kube.create(POD_GROUP, body)
        for rank in range(pods):
            if nodes:
                await self.node(f"n{rank}", max(chips, 1))
            await self.pod(name, rank, {} if self.pod_groups else own, {} if self.pod_groups else marks, chips=chips)
        if reset:
            await self.reset_config(name)
        return uid

    async def _owner(self, name: str) -> str:
        """The uid of the job's own object; where no custom objects are stored, one that is only named."""
        if not self.custom:
            return f"{name}-0000-4000-8000-000000000001"
        metadata = {"name": name, "namespace": NS}
        body = {"apiVersion": ASCEND_JOB.api_version, "kind": "AscendJob", "metadata": metadata, "spec": {}}
        spec = {"replicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "ascend"}]}}}}}
        found = await self.kube.create(ASCEND_JOB, {**body, "spec": spec})
        return str(found["metadata"]["uid"])

    async def reset_config(self, name: str) -> None:
        metadata = {"name": f"reset-config-{name}", "namespace": NS, "labels": {"reset": "true"}}
        await self.kube.create(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}})

    async def pod(
        self,
        job: str,
        rank: int,
        labels: dict[str, str] | None = None,
        notes: dict[str, str] | None = None,
        *,
        name: str = "",
        node: str = "",
        chips: int = 8,
        running: bool = True,
    ) -> None:
        uid = self.uids[job]
        owner = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": job, "uid": uid, "controller": True}
        held = ",".join(f"Ascend910-{i}" for i in range(chips))
        own = {"hccl/rankIndex": str(rank), "huawei.com/Ascend910": held, "huawei.com/AscendReal": held}
        if self.pod_groups:
            own["scheduling.k8s.io/group-name"] = f"{job}-{uid}"
        sizes = {"huawei.com/Ascend910": str(chips)}
        container = {"name": "ascend", "image": "i", "resources": {"requests": sizes, "limits": sizes}}
        pod = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name or f"{job}-worker-{rank}", "namespace": NS, "labels": labels or {},
                "annotations": {**own, **(notes or {})}, "ownerReferences": [owner],
            },
            "spec": {"nodeName": node or f"n{rank}", "containers": [container], "schedulerName": "belay"},
        }  # fmt: skip
        await self.kube.create(POD, pod)
        if running:
            await self.phase(name or f"{job}-worker-{rank}", "Running")

    async def phase(self, pod: str, phase: str) -> None:
        status = {"phase": phase, "podIP": "10.2.0.1", "hostIP": "10.0.0.1"}
        await self.kube.patch_status(POD, pod, {"status": status}, NS)

    async def replace(self, job: str, rank: int, **options: Any) -> None:
        """Replace the pod of a rank, as the planner does."""
        await self.kube.delete(POD, f"{job}-worker-{rank}", NS, grace=0)
        await self.pod(job, rank, **options)

    async def config_map(self, name: str, ns: str = NS) -> Object | None:
        return await self.kube.get(CONFIGMAP, name, ns)

    async def reset_json(self, job: str) -> dict[str, Any]:
        found = await self.config_map(f"reset-config-{job}")
        text = ((found or {}).get("data") or {}).get("reset.json")
        return dict(json.loads(text)) if text else {}

    async def group(self, job: str) -> Object:
        found = await self.kube.get(POD_GROUP, f"{job}-{self.uids[job]}", NS)
        assert found is not None
        return found

    async def marks(self, job: str) -> dict[str, str]:
        """The annotations of the job's PodGroup, or of what stands for it in a cluster without PodGroups."""
        pod = None if self.pod_groups else await self.kube.get(POD, f"{job}-worker-0", NS)
        found = await self.group(job) if self.pod_groups else pod
        return dict((found or {}).get("metadata", {}).get("annotations") or {})

    async def records(self) -> list[Object]:
        return (await self.kube.list(CONFIGMAP, self.recoveries, recoveryrecord.SELECTOR)).items


class Client:
    """A job's processes: they register, subscribe, and answer when the test says so."""

    def __init__(
        self, port: int, job: str, role: str = "master agent", channel: grpc.aio.Channel | None = None
    ) -> None:
        self.job, self.role = job, role
        self.channel = channel or grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.heard: list[pb.ProcessManageSignal] = []
        self._news = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._own = channel is None
        self.error: grpc.aio.AioRpcError | None = None
        self.ended = False  # whether the server ended its last stream

    async def call(self, name: str, request: Any, reply: Any = pb.Status, service: str = "Recover") -> Any:
        method = self.channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await method(request, timeout=PATIENCE)

    def stream(self, name: str, request: Any, reply: Any = pb.ProcessManageSignal, service: str = "Recover") -> Any:
        method = self.channel.unary_stream(
            f"/{service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return method(request)

    @property
    def info(self) -> pb.ClientInfo:
        return pb.ClientInfo(jobId=self.job, role=self.role)

    async def join(self) -> Client:
        """Init, Register, subscribe."""
        answer = await self.call("Init", self.info)
        assert answer.code == 0, answer
        answer = await self.call("Register", self.info)
        assert answer.code == 0, answer
        return await self.listen()

    async def listen(self) -> Client:
        call = self.stream("SubscribeProcessManageSignal", self.info)
        await call.initial_metadata()
        self.ended = False
        self._listening = asyncio.ensure_future(self._listen(call))
        return self

    async def _listen(self, call: Any) -> None:
        try:
            async for signal in call:
                if signal.signalType != "keep-alive":
                    self.heard.append(signal)
                    self._news.set()
            self.ended = True
        except grpc.aio.AioRpcError as error:
            self.error = error

    async def hang_up(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def close(self) -> None:
        await self.hang_up()
        if self._own:
            await self.channel.close(None)

    async def next(self) -> pb.ProcessManageSignal:
        """The next signal."""
        async with asyncio.timeout(PATIENCE):
            while not self.heard:
                self._news.clear()
                await self._news.wait()
        return self.heard.pop(0)

    async def stopped(self, code: int = 0) -> pb.Status:
        return await self.call(
            "ReportStopComplete", pb.StopCompleteRequest(jobId=self.job, status=pb.Status(code=code))
        )

    async def offers(self, *strategies: str) -> pb.Status:
        return await self.call(
            "ReportRecoverStrategy", pb.RecoverStrategyRequest(jobId=self.job, strategies=strategies)
        )

    async def done(self, strategy: str, code: int = 0, isolate: tuple[str, ...] = ()) -> pb.Status:
        return await self.call(
            "ReportRecoverStatus",
            pb.RecoverStatusRequest(
                jobId=self.job, status=pb.Status(code=code), strategy=strategy, isolateRankIds=isolate
            ),
        )

    async def broke(self, *ranks: tuple[str, str]) -> pb.Status:
        rows = [pb.FaultRank(rankId=rank, faultType=kind) for rank, kind in ranks]
        return await self.call("ReportProcessFault", pb.ProcessFaultRequest(jobId=self.job, faultRanks=rows))


async def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Wait for a condition, plain or to be awaited."""
    last = time.monotonic() + seconds
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return
        assert time.monotonic() < last, f"never: {what}"
        await asyncio.sleep(0.01)


def play(folder: Path, story: Callable[[World], Awaitable[None]], *, pod_groups: bool = True) -> None:
    """Run a story in a world of its own."""

    async def go() -> None:
        world = World(folder)
        await world.start(pod_groups=pod_groups)
        try:
            await story(world)
        finally:
            await world.stop()

    asyncio.run(go())


__all__ = ["CRD", "NAMESPACE", "NS", "POD_GROUP", "Client", "Time", "World", "play", "until"]
