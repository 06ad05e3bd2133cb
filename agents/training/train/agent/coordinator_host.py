"""Hosts the coordinator: turns messages of nodes into its events, and its commands into messages. No sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from belay.agents.training.train import protocol
from belay.agents.training.train.decide.coordinator import Coordinator
from belay.agents.training.train.decide.coordinator_commands import (
    AskCheckpoint,
    Commit,
    CoordinatorCommand,
    EndJob,
    EndRank,
    GenerationPlan,
    JoinGeneration,
    Leave,
    OperatorMessage,
    SetPace,
    StartRank,
)
from belay.agents.training.train.decide.members import Limits, Recovery, RunningRank
from belay.agents.training.train.decide.pace import Costs
from belay.agents.training.train.decide.recomputed import Computed
from belay.agents.training.train.decide.rendezvous import Answer, Rendezvous
from belay.agents.training.train.decide.witness import Held
from belay.agents.training.train.frames import Message
from belay.agents.training.train.notices import say
from belay.agents.training.train.protocol import OfRank, Progress, Said, Store
from belay.agents.training.train.values import join, split

NAMED = 20
"""Number of messages that are named when they cannot be read."""
Outgoing = tuple[int, Message, bytes]
"""Node, message and payload."""


class CoordinatorHost:
    """Runs in one process of the job, alone or beside the agent of a node.

    ``report`` is called with a recovery when all ranks train again, ``keep`` once they have finished a step or the job
    ends before that. ``orders``: what another one than the coordinator decides, such as a smaller job.
    """

    def __init__(
        self,
        places: dict[int, int],
        limits: Limits,
        report: Callable[[Recovery], None],
        keep: Callable[[Recovery], None] = lambda recovery: None,
        orders: Callable[[Coordinator, float], list[CoordinatorCommand]] = lambda coordinator, now: [],
    ) -> None:
        self.coordinator = Coordinator(places, limits)
        self.rendezvous = Rendezvous()
        self.ended: EndJob | None = None
        self._report, self._keep, self._orders = report, keep, orders
        self._generation = 0
        self._stepping: Recovery | None = None
        self._unreadable = 0
        self._firsts: dict[int, tuple[int, float]] = {}
        """Rank → generation and time of its first finished step; it may be reported before all ranks have entered."""

    def node_joined(
        self, node: int, living: list[Message], now: float, shards: Mapping[Any, str] | None = None
    ) -> list[Outgoing]:
        """A node joined, with the ranks that it already runs, and the shards of its ranks as far as they are known.
        Raises ``ValueError`` when the lists cannot be read."""
        try:
            found = [
                RunningRank(
                    int(one["rank"]),
                    int(one["inc"]),
                    int(one["gen"]),
                    bool(one["entered"]),
                    bool(one["finished"]),
                    int(one["done"]),
                    bool(one.get("leaving")),
                    tuple(int(rank) for rank in one.get("active") or ()),
                    one.get("divides"),
                )
                for one in living
                if self.coordinator.places.get(int(one["rank"])) == node
            ]
            for rank, shard in (shards or {}).items():
                member = self.coordinator.members.get(int(rank)) or self.coordinator.away.get(int(rank))
                if member is not None and member.node == node:
                    member.shard = str(shard)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"node {node} sent a list of ranks that cannot be read: {error!r}") from None
        return self._carry_out(self.coordinator.node_joined(node, now, found))

    def all_finished(self) -> list[Outgoing]:
        """All ranks had finished under a former coordinator."""
        return self._carry_out(self.coordinator.all_finished())

    def node_lost(self, node: int, why: str, now: float) -> list[Outgoing]:
        """A node was lost."""
        return self._carry_out(self.coordinator.node_lost(node, why, now))

    def tick(self, now: float) -> list[Outgoing]:
        """Check the time limits, and carry out orders."""
        ordered = self._orders(self.coordinator, now)
        return self._carry_out([*ordered, *self.coordinator.tick(now)])

    def take(self, messages: list[tuple[Message, bytes]], now: float) -> list[Outgoing]:
        """Messages that arrived together: ranks that died together are one fault. One that cannot be read is named and
        ignored: a node of another version, or a script that writes to its connection, must not end the job."""
        out: list[Outgoing] = []
        lost: list[tuple[int, int, str]] = []
        for message, payload in messages:
            try:
                match message["t"]:
                    case protocol.OfRank.KIND:
                        out += self._of_rank(protocol.OfRank.read(message), payload, now)
                    case protocol.Progress.KIND:
                        out += self._progress(protocol.Progress.read(message), now)
                    case protocol.Lost.KIND:
                        gone = protocol.Lost.read(message)
                        if gone.rank in self.coordinator.members:
                            lost.append((gone.rank, gone.incarnation, gone.why[:500]))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
                self._unreadable += 1
                if self._unreadable <= NAMED:
                    say(f"a message {message['t']!r:.40} cannot be read and is ignored: {error!r:.200}")

        if lost:
            out += self._carry_out(self.coordinator.ranks_lost(lost, now))
        return out

    def _of_rank(self, envelope: OfRank, payload: bytes, now: float) -> list[Outgoing]:
        coordinator, rank, incarnation = self.coordinator, envelope.rank, envelope.incarnation
        said = protocol.from_rank(envelope.said)
        if coordinator.generation == 0 and isinstance(said, protocol.Finished):
            coordinator.finished_meanwhile(rank, incarnation, said.generation, said.done)
        member = coordinator.members.get(rank)
        if member is None or member.incarnation != incarnation:
            return []

        if isinstance(said, protocol.Store):
            return self._store(rank, incarnation, said, payload)
        return self._carry_out(self._told(rank, incarnation, said, now))

    def _told(self, rank: int, incarnation: int, said: protocol.Said | None, now: float) -> list[CoordinatorCommand]:
        """What follows from a message of a rank: each is one event of the coordinator."""
        coordinator = self.coordinator
        match said:
            case protocol.Ready(generation, done, shard, checkpoints, kept, proven):
                coordinator.keeps(rank, incarnation, frozenset(kept), proven)
                return coordinator.ready(rank, incarnation, generation, done, shard, now, checkpoints)
            case protocol.Prepared(generation, step):
                return coordinator.prepared(rank, incarnation, generation, step, now)
            case protocol.Sample(generation, done, shard, sums, divides):
                return coordinator.sampled(rank, incarnation, generation, done, shard, sums, divides)
            case protocol.Digest(generation, done, shard, weights, costs, whole):
                held = Held(weights, whole)
                return coordinator.digested(rank, incarnation, generation, done, shard, held, Costs(*costs), now)
            case protocol.RecomputedSums(generation, done, weights, own, other, found):
                computed = Computed(weights, own, other, found)
                return coordinator.recomputed(rank, incarnation, generation, done, computed, now)
            case protocol.ShardNamed(_, shard):
                coordinator.named(rank, incarnation, shard)
            case protocol.Offered(generation, steps):
                return coordinator.offered(rank, incarnation, generation, steps, now)
            case protocol.Times(generation) if coordinator.recovery is not None:
                if generation == coordinator.generation:
                    self._times(coordinator.recovery, said)
            case protocol.Entered(generation):
                commands = coordinator.entered(rank, incarnation, generation, now)
                self._recovered()
                return commands
            case protocol.Broken(generation, text):
                return coordinator.broken(rank, incarnation, generation, text[:500], now)
            case protocol.Finished(generation, done):
                return coordinator.finished(rank, incarnation, generation, done, now)
            case protocol.Failed(text, final):
                return coordinator.failed(rank, incarnation, text[:500], now, final)
            case protocol.Leaving(code):
                return coordinator.left(rank, incarnation, code, now)
        return []

    def _progress(self, progress: Progress, now: float) -> list[Outgoing]:
        coordinator = self.coordinator
        commands: list[CoordinatorCommand] = []
        for rank, incarnation, done in progress.steps:
            if int(rank) in coordinator.members:
                commands += coordinator.stepped(int(rank), int(incarnation), int(done), now)
        for rank, incarnation, generation, age in progress.firsts:
            self._first_step(int(rank), int(incarnation), int(generation), now - float(age))
        for rank, incarnation, text, idle in progress.waits:
            if int(rank) in coordinator.members:
                coordinator.waits(int(rank), int(incarnation), str(text)[:200], float(idle), now)

        coordinator.median = progress.median
        if progress.working:
            commands += coordinator.working(now)
        return self._carry_out(commands)

    def _store(self, rank: int, incarnation: int, asked: Store, payload: bytes) -> list[Outgoing]:
        member = f"{rank}/{incarnation}"
        try:
            answers = self.rendezvous.ask(
                member, asked.id, asked.generation, asked.verb, list(asked.keys), split(payload), asked.number
            )
        except (ValueError, TypeError, IndexError, KeyError) as error:
            answers = [Answer(member, asked.id, error=f"the request cannot be read: {error}")]

        out = []
        for answer in answers:
            if not answer.asked:
                # a rank that set a key without waiting
                continue
            to, _, number = answer.member.partition("/")
            body = protocol.StoreAnswer(answer.asked, answer.number, answer.error)
            out.append(self._to(int(to), body, join(answer.values), int(number)))
        return out

    def _to(self, rank: int, said: Said, payload: bytes = b"", incarnation: int | None = None) -> Outgoing:
        member = self.coordinator.members[rank]
        number = member.incarnation if incarnation is None else incarnation
        return member.node, OfRank(rank, number, said.message()).message(), payload

    def _carry_out(self, commands: list[CoordinatorCommand]) -> list[Outgoing]:
        if self._generation != self.coordinator.generation:
            self._generation = self.coordinator.generation
            self.rendezvous.begin(self._generation)

        out: list[Outgoing] = []
        for command in commands:
            match command:
                case OperatorMessage(text):
                    say(text)
                case EndJob():
                    self.ended = command
                case StartRank(node, rank, incarnation, generation, active):
                    start = protocol.Start(rank, incarnation, generation, tuple(active))
                    out.append((node, start.message(), b""))
                case EndRank(node, rank, incarnation, why):
                    out.append((node, protocol.End(rank, incarnation, why).message(), b""))
                case _:
                    out += self._tell_ranks(command)
        return out

    def _tell_ranks(self, command: CoordinatorCommand) -> list[Outgoing]:
        everyone = list(self.coordinator.members)
        match command:
            case JoinGeneration(generation, ranks, explained, active):
                order = protocol.RecoverOrder(generation, explained, tuple(active))
                return [self._to(rank, order) for rank in ranks]
            case GenerationPlan():
                plan = self._plan(command)
                return [self._to(rank, plan) for rank in everyone]
            case SetPace():
                return [self._to(rank, protocol.NewPace(self._pace())) for rank in everyone]
            case Commit(generation, ranks, go):
                return [self._to(rank, protocol.CommitStep(generation, go)) for rank in ranks]
            case AskCheckpoint(generation):
                return [self._to(rank, protocol.OfferRequest(generation, True)) for rank in everyone]
            case Leave(ranks, all_finished):
                out = [self._to(rank, protocol.LeaveFunction(all_finished)) for rank in ranks]
                if all_finished:
                    # a node whose ranks have left before knows it too
                    out += [(node, protocol.AllFinished().message(), b"") for node in sorted(self.coordinator.nodes)]
                return out
        return []

    def _plan(self, plan: GenerationPlan) -> protocol.Plan:
        members = self.coordinator.members
        # ranks of a smaller job are numbered without gaps
        number = {rank: index for index, rank in enumerate(members)}
        return protocol.Plan(
            generation=plan.generation,
            step=plan.step,
            donors={number[receiver]: number[donor] for receiver, donor in plan.donors.items()},
            checkpoint=plan.checkpoint,
            back=plan.back,
            pace=self._pace(),
            sharded=len({member.shard for member in members.values()}) > 1,
        )

    def _pace(self) -> tuple[int, ...]:
        """As `protocol.NewPace` says."""
        coordinator, pace = self.coordinator, self.coordinator.pace
        return pace.compare, pace.keep, coordinator.witness.newest, pace.check, coordinator.recomputes.attempts

    def _recovered(self) -> None:
        recovery = self.coordinator.recovery
        if recovery is None or recovery.entered is None:
            return
        self.coordinator.recovery = None
        self.close()
        self._report(recovery)
        self._stepping = recovery
        self._stepped()

    @staticmethod
    def _times(recovery: Recovery, times: protocol.Times) -> None:
        """Record when a rank had its group and its state; the slowest rank counts."""
        if recovery.planned is None:
            return
        formed = recovery.planned + times.formed
        recovery.formed = max(recovery.formed or formed, formed)
        repaired = formed + times.repaired
        recovery.repaired = max(recovery.repaired or repaired, repaired)

    def _first_step(self, rank: int, incarnation: int, generation: int, at: float) -> None:
        member = self.coordinator.members.get(rank)
        if member is not None and member.incarnation == incarnation:
            self._firsts[rank] = (generation, at)
            self._stepped()

    def _stepped(self) -> None:
        """Close the recovery once every rank has finished a step of its generation."""
        recovery = self._stepping
        if recovery is None:
            return
        found = [at for generation, at in self._firsts.values() if generation == recovery.generation]
        if len(found) == len(self.coordinator.members):
            recovery.stepped = max(found)
            self.close()

    def close(self) -> None:
        """Hand over the last recovery with the times that are known."""
        recovery, self._stepping = self._stepping, None
        if recovery is not None:
            self._keep(recovery)


def timeline(recovery: Recovery) -> str:
    """A recovery as one JSON object; times in milliseconds since its first fault was detected."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else round((moment - recovery.began) * 1000, 1)

    return json.dumps(
        {
            "cause": recovery.cause[:1000],
            "generation": recovery.generation,
            "step": recovery.step,
            "freed_ms": since(recovery.freed),
            "planned_ms": since(recovery.planned),
            "entered_ms": since(recovery.entered),
            "formed_ms": since(recovery.formed),
            "repaired_ms": since(recovery.repaired),
            "stepped_ms": since(recovery.stepped),
            "ranks": sorted(recovery.ranks),
        }
    )


def report(recovery: Recovery) -> None:
    """Report a recovery to the operator."""
    found = json.loads(timeline(recovery))
    say(
        f"generation {recovery.generation} goes on at step {recovery.step}, {found['entered_ms']:g} ms after the fault "
        f"(ranks freed after {found['freed_ms']:g} ms): {recovery.cause[:500]}"
    )


def append_timeline(recovery: Recovery, file: Path | None) -> None:
    """Append a recovery to ``file`` as a line of JSON; nothing without a file."""
    if file is not None:
        with file.open("a") as lines:
            lines.write(timeline(recovery) + "\n")
