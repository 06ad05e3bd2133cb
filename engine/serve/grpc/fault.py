"""The service `Fault`: subscriptions to the faults of a job or of the whole cluster.

Source: component/clusterd/pkg/application/fault, docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import grpc

from belay.engine.model.labels import SERVICE_JOB_ID
from belay.engine.model.recovery import Code
from belay.engine.serve.grpc import fault_view
from belay.engine.serve.grpc.fault_view import CLUSTER
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.limits import TokenBucket
from belay.engine.serve.grpc.publishers import Publishers
from belay.engine.serve.grpc.recovery.registry import Registry
from belay.engine.serve.grpc.streams import Context
from belay.engine.wire.clusterd import fault_pb2 as pb

#: The role of an inference service's controller, which works around faults that it hears of.
CONTROLLER: Final = "controller"
RATE: Final = 10.0
BURST: Final = 10
WAITING: Final = 50
CACHE_SECONDS: Final = 3.0
_SHORTEST, _LONGEST = 8, 128
_FORGET_SECONDS: Final = 60.0
_TOO_MANY: Final = "rate limited, there is too many requests, please retry later"
#: Chinese, Japanese and Korean characters.
_CJK: Final = (("\u4e00", "\u9fff"), ("\u3040", "\u30ff"), ("\uac00", "\ud7a3"))


class FaultService:
    """The handlers, named as the RPCs."""

    def __init__(
        self,
        registry: Registry,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        #: Set when a controller begins or ends to be subscribed.
        self.controllers_changed = asyncio.Event()
        self._registry = registry
        self._cluster = registry.cluster
        self._clock, self._sleep = clock, sleep
        self._publishers: Publishers[pb.FaultMsgSignal] = Publishers(opens=_has_faults)
        self._bucket = TokenBucket(RATE, BURST, clock)
        self._waiting = 0
        self._cached: tuple[float, list[pb.NodeFaultInfo]] | None = None
        self._services: tuple[int, dict[str, list[JobView]]] = (-1, {})

    async def Register(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Register a role for a job; an empty job stands for the whole cluster. A refusal is an error of the call."""
        job = await self._asked(request, context)
        if job != CLUSTER and not self._jobs_of(job):
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job} not exist and is not multi-instance")
        if self._publishers.register(job, request.role) is None:
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job} out of max serve jobs")
        return pb.Status(code=int(Code.OK), info="register success")

    async def SubscribeFaultMsgSignal(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream the faults there are, then every change; for the whole cluster, a message about each job."""
        job = await self._asked(request, context)
        publisher = await self._publishers.find(job, request.role, context)
        newest = self._newest(job, publisher.subjects)
        current = {about: message for about, message in newest.items() if message is not None}
        if request.role != CONTROLLER:
            await publisher.serve(context, current)
            return

        self.controllers_changed.set()
        try:
            await publisher.serve(context, current)
        finally:
            self.controllers_changed.set()

    async def GetFaultMsgSignal(self, request: pb.ClientInfo, context: Context) -> pb.FaultQueryResult:
        """Answer with the current faults."""
        job = request.jobId or CLUSTER
        if not await self._admitted():
            await context.abort(grpc.StatusCode.UNKNOWN, _TOO_MANY)
        if job != CLUSTER and not valid(job):
            await context.abort(grpc.StatusCode.UNKNOWN, f"job with jobId: {job[:256]} is invalid")
        if job == CLUSTER:
            signal = fault_view.signal(CLUSTER, self._whole(), self._registry.uuid())
            return pb.FaultQueryResult(code=int(Code.SUCCESS), info="Succeed", faultSignal=signal)
        views = self._jobs_of(job)
        if not views:
            text = f"job with jobId: {job} not found fault info"
            return pb.FaultQueryResult(code=int(Code.SUCCESS), info=text)
        nodes = fault_view.of_jobs(views, self._cluster.observed)
        signal = fault_view.signal(job, nodes, self._registry.uuid())
        return pb.FaultQueryResult(code=int(Code.SUCCESS), info="all info returned", faultSignal=signal)

    async def run(self) -> None:
        """Push what changed, until cancelled."""
        forget = self._clock() + _FORGET_SECONDS
        with self._cluster.refreshes() as refreshed:
            while True:
                await refreshed.wait()
                refreshed.clear()
                self._publishers.publish(self._newest)
                if self._clock() > forget:
                    forget = self._clock() + _FORGET_SECONDS
                    self._publishers.forget(lambda job: job == CLUSTER or bool(self._jobs_of(job)))

    def services_heard(self) -> list[str]:
        """The inference services whose controllers are subscribed now."""
        return [job for job in self._publishers.jobs_of(CONTROLLER) if job != CLUSTER]

    def close(self) -> None:
        """End every stream."""
        self._publishers.close()

    async def _asked(self, request: pb.ClientInfo, context: Context) -> str:
        """The job that a client asks for. Aborts the call of one without a role."""
        if not request.role:
            await context.abort(grpc.StatusCode.UNKNOWN, "request is nil or role is empty")
        return request.jobId or CLUSTER

    def _newest(self, job: str, known: Collection[str]) -> dict[str, pb.FaultMsgSignal | None]:
        """The newest message by job; None for a job that is gone. ``known`` are jobs of which subscribers know faults:
        they learn that these have ended.
        """
        observed, jobs = self._cluster.observed, self._cluster.jobs
        if job != CLUSTER:
            views = self._jobs_of(job)
            return {job: _named(fault_view.signal(job, fault_view.of_jobs(views, observed))) if views else None}

        hit = fault_view.of_each_job(jobs, observed)
        ended = [one for one in known if one not in hit]
        return {
            **{one: _named(fault_view.signal(one, nodes)) for one, nodes in hit.items()},
            **{one: _named(fault_view.signal(one, [])) if one in jobs else None for one in ended},
        }

    def _jobs_of(self, name: str) -> list[JobView]:
        """The job of that id, or the jobs of the inference service of that name."""
        view = self._cluster.jobs.get(name)
        if view is not None:
            return [view]
        version, services = self._services
        if version != self._cluster.version:
            services = {}
            for one in self._cluster.jobs.values():
                labels = (one.labels, *(pod.labels for pod in one.pods[:1]))
                service = next((found[SERVICE_JOB_ID] for found in labels if found.get(SERVICE_JOB_ID)), "")
                if service:
                    services.setdefault(service, []).append(one)
            self._services = (self._cluster.version, services)
        return services.get(name, [])

    def _whole(self) -> list[pb.NodeFaultInfo]:
        now = self._clock()
        if self._cached is None or now - self._cached[0] >= CACHE_SECONDS:
            self._cached = (now, fault_view.of_cluster(self._cluster.observed))
        return self._cached[1]

    async def _admitted(self) -> bool:
        if self._bucket.take():
            return True
        if self._waiting >= WAITING:
            return False
        self._waiting += 1
        try:
            while not self._bucket.take():
                await self._sleep(self._bucket.wait())
        finally:
            self._waiting -= 1
        return True


def valid(job: str) -> bool:
    """Whether ``job`` is valid in a query: 8 to 128 characters, none of them Chinese, Japanese or Korean."""
    if not _SHORTEST <= len(job) <= _LONGEST:
        return False
    return not any(first <= char <= last for char in job for first, last in _CJK)


def _has_faults(message: pb.FaultMsgSignal) -> bool:
    return bool(message.signalType == fault_view.FAULT)


def _named(message: pb.FaultMsgSignal) -> pb.FaultMsgSignal:
    """The message with a uuid made from its content, so that every server gives the same message the same uuid."""
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
    message.uuid = digest[:32].upper()
    return message


__all__ = ["FaultService", "valid"]
