"""Hosts the coordinator: turns messages of nodes into its events, and its commands into messages. No sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
                if message["t"] == "rank":
                    out += self._of_rank(int(message["rank"]), int(message["inc"]), message["m"], payload, now)
                elif message["t"] == "progress":
                    out += self._progress(message, now)
                elif message["t"] == "lost" and int(message["rank"]) in self.coordinator.members:
                    lost.append((int(message["rank"]), int(message["inc"]), str(message["why"])[:500]))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
                self._unreadable += 1
                if self._unreadable <= NAMED:
                    say(f"a message {message['t']!r:.40} cannot be read and is ignored: {error!r:.200}")
        if lost:
            out += self._carry_out(self.coordinator.ranks_lost(lost, now))
        return out

    def _of_rank(self, rank: int, incarnation: int, message: Message, payload: bytes, now: float) -> list[Outgoing]:
        coordinator = self.coordinator
        member = coordinator.members.get(rank)
        generation = int(message.get("gen", 0))
        if coordinator.generation == 0 and message["t"] == "finished":
            coordinator.finished_meanwhile(rank, incarnation, generation, int(message["done"]))
        if member is None or member.incarnation != incarnation:
            return []
        match message["t"]:
            case "store":
                return self._store(rank, incarnation, message, payload)
            case "ready":
                done, shard = int(message["done"]), message["shard"]
                named, loads = None if shard is None else str(shard), bool(message.get("checkpoints"))
                kept = frozenset(int(step) for step in message.get("kept", ()))
                coordinator.keeps(rank, incarnation, kept, int(message.get("proven", -1)))
                return self._carry_out(coordinator.ready(rank, incarnation, generation, done, named, now, loads))
            case "prepared":
                return self._carry_out(coordinator.prepared(rank, incarnation, generation, int(message["step"]), now))
            case "sample":
                sums = {str(name)[:200]: int(value) for name, value in message["sums"].items()}
                done, shard = int(message["done"]), str(message["shard"])
                divides = message.get("divides")
                return self._carry_out(coordinator.sampled(rank, incarnation, generation, done, shard, sums, divides))
            case "digest":
                return self._digest(rank, incarnation, generation, message, now)
            case "recomputed":
                computed = Computed(*(int(message[name]) for name in ("weights", "own", "other", "found")))
                done = int(message["done"])
                return self._carry_out(coordinator.recomputed(rank, incarnation, generation, done, computed, now))
            case "shard":
                coordinator.named(rank, incarnation, str(message["shard"]))
            case "offered":
                steps = [int(step) for step in message["steps"]]
                return self._carry_out(coordinator.offered(rank, incarnation, generation, steps, now))
            case "times" if coordinator.recovery is not None and generation == coordinator.generation:
                self._times(coordinator.recovery, message)
            case "entered":
                commands = coordinator.entered(rank, incarnation, generation, now)
                self._recovered()
                return self._carry_out(commands)
            case "broken":
                text = str(message.get("text", ""))[:500]
                return self._carry_out(coordinator.broken(rank, incarnation, generation, text, now))
            case "finished":
                done = int(message["done"])
                return self._carry_out(coordinator.finished(rank, incarnation, generation, done, now))
            case "failed":
                text = str(message.get("text", ""))[:500]
                return self._carry_out(coordinator.failed(rank, incarnation, text, now, bool(message.get("final"))))
            case "leaving":
                return self._carry_out(coordinator.left(rank, incarnation, int(message.get("code", 1)), now))
        return []

    def _digest(self, rank: int, incarnation: int, generation: int, message: Message, now: float) -> list[Outgoing]:
        done, shard, whole = int(message["done"]), str(message["shard"]), message.get("whole")
        held = Held(int(message["weights"]), None if whole is None else int(whole))
        costs = Costs(*(float(seconds) for seconds in message["costs"]))
        return self._carry_out(self.coordinator.digested(rank, incarnation, generation, done, shard, held, costs, now))

    def _progress(self, message: Message, now: float) -> list[Outgoing]:
        commands: list[CoordinatorCommand] = []
        for rank, incarnation, done in message["steps"]:
            if int(rank) in self.coordinator.members:
                commands += self.coordinator.stepped(int(rank), int(incarnation), int(done), now)
        for rank, incarnation, generation, age in message.get("firsts", ()):
            self._first_step(int(rank), int(incarnation), int(generation), now - float(age))
        for rank, incarnation, text, idle in message.get("waits", ()):
            if int(rank) in self.coordinator.members:
                self.coordinator.waits(int(rank), int(incarnation), str(text)[:200], float(idle), now)
        self.coordinator.median = float(message.get("median", 0.0))
        if message.get("working"):
            commands += self.coordinator.working(now)
        return self._carry_out(commands)

    def _store(self, rank: int, incarnation: int, message: Message, payload: bytes) -> list[Outgoing]:
        member = f"{rank}/{incarnation}"
        try:
            answers = self.rendezvous.ask(
                member,
                int(message["id"]),
                int(message["gen"]),
                str(message["verb"]),
                [str(key) for key in message["keys"]],
                split(payload),
                int(message.get("number", 0)),
            )
        except (ValueError, TypeError, IndexError, KeyError) as error:
            answers = [Answer(member, int(message.get("id", 0)), error=f"the request cannot be read: {error}")]
        out = []
        for answer in answers:
            if not answer.asked:
                # a rank that set a key without waiting
                continue
            to, _, number = answer.member.partition("/")
            body: Message = {"t": "answer", "id": answer.asked, "number": answer.number}
            if answer.error:
                body["error"] = answer.error
            out.append(self._to(int(to), body, join(answer.values), int(number)))
        return out

    def _to(self, rank: int, message: Message, payload: bytes = b"", incarnation: int | None = None) -> Outgoing:
        member = self.coordinator.members[rank]
        number = member.incarnation if incarnation is None else incarnation
        return member.node, {"t": "rank", "rank": rank, "inc": number, "m": message}, payload

    def _carry_out(self, commands: list[CoordinatorCommand]) -> list[Outgoing]:
        out: list[Outgoing] = []
        members = self.coordinator.members
        if self._generation != self.coordinator.generation:
            self._generation = self.coordinator.generation
            self.rendezvous.begin(self._generation)
        for command in commands:
            match command:
                case StartRank(node, rank, incarnation, generation, active):
                    start: dict[str, Any] = {"t": "start", "rank": rank, "inc": incarnation, "gen": generation}
                    out.append((node, start | ({"active": active} if active else {}), b""))
                case EndRank(node, rank, incarnation, why):
                    out.append((node, {"t": "end", "rank": rank, "inc": incarnation, "why": why}, b""))
                case JoinGeneration(generation, ranks, explained, active):
                    order: Message = {"t": "recover", "gen": generation, "explained": explained}
                    if active:
                        order["active"] = active
                    out += [self._to(rank, order) for rank in ranks]
                case GenerationPlan(generation, step, donors, checkpoint, back):
                    # ranks of a smaller job are numbered without gaps
                    number = {rank: index for index, rank in enumerate(members)}
                    plan = {
                        "t": "plan",
                        "gen": generation,
                        "step": step,
                        "donors": {str(number[receiver]): number[donor] for receiver, donor in donors.items()},
                        "checkpoint": checkpoint,
                        "back": back,
                        "pace": self._pace(),
                        "sharded": len({one.shard for one in members.values()}) > 1,
                    }
                    out += [self._to(rank, plan) for rank in members]
                case SetPace():
                    out += [self._to(rank, {"t": "pace", "pace": self._pace()}) for rank in members]
                case Commit(generation, ranks, go):
                    out += [self._to(rank, {"t": "commit", "gen": generation, "go": go}) for rank in ranks]
                case AskCheckpoint(generation):
                    out += [self._to(rank, {"t": "plan", "gen": generation, "ask": True}) for rank in members]
                case Leave(ranks, all_finished):
                    out += [self._to(rank, {"t": "leave", "all": all_finished}) for rank in ranks]
                    if all_finished:
                        # a node whose ranks have left before knows it too
                        out += [(node, {"t": "finished"}, b"") for node in sorted(self.coordinator.nodes)]
                case OperatorMessage(text):
                    say(text)
                case EndJob():
                    self.ended = command
        return out

    def _pace(self) -> list[int]:
        """Steps between comparisons and between copies, and the newest proven step; steps between those in which ranks
        compute for each other, and how often one of these was undecided."""
        pace = self.coordinator.pace
        coordinator = self.coordinator
        return [pace.compare, pace.keep, coordinator.witness.newest, pace.check, coordinator.recomputes.attempts]

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
    def _times(recovery: Recovery, message: Message) -> None:
        """Record when a rank had its group and its state; the slowest rank counts."""
        if recovery.planned is None:
            return
        formed = recovery.planned + float(message["formed"])
        recovery.formed = max(recovery.formed or formed, formed)
        repaired = formed + float(message["repaired"])
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
