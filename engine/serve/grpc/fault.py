"""The service `Fault`: subscriptions to the faults of a job or of the whole cluster.

Source: component/clusterd/pkg/application/fault, docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from engine.model.recovery import Code
from engine.serve.grpc import fault_view
from engine.serve.grpc.fault_view import CLUSTER
from engine.serve.grpc.limits import TokenBucket
from engine.serve.grpc.publishers import Publishers
from engine.serve.grpc.recovery.registry import Registry
from engine.serve.grpc.streams import Context
from engine.wire.clusterd import fault_pb2 as pb

RATE: Final = 10.0
BURST: Final = 10
WAITING: Final = 50
CACHE_SECONDS: Final = 3.0
_SHORTEST, _LONGEST = 8, 128
_FORGET_SECONDS: Final = 60.0
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
        self._registry = registry
        self._cluster = registry.cluster
        self._clock, self._sleep = clock, sleep
        self._publishers: Publishers[pb.FaultMsgSignal] = Publishers()
        self._bucket = TokenBucket(RATE, BURST, clock)
        self._waiting = 0
        self._cached: tuple[float, list[pb.NodeFaultInfo]] | None = None

    async def Register(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Register a role for a job; an empty job stands for the whole cluster."""
        job = request.jobId or CLUSTER
        if not request.role:
            return pb.Status(code=int(Code.BAD_PARAMETER), info="role is empty")
        if job != CLUSTER and job not in self._cluster.jobs:
            return pb.Status(code=int(Code.JOB_NOT_EXIST), info=f"jobId={job} not exist")
        if self._publishers.register(job, request.role) is None:
            return pb.Status(code=int(Code.TOO_MANY_JOBS), info="out of max serve jobs")
        return pb.Status(code=int(Code.OK), info="register success")

    async def SubscribeFaultMsgSignal(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream the current faults, then every change."""
        job = request.jobId or CLUSTER
        publisher = await self._publishers.find(job, request.role, context)
        await publisher.serve(context, self._message(job))

    async def GetFaultMsgSignal(self, request: pb.ClientInfo, context: Context) -> pb.FaultQueryResult:
        """Answer with the current faults."""
        job = request.jobId or CLUSTER
        if not await self._admitted():
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"code={int(Code.RATE_LIMITED)}, rate limited, there are too many requests"
            )
        if job != CLUSTER and not valid(job):
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"code={int(Code.BAD_PARAMETER)}, job with jobId: {job[:256]} is invalid"
            )
        if job == CLUSTER:
            signal = fault_view.signal(CLUSTER, self._whole(), self._registry.uuid())
            return pb.FaultQueryResult(code=int(Code.SUCCESS), info="Succeed", faultSignal=signal)
        view = self._cluster.jobs.get(job)
        nodes = fault_view.of_job(view, self._cluster.observed) if view is not None else []
        if not nodes:
            text = f"job with jobId: {job} not found fault info"
            return pb.FaultQueryResult(code=int(Code.SUCCESS), info=text)
        signal = fault_view.signal(job, nodes, self._registry.uuid())
        return pb.FaultQueryResult(code=int(Code.SUCCESS), info="all info returned", faultSignal=signal)

    async def run(self) -> None:
        """Push what changed, until cancelled."""
        forget = self._clock() + _FORGET_SECONDS
        with self._cluster.refreshes() as refreshed:
            while True:
                await refreshed.wait()
                refreshed.clear()
                self._publishers.publish(self._message)
                if self._clock() > forget:
                    forget = self._clock() + _FORGET_SECONDS
                    self._publishers.forget(lambda job: job == CLUSTER or job in self._cluster.jobs)

    def close(self) -> None:
        """End every stream."""
        self._publishers.close()

    def _message(self, job: str) -> pb.FaultMsgSignal | None:
        """The job's faults; None for one that is gone."""
        if job == CLUSTER:
            return _named(fault_view.signal(CLUSTER, fault_view.of_cluster(self._cluster.observed)))
        view = self._cluster.jobs.get(job)
        if view is None:
            return None
        return _named(fault_view.signal(job, fault_view.of_job(view, self._cluster.observed)))

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


def _named(message: pb.FaultMsgSignal) -> pb.FaultMsgSignal:
    """The message with a uuid made from its content, so that every server gives the same message the same uuid."""
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
    message.uuid = digest[:32].upper()
    return message


__all__ = ["FaultService", "valid"]
