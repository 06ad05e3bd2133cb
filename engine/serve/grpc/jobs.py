"""The service `Job`: summaries of all jobs, for systems that monitor them.

Source: component/clusterd/pkg/application/jobv2 (grpc), docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc

from belay.engine.model.recovery import Code
from belay.engine.serve.grpc.limits import TokenBucket
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.serve.grpc.streams import Context, MessageQueue
from belay.engine.status.summaries import COMPLETE, FAILED, JobSummary, job_summaries
from belay.engine.wire.clusterd import job_pb2 as pb
from belay.engine.wire.gojson import go_json

ROLES: Final = ("CCAgent", "DefaultUser1", "DefaultUser2", "FdAgent")
MAX_CLIENTS: Final = 100_000
PER_ROLE: Final = 20
SUBSCRIBE_RATE: Final = 20.0
BUFFERED: Final = 10
#: Jobs with more NPUs are sent without their rank table; a page holds jobs with at most this many NPUs.
MAX_NPUS: Final = 40_000
#: Seconds after which a client that does not subscribe is forgotten.
IDLE: Final = 120.0


class JobService:
    """The handlers, named as the RPCs."""

    def __init__(self, cluster: ObservedCluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._clients: dict[str, tuple[str, float]] = {}
        self._active: dict[str, int] = {}
        self._rate = TokenBucket(SUBSCRIBE_RATE, SUBSCRIBE_RATE, clock)
        self._sent: dict[str, JobSummary] = {}
        self._streams: dict[str, MessageQueue[Any]] = {}
        self._single: set[MessageQueue[pb.JobSummarySignal]] = set()
        self._lists: set[MessageQueue[pb.JobSummarySignalList]] = set()

    async def Register(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Give a client of a known role its id."""
        if request.role not in ROLES:
            await context.abort(grpc.StatusCode.UNKNOWN, f"role:{request.role[:64]} is not in whitelist")
        self._forget_idle()
        if len(self._clients) >= MAX_CLIENTS:
            text = f"client num limit, max client num is {MAX_CLIENTS}"
            return pb.Status(code=int(Code.RATE_LIMITED), info=text)
        name = str(uuid.uuid4())
        self._clients[name] = (request.role, self._clock())
        return pb.Status(code=int(Code.SUCCESS), info="registration successful", clientId=name)

    async def SubscribeJobSummarySignal(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream every change of a job."""
        self._send_changes()  # earlier changes are not for this client
        await self._serve(request, self._single, (), context)

    async def SubscribeJobSummarySignalList(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream all jobs page by page, then every change."""
        self._send_changes()
        await self._serve(request, self._lists, list(self._pages()), context)

    async def run(self) -> None:
        """Send changes until cancelled."""
        with self._cluster.refreshes() as refreshed:
            while True:
                await refreshed.wait()
                refreshed.clear()
                if self._single or self._lists:
                    self._send_changes()

    def close(self) -> None:
        """End every stream."""
        queues: list[MessageQueue[Any]] = [*self._single, *self._lists]
        for queue in queues:
            queue.close()
        self._clients.clear()

    async def _serve(
        self, request: pb.ClientInfo, queues: set[MessageQueue[Any]], first: Sequence[object], context: Context
    ) -> None:
        client, role = request.clientId, self._clients.get(request.clientId, ("", 0.0))[0]
        refusal = self._refusal(request, role)
        if refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, refusal)

        # a client has one stream: the newest
        earlier = self._streams.get(client)
        if earlier is not None:
            earlier.close()
        queue: MessageQueue[Any] = MessageQueue(len(first) + BUFFERED)
        for message in first:
            queue.put(message)
        self._streams[client] = queue
        self._active[role] = self._active.get(role, 0) + 1
        self._clients[client] = (role, math.inf)  # kept while it subscribes
        queues.add(queue)

        try:
            await context.send_initial_metadata(())
            await queue.pump(context)
        finally:
            queues.discard(queue)
            self._active[role] -= 1
            if self._streams.get(client) is queue:
                del self._streams[client]
                self._clients.pop(client, None)

    def _refusal(self, request: pb.ClientInfo, role: str) -> str:
        """Why a client that registered with ``role`` may not subscribe; empty when it may."""
        if not role:
            return f"invalid clientId: {request.clientId[:128]}, please register first"
        if request.role != role:
            return f"invalid role: {request.role[:64]}, please check role first"
        active = self._active.get(role, 0)
        if active >= PER_ROLE and request.clientId not in self._streams:
            return f"role {role} exceeded max subscription limit: current {active}, max {PER_ROLE}"
        if not self._rate.take():
            return "rate limited, there is too many requests, please retry later"
        return ""

    def _send_changes(self) -> None:
        """Send every change to the subscribers."""
        for job in self._changes():
            message = signal(job, str(uuid.uuid4()))
            for queue in self._single:
                queue.put(message)
            page = self._page((job,), total=1)
            for each in self._lists:
                each.put(page)

    def _changes(self) -> list[JobSummary]:
        """The summaries that differ from those sent last; they count as sent from now on."""
        now = time.time()
        changed = []
        there = {one.id: one for one in job_summaries(self._cluster.observed, now, self._cluster.cache) if one.id}
        for job, found in sorted(there.items()):
            before = self._sent.get(job)
            # the time at which a job was first seen never changes
            data = found.data if before is None else {**found.data, "time": before.data["time"]}
            if before is not None and all(data.get(k) == before.data.get(k) for k in ("job_status", "operator")):
                # until the ConfigMap has the time of the end, each call would name another
                data = {**data, **{k: v for k, v in before.data.items() if k == "deleteTime"}}
            after = found._replace(data=data)
            if after != before:
                self._sent[job] = after
                changed.append(after)
        for job in [job for job in self._sent if job not in there]:
            last = self._sent.pop(job)
            if last.data.get("operator") != "delete":
                changed.append(_ended(last, int(now)))
        return changed

    def _pages(self) -> Iterator[pb.JobSummarySignalList]:
        page: list[JobSummary] = []
        npus = 0
        for _, job in sorted(self._sent.items()):
            if page and npus + job.cards > MAX_NPUS:
                yield self._page(page, total=len(self._sent))
                page, npus = [], 0
            page.append(job)
            npus += job.cards
        if page:
            yield self._page(page, total=len(self._sent))

    def _page(self, jobs: Sequence[JobSummary], *, total: int) -> pb.JobSummarySignalList:
        return pb.JobSummarySignalList(
            jobSummarySignals=[signal(job, str(uuid.uuid4())) for job in jobs],
            ReportTime=str(int(time.time() * 1000)),
            JobTotalNum=total,
        )

    def _forget_idle(self) -> None:
        old = self._clock() - IDLE
        for client in [name for name, (_, at) in self._clients.items() if at < old][:1000]:
            del self._clients[client]


def signal(job: JobSummary, name: str) -> pb.JobSummarySignal:
    """The message about one job; ``name`` is the message's uuid."""
    data = job.data
    return pb.JobSummarySignal(
        uuid=name,
        jobId=job.id,
        jobName=job.name,
        namespace=job.namespace,
        frameWork=data.get("framework", ""),
        jobStatus=job.status,
        time=data.get("time", ""),
        cmIndex="0",
        total=str(len(job.parts)),
        HcclJson="" if job.cards > MAX_NPUS else _table(job.parts),
        deleteTime=data.get("deleteTime", ""),
        sharedTorIp=data.get("sharedTorIp", ""),
        masterAddr=data.get("masterAddr", ""),
        operator=data.get("operator", "add"),
        sid=data.get("sid", ""),
    )


def _table(parts: Sequence[str]) -> str:
    """The whole rank table, joined from the parts that ConfigMaps hold."""
    if len(parts) == 1:
        return parts[0]
    bodies = [json.loads(part) for part in parts]
    return go_json({**bodies[0], "server_list": [row for body in bodies for row in body["server_list"]]})


def _ended(last: JobSummary, now: int) -> JobSummary:
    """The last summary of a deleted job."""
    status = COMPLETE if last.status == COMPLETE else FAILED
    data = {**last.data, "job_status": status, "operator": "delete", "deleteTime": str(now)}
    return last._replace(status=status, data=data)


__all__ = ["ROLES", "JobService", "signal"]
