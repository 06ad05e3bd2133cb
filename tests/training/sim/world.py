"""The virtual world: a clock, a network that loses, delays and doubles messages, processes that die, hang and return,
ClusterD, and an agent that starts lost ranks again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from belay.agents.training.compat.tft import controller_commands as o
from belay.agents.training.compat.tft.machine import controller
from belay.agents.training.compat.tft.messages import BYE, Message

from .rank import Rank


@dataclass
class Plan:
    """One history's conditions."""

    seed: int
    world: int = 4
    copies: int = 2
    steps: int = 12
    arf: bool = True
    clusterd: bool = True
    hosted: bool = False  # the controller lives in rank 0's process, with backups in ranks 1 and 2
    lossy: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    stuck: float = 0.0
    gathers: bool = False
    failing: float = 0.0
    faults: list[tuple[float, str, int]] = field(default_factory=list)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Conditions of a seed."""
        rng = random.Random(seed)
        world = rng.choice([2, 4, 4, 4, 6])
        plan = cls(
            seed, world, copies=rng.choice([2, world]), steps=rng.randint(4, 14), arf=rng.random() < 0.85,
            clusterd=rng.random() < 0.85, hosted=rng.random() < 0.15, lossy=rng.choice([0, 0, 0.02, 0.15]),
            doubled=rng.choice([0, 0.05]), late=rng.choice([0, 0, 0.1]), stuck=rng.choice([0, 0, 0.1]),
            gathers=rng.random() < 0.4, failing=rng.choice([0, 0, 0, 0.03]),
        )  # fmt: skip
        kinds = ["kill"] * 8 + ["hang", "hccl", "uce", "stray", "controller", "pause", "hot switch"]
        start = rng.uniform(0.2, 3.0)
        for _ in range(rng.randint(1, 4)):
            plan.faults.append((start, rng.choice(kinds), rng.randrange(world)))
            start += rng.choice([rng.expovariate(200), rng.expovariate(20), rng.expovariate(2), rng.expovariate(0.2)])
        return plan


class Broken(AssertionError):
    """An invariant does not hold."""


class World:
    """Everything."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed * 7919 + 1)
        self.now = 0.0
        self.story: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.hosts: dict[str, Host] = {}
        self.ranks: list[Rank] = []
        self.collectives: dict[tuple, dict[int, Rank]] = {}
        self.resumed: dict[tuple[int, int], int] = {}
        self.finished_step = 0
        self.results: dict[tuple[int, str], int] = {}
        self.ending = False
        self.unprotected = False

    def note(self, text: str) -> None:
        """A line of the story."""
        self.story.append(f"{self.now:9.4f} {text}")

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Later."""
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, what))

    def delay(self) -> float:
        """A message's way."""
        if self.rng.random() < self.plan.late:
            return self.rng.uniform(0.001, 3.0)
        return self.rng.uniform(0.0002, 0.002)

    def carry(self, message: Message, deliver: Callable[[], None]) -> None:
        """A message may be lost, late, doubled. A goodbye is not: its connection would be lost with it."""
        if message["op"] == BYE:
            self.after(0.0002, deliver)
            return
        if self.rng.random() >= self.plan.lossy:
            self.after(self.delay(), deliver)
        if self.rng.random() < self.plan.doubled:
            self.after(self.delay(), deliver)

    def start(self, number: int) -> Rank:
        """A process for a rank."""
        rank = Rank(self, number, len(self.ranks))
        self.ranks.append(rank)
        return rank

    def current(self, number: int) -> Rank:
        """The newest process of a rank."""
        return next(rank for rank in reversed(self.ranks) if rank.number == number)

    def run(self, limit: float = 6000.0) -> None:
        """Play to the end."""
        plan = self.plan
        if plan.hosted:
            for number in range(min(3, plan.world)):
                Host(self, f"host{number}:1", number)
        else:
            Host(self, "host-1:1", -1)
        for number in range(plan.world):
            self.start(number)
        for time, kind, number in plan.faults:
            self.after(time, lambda kind=kind, number=number: self.fault(kind, number))
        while self._events and self.now < limit:
            self.now, _, what = heapq.heappop(self._events)
            what()
            if all(rank.code is not None for rank in self.ranks):
                break
        waiting = [rank for rank in self.ranks if rank.code is None]
        if waiting:
            raise Broken(f"ranks wait for ever: {[(r.number, r.place) for r in waiting]}")
        self.judge()

    def judge(self) -> None:
        """What must hold at the end."""
        last = [self.current(number) for number in range(self.plan.world)]
        codes = {rank.code for rank in last}
        if codes == {0}:
            steps = {rank.step for rank in last}
            if steps != {self.plan.steps}:
                raise Broken(f"ranks ended with 0 at steps {steps}, {self.plan.steps} were to be done")

    def fault(self, kind: str, number: int) -> None:
        """Something breaks."""
        rank = self.current(number)
        self.note(f"FAULT {kind} of {number}")
        if kind == "kill":
            rank.die(-9)
        elif kind == "hang":
            rank.hang(self.rng.uniform(1, 30))
        elif kind in ("hccl", "uce", "stray"):
            rank.error = kind
        elif kind == "controller":
            for host in list(self.hosts.values())[:1]:
                if host.owner is None and self.rng.random() < 0.3:
                    self.unprotected = True
                    host.die()
        else:
            host = next(iter(self.hosts.values()), None)
            if host is not None and kind == "pause":
                host.order(o.Order("pause", limit=30.0))
                self.after(1.0, lambda: host.order(o.Order("strategy", text="continue")))
            elif host is not None and number:
                host.order(o.Order("prepare", {number: 1}, text="hot switch"))
                self.after(0.1, lambda: self.start(number))

    def died(self, rank: Rank) -> None:
        """The agent starts a lost process again, as long as a group takes it in."""
        for members in self.collectives.values():
            if members.get(rank.number) is rank:
                del members[rank.number]
        if rank.code != 0 and not self.ending and self.hosts and self.current(rank.number) is rank:
            self.after(
                self.rng.choice([0.03, 0.3, 3.0]),
                lambda: self.start(rank.number) if self.current(rank.number) is rank and not self.ending else None,
            )

    def resume(self, rank: Rank, generation: int) -> None:
        """A rank trains in ``generation``: all of it at one step, and no rank in an older one any more."""
        key = (rank.machine.term, generation)
        known = self.resumed.setdefault(key, rank.step)
        if known != rank.step:
            raise Broken(f"rank {rank.number} goes on from step {rank.step} in generation {key}, others from {known}")
        if rank.torn:
            raise Broken(f"rank {rank.number} trains with torn state")
        for other in self.ranks:
            older = other.code is None and other is not rank and other.trains and other.comm < generation
            if older and not self.given_up(other):
                raise Broken(f"rank {other.number} still trains in generation {other.comm}, {rank.number} in {key}")

    def given_up(self, rank: Rank) -> bool:
        """Whether controllers count this process as lost, or have none linked."""
        for host in self.hosts.values():
            peer = host.machine.peers.get(rank.number)
            if peer is not None and peer.link is not None and peer.session == rank.session:
                return rank.number in host.machine.isolated or peer.finished
        return True


class Host:
    """A controller's process (or the part of a rank's process that holds it)."""

    def __init__(self, world: World, address: str, number: int) -> None:
        plan = world.plan
        self.world, self.address = world, address
        self.owner: Rank | None = None
        self.alive = True
        self.links: dict[int, Rank] = {}
        self._next = 0
        self.machine = controller(
            o.ControllerSettings(
                rank=number, world=plan.world, arf=plan.arf, clusterd=plan.clusterd, backup=max(0, number),
                action_limit=60.0, node_limit=120.0,
            ),
            world.now,
        )  # fmt: skip
        world.hosts[address] = self
        self.strategy = ""
        self.told = False
        self._wake = 0

    def connect(self, rank: Rank) -> int:
        """A new link."""
        self._next += 1
        self.links[self._next] = rank
        return self._next

    def hear(self, link: int, message: Message) -> None:
        """A message of a processor."""
        if self.alive and link in self.links:
            self.machine.received(link, message, self.world.now)
            self.pump()

    def closed(self, link: int) -> None:
        """The other end is gone."""
        if self.alive and self.links.pop(link, None) is not None:
            self.machine.unlinked(link, self.world.now)
            self.pump()

    def order(self, order: o.Order) -> None:
        """From ClusterD."""
        if self.alive:
            self.world.note(f"order {order.kind} {order.text}")
            self.machine.order(order)
            self.pump()

    def die(self) -> None:
        """The controller's process is gone."""
        self.world.note(f"controller {self.address} dies")
        self.alive = False
        self.world.hosts.pop(self.address, None)
        for link, rank in list(self.links.items()):
            self.world.after(0.001, lambda rank=rank, link=link: rank.unlinked(self, link))
        self.links.clear()

    def pump(self) -> None:
        """Let the machine go on."""
        if not self.alive:
            return
        for command in self.machine.handle(self.world.now):
            self.carry_out(command)
        deadline = self.machine.deadline()
        if deadline is not None:
            self._wake += 1
            wake = self._wake
            self.world.after(
                max(0.0001, deadline - self.world.now), lambda: self.pump() if wake == self._wake else None
            )

    def carry_out(self, command: o.ControllerCommand) -> None:
        """One command."""
        world = self.world
        if isinstance(command, o.SendTo):
            rank = self.links.get(command.link)
            if rank is not None:
                world.carry(command.message, lambda: rank.hear(self, command.link, command.message))
        elif isinstance(command, o.Close):
            rank = self.links.pop(command.link, None)
            if rank is not None:
                self.machine.unlinked(command.link, world.now)
                world.after(0.003, lambda: rank.unlinked(self, command.link))
        elif isinstance(command, o.LogLine):
            world.note(f"[{self.address} g{self.machine.generation}] {command.text}")
            if command.text.endswith(f"-> exit, generation {self.machine.generation}"):
                world.ending = True
        elif isinstance(command, o.Report):
            self.clusterd(command)
        else:
            world.ending = True
            self.die()

    def clusterd(self, report: o.Report) -> None:
        """ClusterD's answers; once in a while it says nothing, or something else."""
        world, rng = self.world, self.world.rng
        world.note(f"report {report.name} {report.arguments}")
        if rng.random() < 0.01:
            return
        wait = rng.choice([0.0005, 0.01, 1.0])
        if report.name == "report_fault_ranks" and not self.told:
            self.told = True
            world.after(wait, lambda: self.order(o.Order("stop")))
        elif report.name == "report_stop_complete" and self.told:
            world.after(wait, lambda: self.order(o.Order("global", report.arguments[2], limit=1.0)))
        elif report.name == "report_strategies":
            offered = report.arguments[1]
            wish = rng.choice(["retry", "retry", "recover", "recover", "recover", "recover", "dump", "exit"])
            choice = next((s for s in (wish, "migration", "recover", "dump", "exit") if s in offered), "exit")
            world.after(wait, lambda: self.order(o.Order("strategy", text=choice)))
        elif report.name == "report_result":
            code, _, _, strategy = report.arguments
            key = (self.machine.generation, strategy)
            world.results[key] = world.results.get(key, 0) + 1
            if world.results[key] > 1 and strategy != "continue":
                raise Broken(f"strategy {strategy} of generation {key[0]} has two results")
            if code == 405:
                world.after(wait, lambda: self.order(o.Order("global", limit=1.0)))
            elif code:
                text = rng.choice(["dump", "exit"])
                world.after(wait, lambda: self.order(o.Order("strategy", text=text)))
            elif strategy == "dump":
                world.after(wait, lambda: self.order(o.Order("strategy", text="exit")))
            else:
                self.told = False
