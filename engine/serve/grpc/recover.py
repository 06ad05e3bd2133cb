"""The service `Recover`: rules and texts of each RPC; what happens then is `talk.py`'s.

Sources: component/clusterd/pkg/application/recover (service.go), docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from engine.model.recovery import Code, Rank, Report
from engine.model.recovery.conversation import Done, Input, Offered, Start, StopComplete, merged
from engine.model.recovery.words import KEEP_ALIVE, KEEP_ALIVE_PERIOD, NORMAL, REPORT_TIMEOUT, RETRY_TYPES
from engine.serve.grpc import operations
from engine.serve.grpc.desk import Desk
from engine.serve.grpc.jobfacts import ENABLE_KEY, SUB_HEALTH_KEY
from engine.serve.grpc.routes import caller
from engine.serve.grpc.streams import Context, Outbox
from engine.serve.grpc.talk import Ousted, Talk
from engine.wire.clusterd import recover_pb2 as pb

#: Longest list of faulty ranks, and longest text of one, that a client may send.
_MAX_RANKS: Final = 100_000
_MAX_TEXT: Final = 64


class Recover:
    """The handlers, named as the RPCs. ``keep_alive`` is seconds between signs of life on the signal stream,
    ``patience`` seconds for which an operator is kept waiting for a result.
    """

    def __init__(self, desk: Desk, *, keep_alive: float = KEEP_ALIVE_PERIOD, patience: float = REPORT_TIMEOUT) -> None:
        self._desk = desk
        self._keep_alive = keep_alive
        self._patience = patience

    async def Init(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """The job asks to be looked after."""
        desk, job = self._desk, request.jobId
        done = pb.Status(code=int(Code.OK), info=f"job(uid={job}) init success")
        if desk.inited(job):
            return done
        view = desk.cluster.jobs.get(job)
        if view is None or not view.name or not view.namespace or (desk.cluster.pod_groups and not view.group):
            return pb.Status(code=int(Code.POD_GROUP), info=f"job(uid={job}) has no PodGroup, job name or namespace")
        if view.labels.get(ENABLE_KEY) != "on" and view.labels.get(SUB_HEALTH_KEY) != "hotSwitch":
            return pb.Status(code=int(Code.ENABLE_OFF), info=f"job(uid={job}) label {ENABLE_KEY} is not on")
        await desk.init(view)
        return done

    async def Register(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """The job's controller is there."""
        desk, job = self._desk, request.jobId
        done = pb.Status(code=int(Code.OK), info="register success")
        if desk.find(job) is not None:
            return done
        if not desk.inited(job):
            return pb.Status(code=int(Code.UNINITIALISED), info=f"jobId={job} not inited")
        view = desk.cluster.jobs.get(job)
        if view is None or (desk.cluster.pod_groups and not view.group):
            return pb.Status(code=int(Code.JOB_NOT_EXIST), info=f"jobId={job} not exist")
        if desk.full:
            return pb.Status(code=int(Code.TOO_MANY_JOBS), info="out of max serve jobs")
        if not await desk.register(view):
            return pb.Status(code=int(Code.POD_GROUP), info=f"jobId={job} change {ENABLE_KEY} label failed")
        return done

    async def SubscribeProcessManageSignal(self, request: pb.ClientInfo, context: Context) -> None:
        """Signals, and a sign of life every few seconds."""
        talk = await self._known(request.jobId, context, "jobId={} not registed")
        outbox: Outbox[pb.ProcessManageSignal] = Outbox(role=request.role, host=caller(context))
        # a client learns that it is heard before anything can happen
        await context.send_initial_metadata(())
        try:
            await talk.attach(outbox)
            await outbox.pump(context, idle=self._keep_alive, beat=lambda: self._beat(request.jobId))
        finally:
            outbox.discard()
            await self._gone(talk, outbox)
        await self._ended(context, talk)

    async def ReportStopComplete(self, request: pb.StopCompleteRequest, context: Context) -> pb.Status:
        """Every process stands, or none could be reached."""
        report = Report(request.status.code, request.status.info[:512], ranks=_ranks(request.faultRanks))
        return await self._report(request.jobId, StopComplete(report), "ReportStopComplete", context)

    async def ReportRecoverStrategy(self, request: pb.RecoverStrategyRequest, context: Context) -> pb.Status:
        """What the processes can do."""
        strategies = tuple(dict.fromkeys(name[:_MAX_TEXT] for name in request.strategies[:64]))
        report = Report(strategies=strategies, ranks=_ranks(request.faultRanks))
        return await self._report(request.jobId, Offered(report), "ReportRecoverStrategy", context)

    async def ReportRecoverStatus(self, request: pb.RecoverStatusRequest, context: Context) -> pb.Status:
        """How it went."""
        isolate = tuple(rank for rank in request.isolateRankIds[:_MAX_RANKS] if _number(rank))
        report = Report(
            request.status.code, request.status.info[:512], strategy=request.strategy[:_MAX_TEXT], isolate=isolate
        )
        return await self._report(request.jobId, Done(report), "ReportRecoverStatus", context)

    async def ReportProcessFault(self, request: pb.ProcessFaultRequest, context: Context) -> pb.Status:
        """The processes themselves found faults."""
        job = request.jobId
        talk = self._desk.find(job)
        if talk is None:
            return _unregistered(job)
        ranks = _ranks(request.faultRanks)
        if ranks:
            await self._heard(talk.software(ranks), context)
        return pb.Status(code=int(Code.OK), info="receive ReportProcessFault")

    async def HealthCheck(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """The service lives."""
        return pb.Status(code=int(Code.OK), info="")

    # operations

    async def SwitchNicTrack(self, request: pb.SwitchNics, context: Context) -> pb.Status:
        """Move links to partner cards, or back."""
        observed = self._desk.cluster.observed
        return await self._start(
            operations.NIC,
            request.jobID,
            lambda view, registered: operations.switch(request, view, registered, observed),
            context,
        )

    async def StressTest(self, request: pb.StressTestParam, context: Context) -> pb.Status:
        """Put chips under stress."""
        observed = self._desk.cluster.observed
        return await self._start(
            operations.STRESS,
            request.jobID,
            lambda view, registered: operations.stress(request, view, registered, observed),
            context,
        )

    async def SubscribeSwitchNicSignal(self, request: pb.SwitchNicRequest, context: Context) -> None:
        """How a link switch ended: one message."""
        await self._await_result(operations.NIC, request.jobID, context)

    async def SubscribeStressTestResponse(self, request: pb.StressTestRequest, context: Context) -> None:
        """How a stress test ended: one message."""
        await self._await_result(operations.STRESS, request.jobID, context)

    async def SubscribeNotifySwitch(self, request: pb.ClientInfo, context: Context) -> None:
        """Which ranks move their links."""
        await self._execute(operations.NIC, request, context)

    async def SubscribeNotifyExecStressTest(self, request: pb.ClientInfo, context: Context) -> None:
        """Which ranks run which tests."""
        await self._execute(operations.STRESS, request, context)

    async def ReplySwitchNicResult(self, request: pb.SwitchResult, context: Context) -> pb.Status:
        """How moving links went."""
        return await self._reply(request.jobId, lambda talk: operations.switched(request), context)

    async def ReplyStressTestResult(self, request: pb.StressTestResult, context: Context) -> pb.Status:
        """How the tests went."""
        observed = self._desk.cluster.observed
        return await self._reply(request.jobId, lambda talk: operations.stressed(request, talk.view, observed), context)

    # inside

    async def _report(self, job: str, told: Input, what: str, context: Context) -> pb.Status:
        talk = self._desk.find(job)
        if talk is None:
            return _unregistered(job)
        code = await self._heard(talk.report(told), context)
        if code:
            return pb.Status(code=code, info=f"jobId={job}, {what} chan closed")
        return pb.Status(code=int(Code.OK), info=f"receive {what}")

    async def _start(self, kind: str, job: str, check: Callable[[Any, bool], Any], context: Context) -> pb.Status:
        talk = self._desk.find(job)
        try:
            operation = check(self._desk.cluster.jobs.get(job), talk is not None)
        except operations.BadParameter as error:
            return pb.Status(code=int(Code.BAD_OPERATION), info=str(error))
        busy = pb.Status(code=int(Code.OPERATION_RUNNING), info=operations.BUSY[kind].format(job))
        if talk is None or talk.busy:
            return busy
        talk.voice.results.pop(kind, None)
        step = await self._heard(talk.tell(Start(operation)), context)
        return busy if step.code else pb.Status(code=int(Code.OK), info=operations.ACCEPTED[kind])

    async def _await_result(self, kind: str, job: str, context: Context) -> None:
        talk = await self._known(job, context, "jobId={} not registed")
        operation = talk.conversation.operation
        text = talk.voice.results.pop(kind, None)
        if text is not None:
            await context.write(operations.result(job, kind, text))
            return
        if operation is None or operation.kind != kind:
            await context.abort(grpc.StatusCode.UNKNOWN, operations.NOT_RUNNING[kind].format(job))
        outbox: Outbox[Any] = Outbox(1)
        talk.voice.operators[kind].add(outbox)
        try:
            await context.send_initial_metadata(())
            late = asyncio.get_running_loop().call_later(self._patience, _too_late, job, kind, outbox)
            try:
                await outbox.pump(context)
            finally:
                late.cancel()
        finally:
            talk.voice.operators[kind].discard(outbox)

    async def _execute(self, kind: str, request: pb.ClientInfo, context: Context) -> None:
        talk = await self._known(request.jobId, context, "jobId={} not registed, please wait agent register")
        outbox: Outbox[Any] = Outbox()
        talk.voice.execute(kind, outbox)
        try:
            await context.send_initial_metadata(())
            await outbox.pump(context)
        finally:
            talk.voice.executors[kind].discard(outbox)
        await self._ended(context, talk)

    async def _reply(self, job: str, read: Callable[[Talk], Any], context: Context) -> pb.Status:
        talk = self._desk.find(job)
        if talk is None:
            return _unregistered(job)
        if talk.conversation.operation is not None:
            code = await self._heard(talk.report(read(talk)), context)
            if code:
                return pb.Status(code=code, info=f"jobId={job}, reply chan closed")
        return pb.Status(code=int(Code.OK), info="reply success")

    async def _known(self, job: str, context: Context, text: str) -> Talk:
        talk = self._desk.find(job)
        if talk is None:
            await context.abort(grpc.StatusCode.UNKNOWN, text.format(job))
            raise AssertionError("abort raises")
        return talk

    async def _heard(self, work: Any, context: Context) -> Any:
        try:
            return await work
        except Ousted:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "another server serves this job now")

    async def _gone(self, talk: Talk, outbox: Outbox[pb.ProcessManageSignal]) -> None:
        """The stream has ended: by the client, unless this server or the job is ending."""
        if talk.gone or self._desk.closing:
            talk.signals.discard(outbox)
            return
        # the RPC's task is being cancelled: what the end of a stream leads to must still be carried out
        task = asyncio.ensure_future(talk.detach(outbox))
        task.add_done_callback(_quietly)

    async def _ended(self, context: Context, talk: Talk) -> None:
        if talk.gone and self._desk.find(talk.job) is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"jobId={talk.job} is not served here any more")

    def _beat(self, job: str) -> pb.ProcessManageSignal:
        return pb.ProcessManageSignal(uuid=self._desk.uuid(), jobId=job, signalType=KEEP_ALIVE)


def _too_late(job: str, kind: str, outbox: Outbox[Any]) -> None:
    """Tell an operator that no result came; another subscription may still get it."""
    if not outbox.closed:
        outbox.put(operations.result(job, kind, operations.NO_RESULT[kind]))
        outbox.close()


def _quietly(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and isinstance(task.exception(), Ousted):
        return


def _unregistered(job: str) -> pb.Status:
    return pb.Status(code=int(Code.UNREGISTERED), info=f"jobId={job} not registed")


def _ranks(rows: Any) -> tuple[Rank, ...]:
    """The ranks of a request; what is no rank is left out, unknown kinds of fault are normal ones."""
    told = (row for row in rows[:_MAX_RANKS] if _number(row.rankId))
    return merged((), tuple(Rank(r.rankId, r.faultType if r.faultType in RETRY_TYPES else NORMAL) for r in told))


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


__all__ = ["Recover"]
