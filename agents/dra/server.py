"""Kubelet's side of the driver: the registration socket, and the socket on which claims are prepared.

Services: k8s.io/kubelet/pkg/apis/dra/v1 and v1beta1, pluginregistration/v1, dra-health/v1alpha1. Kubelet's plugin
watcher reads its folder again when it restarts, so a socket that is there is enough.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.dra import cdi
from belay.agents.dra.api import dra_v1_pb2 as api
from belay.agents.dra.api import dra_v1_pb2_grpc
from belay.agents.dra.api import health_pb2 as health
from belay.agents.dra.api import health_pb2_grpc as health_services
from belay.agents.dra.api import registration_pb2 as registration
from belay.agents.dra.api import registration_pb2_grpc as registration_services
from belay.agents.dra.claims import ClaimError, PreparedClaim
from belay.agents.dra.settings import DraSettings
from belay.engine.wire.dra import DRIVER

SOCKET: Final = "dra.sock"
SUPPORTED: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
OLDER_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
MAX_MESSAGE: Final = 4 << 20
MAX_STREAMS: Final = 64
GRACE: Final = 2.0
#: Health is sent again after so long without a change (s); kubelet forgets what is older than 30 s.
HEALTH_AGAIN: Final = 15.0
_MAX_ERROR: Final = 300
_MAX_CLAIMS: Final = 256
_log = Log("dra")

Prepare = Callable[[str, str, str], Awaitable[PreparedClaim]]
Unprepare = Callable[[str], Awaitable[None]]
Health = Callable[[], Mapping[str, bool]]


class _Claims:
    """NodePrepareResources and NodeUnprepareResources."""

    def __init__(self, node: str, prepare: Prepare, unprepare: Unprepare) -> None:
        self._node, self._prepare, self._unprepare = node, prepare, unprepare

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        """Prepare claims, each with its own answer."""
        answer = api.NodePrepareResourcesResponse()
        for claim in list(request.claims)[:_MAX_CLAIMS]:
            try:
                found = await self._prepare(claim.namespace, claim.name, claim.uid)
            except (ClaimError, OSError) as error:  # one claim that cannot be prepared must not fail the others
                _refused(answer.claims[claim.uid], "claim is not prepared", claim, error)
                continue
            one = answer.claims[claim.uid]
            for device in found.devices:
                one.devices.add(
                    request_names=list(device.requests),
                    pool_name=self._node,
                    device_name=device.name,
                    cdi_device_ids=[cdi.device_id(claim.uid, device.name)],
                )
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        """Take claims back, each with its own answer."""
        answer = api.NodeUnprepareResourcesResponse()
        for claim in list(request.claims)[:_MAX_CLAIMS]:
            one = answer.claims[claim.uid]
            try:
                await self._unprepare(claim.uid)
            except (ClaimError, OSError) as error:
                _refused(one, "claim is not taken back", claim, error)
        return answer


def _older_claims(claims: _Claims) -> grpc.GenericRpcHandler[Any, Any]:
    """The same calls under their name in v1beta1, whose messages have the fields and numbers of v1."""
    prepare = grpc.unary_unary_rpc_method_handler(
        claims.NodePrepareResources,
        request_deserializer=api.NodePrepareResourcesRequest.FromString,
        response_serializer=api.NodePrepareResourcesResponse.SerializeToString,
    )
    unprepare = grpc.unary_unary_rpc_method_handler(
        claims.NodeUnprepareResources,
        request_deserializer=api.NodeUnprepareResourcesRequest.FromString,
        response_serializer=api.NodeUnprepareResourcesResponse.SerializeToString,
    )
    methods = {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}
    return grpc.method_handlers_generic_handler(OLDER_SERVICE, methods)


def _refused(answer: Any, text: str, claim: Any, error: Exception) -> None:
    answer.error = str(error)[:_MAX_ERROR] or type(error).__name__
    _log.warning(text, claim=f"{claim.namespace}/{claim.name}"[:_MAX_ERROR], reason=answer.error)


class _Registration(registration_services.RegistrationServicer):
    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self.registered = False
        self.refusal = ""

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint), supported_versions=SUPPORTED
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        self.registered, self.refusal = request.plugin_registered, str(request.error)[:_MAX_ERROR]
        if self.registered:
            _log.info("driver is registered", driver=DRIVER)
        else:
            _log.error("kubelet does not register the driver", driver=DRIVER, error=self.refusal)
        return registration.RegistrationStatusResponse()


class _Health(health_services.DRAResourceHealthServicer):
    def __init__(self, node: str, of: Health, changed: asyncio.Event, clock: Clock) -> None:
        self._node, self._of, self._changed, self._clock = node, of, changed, clock

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            self._changed.clear()
            now = int(self._clock.now())
            yield health.NodeWatchResourcesResponse(
                devices=[
                    health.DeviceHealth(
                        device=health.DeviceIdentifier(pool_name=self._node, device_name=name),
                        health=health.HEALTHY if well else health.UNHEALTHY,
                        last_updated_time=now,
                    )
                    for name, well in self._of().items()
                ]
            )
            await self._clock.wait(self._changed, HEALTH_AGAIN)


class DraServer:
    """Both sockets. ``refusal`` is why kubelet does not register the driver, empty when it does or was not asked."""

    def __init__(
        self, node: str, settings: DraSettings, clock: Clock, prepare: Prepare, unprepare: Unprepare, health: Health
    ) -> None:
        self._own = settings.plugins / DRIVER / SOCKET
        self._registry = settings.registrar / f"{DRIVER}-reg.sock"
        self.changed = asyncio.Event()
        self._registration = _Registration(self._own)
        self._claims = _Claims(node, prepare, unprepare)
        self._health = _Health(node, health, self.changed, clock)
        self._servers: list[tuple[grpc.aio.Server, Path, tuple[int, int] | None]] = []
        self._starts = 0

    @property
    def refusal(self) -> str:
        """Why kubelet refused the driver."""
        return self._registration.refusal

    @property
    def listening(self) -> bool:
        """Whether both socket files are those that this server made."""
        return bool(self._servers) and all(_identity(path) == identity for _, path, identity in self._servers)

    async def start(self) -> None:
        """Listen on both sockets, replacing existing ones. Raises OSError."""
        await self.stop()

        def claims(server: grpc.aio.Server) -> None:
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(self._claims, server)  # type: ignore[no-untyped-call]
            server.add_generic_rpc_handlers((_older_claims(self._claims),))
            health_services.add_DRAResourceHealthServicer_to_server(self._health, server)  # type: ignore[no-untyped-call]

        def registry(server: grpc.aio.Server) -> None:
            registration_services.add_RegistrationServicer_to_server(self._registration, server)  # type: ignore[no-untyped-call]

        # kubelet calls the first as soon as it sees the second
        for path, add in ((self._own, claims), (self._registry, registry)):
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._starts += 1
            # gRPC removes the file that it made long after a server has ended; kubelet ignores names with a dot
            fresh = path.parent / f".{path.name}.{os.getpid()}.{self._starts}"
            fresh.unlink(missing_ok=True)
            server = grpc.aio.server(
                maximum_concurrent_rpcs=MAX_STREAMS, options=(("grpc.max_receive_message_length", MAX_MESSAGE),)
            )
            add(server)
            before = os.umask(0o177)
            try:
                server.add_insecure_port(f"unix:{fresh}")
            except RuntimeError as error:
                raise OSError(None, str(error)[:200]) from error
            finally:
                os.umask(before)
            await server.start()
            os.replace(fresh, path)
            self._servers.append((server, path, _identity(path)))

    async def stop(self) -> None:
        """Stop listening; kubelet unregisters the driver once the registration socket is gone."""
        servers, self._servers = self._servers, []
        for server, path, identity in reversed(servers):
            if _identity(path) == identity:
                path.unlink(missing_ok=True)
            await server.stop(GRACE)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
