"""The gRPC server: ClusterD's services on one port, its probe on another, limits and keep-alive as ClusterD has them.

Source: component/clusterd/pkg/interface/grpc (server.go), main.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import grpc
from aiohttp import web

from belay.engine.errors import InputError
from belay.engine.kube import Kube, KubeError, cancel_all
from belay.engine.log import get
from belay.engine.serve.grpc import listening
from belay.engine.serve.grpc.access import Access, Grants, ObservedPods
from belay.engine.serve.grpc.callers import Callers, Mode, accounts_of
from belay.engine.serve.grpc.config import ConfigService
from belay.engine.serve.grpc.fault import FaultService
from belay.engine.serve.grpc.jobs import JobService
from belay.engine.serve.grpc.leader import DURATION, Leader
from belay.engine.serve.grpc.limits import Connections, LimitInterceptor, Rates
from belay.engine.serve.grpc.observed_cluster import ObservedCluster, clock_ms
from belay.engine.serve.grpc.profiling import TrainingDataTraceService
from belay.engine.serve.grpc.public_faults import PubFaultService, PublicFaultTable
from belay.engine.serve.grpc.recovery.registry import Registry
from belay.engine.serve.grpc.recovery.service import RecoverService
from belay.engine.serve.grpc.recovery.training import TrainingService
from belay.engine.serve.grpc.relay import Relay, handlers
from belay.engine.serve.grpc.slow_networks import SlowNetworks
from belay.engine.serve.grpc.slow_nodes import SlowNodes
from belay.engine.serve.grpc.subscribers import SubscribersRecord
from belay.engine.serve.grpc.super_pods import SuperPods
from belay.engine.serve.grpc.tls import Certificates, allowed_plaintext, files_of, is_loopback
from belay.engine.serve.grpc.token_reviews import TokenReviews
from belay.engine.settings import Settings
from belay.engine.wire import names
from belay.engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2
from belay.engine.wire.training import training_pb2

_log = get("grpc")
PORT: Final = 8899
SYNC_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 3.0
MAX_WAITING: Final = 16_384
"""Calls that may wait to be looked at: half of what one host's connections can carry."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.max_concurrent_streams", 64),
    # gRPC drops calls beyond 1,000 that wait, at random and as CANCELLED; ours are refused by name (`limits`)
    ("grpc.server.max_pending_requests", MAX_WAITING),
    ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_WAITING),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # clients ping every 3 s at most; the margin is for pings that the network delays
    ("grpc.http2.min_ping_interval_without_data_ms", 2_500),
    ("grpc.so_reuseport", 0),
)


class GrpcServer:
    """All services of one process. Use with ``async with``: it serves until the context ends.

    ``callers`` says how callers are known, ``grants`` which of them may do more than others.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        identity: str,
        host: str = "127.0.0.1",
        port: int = 0,
        health_port: int | None = None,
        certificates: Certificates | None = None,
        cluster: ObservedCluster | None = None,
        clock: Callable[[], int] = clock_ms,
        duration: float = DURATION,
        rates: Rates | None = None,
        connections: Connections | None = None,
        table: Callable[[], PublicFaultTable] | None = None,
        keep_alive: float = 5.0,
        callers: Mode = "known",
        grants: Grants | None = None,
        own_token: Callable[[], str] | None = None,
        recoveries: str = names.SYSTEM,
    ) -> None:
        self.cluster = cluster or ObservedCluster(kube)
        self.registry = Registry(kube, self.cluster, clock=clock, namespace=recoveries)
        self.host, self.port, self.health_port = host, port, health_port
        self._kube = kube
        self._identity = identity
        self._certificates = certificates
        self._duration = duration
        self._guard = LimitInterceptor(rates or Rates(), connections or Connections())
        self._server = grpc.aio.server(interceptors=(self._guard,), options=OPTIONS)
        self.fault = FaultService(self.registry)
        self.subscribers = SubscribersRecord(
            kube, identity, self.fault.services_heard, self._serving_epoch, self.fault.controllers_changed
        )
        self.config = ConfigService(self.cluster)
        self.jobs = JobService(self.cluster)
        self.tracing = TrainingDataTraceService(kube, self.cluster)
        self.public = PubFaultService(kube, self.cluster, table)
        self.training = TrainingService(self.registry, self.public)
        self.super_pods = SuperPods(kube, self.cluster, self._leading)
        self.slow_nodes = SlowNodes(kube, self.cluster, self.public, self.tracing, self._leading)
        self.slow_networks = SlowNetworks(kube, self.cluster, self.public, self._leading)
        pods = ObservedPods(self.cluster)
        own_certificate = certificates.shared if certificates is not None else None
        self._callers = Callers(
            TokenReviews(kube), pods, mode=callers, own_token=own_token, own_certificate=own_certificate
        )
        self._access = Access(
            self._callers, self.cluster, pods, grants=grants, served=self.registry.sessions.__contains__
        )
        self._recover = RecoverService(self.registry, keep_alive=keep_alive)
        self._tasks: list[asyncio.Task[None]] = []
        self._probe: web.AppRunner | None = None
        self.leader: Leader | None = None
        self._relay: Relay | None = None

    async def __aenter__(self) -> GrpcServer:
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _start(self) -> None:
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        try:
            if self._certificates is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._certificates.server())
        except RuntimeError as error:
            raise InputError(
                f"cannot listen on {address}", where="BELAY_GRPC_LISTEN", hint="Choose another."
            ) from error
        if not self.port:
            raise InputError(f"cannot listen on {address}", where="BELAY_GRPC_LISTEN", hint="Choose another.")
        reached = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        leader = self.leader = Leader(
            self._kube, self._identity, reached, begin=self._begin, lose=self._lose, duration=self._duration
        )
        credentials = self._certificates.client if self._certificates is not None else None
        relay = self._relay = Relay(leader, credentials)
        services = (
            (recover_pb2, "Recover", self._recover),
            (config_pb2, "Config", self.config),
            (fault_pb2, "Fault", self.fault),
            (job_pb2, "Job", self.jobs),
            (profiling_pb2, "TrainingDataTrace", self.tracing),
            (pubfault_pb2, "PubFault", self.public),
            (training_pb2, "Training", self.training),
        )
        self._server.add_generic_rpc_handlers(
            tuple(
                handlers(module.DESCRIPTOR.services_by_name[name], serve, relay, self._access)
                for module, name, serve in services
            )
        )
        await self._server.start()
        if self.health_port is not None:
            await self._serve_probe(self.health_port)
        works: tuple[Awaitable[None], ...] = (
            self.cluster.run(), self.registry.run(), leader.run(), self.fault.run(), self.config.run(), self.jobs.run(),
            self.public.run(), self.slow_nodes.run(), self.slow_networks.run(), self.super_pods.run(),
            self.subscribers.run(),
        )  # fmt: skip
        self._tasks = [asyncio.ensure_future(work) for work in works]
        _log.info("serving gRPC", address=reached, tls=self._certificates is not None, callers=self._callers.mode)
        if self._callers.mode == "any":
            _log.warning("every caller may speak for every job; BELAY_GRPC_CALLERS=known or address asks who it is")

    async def aclose(self) -> None:
        """End every stream, release the Lease and let calls finish."""
        self.registry.closing = True
        tasks, self._tasks = self._tasks, []
        await cancel_all(*tasks)
        await self.registry.aclose()
        for service in (self.fault, self.config, self.jobs, self.tracing):
            service.close()
        await self._server.stop(GRACE_SECONDS)
        await self._callers.aclose()
        if self._relay is not None:
            await self._relay.aclose()
        if self._probe is not None:
            await self._probe.cleanup()

    async def kill(self) -> None:
        """End as a killed process does, without releasing or sending anything. For tests."""
        self.registry.closing = True
        if self.leader is not None:
            self.leader.abandoned = True
        await self._server.stop(0)
        await cancel_all(*self._tasks)
        if self._relay is not None:
            await self._relay.aclose()
        for session in self.registry.sessions.values():
            session.end()

    @property
    def problem(self) -> str:
        """Why calls cannot be answered now; empty when they can."""
        if not self.cluster.synced:
            return "the cluster is not listed yet"
        if self.leader is None or not (self.leader.leads or self.leader.holder):
            return "no server serves jobs"
        return ""

    def _leading(self) -> bool:
        return self.leader is not None and self.leader.leads

    def _serving_epoch(self) -> int | None:
        return self.registry.epoch if self._leading() else None

    async def _begin(self, epoch: int) -> None:
        if not await self.cluster.wait_synced(SYNC_SECONDS):
            raise KubeError("the cluster could not be listed")
        self.cluster.refresh()
        held = await self.registry.adopt(epoch)
        _log.info("conversations taken over", jobs=held)

    def _lose(self) -> None:
        self.registry.drop_sessions()
        for service in (self.fault, self.config, self.jobs, self.tracing):
            service.close()

    async def _serve_probe(self, port: int) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._probed)
        self._probe = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._probe.setup()
        try:
            site = web.TCPSite(self._probe, self.host, port)
            await site.start()
        except OSError as error:
            raise InputError(
                f"cannot listen: {error.strerror or error}", where="BELAY_GRPC_HEALTH_PORT", hint="Choose another."
            ) from error
        self.health_port = int(self._probe.addresses[0][1])

    async def _probed(self, request: web.Request) -> web.Response:
        if request.path != "/":
            return web.Response(status=404, text="not found\n")
        if request.method != "GET":
            return web.Response(status=405, text="method not allowed\n", headers={"Allow": "GET"})
        problem = self.problem
        return web.Response(status=503, text=problem + "\n") if problem else web.Response(text="ok")


@contextlib.asynccontextmanager
async def serving(
    settings: Settings, kube: Kube, environ: Mapping[str, str] | None = None
) -> AsyncIterator[GrpcServer | None]:
    """The gRPC services as the settings have them; yields the server, or None when they are off.

    Raises:
        InputError: the address or the certificates cannot be used.
    """
    host, port, given = where(settings, os.environ if environ is None else environ)
    if not host:
        yield None
        return
    files = files_of(settings)
    if files is None and not allowed_plaintext(settings, host):
        raise InputError(
            f"{host} is reached from other machines, and neither certificates nor plaintext are set",
            where="BELAY_GRPC_TLS_CERT, BELAY_GRPC_PLAINTEXT",
            hint="Clients of ClusterD need BELAY_GRPC_PLAINTEXT=1; BELAY_GRPC_LISTEN=off turns the services off.",
        )
    grants = Grants(
        operators=_accounts("BELAY_GRPC_OPERATORS", settings.grpc_operators),
        fault_senders=_accounts("BELAY_GRPC_FAULT_SENDERS", settings.grpc_fault_senders),
    )
    server = GrpcServer(
        kube,
        identity=settings.identity,
        host=host,
        port=port,
        health_port=settings.grpc_health_port or None,
        certificates=Certificates(files) if files is not None else None,
        callers=callers_of(settings, host, tls=files is not None),
        grants=grants,
        recoveries=settings.recovery_namespace,
    )
    try:
        await server.__aenter__()
    except InputError as error:
        await listening.publish_problem(kube, settings.identity, str(error), time.time())
        if given:
            raise
        _log.warning("gRPC services are off", reason=str(error))
        repeating = asyncio.create_task(_repeat(kube, settings.identity, str(error)))
        try:
            yield None
        finally:
            await cancel_all(repeating)
        return
    try:
        await listening.publish_problem(kube, settings.identity, "", time.time())
        yield server
    finally:
        await server.aclose()


async def _repeat(kube: Kube, identity: str, problem: str) -> None:
    while True:
        await asyncio.sleep(listening.REPEAT_SECONDS)
        await listening.publish_problem(kube, identity, problem, time.time())


def callers_of(settings: Settings, host: str, *, tls: bool) -> Mode:
    """How callers are known: without TLS on loopback everybody is trusted who can start processes on this machine."""
    match settings.grpc_callers:
        case "auto":
            return "any" if not tls and is_loopback(host) else "known"
        case chosen:
            return chosen


def _accounts(variable: str, text: str) -> frozenset[tuple[str, str]]:
    try:
        return accounts_of(text)
    except ValueError as error:
        raise InputError(str(error), where=variable) from error


def where(settings: Settings, environ: Mapping[str, str]) -> tuple[str, int, bool]:
    """(host, port, whether the address was set) to serve on; an empty host when the services are off.

    Raises:
        InputError: $POD_IP or the setting is not an address to listen on.
    """
    text = settings.grpc_listen
    if text == "off":
        return "", 0, True
    if text != "auto":
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise InputError(
                f"{text!r} is not an address", where="BELAY_GRPC_LISTEN", hint="Write HOST:PORT, off or auto."
            )
        return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port), True
    pod = environ.get("POD_IP", "")
    if not pod:
        return "127.0.0.1", PORT, False
    try:
        address = ipaddress.ip_address(pod)
    except ValueError as error:
        raise InputError(f"{pod!r} is not an IP address", where="POD_IP") from error
    if address.is_unspecified or pod == "255.255.255.255":
        raise InputError(f"{pod} is not an address to listen on", where="POD_IP")
    return str(address), PORT, True


__all__ = ["GRACE_SECONDS", "OPTIONS", "PORT", "GrpcServer", "serving", "where"]
