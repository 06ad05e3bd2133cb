"""One job's recovery while this server serves it: inputs one after the other, each saved before its effects.

The record in the cluster (`belay.engine.wire.recoveryrecord`) is always ahead of the signals sent, so the next server
repeats a signal rather than omitting it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

import msgspec

from belay.engine.kube import Object
from belay.engine.log import get
from belay.engine.model.attribution import HEALTHY
from belay.engine.model.labels import FAULT_TYPE
from belay.engine.model.recovery import (
    Code,
    Conversation,
    FaultyRank,
    JobFacts,
    State,
    Transition,
    machine,
    resumed,
    summary,
)
from belay.engine.model.recovery.conversation import (
    Annotate,
    Degrade,
    Effect,
    Faults,
    Input,
    IsolateNodes,
    Label,
    MarkPods,
    NotifyOperation,
    OperationResult,
    Release,
    Reset,
    Sent,
    Signal,
    SubHealthy,
    Tick,
    Written,
)
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.recovery.cluster_writer import SOFTWARE, fault_labels
from belay.engine.serve.grpc.recovery.context import SessionContext
from belay.engine.serve.grpc.recovery.job_facts import facts_of, new_faults, uids_after
from belay.engine.serve.grpc.recovery.release import in_super_pod
from belay.engine.serve.grpc.recovery.session_store import SessionStore, TakenOver
from belay.engine.serve.grpc.recovery.subscribers import Subscribers
from belay.engine.serve.grpc.streams import MessageQueue
from belay.engine.wire.clusterd import recover_pb2 as pb
from belay.engine.wire.recoveryrecord import Record

Result = TypeVar("Result")
_log = get("grpc.recover")
_MAX_OWED: Final = 32


class Session:
    """One job. ``subscribers`` are its streams; ``generation`` counts resets, which end waiting reports."""

    def __init__(
        self,
        context: SessionContext,
        job: str,
        *,
        record: Record | None = None,
        stored: Object | None = None,
        expect: bool = False,
    ) -> None:
        self.job = job
        self.generation = 0
        self.subscribers = Subscribers(job, returning=expect or record is not None)
        self.gone = False
        self._context = context
        first = record or Record(conversation=Conversation(job=job))
        self._store = SessionStore(context, first, stored, self._taken_over)
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._moved = asyncio.Event()
        self._effects: deque[tuple[Effect, int]] = deque()
        #: the streams that end with the last effect of the conversation that is over
        self._ending: set[MessageQueue[pb.ProcessManageSignal]] = set()
        self._token = 0
        self._worker: asyncio.Task[None] | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._adopted = 0

    # state

    @property
    def record(self) -> Record:
        """The record as stored in the cluster, or about to be."""
        return self._store.record

    @property
    def signals(self) -> set[MessageQueue[pb.ProcessManageSignal]]:
        """The streams of its training processes."""
        return self.subscribers.signals

    @property
    def conversation(self) -> Conversation:
        """The conversation as recorded."""
        return self.record.conversation

    @property
    def view(self) -> JobView | None:
        """The job in the newest snapshot; None when it is gone."""
        return self._context.cluster.jobs.get(self.job)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Its background tasks."""
        return [task for task in (self._worker, self._repeating) if task is not None]

    @property
    def active(self) -> bool:
        """Whether it may change without an input other than time."""
        conversation = self.conversation
        timed = conversation.pre_exit is not None or conversation.paused is not None
        return conversation.state is not State.INIT or bool(conversation.ranks) or timed or self._store.behind

    @property
    def due(self) -> int | None:
        """When time changes it next, in milliseconds since 1970; None for never."""
        conversation = self.conversation
        moments = [moment for moment in (conversation.deadline, conversation.pre_exit) if moment is not None]
        return min(moments) if moments else None

    @property
    def busy(self) -> bool:
        """Whether a recovery or another operation is under way, so that no operation may start."""
        return machine.begun(self.conversation) or bool(self.conversation.ranks)

    # inputs

    async def apply(self, received: Input) -> Transition:
        """Apply one input. Raises TakenOver when another server serves the job."""
        return await self._shielded(self._apply(received))

    async def report(self, received: Input) -> int:
        """Apply a report, waiting while an earlier one fills its slot. Returns 0, or 599 after a reset meanwhile."""
        generation = self.generation
        while True:
            moved = self._moved
            step = await self.apply(received)
            if not step.busy:
                return int(Code.OK)
            await moved.wait()
            if self.generation != generation or self.gone:
                return int(Code.INNER)

    async def refresh(self) -> None:
        """Apply the newest faults of the job, then the time."""
        view = self.view
        hit = self._context.cluster.job_faults(view) if view is not None else ("", ())
        if view is not None and (hit != (HEALTHY, ()) or self.conversation.seen):
            news = new_faults(view, self.record, self._facts(), hit, self._context.clock())
            if isinstance(news, SubHealthy):
                conversation = self.conversation
                if conversation.state is State.INIT and not conversation.ranks and not conversation.degraded:
                    await self.apply(news)
            elif isinstance(news, Faults):
                await self.apply(news)
        if self.active:
            await self.apply(Tick())

    async def report_faults(self, ranks: tuple[FaultyRank, ...]) -> None:
        """Begin a recovery from faults that the job's own processes report, and label their pods."""
        await self._shielded(self._report_faults(ranks))

    async def _report_faults(self, ranks: tuple[FaultyRank, ...]) -> None:
        async with self._lock:
            named = tuple(sorted({*self.record.software, *(rank.rank for rank in ranks)}))
            self._store.record = msgspec.structs.replace(self.record, software=named)
            await self._step(Faults(ranks, software=True))
            await self._label_pods(ranks)

    async def reset(self, code: Code = Code.CANCELLED) -> None:
        """Restart the conversation: a client subscribed again, or the last one left."""
        await self._shielded(self._reset(code))

    async def _reset(self, code: Code) -> None:
        async with self._lock:
            await self._restart(code)

    # subscribers

    async def attach(self, queue: MessageQueue[pb.ProcessManageSignal]) -> None:
        """Add a subscriber, which replaces an earlier stream of its role and address. As in ClusterD it restarts the
        conversation, unless it returns to one that a dead server left, or joins other subscribers. Signals from before
        a restart are not for it.
        """
        await self._shielded(self._attach(queue))

    async def _attach(self, queue: MessageQueue[pb.ProcessManageSignal]) -> None:
        async with self._lock:
            again = self.subscribers.replace_earlier(queue)
            if (again or not self.signals) and not self.subscribers.returning:
                await self._restart(Code.CANCELLED, heard=True)
            if queue.closed:
                return  # the client cancelled meanwhile
            conversation = self.conversation
            returning = self.subscribers.returning and conversation.since >= self._adopted
            missed = machine.unanswered(conversation, conversation.since) if returning else None
            if conversation.pending is not None and conversation.pending is self.subscribers.delivered:
                missed = self.subscribers.delivered  # the others are receiving it now
            if missed is not None:
                queue.put(self.subscribers.message(missed))  # clients that returned earlier received it here
            self.subscribers.join(queue)

    async def detach(self, queue: MessageQueue[pb.ProcessManageSignal]) -> None:
        """Remove a subscriber that left. The conversation ends with the last one, unless clients of a dead server are
        still returning: a stream may break before the next one is up.
        """
        self.signals.discard(queue)
        if not self.signals and not self.gone and not self.subscribers.returning:
            self.subscribers.end_return()
            await self.reset()

    def resume(self) -> None:
        """Repeat the effects whose outcome is unknown."""
        self._token += 1
        self._adopted = self._context.clock()
        again = (*self.record.owed, *resumed(self.conversation))
        self._effects.extend((effect, self._token) for effect in again)
        self._start()
        lost = machine.unanswered(self.conversation, self._context.clock())
        if lost is not None:
            self._repeating = asyncio.create_task(self._repeat(lost, self.conversation.since))

    async def _repeat(self, signal: Signal, since: int) -> None:
        """Repeat a signal that the previous server may have lost, unless a client answers it."""

        def current() -> bool:
            return not self.gone and self.conversation.since == since and self.conversation.status is None

        if await self.subscribers.repeat(signal, self.record.subscribers, current):
            self._adopted = min(self._adopted, since)  # sent here too: clients that return later get it

    def end(self) -> None:
        """End every stream: the job is gone, or another server serves it."""
        self.gone = True
        self.generation += 1
        self._effects.clear()
        for task in self.tasks:
            task.cancel()
        self.subscribers.close()
        self._moved.set()

    def _taken_over(self) -> None:
        self._context.taken_over(self.job, self)
        self.end()

    async def forget(self) -> None:
        """End the session of a deleted job and erase its record."""
        self.end()
        async with self._lock:
            if self.conversation.released:
                await self._context.releases.carry_out(self.job, None, Release(clear=True))
            await self._store.erase()

    # steps

    async def _shielded(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Finish ``work`` even if the client that caused it cancels its call."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _apply(self, received: Input) -> Transition:
        async with self._lock:
            return await self._step(received)

    def _facts(self) -> JobFacts:
        view = self.view
        if view is None:
            return facts_of(None, self.record, ("", ()))
        cluster = self._context.cluster
        first = view.by_rank().get(0)
        return facts_of(
            view,
            self.record,
            cluster.job_faults(view),
            reset_config=cluster.reset_config(view.namespace, f"reset-config-{view.name}"),
            mindio_wait=cluster.container_settings(first).mindio_wait if first is not None else None,
            super_pod=first is not None and in_super_pod(cluster.observed, first.node),
        )

    async def _step(self, received: Input) -> Transition:
        before, due = self.conversation, self.due
        step = machine.step(before, received, self._facts(), self._context.clock(), self._context.uuid())
        after = step.conversation
        if after.state is State.INIT and before.state is not State.INIT:
            self._store.record = msgspec.structs.replace(self.record, software=())
            self._context.ended(self.job, after)
            self._ending |= self.signals
        owed = tuple(effect for effect in step.effects if effect is not after.pending)
        if owed:
            self._store.record = msgspec.structs.replace(self.record, owed=(*self.record.owed, *owed)[-_MAX_OWED:])
        if after != before or owed or self._store.behind:
            await self._save(before, after)
        if after.pending is not before.pending:
            self._token += 1  # effects under way are void, or their outcome is known
        self._effects.extend((effect, self._token) for effect in step.effects)
        self._start()
        if self.due is not None and (due is None or self.due < due):
            self._context.wake()
        if after is not before:
            self._moved.set()
            self._moved = asyncio.Event()
        return step

    async def _restart(self, code: Code, *, heard: bool = False) -> None:
        before, facts = self.conversation, self._facts()
        after = machine.reset(before, self._context.clock(), code, heard=heard)
        self.generation += 1
        self._token += 1
        self._effects.clear()
        # agents that still wait for the faults to end would never stop waiting, nor would new ones that read of faults
        # from before their time
        waiting = before.state is not State.INIT or (heard and not facts.hot_reset)
        last: tuple[Effect, ...] = (Reset("clear", answer=False),) if waiting else ()
        written = summary.summary_write(before, after, facts)
        last += (written,) if written is not None else ()
        last += (Release(clear=True, answer=False),) if before.released else ()
        self._store.record = msgspec.structs.replace(self.record, software=(), owed=last)
        if after != before:
            await self._save(before, after)
        self._effects.extend((effect, self._token) for effect in last)
        self._start()
        self.subscribers.close_operators()
        self._moved.set()
        self._moved = asyncio.Event()

    async def _save(self, before: Conversation, after: Conversation) -> None:
        uids = uids_after(self.view, before, after, self.record.uids)
        # the next signal, and the next server, wait for clients of a dead server that have not returned yet
        count = max(len(self.signals), self.record.subscribers if self.subscribers.returning else 0)
        self._store.record = msgspec.structs.replace(
            self.record, conversation=after, uids=uids, epoch=self._context.epoch, subscribers=count
        )
        await self._store.save()

    # effects

    def _start(self) -> None:
        if (self._effects or self._ending) and (self._worker is None or self._worker.done()) and not self.gone:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while (self._effects or self._ending) and not self.gone:
            await self._drain()
            if self._context.closing:
                return
            async with self._lock:
                if not self._effects:
                    self.subscribers.end_signals(self._ending)
                    self._ending.clear()
                if self.record.owed and not self._effects and not self.gone:
                    self._store.record = msgspec.structs.replace(self.record, owed=())
                    with contextlib.suppress(TakenOver):
                        await self._store.save()

    async def _drain(self) -> None:
        while self._effects:
            effect, token = self._effects.popleft()
            try:
                outcome = await self._carry_out(effect, token)
                if self.gone or self._context.closing:
                    return  # streams break because this server ends: the next one repeats the effect
                if outcome is None:
                    continue
                async with self._lock:
                    if token == self._token and self.conversation.awaiting:
                        await self._step(outcome)
            except TakenOver:
                return
            except Exception:
                # a bug in one effect must not leave the job waiting
                _log.exception("effect failed", job=self.job, effect=type(effect).__name__)
                outcome = Sent(False, int(Code.INNER)) if isinstance(effect, Signal) else Written(False)
                if self.conversation.awaiting and token == self._token:
                    await self.apply(outcome)

    async def _carry_out(self, effect: Effect, token: int) -> Input | None:
        writer, view = self._context.writer, self.view
        match effect:
            case Signal():
                await self._label_leaving(effect)
                count, generation, since = self.record.subscribers, self.generation, self.conversation.since

                def current() -> bool:
                    if effect.answer:
                        return token == self._token
                    return generation == self.generation and since == self.conversation.since

                ok = await self.subscribers.deliver(effect, self._context.uuid(), count, current)
                return Sent(ok, 0 if ok else int(Code.SIGNAL_QUEUE_BUSY)) if effect.answer else None
            case NotifyOperation():
                ok = await self.subscribers.notify(effect.kind, effect.request, lambda: token == self._token)
                return Sent(ok, 0 if ok else int(Code.SIGNAL_QUEUE_BUSY))
            case Reset():
                ok = await writer.reset(view, effect)
                return Written(ok) if effect.answer else None
            case Label():
                return Written(await writer.mark_group(view, labels={effect.key: effect.value}))
            case Annotate():
                ok = await writer.mark_group(view, notes={effect.key: effect.value})
                return Written(ok) if effect.answer else None
            case MarkPods():
                await writer.mark_pods(view, effect, view.chips_per_pod if view else 1)
            case Release():
                ok = await self._context.releases.carry_out(self.job, view, effect)
                return Written(ok) if effect.answer else None
            case Degrade():
                await writer.degrade(view, effect.pod)
            case IsolateNodes():
                await writer.isolate(effect.nodes)
            case OperationResult():
                self.subscribers.send_result(effect)
        return None

    async def _label_leaving(self, signal: Signal) -> None:
        """Label the pods whose processes have to exit, so that the planner replaces them."""
        if "fault_nodes_exit" in signal.actions and signal.nodes and self.record.software:
            software = set(self.record.software)
            for effect in fault_labels(rank for rank in signal.ranks if rank.rank in software):
                await self._carry_out(effect, self._token)

    async def _label_pods(self, ranks: Iterable[FaultyRank]) -> None:
        """Label the pods whose processes failed, unless they may be cured in place."""
        in_place = self._facts().in_place
        labels = [e for e in fault_labels(ranks) if not (in_place and e.labels[FAULT_TYPE] == SOFTWARE)]
        if labels:
            self._store.record = msgspec.structs.replace(self.record, owed=(*self.record.owed, *labels)[-_MAX_OWED:])
            await self._save(self.conversation, self.conversation)
            self._effects.extend((effect, self._token) for effect in labels)
            self._start()


__all__ = ["TakenOver", "Session"]
