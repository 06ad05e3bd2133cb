"""One turn of a conversation: what the handler of a state reads, remembers and requests."""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.model.recovery.conversation import (
    Annotate,
    Conversation,
    Effect,
    FaultyRank,
    Input,
    JobFacts,
    Label,
    NotifyOperation,
    Release,
    Report,
    Reset,
    Sent,
    Signal,
    Written,
    rank_numbers,
)
from belay.engine.model.recovery.protocol import (
    CHANGE_STRATEGY,
    GLOBAL_FAULT,
    NORMAL,
    RETRY_TYPES,
    ChangeStrategy,
    Code,
    RecoveryEvent,
    RecoveryPhase,
)


class Turn:
    """The conversation while one input is applied. Handlers call these methods and return an event or None."""

    def __init__(self, conversation: Conversation, received: Input, facts: JobFacts, now: int, uuid: str) -> None:
        self.conversation, self.received, self.facts, self.now, self.uuid = conversation, received, facts, now, uuid
        self.effects: list[Effect] = []
        self.entering = False

    def remember(self, **changes: Any) -> None:
        """Change fields of the conversation."""
        self.conversation = msgspec.structs.replace(self.conversation, **changes)

    def phase(self, name: RecoveryPhase, seconds: float | None = None) -> None:
        """Enter a phase of the state, with a time limit of its own (s)."""
        self.remember(phase=name)
        self.limit(seconds)

    def limit(self, seconds: float | None) -> None:
        """Limit the wait in this state (s from now); None: no limit."""
        self.remember(deadline=None if seconds is None else self.now + round(seconds * 1000))

    @property
    def expired(self) -> bool:
        """Whether the time limit of this state or phase has passed."""
        return self.conversation.deadline is not None and self.now >= self.conversation.deadline

    def fail(self, code: Code) -> None:
        """Keep the error code for the story."""
        self.remember(code=int(code))

    # -- signals

    def send(self, signal: Signal, event: RecoveryEvent) -> None:
        """Send a signal; its delivery raises ``event``, a failure `notifyFail`."""
        self._request(msgspec.structs.replace(signal, uuid=self.conversation.uuid), "sent")
        self.remember(signal=event.value, phase=RecoveryPhase.SEND)
        if (
            signal.ranks
            and signal.kind in (GLOBAL_FAULT, CHANGE_STRATEGY)
            and signal.change != ChangeStrategy.MIGRATION
        ):
            self.remember(late=())  # this signal reaches all of them

    def post(self, signal: Signal) -> None:
        """Send a signal without waiting for its delivery."""
        self.effects.append(msgspec.structs.replace(signal, uuid=self.conversation.uuid, answer=False))

    def _request(self, effect: Effect, outcome: str) -> None:
        self.effects.append(effect)
        self.remember(awaiting=outcome, pending=effect, deadline=None)

    def sent(self) -> RecoveryEvent | None:
        """The event of the awaited delivery; None while it is due."""
        if self.conversation.awaiting != "sent" or not isinstance(self.received, Sent):
            return None
        event = RecoveryEvent(self.conversation.signal) if self.received.ok else RecoveryEvent.UNSENT
        if not self.received.ok:
            self.remember(code=self.received.code or int(Code.SIGNAL_QUEUE_BUSY))
        elif isinstance(self.conversation.pending, Signal):
            self.remember(said=self.conversation.pending)
        self.remember(awaiting="", signal="", pending=None)
        return event

    # -- writes

    def write(self, effect: Reset | Label | Annotate | NotifyOperation | Release) -> None:
        """Request a write and wait for its outcome."""
        self._request(effect, "written")

    def notify(self, effect: NotifyOperation, event: RecoveryEvent) -> None:
        """Hand an operation to its subscribers; the delivery raises ``event``."""
        self._request(effect, "sent")
        self.remember(signal=event.value, phase=RecoveryPhase.SEND)

    def wrote(self) -> bool | None:
        """The outcome of the awaited write; None while it is due."""
        if self.conversation.awaiting != "written" or not isinstance(self.received, Written):
            return None
        self.remember(awaiting="", pending=None)
        return self.received.ok

    def written(self, good: RecoveryEvent, bad: RecoveryEvent) -> RecoveryEvent | None:
        """The event of the awaited write; a failure leaves its code in the story."""
        wrote = self.wrote()
        if wrote is None:
            return None
        if not wrote:
            self.fail(Code.CONFIG_MAP)
        return good if wrote else bad

    # -- reports

    def report_timeout(self) -> RecoveryEvent | None:
        """`receiveTimeout` once the time limit for a report has passed."""
        if not self.expired:
            return None
        self.fail(Code.REPORT_TIMEOUT)
        return RecoveryEvent.TIMEOUT

    def take(self, slot: str) -> Report | None:
        """Take the report that waits in ``slot`` (stop, offer, status, reply)."""
        report: Report | None = getattr(self.conversation, slot)
        if report is not None:
            self.remember(**{slot: None})
        return report

    # -- ranks

    def node_ranks(self, ranks: tuple[FaultyRank, ...]) -> tuple[str, ...]:
        """The numbers of the pods that hold ``ranks``, ascending."""
        per_pod = max(1, self.facts.devices_per_pod)
        numbers = {number // per_pod for number in rank_numbers(ranks)}
        return tuple(str(number) for number in sorted(numbers))

    def departing_ranks(self, ranks: tuple[FaultyRank, ...]) -> tuple[str, ...]:
        """The numbers of the pods that hold ``ranks``, without replaced ones: new pods must not leave."""
        return tuple(number for number in self.node_ranks(ranks) if number not in self.facts.changed)

    def pod_ranks(self, ranks: tuple[FaultyRank, ...]) -> tuple[str, ...]:
        """Every rank of every pod that holds one of ``ranks``, ascending."""
        per_pod = max(1, self.facts.devices_per_pod)
        pods = sorted({number // per_pod for number in rank_numbers(ranks)})
        return tuple(str(pod * per_pod + device) for pod in pods for device in range(per_pod))

    def unhandled(self, ranks: tuple[FaultyRank, ...]) -> tuple[FaultyRank, ...]:
        """New faults that this conversation has not handled: on other ranks, worse, or on pods replaced since."""
        known = set(self.conversation.ranks)
        return tuple(
            rank
            for rank in ranks
            if not {rank, FaultyRank(rank.rank, NORMAL)} & known
            or set(self.node_ranks((rank,))) & set(self.facts.changed)
        )

    def widen(self) -> None:
        """Make every rank of every faulty pod faulty: their processes leave together."""
        self.remember(ranks=tuple(FaultyRank(rank, "1") for rank in self.pod_ranks(self.conversation.ranks)))

    def harden(self) -> None:
        """Turn retryable faults into normal ones."""
        self.remember(
            ranks=tuple(
                dict.fromkeys(
                    FaultyRank(rank.rank, "1" if rank.kind in RETRY_TYPES else rank.kind)
                    for rank in self.conversation.ranks
                )
            )
        )


__all__ = ["Turn"]
