"""The service `Recover`: rules and texts of each RPC. `session.py` does the rest.

Sources: component/clusterd/pkg/application/recover (service.go), docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from belay.engine.model.labels import PROCESS_RECOVER_ENABLE, SUB_HEALTHY_STRATEGY
from belay.engine.model.recovery import Code, FaultyRank, Report
from belay.engine.model.recovery.conversation import Done, Input, Offered, Start, StopComplete, merged
from belay.engine.model.recovery.protocol import KEEP_ALIVE, KEEP_ALIVE_PERIOD, NORMAL, REPORT_TIMEOUT, RETRY_TYPES
from belay.engine.serve.grpc.callers import caller
from belay.engine.serve.grpc.recovery import operations
from belay.engine.serve.grpc.recovery.registry import Registry
from belay.engine.serve.grpc.recovery.session import Session, TakenOver
from belay.engine.serve.grpc.streams import Context, MessageQueue
from belay.engine.wire.clusterd import recover_pb2 as pb

#: Longest list of faulty ranks, and longest text of one, that a client may send.
_MAX_RANKS: Final = 100_000
_MAX_TEXT: Final = 64
#: ClusterD's text, spelling and the error that it never has included.
_NOT_OPEN: Final = "job(uid={}) process-recover-enable and subhealthy hotswtich not open:<nil>"


class RecoverService:
    """The handlers, named as the RPCs. ``keep_alive`` is seconds between keep-alive messages on the signal stream,
    ``patience`` seconds for which an operator waits for a result.
    """

    def __init__(
        self, registry: Registry, *, keep_alive: float = KEEP_ALIVE_PERIOD, patience: float = REPORT_TIMEOUT
    ) -> None:
        self._registry = registry
        self._keep_alive = keep_alive
        self._patience = patience

    async def Init(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Initialise process recovery for the job."""
        registry, job = self._registry, request.jobId
        done = pb.Status(code=int(Code.OK), info=f"job(uid={job}) init success")
        if registry.inited(job):
            return done
        view = registry.cluster.jobs.get(job)
        if view is None or not view.name or not view.namespace or (registry.cluster.pod_groups and not view.group):
            return pb.Status(code=int(Code.POD_GROUP), info=f"job(uid={job}) one of jobName, pgName, ns is empty")
        if view.labels.get(PROCESS_RECOVER_ENABLE) != "on" and view.labels.get(SUB_HEALTHY_STRATEGY) != "hotSwitch":
            return pb.Status(code=int(Code.ENABLE_OFF), info=_NOT_OPEN.format(job))
        await registry.init(view)
        return done

    async def Register(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Register the job's controller."""
        registry, job = self._registry, request.jobId
        done = pb.Status(code=int(Code.OK), info="register success")
        if registry.find(job) is not None:
            return done
        if not registry.inited(job):
            return pb.Status(code=int(Code.UNINITIALISED), info=f"jobId={job} not inited")
        view = registry.cluster.jobs.get(job)
        if view is None or (registry.cluster.pod_groups and not view.group):
            return pb.Status(code=int(Code.JOB_NOT_EXIST), info=f"jobId={job} not exist, reuse registry")
        if registry.full:
            text = f"out of max serve jobs, reuse registry for jobId={job}"
            return pb.Status(code=int(Code.TOO_MANY_JOBS), info=text)
        if not await registry.register(view):
            text = f"jobId={job} register err:label {PROCESS_RECOVER_ENABLE} of its PodGroup cannot be written"
            return pb.Status(code=int(Code.POD_GROUP), info=text)
        return done

    async def SubscribeProcessManageSignal(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream signals, and a keep-alive every few seconds."""
        session = await self._known(request.jobId, context, "jobId={} not registed")
        queue: MessageQueue[pb.ProcessManageSignal] = MessageQueue(role=request.role, host=caller(context))
        # the client knows that it is subscribed before any signal can be sent
        await context.send_initial_metadata(())
        try:
            await session.attach(queue)
            await queue.pump(context, idle=self._keep_alive, keep_alive=lambda: self._keep_alive_signal(request.jobId))
        finally:
            queue.discard()
            await self._gone(session, queue)
        await self._ended(context, session)

    async def ReportStopComplete(self, request: pb.StopCompleteRequest, context: Context) -> pb.Status:
        """Receive that every process has stopped, or that none could be reached."""
        report = Report(request.status.code, request.status.info[:512], ranks=_ranks(request.faultRanks))
        return await self._report(request.jobId, StopComplete(report), "ReportStopComplete", context)

    async def ReportRecoverStrategy(self, request: pb.RecoverStrategyRequest, context: Context) -> pb.Status:
        """Receive the strategies that the processes support."""
        strategies = tuple(dict.fromkeys(name[:_MAX_TEXT] for name in request.strategies[:64]))
        report = Report(strategies=strategies, ranks=_ranks(request.faultRanks))
        return await self._report(request.jobId, Offered(report), "ReportRecoverStrategy", context)

    async def ReportRecoverStatus(self, request: pb.RecoverStatusRequest, context: Context) -> pb.Status:
        """Receive the result of a strategy."""
        isolate = tuple(rank for rank in request.isolateRankIds[:_MAX_RANKS] if _number(rank))
        report = Report(
            request.status.code, request.status.info[:512], strategy=request.strategy[:_MAX_TEXT], isolate=isolate
        )
        return await self._report(request.jobId, Done(report), "ReportRecoverStatus", context)

    async def ReportProcessFault(self, request: pb.ProcessFaultRequest, context: Context) -> pb.Status:
        """Receive faults that the processes found."""
        job = request.jobId
        session = self._registry.find(job)
        if session is None:
            return _unregistered(job)
        ranks = _ranks(request.faultRanks)
        if ranks:
            await self._served(session.report_faults(ranks), context)
        return pb.Status(code=int(Code.OK), info="receive ReportProcessFault")

    async def HealthCheck(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Answer that the service is up."""
        return pb.Status(code=int(Code.OK), info=f"jobId={request.jobId}, receive HeathCheck")

    # operations

    async def SwitchNicTrack(self, request: pb.SwitchNics, context: Context) -> pb.Status:
        """Move links to partner cards, or back."""
        observed = self._registry.cluster.observed
        return await self._start(
            operations.NIC,
            request.jobID,
            lambda view, registered: operations.switch(request, view, registered, observed),
            context,
        )

    async def StressTest(self, request: pb.StressTestParam, context: Context) -> pb.Status:
        """Start a stress test of chips."""
        observed = self._registry.cluster.observed
        return await self._start(
            operations.STRESS,
            request.jobID,
            lambda view, registered: operations.stress(request, view, registered, observed),
            context,
        )

    async def SubscribeSwitchNicSignal(self, request: pb.SwitchNicRequest, context: Context) -> None:
        """Stream the result of a link switch: one message."""
        await self._await_result(operations.NIC, request.jobID, context)

    async def SubscribeStressTestResponse(self, request: pb.StressTestRequest, context: Context) -> None:
        """Stream the result of a stress test: one message."""
        await self._await_result(operations.STRESS, request.jobID, context)

    async def SubscribeNotifySwitch(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream the ranks that move their links."""
        await self._execute(operations.NIC, request, context)

    async def SubscribeNotifyExecStressTest(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream the ranks and the tests that they run."""
        await self._execute(operations.STRESS, request, context)

    async def ReplySwitchNicResult(self, request: pb.SwitchResult, context: Context) -> pb.Status:
        """Receive the result of moving links."""
        return await self._reply(request.jobId, lambda session: operations.switched(request), context)

    async def ReplyStressTestResult(self, request: pb.StressTestResult, context: Context) -> pb.Status:
        """Receive the results of the tests."""
        observed = self._registry.cluster.observed
        return await self._reply(
            request.jobId, lambda session: operations.stressed(request, session.view, observed), context
        )

    # helpers

    async def _report(self, job: str, received: Input, what: str, context: Context) -> pb.Status:
        session = self._registry.find(job)
        if session is None:
            return _unregistered(job)
        about = f"jobId={job}, uuid={session.conversation.uuid}"
        code = await self._served(session.report(received), context)
        return pb.Status(code=code, info=f"{about}, chan closed" if code else f"{about}, receive {what}")

    async def _start(self, kind: str, job: str, check: Callable[[Any, bool], Any], context: Context) -> pb.Status:
        session = self._registry.find(job)
        try:
            operation = check(self._registry.cluster.jobs.get(job), session is not None)
        except operations.BadParameter as error:
            return pb.Status(code=int(Code.BAD_OPERATION), info=str(error))
        busy = pb.Status(code=int(Code.OPERATION_RUNNING), info=operations.BUSY[kind].format(job))
        if session is None or session.busy:
            return busy
        session.subscribers.results.pop(kind, None)
        step = await self._served(session.apply(Start(operation)), context)
        return busy if step.code else pb.Status(code=int(Code.OK), info=operations.ACCEPTED[kind])

    async def _await_result(self, kind: str, job: str, context: Context) -> None:
        session = await self._known(job, context, "jobId={} not registed")
        operation = session.conversation.operation
        text = session.subscribers.results.pop(kind, None)
        if text is not None:
            await context.write(operations.result(job, kind, text))
            return
        if operation is None or operation.kind != kind:
            await context.abort(grpc.StatusCode.UNKNOWN, operations.NOT_RUNNING[kind].format(job))
        queue: MessageQueue[Any] = MessageQueue(1)
        session.subscribers.operators[kind].add(queue)
        try:
            await context.send_initial_metadata(())
            late = asyncio.get_running_loop().call_later(self._patience, _report_no_result, job, kind, queue)
            try:
                await queue.pump(context)
            finally:
                late.cancel()
        finally:
            session.subscribers.operators[kind].discard(queue)

    async def _execute(self, kind: str, request: pb.ClientInfo, context: Context) -> None:
        session = await self._known(request.jobId, context, "jobId={} not registed, please wait agent register")
        queue: MessageQueue[Any] = MessageQueue()
        session.subscribers.join_executors(kind, queue)
        try:
            await context.send_initial_metadata(())
            await queue.pump(context)
        finally:
            session.subscribers.executors[kind].discard(queue)
        await self._ended(context, session)

    async def _reply(self, job: str, read: Callable[[Session], Any], context: Context) -> pb.Status:
        session = self._registry.find(job)
        if session is None:
            return _unregistered(job)
        if session.conversation.operation is not None:
            code = await self._served(session.report(read(session)), context)
            if code:
                return pb.Status(code=code, info=f"jobId={job}, reply chan closed")
        return pb.Status(code=int(Code.OK), info="reply success")

    async def _known(self, job: str, context: Context, text: str) -> Session:
        session = self._registry.find(job)
        if session is None:
            await context.abort(grpc.StatusCode.UNKNOWN, text.format(job))
            raise AssertionError("abort raises")
        return session

    async def _served(self, work: Any, context: Context) -> Any:
        try:
            return await work
        except TakenOver:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "another server serves this job now")

    async def _gone(self, session: Session, queue: MessageQueue[pb.ProcessManageSignal]) -> None:
        """Remove a stream that ended: the client left, unless this server or the session is ending."""
        if session.gone or self._registry.closing:
            session.signals.discard(queue)
            return
        # this RPC's task is being cancelled, but the detaching must still be carried out
        task = asyncio.ensure_future(session.detach(queue))
        task.add_done_callback(_ignore_takeover)

    async def _ended(self, context: Context, session: Session) -> None:
        if session.gone and self._registry.find(session.job) is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"jobId={session.job} is not served here any more")

    def _keep_alive_signal(self, job: str) -> pb.ProcessManageSignal:
        return pb.ProcessManageSignal(uuid=self._registry.uuid(), jobId=job, signalType=KEEP_ALIVE)


def _report_no_result(job: str, kind: str, queue: MessageQueue[Any]) -> None:
    """Send an operator that no result came; a later subscription may still get one."""
    if not queue.closed:
        queue.put(operations.result(job, kind, operations.NO_RESULT[kind]))
        queue.close()


def _ignore_takeover(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and isinstance(task.exception(), TakenOver):
        return


def _unregistered(job: str) -> pb.Status:
    return pb.Status(code=int(Code.UNREGISTERED), info=f"jobId={job} not registed")


def _ranks(rows: Any) -> tuple[FaultyRank, ...]:
    """The ranks of a request, without malformed ones; unknown kinds of fault count as normal."""
    valid = (row for row in rows[:_MAX_RANKS] if _number(row.rankId))
    return merged((), tuple(FaultyRank(r.rankId, r.faultType if r.faultType in RETRY_TYPES else NORMAL) for r in valid))


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


__all__ = ["RecoverService"]
