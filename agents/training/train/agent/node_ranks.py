"""The ranks of a node as its coordinator sees them: what they report goes up, orders for them come down."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from belay.agents.training.train.agent.ranks import ProcessLost, RankMessage, RankProcess, Ranks, StartFailed
from belay.agents.training.train.agent.supervisor import ALL_FINISHED, WORKED_ON
from belay.agents.training.train.agent.work import LOOK, STALE, Work
from belay.agents.training.train.decide.coordinator_commands import EndJob
from belay.agents.training.train.frames import Message
from belay.agents.training.train.home import Home

RETURN = 1.0
"""Seconds that a new agent waits for the ranks of its predecessor."""
OUTSIDE = 3600.0
"""Seconds of a sleep that is taken for one that does not end."""
UNBOUNDED = 1e9
"""How ranks name a wait whose end is not known."""
SIGTERM_GRACE = 10.0
"""Seconds that ranks get after SIGTERM."""


@dataclass(frozen=True)
class NodeSettings:
    """The job as a node sees it. ``local``: rank → local rank of this node's ranks; ``home``: where processes of a lost
    agent look for this one; ``returning``: whether there are such processes; ``worked``: a descriptor by which the
    supervisor learns how far the ranks are; ``look``: seconds between looks at whether ranks work; ``leaving``: a
    former agent knew that all ranks of the job have finished; ``least``: number of nodes with which the job goes
    on, 0: all."""

    node: int
    nodes: int
    local: dict[int, int]
    world: int
    job: str
    address: str
    env: dict[str, str]
    home: Home
    returning: bool
    worked: int = -1
    look: float = LOOK
    leaving: bool = False
    least: int = 0


class NodeRanks:
    """The ranks of one node, with their state for a coordinator that takes over; `_send_up` reaches the present one."""

    def __init__(self, settings: NodeSettings, ranks: Ranks) -> None:
        self.settings, self.node, self.ranks = settings, settings.node, ranks
        self.address = settings.address or "127.0.0.1"
        self.ended: EndJob | None = None
        self._started_at = time.monotonic()
        self._work = Work(settings.look)
        self._seen: dict[int, tuple[int, int]] = {}
        """Pid → finished steps and when the last one was, also of steps that count with a later update only."""
        self._waits: dict[int, tuple[Message, float]] = {}
        """Pid → where its main thread is, since it finished no step, and when it said so."""
        self._looked_at = 0.0
        self._median = 0.0
        self._advanced = False
        self._firsts: dict[int, int] = {}
        """Pid → generation whose first step was reported."""
        self._terminated: float | None = None
        self._terminated_by: int = signal.SIGTERM
        self._leaving = settings.leaving
        """Whether all ranks of the job have finished, so that those of this node leave."""
        self._orders: dict[int, bytes] = {}
        """Rank → orders of DDP's buckets, as it sent them: for its successor, when no other rank can give them."""
        self._shards: dict[int, str] = {}
        """Rank → the shard that it holds: a process that replaces it needs it before it has built its model."""
        self._states: dict[int, Message] = {}
        """Rank → its state, sent when this node joins (again)."""
        self._return_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._return_socket.bind("\0" + settings.home.name)
        self._return_socket.listen(64)
        self._return_socket.setblocking(False)
        self._joins_at = time.monotonic() + (RETURN if settings.returning else 0)
        self._joined = False

    def _send_up(self, messages: list[tuple[Message, bytes]]) -> None:
        raise NotImplementedError

    def _adopt_ranks(self, ready: set[int]) -> None:
        """Take over processes of a former agent; ranks until this node has joined."""
        if self._return_socket.fileno() not in ready:
            return
        try:
            sock, _ = self._return_socket.accept()
        except OSError:
            return
        state = self.ranks.adopt(sock, with_rank=not self._joined)
        if state is not None:
            self.adopted(state)

    def adopted(self, state: Message) -> None:
        """A rank of a former agent has come, in this state."""
        self._shards.update(state.pop("shards", {}))
        self._states[int(state["rank"])] = state
        if state["leaving"]:
            self._leave()
        self._joins_at = time.monotonic() + RETURN / 5 if len(self._states) < len(self.settings.local) else 0

    def _events(self, ready: set[int]) -> None:
        up: list[tuple[Message, bytes]] = []
        for event in self.ranks.handle(ready):
            match event:
                case RankMessage(process, message, payload):
                    if process.rank is not None and message["t"] == "orders":
                        self._orders[process.rank] = payload
                    elif message["t"] == "waits":
                        self._waits[process.pid] = message, time.monotonic()
                    elif process.rank is not None:
                        self._record(process.rank, process.incarnation, message)
                        up.append(
                            ({"t": "rank", "rank": process.rank, "inc": process.incarnation, "m": message}, payload)
                        )
                    elif message["t"] in ("failed", "leaving"):
                        # a failed spare says nothing about the job: the script runs again when a rank needs a process
                        self.ranks.spares = 0
                case ProcessLost(process, why):
                    if process.rank is not None:
                        if self._states.get(process.rank, {}).get("inc") == process.incarnation:
                            del self._states[process.rank]
                        # its finished steps count, so that a restart from step 0 is not taken for the beginning
                        steps = [[process.rank, process.incarnation, process.done]] if process.done >= 0 else []
                        up.append(({"t": "progress", "steps": steps, "median": self._median}, b""))
                        if process.leaving == 0:
                            # said before, perhaps while there was no coordinator to hear it
                            left: Message = {"t": "leaving", "code": 0}
                            body = {"t": "rank", "rank": process.rank, "inc": process.incarnation, "m": left}
                            up.append((body, b""))
                        up.append(({"t": "lost", "rank": process.rank, "inc": process.incarnation, "why": why}, b""))
                    else:
                        self._started_at = time.monotonic()
                case StartFailed(text):
                    self.ended = EndJob(2, text)
        if up:
            self._send_up(up)

    def _record(self, rank: int, incarnation: int, message: Message) -> None:
        """Record the state of a rank, for a coordinator that this node joins later."""
        if message["t"] in ("ready", "shard") and message.get("shard") is not None:
            self._named(rank, str(message["shard"]))
        state = self._states.get(rank)
        if state is None or state["inc"] != incarnation:
            return
        kind = message["t"]
        if kind == "ready":
            state.update(gen=message["gen"], entered=False, finished=False, done=message["done"])
        elif kind == "entered":
            state.update(gen=message["gen"], entered=True)
        elif kind == "finished":
            state.update(finished=True, done=message["done"])
        elif kind == "sample":
            state.update(divides=message.get("divides"))

    def _named(self, rank: int, shard: str) -> None:
        """A rank holds this shard; all of this node keep it, for the next agent."""
        if self._shards.get(rank) == shard:
            return
        self._shards[rank] = shard
        if len(self._shards) == len(self.settings.local):
            for process in list(self.ranks.processes.values()):
                if process.rank is not None:
                    self._send_shards(process)

    def _send_shards(self, process: RankProcess) -> None:
        self.ranks.send(process, {"t": "shards", "of": {str(rank): shard for rank, shard in self._shards.items()}})

    def take(self, message: Message, payload: bytes) -> None:
        """Carry out an order of the coordinator."""
        match message["t"]:
            case "start":
                if self._terminated is not None:
                    # ranks end on request; none is replaced
                    return
                self._start(int(message["rank"]), int(message["inc"]), int(message["gen"]), message.get("active", ()))
            case "end":
                process = self.ranks.of(int(message["rank"]))
                if process is not None and process.incarnation == message["inc"]:
                    self.ranks.stop(process, str(message["why"]))
                elif process is None:
                    # its end was reported to a coordinator that is lost
                    rank, incarnation = int(message["rank"]), int(message["inc"])
                    self._send_up([({"t": "lost", "rank": rank, "inc": incarnation, "why": "is not there"}, b"")])
            case "rank":
                process = self.ranks.of(int(message["rank"]))
                if process is not None and process.incarnation == message["inc"]:
                    body = message["m"]
                    if body["t"] == "recover":
                        active = body.get("active", ())
                        self._states[int(message["rank"])].update(gen=body["gen"], entered=False, active=active)
                    elif body["t"] == "leave":
                        self._states[int(message["rank"])].update(leaving=bool(body["all"]))
                    self.ranks.send(process, body, payload)
            case "finished":
                self._leave()
            case "job":
                self.ended = EndJob(int(message["code"]), str(message["text"]))

    def _start(self, rank: int, incarnation: int, generation: int, active: Sequence[int]) -> None:
        old = self.ranks.of(rank)
        if old is not None:
            self.ranks.stop(old, "is replaced")
        self._started_at = time.monotonic()
        local = self.settings.local[rank]
        body = {"rank": rank, "inc": incarnation, "gen": generation, "done": -1, "active": active}
        self._states[rank] = {**body, "entered": False, "finished": False, "leaving": False}
        env = {**self.settings.env, "RANK": str(rank), "LOCAL_RANK": str(local), "ROLE_RANK": str(rank)}
        assignment: dict[str, Any] = {
            "t": "assign",
            "rank": rank,
            "local_rank": local,
            "world": self.settings.world,
            "inc": incarnation,
            "gen": generation,
            "active": active,
            "address": self.address,
            "env": env,
        }
        process = self.ranks.start(rank, incarnation, assignment)
        if self._shards:
            self._send_shards(process)
        if rank in self._orders:
            self.ranks.send(process, {"t": "orders"}, self._orders[rank])

    def _progress(self) -> None:
        steps, firsts, median, advanced = [], [], 0, False
        processes = [one for one in self.ranks.processes.values() if one.rank is not None and one.pid]
        for process in processes:
            done, at, length = process.page.read()
            median = max(median, length)
            if done >= 0 and self._seen.get(process.pid) != (done, at):
                # the first number that an agent reads may be of its predecessor's time
                advanced = advanced or process.pid in self._seen
                self._seen[process.pid] = done, at
                steps.append([process.rank, process.incarnation, done])
                generation, first = process.page.first()
                if first and generation > self._firsts.get(process.pid, 1):
                    # the first generation is not a recovery
                    self._firsts[process.pid] = generation
                    age = max(0.0, time.monotonic() - first / 1e9)
                    firsts.append([process.rank, process.incarnation, generation, age])
        self._median = median / 1e9
        if advanced and not self._advanced:
            self._advanced = True
            self._tell(WORKED_ON)
        message: Message = {"t": "progress", "steps": steps, "firsts": firsts, "median": self._median}
        now = time.monotonic()
        if steps:
            self._waits.clear()
            self._looked_at = now
        # a finished step says more
        message["working"] = not steps and (
            self._work.since((one.pid for one in processes), now) or self._outside(processes, now)
        )
        message["waits"] = self._where(processes, now)
        self._send_up([(message, b"")])

    def _where(self, processes: list[RankProcess], now: float) -> list[list[Any]]:
        """Ask ranks that finish no step where they are; what they said last."""
        if now - self._looked_at < self.settings.look:
            return []
        self._looked_at = now
        found: list[list[Any]] = []
        for process in processes:
            said = self._waits.get(process.pid)
            if said is not None:
                found.append([process.rank, process.incarnation, str(said[0]["text"]), float(said[0]["idle"])])
            self.ranks.send(process, {"t": "look"})
        return found

    def _outside(self, processes: list[RankProcess], now: float) -> bool:
        """Whether a rank waits for something that is not its group and that may end: then all others wait for
        that rank."""
        for process in processes:
            message, at = self._waits.get(process.pid, ({}, 0.0))
            seconds = float(message.get("outside", 0.0))
            if now - at <= STALE * self.settings.look and (0 < seconds <= OUTSIDE or seconds >= UNBOUNDED):
                return True
        return False

    def _left(self) -> bool:
        """Whether all ranks of the job had finished and those of this node have left: nothing remains to be done."""
        return self._leaving and all(one.rank is None for one in self.ranks.processes.values())

    def _leave(self) -> None:
        """All ranks of the job have finished; the next agent, if this one is killed, must know."""
        if not self._leaving:
            self._leaving = True
            self._tell(ALL_FINISHED)

    def _let_go(self) -> None:
        """Repeat the word to leave to ranks that have not had it: the agent that passed it on was killed."""
        for rank, state in self._states.items():
            process = self.ranks.of(rank)
            if process is not None and state["finished"] and not state["leaving"]:
                state["leaving"] = True
                self.ranks.send(process, {"t": "leave", "all": True}, b"")

    def _tell(self, what: bytes) -> None:
        """Send the supervisor a message."""
        if self.settings.worked >= 0:
            os.write(self.settings.worked, what)

    def _terminate(self, number: int, _: Any) -> None:
        if self._terminated is not None or number == signal.SIGINT:
            self.ended = EndJob(128 + number, "")
            return
        self._terminated, self._terminated_by = time.monotonic(), number
        for process in self.ranks.processes.values():
            if process.rank is not None:
                self.ranks.stop(process, "", signal.SIGTERM)

    def _over(self, seconds: float) -> bool:
        """Whether ranks have had their time after SIGTERM, or none is left."""
        return seconds > SIGTERM_GRACE or all(one.rank is None for one in self.ranks.processes.values())

    @staticmethod
    def _reap() -> None:
        """Reap ranks whose warm process is gone: they are children of this process."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
