"""The gRPC service of one resource: the device list for kubelet, and kubelet's calls.

Numbers and behaviour: component/ascend-device-plugin/pkg/server/{server,plugin}.go, pkg/common/send_stat.go.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.kubelet.api import deviceplugin_pb2 as api
from belay.agents.kubelet.api import deviceplugin_pb2_grpc as services
from belay.agents.kubelet.cutting import Refused
from belay.agents.kubelet.device_holdings import CHANNEL

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
MAX_MESSAGE: Final = 4 << 20
MAX_STREAMS: Final = 64
KEEPALIVE_MS: Final = 300_000
AGAIN: Final = 3600.0
REGISTER_SECONDS: Final = 10.0
GRACE: Final = 2.0
_log = Log("kubelet")

Health = Callable[[], Mapping[str, bool]]
Near = Callable[[str], Sequence[int]]
Allocate = Callable[[Sequence[str]], Awaitable[api.ContainerAllocateResponse]]
Prefer = Callable[[Sequence[str], Sequence[str], int], Awaitable[Sequence[str]]]


class ResourceServer(services.DevicePluginServicer):
    """Serve one resource on ``<folder>/<device type>.sock`` and registers it with kubelet."""

    def __init__(
        self, resource: str, device_type: str, folder: Path, health: Health, near: Near, allocate: Allocate,
        prefer: Prefer, clock: Clock,
    ) -> None:  # fmt: skip
        self.resource = resource
        self._endpoint, self._folder = f"{device_type}.sock", folder
        self._health, self._near, self._allocate, self._prefer, self._clock = health, near, allocate, prefer, clock
        self._server: grpc.aio.Server | None = None
        self._changed: set[asyncio.Event] = set()
        self._sent: dict[asyncio.Event, Mapping[str, bool]] = {}
        self._identity: tuple[int, int] | None = None
        self._starts = 0
        self.registered_at = 0.0

    # ---- lifecycle

    async def start(self) -> None:
        """Listen on the socket, replacing an existing one. Raises OSError."""
        await self.stop()
        path = self._folder / self._endpoint
        # gRPC removes the file that it created long after a server has ended, so it binds a temporary name
        self._starts += 1
        fresh = self._folder / f".{self._endpoint}.{os.getpid()}.{self._starts}"
        fresh.unlink(missing_ok=True)
        server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_STREAMS,
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ),
        )
        services.add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        before = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{fresh}")
        except RuntimeError as error:
            raise OSError(None, str(error)[:200]) from error
        finally:
            os.umask(before)
        await server.start()
        os.replace(fresh, path)
        self._server = server
        self._identity = self._stat()

    async def stop(self) -> None:
        """Finish the pending calls, then stop listening."""
        server, self._server = self._server, None
        if server is not None:
            # the stream would wait indefinitely; its end informs kubelet
            for event in list(self._changed):
                event.set()
            await server.stop(GRACE)
            await server.wait_for_termination(GRACE)
            if self._stat() == self._identity:
                (self._folder / self._endpoint).unlink(missing_ok=True)

    @property
    def listening(self) -> bool:
        """Whether the socket file is still the one that this server created."""
        return self._server is not None and self._identity is not None and self._stat() == self._identity

    @property
    def connected(self) -> bool:
        """Whether kubelet has a ListAndWatch stream open."""
        return bool(self._sent)

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = (self._folder / self._endpoint).lstat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def register(self) -> None:
        """Register the resource with kubelet. Raises OSError with kubelet's message."""
        path = self._folder / KUBELET_SOCKET
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=self._endpoint,
            resource_name=self.resource,
            options=api.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        async with grpc.aio.insecure_channel(f"unix:{path}", options=CHANNEL) as channel:
            stub = services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            try:
                await stub.Register(request, timeout=REGISTER_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise OSError(None, f"kubelet does not register {self.resource}: {error.details()}"[:300]) from error
        self.registered_at = self._clock.monotonic()
        _log.info("resource is registered", resource=self.resource, endpoint=self._endpoint)

    # ---- devices

    def changed(self) -> None:
        """Read the devices again and send them to kubelet if they differ."""
        for event in self._changed:
            event.set()

    def reported_unhealthy(self, names: Sequence[str]) -> bool:
        """Return whether every stream last reported these devices as unhealthy."""
        return not any(state.get(name) for state in self._sent.values() for name in names)

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> api.DevicePluginOptions:
        """Return the options: no PreStartContainer call; GetPreferredAllocation is available."""
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        """Send the whole list immediately, after every change, and every hour."""
        event = asyncio.Event()
        self._changed.add(event)
        last: Mapping[str, bool] | None = None
        due, server = 0.0, self._server
        try:
            while self._server is server:
                health = self._health()
                if health != last or self._clock.monotonic() >= due:
                    yield api.ListAndWatchResponse(devices=[self._device(name, well) for name, well in health.items()])
                    # the generator resumes once the list was sent: a reset waits for that
                    self._sent[event] = health
                    last, due = health, self._clock.monotonic() + AGAIN
                await self._clock.wait(event, max(0.0, due - self._clock.monotonic()))
        finally:
            self._changed.discard(event)
            self._sent.pop(event, None)

    def _device(self, name: str, well: bool) -> api.Device:
        nodes = [api.NUMANode(ID=number) for number in self._near(name)]
        return api.Device(
            ID=name,
            health="Healthy" if well else "Unhealthy",
            topology=api.TopologyInfo(nodes=nodes) if nodes else None,
        )

    # ---- calls

    async def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        """Return the free ids that kubelet should take."""
        answers = []
        for one in request.container_requests:
            available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
            ids = await self._prefer(available, must, one.allocation_size)
            answers.append(api.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return api.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        """Allocate devices to containers; kubelet shows a refusal in the pod's status."""
        answers = []
        for one in request.container_requests:
            try:
                answers.append(await self._allocate(list(one.devices_ids)))
            except Refused as refusal:
                _log.warning("devices are not given", resource=self.resource, reason=refusal)
                await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        self.changed()
        return api.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request: Any, context: Any) -> api.PreStartContainerResponse:
        """Do nothing before a container starts."""
        return api.PreStartContainerResponse()
