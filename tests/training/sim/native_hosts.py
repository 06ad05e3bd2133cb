"""Hosts of a native history: models of processes, links and supervisors around the real node agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from belay.agents.training.train.agent.coordinator_host import CoordinatorHost
from belay.agents.training.train.agent.node import NodeAgent
from belay.agents.training.train.agent.node_ranks import NodeSettings
from belay.agents.training.train.agent.ranks import ProcessLost, RankMessage
from belay.agents.training.train.agent.supervisor import ALL_FINISHED
from belay.agents.training.train.decide.members import Limits
from belay.agents.training.train.frames import Message
from belay.agents.training.train.home import Home

if TYPE_CHECKING:
    from .native import World

RETURNS = 20.0
"""Seconds within which a rank must find the agent that replaces a lost one."""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(eq=False)
class Process:
    """A rank's process: what its agent sees (as `RankProcess`), and what the script does."""

    world: World
    host: Host
    pid: int
    rank: int | None = None
    incarnation: int = 0
    alive: bool = True
    ending: str = ""
    agent: NodeAgent | None = None
    generation: int = 0
    joined: int = 0
    done: int = -1
    shown: int = -1
    first: tuple[int, int] = (1, 0)
    whole: bool = True
    plan: Message | None = None
    entered: bool = False
    finished: bool = False
    leaves: bool = False
    all_finished: bool = False
    sent: float = 0.0
    received: float = 0.0
    """When its last message arrives, and the last one to it: none overtakes another."""
    leaving: int | None = None
    stuck: float = 0.0
    """Until when it is not freed from a collective."""
    active: tuple[int, ...] = ()
    """The ranks of the newest generation that it has heard of."""
    trains: tuple[int, ...] = ()
    """Those of the generation that it has joined: with them it has reduced the gradients of its next update, also one
    that it makes after it has heard of another generation."""
    past: int = 0
    """Which ranks have made the steps that it holds, as one number."""

    @property
    def page(self) -> SimpleNamespace:
        """What it publishes in shared memory."""
        return SimpleNamespace(read=lambda: (self.shown, 0, 20_000_000), first=lambda: self.first)

    def say(self, kind: str, **fields: Any) -> None:
        """Send to the agent; lost when it dies first."""
        agent = self.agent
        event = RankMessage(self, {"t": kind, **fields}, b"")  # type: ignore[arg-type]
        self.sent = max(self.sent, self.world.now + self.world.short())
        self.world.after(self.sent - self.world.now, lambda: self.host.event(agent, event))

    def take(self, message: Message) -> None:
        """A message of the agent has arrived."""
        if not self.alive:
            return
        kind = message["t"]
        if kind == "assign" or (kind == "recover" and message["gen"] > self.generation):
            self.active = tuple(message.get("active") or range(self.world.ranks))
        if kind == "assign":
            self.rank, self.incarnation, self.generation = message["rank"], message["inc"], message["gen"]
            self.world.after(self.world.chance.uniform(0.01, 0.05), self.leave_function)
        elif kind == "recover" and message["gen"] > self.generation:
            self.generation = message["gen"]
            self.world.after(max(self.world.short(), self.stuck - self.world.now), self.leave_function)
        elif kind == "plan" and message["gen"] == self.generation:
            self.plan = message
            self.world.form(self.generation)
        elif kind == "leave":
            self.leaves, self.all_finished = True, message["all"]
            self.world.after(self.world.chance.choice((0.001, 0.001, 0.3)), self.end_script)

    def leave_function(self) -> None:
        """The main thread is free: it says which step it holds."""
        if self.stuck > self.world.now + 1e-6:
            # blocked once more since it was to be freed
            self.world.after(self.stuck - self.world.now, self.leave_function)
        elif self.alive and self.joined < self.generation and not self.leaves:
            self.joined, self.entered, self.finished, self.plan = self.generation, False, False, None
            self.trains = self.active
            done = self.done if self.whole else -1
            self.say("ready", gen=self.joined, done=done, shard=self.world.shard(self.rank), checkpoints=False)

    def end_script(self) -> None:
        """The script has ended."""
        if self.alive:
            self.leaving = 0
            self.say("leaving", code=0)
            self.world.after(0.002, lambda: self.die("left with 0"))

    def die(self, why: str) -> None:
        """The process ends."""
        if self.alive:
            self.alive = False
            agent = self.agent
            event = ProcessLost(self, self.ending or why)  # type: ignore[arg-type]
            late = max(0.002, self.sent - self.world.now)
            self.world.after(late, lambda: self.host.event(agent, event))

    def come_back(self, since: float) -> None:
        """Its agent is gone: it looks for the next one."""
        if not self.alive or self.agent is not None:
            return
        agent = self.host.agent
        if self.rank is None or self.world.now - since > RETURNS:
            self.die("no agent")
        elif agent is None:
            self.world.after(0.05, lambda: self.come_back(since))
        elif agent._joined or agent.ranks.of(self.rank) is not None:
            self.die("was refused")
        else:
            self.agent = agent
            agent.ranks.processes[self.pid] = self  # type: ignore[assignment]
            state = {"rank": self.rank, "inc": self.incarnation, "gen": self.generation, "done": self.done}
            state["active"] = self.active if len(self.active) < self.world.ranks else ()
            if self.joined:
                nproc, host = self.world.nproc, self.host.number
                state["shards"] = {rank: self.world.shard(rank) for rank in range(host * nproc, (host + 1) * nproc)}
            entered = self.entered and self.joined == self.generation
            agent.adopted({**state, "entered": entered, "finished": self.finished, "leaving": self.all_finished})


class SimulatedRanks:
    """`Ranks` of one agent."""

    def __init__(self, host: Host) -> None:
        self.host, self.processes, self.events, self.spares = host, {}, [], 0
        self.dead = False

    def of(self, rank: int) -> Process | None:
        return next((one for one in self.processes.values() if one.rank == rank and not one.ending), None)

    def start(self, rank: int, incarnation: int, assignment: Message) -> Process:
        world = self.host.world
        if world.over:
            raise Broken(f"rank {rank} is started although all had finished")
        world.pids += 1
        process = Process(world, self.host, world.pids, rank, incarnation, agent=self.host.agent)
        world.processes.append(process)
        self.processes[process.pid] = process
        self.send(process, assignment)
        return process

    def send(self, process: Process, message: Message, payload: bytes = b"") -> None:
        agent = process.agent
        world = self.host.world
        process.received = max(process.received, world.now + world.short())
        world.after(process.received - world.now, lambda: process.agent is agent and process.take(message))

    def stop(self, process: Process, why: str, number: int = 9) -> None:
        process.ending = process.ending or why
        self.host.world.after(0.001, lambda: process.die(why))

    def handle(self, ready: set[int]) -> list[Any]:
        found, self.events = self.events, []
        for event in found:
            if isinstance(event, ProcessLost):
                self.processes.pop(event.process.pid, None)  # type: ignore[attr-defined]
        return found

    def watch(self, now: float) -> None:
        pass

    keep_spares = close = lambda self: None


@dataclass
class Wire:
    """A connection of a node to the coordinator: messages under way, in both directions."""

    node: int
    up: list[tuple[Message, bytes]] = field(default_factory=list)
    down: list[tuple[Message, bytes]] = field(default_factory=list)
    up_lost: str = ""
    down_lost: str = ""


class Listener:
    """`NodeListener`."""

    def __init__(self, world: World) -> None:
        self.world, self.wires = world, list[Wire]()

    def joined(self) -> set[int]:
        return {one.node for one in self.wires}

    def send(self, node: int, message: Message, payload: bytes = b"") -> None:
        for one in self.wires:
            if one.node == node:
                self.world.carry(node, lambda one=one: one.down.append((message, payload)))

    def handle(self, ready: set[int], now: float) -> tuple[list[Any], list[tuple[int, str]]]:
        came, lost = [], []
        for one in list(self.wires):
            came += [(one.node, *each) for each in one.up]
            one.up.clear()
            if one.up_lost:
                self.wires.remove(one)
                lost.append((one.node, one.up_lost))
        return came, lost


class Link:
    """`CoordinatorLink`."""

    host, port, refused, address = "coordinator", 1, "", "there"

    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node
        self.line: Wire | None = None
        self.lost_at: float | None = None
        self._tried = 0.0

    def connect(self, now: float) -> bool:
        listener = self.world.listener
        if self.line is not None or now - self._tried < 0.5:
            return False
        self._tried = now
        self.lost_at = self.lost_at or now
        if listener is None or self.world.cut > now:
            return False
        for other in [one for one in listener.wires if one.node == self.node]:
            other.up_lost = "it connected again"
        self.line, self.lost_at = Wire(self.node), None
        listener.wires.append(self.line)
        return True

    def send(self, message: Message, payload: bytes = b"") -> None:
        if (line := self.line) is not None:
            self.world.carry(self.node, lambda: line.up.append((message, payload)))

    def handle(self, ready: set[int], now: float) -> list[tuple[Message, bytes]]:
        if self.line is None:
            return []
        found = list(self.line.down)
        self.line.down.clear()
        if self.line.down_lost:
            self.line.up_lost = "closed"
            self.line = None
        return found

    def close(self) -> None:
        if self.line is not None:
            self.line.up_lost = "closed"
            self.line = None


class Host:
    """A machine: its supervisor, the agent that runs now, the processes."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.agent: NodeAgent | None = None
        self.agents = 0
        self.told = b""
        self.leaving = False
        self.code: int | None = None
        self.gone = False
        """Whether it never comes back."""
        self.boot(0.0)

    def boot(self, delay: float) -> None:
        self.world.after(delay, self._boot)

    def _boot(self) -> None:
        world = self.world
        if self.code is not None or self.agent is not None:
            return
        local = {self.number * world.nproc + index: index for index in range(world.nproc)}
        settings = NodeSettings(
            self.number, world.nodes, local, world.ranks, "job", "", {}, Home(world.name(), 1), self.agents > 0,
            worked=-1, leaving=self.leaving,
        )  # fmt: skip
        coordinator = listener = link = None
        if self.number == 0:
            places = {rank: rank // world.nproc for rank in range(world.ranks)}
            limits = Limits(deaths=10**6, least=world.least, shrink=1.0 if world.least else Limits.shrink)
            coordinator = CoordinatorHost(places, limits, lambda _: None)
            listener = world.listener = Listener(world) if world.nodes > 1 else None
        else:
            link = Link(world, self.number)
        self.agents += 1
        self.agent = NodeAgent(settings, SimulatedRanks(self), coordinator, listener, link)  # type: ignore[arg-type]
        self.agent._return_socket.close()
        self.agent._tell = self.told_by(self.agent)  # type: ignore[method-assign]
        self.turn(self.agent)

    def told_by(self, agent: NodeAgent) -> Callable[[bytes], None]:
        def tell(what: bytes) -> None:
            self.leaving = self.leaving or what == ALL_FINISHED

        return tell

    def turn(self, agent: NodeAgent) -> None:
        """The agent's loop."""
        if self.agent is not agent:
            return
        agent.turn(set())
        if agent.ended is None:
            self.world.after(self.world.chance.uniform(0.002, 0.02), lambda: self.turn(agent))
            return
        self.code = agent.ended.code
        self.world.note(f"host {self.number} ends: {agent.ended}")
        if agent.coordinator is not None:
            known = agent.coordinator.coordinator
            self.world.apart |= known.lost() | set(range(self.world.nodes)) - known.nodes - {self.number}
        listener = self.world.listener
        if self.number == 0 and listener is not None:
            # the last message, as `NodeListener.farewell` has it read
            for one in listener.wires:
                if not one.down_lost and self.world.chance.random() < 0.8:
                    one.down.append(({"t": "job", "code": self.code, "text": agent.ended.text}, b""))
        self._gone()
        for process in list(self.world.processes):
            if process.host is self:
                process.die("the job ends")

    def _gone(self) -> None:
        """The agent is no more: its connections close, its ranks look for another one."""
        agent, self.agent = self.agent, None
        assert agent is not None
        if self.number == 0 and self.world.listener is not None:
            for one in self.world.listener.wires:
                one.down_lost = "closed"
            self.world.listener = None
        if agent.link is not None:
            agent.link.close()
        for process in self.world.processes:
            if process.agent is agent:
                process.agent = None
                process.come_back(self.world.now)

    def event(self, agent: NodeAgent | None, event: Any) -> None:
        if agent is not None and agent is self.agent:
            agent.ranks.events.append(event)  # type: ignore[attr-defined]

    def kill_agent(self) -> None:
        if self.agent is not None:
            self._gone()
            self.boot(self.world.chance.choice((0.05, 0.3, 2.0)))

    def lose(self) -> None:
        """Everything of the machine ends; it is started again, unless its part was done."""
        for process in self.world.processes:
            if process.host is self:
                process.agent = None
                process.alive = False
        if self.agent is not None:
            self._gone()
        self.agents, self.leaving = 0, False
        if self.world.least:
            self.gone = self.number > 0 and self.world.chance.random() < 0.4
            delay = 1e9 if self.gone else self.world.chance.choice((0.5, 5.0, 20.0))
            self.boot(delay)
        else:
            self.boot(self.world.chance.choice((0.5, 5.0)))
