"""A conversation of process recovery, driven a step at a time: what tests of single rules and golden stories share."""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.recovery import Conversation, FaultyRank, JobFacts, Report, State, step
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
    Offered,
    OperationResult,
    Release,
    Reset,
    Sent,
    Signal,
    StopComplete,
    Tick,
    Transition,
    Written,
)

ALL: Final = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")
CAN: Final = ("retry", "recover", "downgrade", "dump", "exit")


class Talk:
    """The job ``job-1``, its facts and its clock. What the server would keep is kept as a server reads it back."""

    def __init__(self) -> None:
        self.talk = Conversation(job="job-1")
        self.facts = JobFacts(configured=("recover", "dump", "exit"), running=True, replaced=True)
        self.now, self.rounds = 1_000_000, 0

    def change(self, **facts: object) -> None:
        """Other facts from now on."""
        self.facts = msgspec.structs.replace(self.facts, **facts)

    def take(self, told: Input) -> Transition:
        """One step."""
        self.rounds += 1
        result = step(self.talk, told, self.facts, self.now, f"uuid-{self.rounds}")
        # what is kept is what a server reads back after a crash
        self.talk = msgspec.json.decode(msgspec.json.encode(result.conversation), type=Conversation)
        return result

    def accounted(self, effect: Effect) -> bool:
        """Whether it is the account of a conversation that is over; then it is among the facts."""
        if not isinstance(effect, Annotate) or effect.key != PROCESS_RECOVERIES:
            return False
        self.change(accounts=effect.value)
        return True


class Play(Talk):
    """A conversation with a client and a cluster that answer what the test says; outcomes are good by default."""

    def __init__(self, **facts: object) -> None:
        super().__init__()
        self.change(**facts)
        self.said: list[Effect] = []
        self.fails: list[type[Effect]] = []

    def set(self, **facts: object) -> Play:
        self.change(**facts)
        return self

    def tell(self, told: Input) -> Play:
        self.last = self.take(told)
        for effect in self.last.effects:
            if self.accounted(effect):
                continue
            self.said.append(effect)
            if (heard := answer(effect, not isinstance(effect, tuple(self.fails)))) is not None:
                self.tell(heard)
        return self

    def after(self, seconds: float) -> Play:
        self.now += round(seconds * 1000)
        return self.tell(Tick())

    def heard(self) -> list[str]:
        """What was sent since the last time, short."""
        said, self.said = self.said, []
        return [short(effect) for effect in said]

    @property
    def state(self) -> State:
        return self.talk.state


def decided(play: Play, fault: Faults, offers: tuple[str, ...] = CAN) -> Play:
    """As far as the decision."""
    return play.tell(fault).tell(StopComplete(Report())).after(1).tell(Offered(Report(strategies=offers)))


def answer(effect: Effect, ok: bool) -> Input | None:
    """The outcome of an effect that the machine waits for; None for other effects."""
    if not getattr(effect, "answer", True):
        return None
    if isinstance(effect, Signal | NotifyOperation):
        return Sent(ok, 0 if ok else 504)
    return Written(ok) if isinstance(effect, Reset | Label | Annotate | Release) else None


def software(*ranks: tuple[str, str]) -> Faults:
    """Faults that processes report."""
    return Faults(tuple(FaultyRank(*rank) for rank in ranks), software=True)


def short(effect: Effect) -> str:
    """An effect as a short text."""
    match effect:
        case Signal():
            parts = [effect.kind, "+".join(effect.actions), effect.change, effect.extra]
            parts += [f"nodes={','.join(effect.nodes)}"] if effect.nodes else []
            parts += [f"timeout={effect.timeout}"] if effect.timeout else []
            return " ".join(part for part in parts if part)
        case Reset():
            return f"reset {effect.operation}" + (f" {effect.ranks[0]}-{effect.ranks[-1]}" if effect.ranks else "")
        case Label():
            return f"label {effect.key}={effect.value}"
        case Annotate():
            return f"annotate {effect.key}={effect.value}"
        case MarkPods():
            return f"pods {effect.pod or effect.ranks[0]} {effect.labels} {effect.annotations}"
        case NotifyOperation():
            return f"operation {effect.kind}"
        case OperationResult():
            return f"result {effect.text}"
        case IsolateNodes():
            return f"isolate {effect.nodes}"
        case Release():
            return "release " + ("clear" if effect.clear else ",".join(effect.ranks))
        case Degrade():
            return f"degrade {effect.pod}"
