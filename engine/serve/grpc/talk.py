"""The conversation of one job while it is served here: inputs one after the other, each remembered before its effects.

What is kept in the cluster (`engine.wire.recoveryrecord`) is always ahead of what was said, so whoever takes over says
it again instead of leaving it out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from engine.kube import Object
from engine.log import get
from engine.model.attribution import HEALTHY
from engine.model.recovery import Code, Conversation, Facts, Rank, State, Step, account, machine, resumed
from engine.model.recovery.conversation import (
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
from engine.serve.grpc.hand import SOFTWARE, fault_labels
from engine.serve.grpc.jobfacts import facts_of, intake, uids_after
from engine.serve.grpc.jobview import JobView
from engine.serve.grpc.kept import Kept, Ousted
from engine.serve.grpc.release import in_super_pod
from engine.serve.grpc.streams import Outbox
from engine.serve.grpc.voice import Voice
from engine.wire.clusterd import recover_pb2 as pb
from engine.wire.recoveryrecord import Record

if TYPE_CHECKING:
    from engine.serve.grpc.desk import Desk

Result = TypeVar("Result")
_log = get("grpc.recover")
_MAX_OWED: Final = 32


class Talk:
    """One job. ``voice`` are its streams; ``generation`` counts resets, of which waiting reports must learn."""

    def __init__(
        self, desk: Desk, job: str, *, record: Record | None = None, stored: Object | None = None, expect: bool = False
    ) -> None:
        self.job = job
        self.generation = 0
        self.voice = Voice(job, returning=expect or record is not None)
        self.gone = False
        self._desk = desk
        first = record or Record(conversation=Conversation(job=job))
        self._kept = Kept(desk, first, stored, lambda: desk.ousted(self))
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._moved = asyncio.Event()
        self._effects: deque[tuple[Effect, int]] = deque()
        self._token = 0
        self._worker: asyncio.Task[None] | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._adopted = 0

    # what it is

    @property
    def record(self) -> Record:
        """What is kept of it in the cluster."""
        return self._kept.record

    @property
    def signals(self) -> set[Outbox[pb.ProcessManageSignal]]:
        """Its subscribers."""
        return self.voice.signals

    @property
    def conversation(self) -> Conversation:
        """What is remembered."""
        return self.record.conversation

    @property
    def view(self) -> JobView | None:
        """The job as last seen."""
        return self._desk.cluster.jobs.get(self.job)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What runs for it by itself."""
        return [task for task in (self._worker, self._repeating) if task is not None]

    @property
    def active(self) -> bool:
        """Whether time alone may move it on."""
        talk = self.conversation
        timed = talk.pre_exit is not None or talk.paused is not None
        return talk.state is not State.INIT or bool(talk.ranks) or timed or self._kept.behind

    @property
    def due(self) -> int | None:
        """When time alone moves it on next, in milliseconds since 1970."""
        talk = self.conversation
        moments = [moment for moment in (talk.deadline, talk.pre_exit) if moment is not None]
        return min(moments) if moments else None

    @property
    def busy(self) -> bool:
        """Whether no operation may start: recovery or another one is under way."""
        return machine.begun(self.conversation) or bool(self.conversation.ranks)

    # what it hears

    async def tell(self, told: Input) -> Step:
        """Bring one input. Raises Ousted when another server has taken over."""
        return await self._whole(self._tell(told))

    async def report(self, told: Input) -> int:
        """Bring a report; waits while an earlier one fills its slot. 0, or 599 when the conversation began anew."""
        generation = self.generation
        while True:
            moved = self._moved
            step = await self.tell(told)
            if not step.busy:
                return int(Code.OK)
            await moved.wait()
            if self.generation != generation or self.gone:
                return int(Code.INNER)

    async def look(self) -> None:
        """Take in the newest faults and facts, and let time pass."""
        view = self.view
        hit = self._desk.cluster.hit(view) if view is not None else ("", ())
        if view is not None and (hit != (HEALTHY, ()) or self.conversation.seen):
            news = intake(view, self.record, self._facts(), hit, self._desk.clock())
            if isinstance(news, SubHealthy):
                talk = self.conversation
                if talk.state is State.INIT and not talk.ranks and not talk.degraded:
                    await self.tell(news)
            elif isinstance(news, Faults):
                await self.tell(news)
        if self.active:
            await self.tell(Tick())

    async def software(self, ranks: tuple[Rank, ...]) -> None:
        """The job itself tells of faults: its pods are labelled, and recovery begins."""
        await self._whole(self._software(ranks))

    async def _software(self, ranks: tuple[Rank, ...]) -> None:
        async with self._lock:
            named = tuple(sorted({*self.record.software, *(rank.rank for rank in ranks)}))
            self._kept.record = msgspec.structs.replace(self.record, software=named)
            await self._step(Faults(ranks, software=True))
            await self._mark(ranks)

    async def reset(self, code: Code = Code.CANCELLED) -> None:
        """Begin anew: a client subscribed anew, or the last one went away."""
        await self._whole(self._reset(code))

    async def _reset(self, code: Code) -> None:
        async with self._lock:
            await self._begin_anew(code)

    # its subscribers

    async def attach(self, outbox: Outbox[pb.ProcessManageSignal]) -> None:
        """A subscriber came. It begins the conversation anew, as in the original, unless it comes back to one that a
        dead server left, or joins others that are still there. What was on its way before it began anew is not for it.
        """
        await self._whole(self._attach(outbox))

    async def _attach(self, outbox: Outbox[pb.ProcessManageSignal]) -> None:
        async with self._lock:
            again = any(one.role == outbox.role and one.host == outbox.host for one in self.signals)
            if (again or not self.signals) and not self.voice.returning:
                await self._begin_anew(Code.CANCELLED, heard=True)
            if outbox.closed:
                return  # it hung up meanwhile
            talk = self.conversation
            returning = self.voice.returning and talk.since >= self._adopted
            missed = machine.unanswered(talk, talk.since) if returning else None
            if talk.pending is not None and talk.pending is self.voice.handed:
                missed = self.voice.handed  # the others have it this moment
            if missed is not None:
                outbox.put(self.voice.message(missed))  # it was said here to those who came back earlier
            self.voice.join(outbox)

    async def detach(self, outbox: Outbox[pb.ProcessManageSignal]) -> None:
        """A subscriber went away by itself; with the last one the conversation ends, but not while those of a server
        that died are still coming back: in their storm a stream may break before the next one stands.
        """
        self.signals.discard(outbox)
        if not self.signals and not self.gone and not self.voice.returning:
            self.voice.left()
            await self.reset()

    def resume(self) -> None:
        """Say again what nobody heard the outcome of."""
        self._token += 1
        self._adopted = self._desk.clock()
        again = (*self.record.owed, *resumed(self.conversation))
        self._effects.extend((effect, self._token) for effect in again)
        self._start()
        lost = machine.unanswered(self.conversation, self._desk.clock())
        if lost is not None:
            self._repeating = asyncio.create_task(self._repeat(lost, self.conversation.since))

    async def _repeat(self, signal: Signal, since: int) -> None:
        """Say once more what may have been lost with the server before, unless somebody answers it."""

        def current() -> bool:
            return not self.gone and self.conversation.since == since and self.conversation.status is None

        if await self.voice.repeat(signal, self.record.subscribers, current):
            self._adopted = min(self._adopted, since)  # said here too: whoever comes back later hears it

    def end(self) -> None:
        """The job is gone, or another server serves it: every stream ends."""
        self.gone = True
        self.generation += 1
        self._effects.clear()
        for task in self.tasks:
            task.cancel()
        self.voice.close()
        self._moved.set()

    async def forget(self) -> None:
        """Remove what is kept of a job that is gone."""
        self.end()
        async with self._lock:
            if self.conversation.released:
                await self._desk.releases.carry_out(self.job, None, Release(clear=True))
            await self._kept.erase()

    # inside

    async def _whole(self, work: Coroutine[Any, Any, Result]) -> Result:
        """A step is never left half-way: a client that hangs up in between changes nothing of it."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _tell(self, told: Input) -> Step:
        async with self._lock:
            return await self._step(told)

    def _facts(self) -> Facts:
        view = self.view
        if view is None:
            return facts_of(None, self.record, ("", ()))
        cluster = self._desk.cluster
        first = view.by_rank().get(0)
        return facts_of(
            view,
            self.record,
            cluster.hit(view),
            reset_config=cluster.reset_config(view.namespace, f"reset-config-{view.name}"),
            mindio_wait=cluster.extra(first).mindio_wait if first is not None else None,
            super_pod=first is not None and in_super_pod(cluster.observed, first.node),
        )

    async def _step(self, told: Input) -> Step:
        before = self.conversation
        step = machine.step(before, told, self._facts(), self._desk.clock(), self._desk.uuid())
        after = step.conversation
        if after.state is State.INIT and before.state is not State.INIT:
            self._kept.record = msgspec.structs.replace(self.record, software=())
            self._desk.ended(self.job, after)
        owed = tuple(effect for effect in step.effects if effect is not after.pending)
        if owed:
            self._kept.record = msgspec.structs.replace(self.record, owed=(*self.record.owed, *owed)[-_MAX_OWED:])
        if after != before or owed or self._kept.behind:
            await self._remember(before, after)
        if after.pending is not before.pending:
            self._token += 1  # what was on its way is void, or its outcome is known
        self._effects.extend((effect, self._token) for effect in step.effects)
        self._start()
        if after is not before:
            self._moved.set()
            self._moved = asyncio.Event()
        return step

    async def _begin_anew(self, code: Code, *, heard: bool = False) -> None:
        before, facts = self.conversation, self._facts()
        after = machine.reset(before, self._desk.clock(), code, heard=heard)
        self.generation += 1
        self._token += 1
        self._effects.clear()
        # agents that still wait for the end of the faults would wait for ever
        last: tuple[Effect, ...] = (Reset("clear", answer=False),) if before.state is not State.INIT else ()
        told = account.told(before, after, facts)
        last += (told,) if told is not None else ()
        last += (Release(clear=True, answer=False),) if before.released else ()
        self._kept.record = msgspec.structs.replace(self.record, software=(), owed=last)
        if after != before:
            await self._remember(before, after)
        self._effects.extend((effect, self._token) for effect in last)
        self._start()
        self.voice.dismiss_operators()
        self._moved.set()
        self._moved = asyncio.Event()

    async def _remember(self, before: Conversation, after: Conversation) -> None:
        uids = uids_after(self.view, before, after, self.record.uids)
        # those of a dead server who are not back yet are waited for at the next signal, and by the next server
        count = max(len(self.signals), self.record.subscribers if self.voice.returning else 0)
        self._kept.record = msgspec.structs.replace(
            self.record, conversation=after, uids=uids, epoch=self._desk.epoch, subscribers=count
        )
        await self._kept.save()

    # effects

    def _start(self) -> None:
        if self._effects and (self._worker is None or self._worker.done()) and not self.gone:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._effects:
            await self._work_off()
            async with self._lock:
                if self.record.owed and not self._effects and not self.gone:
                    self._kept.record = msgspec.structs.replace(self.record, owed=())
                    with contextlib.suppress(Ousted):
                        await self._kept.save()

    async def _work_off(self) -> None:
        while self._effects:
            effect, token = self._effects.popleft()
            try:
                outcome = await self._carry_out(effect, token)
                if self.gone or self._desk.closing:
                    return  # streams break because this server ends: whoever comes after it does this again
                if outcome is None:
                    continue
                async with self._lock:
                    if token == self._token and self.conversation.awaiting:
                        await self._step(outcome)
            except Ousted:
                return
            except Exception:
                # a bug in one effect must not leave the job without an answer
                _log.exception("effect failed", job=self.job, effect=type(effect).__name__)
                outcome = Sent(False, int(Code.INNER)) if isinstance(effect, Signal) else Written(False)
                if self.conversation.awaiting and token == self._token:
                    await self.tell(outcome)

    async def _carry_out(self, effect: Effect, token: int) -> Input | None:
        hand, view = self._desk.hand, self.view
        match effect:
            case Signal():
                await self._leave(effect)
                count, generation, since = self.record.subscribers, self.generation, self.conversation.since

                def current() -> bool:
                    if effect.answer:
                        return token == self._token
                    return generation == self.generation and since == self.conversation.since

                ok = await self.voice.deliver(effect, self._desk.uuid(), count, current)
                return Sent(ok, 0 if ok else int(Code.SIGNAL_QUEUE_BUSY)) if effect.answer else None
            case NotifyOperation():
                ok = await self.voice.notify(effect.kind, effect.request, lambda: token == self._token)
                return Sent(ok, 0 if ok else int(Code.SIGNAL_QUEUE_BUSY))
            case Reset():
                ok = await hand.reset(view, effect)
                return Written(ok) if effect.answer else None
            case Label():
                return Written(await hand.mark_group(view, labels={effect.key: effect.value}))
            case Annotate():
                ok = await hand.mark_group(view, notes={effect.key: effect.value})
                return Written(ok) if effect.answer else None
            case MarkPods():
                await hand.mark_pods(view, effect, view.chips_per_pod if view else 1)
            case Release():
                ok = await self._desk.releases.carry_out(self.job, view, effect)
                return Written(ok) if effect.answer else None
            case Degrade():
                await hand.degrade(view, effect.pod)
            case IsolateNodes():
                await hand.isolate(effect.nodes)
            case OperationResult():
                self.voice.tell_operator(effect)
        return None

    async def _leave(self, signal: Signal) -> None:
        """Pods whose processes are told to leave are labelled, so that the planner replaces them."""
        if "fault_nodes_exit" in signal.actions and signal.nodes and self.record.software:
            software = set(self.record.software)
            for effect in fault_labels(rank for rank in signal.ranks if rank.rank in software):
                await self._carry_out(effect, self._token)

    async def _mark(self, ranks: Iterable[Rank]) -> None:
        """Label the pods whose processes broke; not while they may be cured in place."""
        in_place = self._facts().in_place
        labels = [e for e in fault_labels(ranks) if not (in_place and e.labels["fault-type"] == SOFTWARE)]
        if labels:
            self._kept.record = msgspec.structs.replace(self.record, owed=(*self.record.owed, *labels)[-_MAX_OWED:])
            await self._remember(self.conversation, self.conversation)
            self._effects.extend((effect, self._token) for effect in labels)
            self._start()


__all__ = ["Ousted", "Talk"]
