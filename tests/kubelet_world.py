"""A kubelet of memory behind its real sockets: it registers plugins, counts devices, admits pods and keeps its books.

It behaves as Kubernetes 1.20 does where a device plugin can notice (pkg/kubelet/cm/devicemanager): ids it takes are the
preferred ones, an id of a pod that ended is free at the next admission, a failed Allocate ends the pod.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from belay.agents.common.clock import Clock
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from belay.agents.kubelet.api import deviceplugin_pb2 as api
from belay.agents.kubelet.api import deviceplugin_pb2_grpc as services
from belay.agents.kubelet.api import podresources_v1_pb2 as resources
from belay.agents.kubelet.api import podresources_v1_pb2_grpc as resource_services
from belay.agents.kubelet.plugin import DevicePlugin
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.agent import NodeAgent
from belay.agents.node.publicnames import PublicNames, named
from belay.agents.node.settings import Settings
from belay.engine.model.cluster import Orders, ResetOrder
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX
from belay.engine.wire.orders import build_orders
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import NODE, RULES, FakeCluster

RESOURCE = "huawei.com/Ascend910"
OPTIONS = (("grpc.default_authority", "localhost"),)


class Kubelet(services.RegistrationServicer, resource_services.PodResourcesListerServicer):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pod_socket = folder / "pods.sock"
        self.devices: dict[str, dict[str, str]] = {}
        self.registered: list[str] = []
        self.taken: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self.answers: dict[tuple[str, str, str], bytes] = {}
        self.names: dict[str, tuple[str, str]] = {}
        self.active: set[str] = set()
        self.forget_answer = False
        self.silent = False
        self.took = 0.0
        self._servers: list[grpc.aio.Server] = []
        self._streams: list[asyncio.Task[None]] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.news = asyncio.Event()

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.sock"):
            path.unlink()
        for path, add in (
            (self.folder / "kubelet.sock", services.add_RegistrationServicer_to_server),
            (self.pod_socket, resource_services.add_PodResourcesListerServicer_to_server),
        ):
            server = grpc.aio.server()
            add(self, server)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(None)
        for server in self._servers:
            await server.stop(None)
        self._servers, self._streams, self._channels = [], [], {}
        self.devices.clear()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def forget(self) -> None:
        """Nothing that plugins sent until now counts any more, nor what of it is still on its way here."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)
        self.devices.clear()

    async def Register(self, request: Any, context: Any) -> Any:
        await self._answers()
        self.registered.append(request.resource_name)
        old = self._channels.pop(request.resource_name, None)
        if old is not None:
            await old.close(None)
        channel = grpc.aio.insecure_channel(f"unix:{self.folder / request.endpoint}", options=OPTIONS)
        self._channels[request.resource_name] = channel
        self._streams.append(asyncio.create_task(self._listen(request.resource_name, channel)))
        return api.Empty()

    async def _listen(self, resource: str, channel: grpc.aio.Channel) -> None:
        try:
            async for answer in services.DevicePluginStub(channel).ListAndWatch(api.Empty()):
                if self._channels.get(resource) is channel:
                    self.devices[resource] = {device.ID: device.health for device in answer.devices}
                    self.news.set()
        except grpc.aio.AioRpcError:
            pass
        finally:
            if self._channels.get(resource) is channel:
                self.devices[resource] = dict.fromkeys(self.devices.get(resource, {}), "Unhealthy")

    async def _answers(self) -> None:
        """A kubelet that hangs takes calls and says nothing."""
        while self.silent:
            await asyncio.sleep(0.01)

    async def List(self, request: Any, context: Any) -> Any:
        await self._answers()
        return resources.ListPodResourcesResponse(
            pod_resources=[
                resources.PodResources(
                    name=self.names[uid][1],
                    namespace=self.names[uid][0],
                    containers=[
                        resources.ContainerResources(
                            name=container,
                            devices=[resources.ContainerDevices(resource_name=resource, device_ids=ids)],
                        )
                    ],
                )
                for (uid, container, resource), ids in self.taken.items()
                if uid in self.names
            ]
        )

    def free(self, resource: str = RESOURCE) -> set[str]:
        used = {name for (uid, _, r), ids in self.taken.items() if r == resource and uid in self.active for name in ids}
        return {name for name, health in self.devices.get(resource, {}).items() if health == "Healthy"} - used

    def end(self, uid: str) -> None:
        """A pod has ended; its ids are free at the next admission."""
        self.active.discard(uid)

    def remove(self, uid: str) -> None:
        """A pod is gone from the API too."""
        self.end(uid)
        self.names.pop(uid, None)

    async def admit(
        self, body: Mapping[str, Any], resource: str = RESOURCE, count: int | None = None, *, prefer: bool = True,
        container: str = "c", reuse: Sequence[str] = (),
    ) -> Any:  # fmt: skip
        """Admit a pod; the container's answer. Raises grpc.aio.AioRpcError as kubelet would end the pod."""
        metadata = body["metadata"]
        uid = metadata["uid"]
        limits = body["spec"]["containers"][0]["resources"]["limits"]
        count = int(limits[resource]) if count is None else count
        for key in [key for key in self.taken if key[0] not in self.active]:
            del self.taken[key]
            self.answers.pop(key, None)
        available = sorted(self.free(resource) | set(reuse))
        if len(available) < count:
            raise RuntimeError(f"requested: {count}, available: {len(available)}")
        stub = services.DevicePluginStub(self._channels[resource])
        chosen = available[:count]
        if reuse:
            chosen = sorted(reuse)[:count]
        elif prefer:
            one = api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=count)
            answer = await stub.GetPreferredAllocation(api.PreferredAllocationRequest(container_requests=[one]))
            best = [name for name in answer.container_responses[0].deviceIDs if name in available]
            chosen = (best + [name for name in available if name not in best])[:count]
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=chosen)])
        begin = time.perf_counter()
        answer = await stub.Allocate(request, timeout=20)
        self.took = time.perf_counter() - begin
        if self.forget_answer:
            raise RuntimeError("kubelet died before it wrote the answer down")
        self.active.add(uid)
        self.names[uid] = (metadata["namespace"], metadata["name"])
        self.taken[uid, container, resource] = tuple(chosen)
        self.answers[uid, container, resource] = answer.container_responses[0].SerializeToString()
        self.write()
        return answer.container_responses[0]

    def write(self) -> None:
        entries = [
            {
                "PodUID": uid, "ContainerName": container, "ResourceName": resource, "DeviceIDs": {"-1": list(ids)},
                "AllocResp": base64.b64encode(self.answers[uid, container, resource]).decode(),
            }
            for (uid, container, resource), ids in self.taken.items()
        ]  # fmt: skip
        data = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        (self.folder / "kubelet_internal_checkpoint").write_text(json.dumps(data))


class WallClock(Clock):
    """The machine's clock, with what a cluster of memory looks at."""

    @property
    def mono(self) -> float:
        return self.monotonic()


class PodCluster(FakeCluster):
    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        self._online()
        for body in self.pod_list:
            if body["metadata"]["uid"] == uid:
                body["metadata"]["annotations"].update(annotations)
        self.notify("pods")


class Node:
    """A node with agent, plugin and kubelet. ``crash`` kills the agent where it stands, ``boot`` starts a new one."""

    def __init__(
        self, row: ServerModel | None = None, driver: Any = None, *, names: PublicNames | None = None,
        plugins: Path | None = None, hooks: Path | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.names = names or PublicNames()
        self.plugins, self.hooks = plugins, hooks
        self.claimed: Mapping[int, str] | None = None
        self.root = Path(tempfile.mkdtemp(prefix="bk"))
        self.kubelet = Kubelet(self.root / "k")
        self.clock = WallClock()
        self.cluster = PodCluster(self.clock)  # type: ignore[arg-type]
        self.driver = driver or SimulatedDriver(NODE, row, scale=0.01, now_ms=self.clock.now_ms, sleep=self.clock.sleep)
        self.settings = PluginSettings(**{
            "volcano": True, "runtime": True, "host_ip": "10.0.0.9", "folder": self.root / "k",
            "pod_resources": self.root / "k" / "pods.sock", "period": 0.2, "watch": 0.05, "pause": 0.05,
            "enpu": self.root / "enpu", **settings,
        })  # fmt: skip
        self.tasks: list[asyncio.Task[None]] = []
        self.generation = 0
        self.plugin: DevicePlugin
        self.agent: NodeAgent

    async def __aenter__(self) -> Node:
        await self.kubelet.start()
        await self.boot()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()
        await self.kubelet.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    async def boot(self, *, wait: bool = True) -> None:
        # the end of an earlier agent's streams may be heard of only now: it must not look like this one's first word
        await self.kubelet.forget()
        cluster = named(self.cluster, self.names)  # type: ignore[arg-type]
        numbers = Settings(scale=0.01, poll=0.1, tick=0.05, spacing=0.01, in_use_grace=500)
        self.agent = NodeAgent(
            NODE,
            self.driver,
            cluster,
            self.root / "state",
            numbers,
            self.clock,
            policy=NodePolicy("default", RULES),
            plugins=self.plugins,
            hooks=self.hooks,
        )
        self.plugin = DevicePlugin(
            NODE, self.driver, cluster, self.root / "state", self.settings, self.clock, self.agent.known_state,
            names=self.names,
        )  # fmt: skip
        self.agent.join(witnesses=self.plugin.witnesses, observer=self.plugin.changed, claimed=self.claimed)
        self.tasks = [asyncio.create_task(self.agent.run()), asyncio.create_task(self.plugin.run())]
        if wait:
            await self.until(lambda: bool(self.kubelet.devices))

    async def crash(self) -> None:
        for task in reversed(self.tasks):
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        self.tasks = []

    async def until(self, truth: Any, seconds: float = 60.0) -> None:
        ends = self.clock.monotonic() + seconds
        while not truth():
            for task in self.tasks:
                if task.done():
                    task.result()
            assert self.clock.monotonic() < ends, "it did not come true in time"
            await asyncio.sleep(0.01)

    def pod(self, name: str, chips: Sequence[str], *, time: int = 1, resource: str = RESOURCE, count: int | None = None,
            **annotations: str) -> dict[str, Any]:  # fmt: skip
        """Bind a pod as the engine does."""
        body = {
            "metadata": {
                "name": name, "namespace": "default", "uid": f"u-{name}",
                "annotations": {resource: ",".join(chips), "predicate-time": str(time), **annotations},
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "c", "resources": {"limits": {resource: str(count or len(chips))}}}],
            },
            "status": {"phase": "Pending"},
        }  # fmt: skip
        self.cluster.set_pods([*self.cluster.pod_list, body])
        return body

    def notes(self, name: str) -> Mapping[str, str]:
        return next(b["metadata"]["annotations"] for b in self.cluster.pod_list if b["metadata"]["name"] == name)

    def finish(self, name: str, phase: str = "Failed") -> None:
        for body in self.cluster.pod_list:
            if body["metadata"]["name"] == name:
                body["status"]["phase"] = phase
                self.kubelet.end(body["metadata"]["uid"])
        self.cluster.notify("pods")

    def delete(self, name: str) -> None:
        self.kubelet.remove(f"u-{name}")
        self.cluster.set_pods([b for b in self.cluster.pod_list if b["metadata"]["name"] != name])

    def listed(self, kind: str, resource: str = RESOURCE) -> list[str]:
        """A list of the device report: the free chips, or those of a kind such as Unhealthy."""
        body = self.cluster.maps[DEVICE_NAMESPACE, DEVICE_PREFIX + NODE]
        text = json.loads(body["data"]["DeviceInfoCfg"])["DeviceInfo"]["DeviceList"]
        return [name for name in text[f"{resource}-{kind}" if kind else resource].split(",") if name]

    async def seen(self, name: str) -> None:
        """Wait until the plugin knows a pod."""
        await self.until(lambda: f"u-{name}" in (self.plugin._pods.known or {}))

    def order_reset(self, chips: Sequence[int], epoch: int) -> None:
        self.generation += 1
        now = self.clock.now_ms()
        reset = {c: ResetOrder(epoch=epoch, group=tuple(chips), reason="RestartNPU", not_before_ms=0) for c in chips}
        orders = Orders(
            node=NODE, resource_version="", generation=self.generation, revision="r", policy_digest="", issued_ms=now,
            not_after_ms=now + 900_000, isolate={}, resets=reset, vnpu_epoch=0, vnpu_layout={},
        )  # fmt: skip
        self.cluster.set_map(build_orders(orders, self.driver.row.machine.prefix))
