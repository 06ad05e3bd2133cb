"""One turn of a conversation: what a state's handler reads, remembers and asks for."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.model.recovery.conversation import (
    Annotate,
    Conversation,
    Effect,
    Facts,
    Input,
    Label,
    NotifyOperation,
    Rank,
    Release,
    Report,
    Reset,
    Sent,
    Signal,
    Tick,
    Written,
)
from engine.model.recovery.words import CHANGE_STRATEGY, GLOBAL_FAULT, NORMAL, RETRY_TYPES, Change, Code, Event


class Turn:
    """The conversation as it changes during one input. Handlers call these and answer with an event or None."""

    def __init__(self, talk: Conversation, told: Input, facts: Facts, now: int, uuid: str) -> None:
        self.talk, self.told, self.facts, self.now, self.uuid = talk, told, facts, now, uuid
        self.effects: list[Effect] = []
        self.entering = False

    def remember(self, **changes: Any) -> None:
        """Change fields of the conversation."""
        self.talk = msgspec.structs.replace(self.talk, **changes)

    def phase(self, name: str, seconds: float | None = None) -> None:
        """Go to a part of the state, with a limit of its own."""
        self.remember(phase=name)
        self.limit(seconds)

    def limit(self, seconds: float | None) -> None:
        """Let the state wait so long from now; None for ever."""
        self.remember(deadline=None if seconds is None else self.now + round(seconds * 1000))

    @property
    def expired(self) -> bool:
        """Whether the limit of this state or phase has passed."""
        return self.talk.deadline is not None and self.now >= self.talk.deadline

    def fail(self, code: Code) -> None:
        """Keep the code of what went wrong for the story."""
        self.remember(code=int(code))

    # -- signals

    def send(self, signal: Signal, event: Event) -> None:
        """Send; a delivery raises ``event``, a failure `notifyFail`."""
        self._ask(msgspec.structs.replace(signal, uuid=self.talk.uuid), "sent")
        self.remember(signal=event.value, phase="send")
        if signal.ranks and signal.kind in (GLOBAL_FAULT, CHANGE_STRATEGY) and signal.change != Change.MIGRATION:
            self.remember(late=())  # each of them is told now

    def tell(self, signal: Signal) -> None:
        """Send without waiting for the delivery."""
        self.effects.append(msgspec.structs.replace(signal, uuid=self.talk.uuid, answer=False))

    def _ask(self, effect: Effect, outcome: str) -> None:
        self.effects.append(effect)
        self.remember(awaiting=outcome, pending=effect, deadline=None)

    def sent(self) -> Event | None:
        """The event of the delivery that was waited for."""
        if self.talk.awaiting != "sent" or not isinstance(self.told, Sent):
            return None
        event = Event(self.talk.signal) if self.told.ok else Event.UNSENT
        if not self.told.ok:
            self.remember(code=self.told.code or int(Code.SIGNAL_QUEUE_BUSY))
        elif isinstance(self.talk.pending, Signal):
            self.remember(said=self.talk.pending)
        self.remember(awaiting="", signal="", pending=None)
        return event

    # -- writes

    def write(self, effect: Reset | Label | Annotate | NotifyOperation | Release) -> None:
        """Ask for a write and wait for its outcome."""
        self._ask(effect, "written")

    def notify(self, effect: NotifyOperation, event: Event) -> None:
        """Hand over an operation; a delivery raises ``event``."""
        self._ask(effect, "sent")
        self.remember(signal=event.value, phase="send")

    def wrote(self) -> bool | None:
        """The outcome of the write that was waited for; None while it is due."""
        if self.talk.awaiting != "written" or not isinstance(self.told, Written):
            return None
        self.remember(awaiting="", pending=None)
        return self.told.ok

    def written(self, good: Event, bad: Event) -> Event | None:
        """The event of the write that was waited for; a refused one leaves its code in the story."""
        wrote = self.wrote()
        if wrote is None:
            return None
        if not wrote:
            self.fail(Code.CONFIG_MAP)
        return good if wrote else bad

    # -- reports

    def report_timeout(self) -> Event | None:
        """`receiveTimeout` once the limit for a report has passed."""
        if not self.expired:
            return None
        self.fail(Code.REPORT_TIMEOUT)
        return Event.TIMEOUT

    def take(self, slot: str) -> Report | None:
        """Take the report that waits in ``slot`` (stop, offer, status, reply)."""
        report: Report | None = getattr(self.talk, slot)
        if report is not None:
            self.remember(**{slot: None})
        return report

    # -- ranks

    def node_ranks(self, ranks: tuple[Rank, ...]) -> tuple[str, ...]:
        """The numbers of the pods that hold ``ranks``, ascending."""
        per_pod = max(1, self.facts.devices_per_pod)
        numbers = {int(rank.rank) // per_pod for rank in ranks if rank.rank.isdigit()}
        return tuple(str(number) for number in sorted(numbers))

    def leaving(self, ranks: tuple[Rank, ...]) -> tuple[str, ...]:
        """The numbers of the pods that hold ``ranks`` and are still those that broke: new ones must not leave."""
        return tuple(number for number in self.node_ranks(ranks) if number not in self.facts.changed)

    def pod_ranks(self, ranks: tuple[Rank, ...]) -> tuple[str, ...]:
        """Every rank of every pod that holds one of ``ranks``, ascending."""
        per_pod = max(1, self.facts.devices_per_pod)
        pods = sorted({int(rank.rank) // per_pod for rank in ranks if rank.rank.isdigit()})
        return tuple(str(pod * per_pod + device) for pod in pods for device in range(per_pod))

    def untold(self, ranks: tuple[Rank, ...]) -> tuple[Rank, ...]:
        """Those of newly found faults that this conversation has not dealt with: on other ranks, worse, or on pods that
        have come since.
        """
        known = set(self.talk.ranks)
        return tuple(
            rank
            for rank in ranks
            if not {rank, Rank(rank.rank, NORMAL)} & known or set(self.node_ranks((rank,))) & set(self.facts.changed)
        )

    def widen(self) -> None:
        """Make every rank of every faulty pod faulty: their processes leave together."""
        self.remember(ranks=tuple(Rank(rank, "1") for rank in self.pod_ranks(self.talk.ranks)))

    def harden(self) -> None:
        """Treat retryable faults as normal ones."""
        self.remember(
            ranks=tuple(
                dict.fromkeys(
                    Rank(rank.rank, "1" if rank.kind in RETRY_TYPES else rank.kind) for rank in self.talk.ranks
                )
            )
        )

    @property
    def ticking(self) -> bool:
        """Whether only time or facts moved."""
        return isinstance(self.told, Tick)


__all__ = ["Turn"]
