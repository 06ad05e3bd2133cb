"""The ranks of a node as its coordinator sees them: what they report goes up, orders for them come down."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from belay.agents.training.train import protocol
from belay.agents.training.train.agent.ranks import ProcessLost, RankMessage, RankProcess, Ranks, StartFailed
from belay.agents.training.train.agent.supervisor import ALL_FINISHED, WORKED_ON
from belay.agents.training.train.agent.work import LOOK, STALE, Work
from belay.agents.training.train.decide.coordinator_commands import EndJob
from belay.agents.training.train.frames import Message
from belay.agents.training.train.home import Home
from belay.agents.training.train.protocol import Assign, KeepOrders, LeaveFunction, Lost, OfRank, Progress, Waits

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
        self._waits: dict[int, tuple[Waits, float]] = {}
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
                    up += self._said(process, message, payload)
                case ProcessLost(process, why) if process.rank is not None:
                    up += self._lost(process, process.rank, why)
                case ProcessLost():
                    self._started_at = time.monotonic()
                case StartFailed(text):
                    self.ended = EndJob(2, text)
        if up:
            self._send_up(up)

    def _said(self, process: RankProcess, message: Message, payload: bytes) -> list[tuple[Message, bytes]]:
        """Keep what a process says to its agent; what it says to the coordinator."""
        match message["t"]:
            case KeepOrders.KIND if process.rank is not None:
                self._orders[process.rank] = payload
            case Waits.KIND:
                # scripts may write to their connection what they like
                with contextlib.suppress(ValueError):
                    self._waits[process.pid] = Waits.read(message), time.monotonic()
            case protocol.Failed.KIND | protocol.Leaving.KIND if process.rank is None:
                # a failed spare says nothing about the job: the script runs again when a rank needs a process
                self.ranks.spares = 0
            case _ if process.rank is not None:
                self._record(process.rank, process.incarnation, message)
                return [(OfRank(process.rank, process.incarnation, message).message(), payload)]
        return []

    def _lost(self, process: RankProcess, rank: int, why: str) -> list[tuple[Message, bytes]]:
        """What the coordinator must know of a rank whose process has ended."""
        incarnation = process.incarnation
        if self._states.get(rank, {}).get("inc") == incarnation:
            del self._states[rank]

        # its finished steps count, so that a restart from step 0 is not taken for the beginning
        steps = ((rank, incarnation, process.done),) if process.done >= 0 else ()
        up: list[protocol.Said] = [Progress(steps, self._median)]
        if process.leaving == 0:
            # said before, perhaps while there was no coordinator to hear it
            up.append(OfRank(rank, incarnation, protocol.Leaving(0).message()))
        up.append(Lost(rank, incarnation, why))
        return [(said.message(), b"") for said in up]

    def _record(self, rank: int, incarnation: int, message: Message) -> None:
        """Record the state of a rank, for a coordinator that this node joins later."""
        kind = message["t"]
        if kind in (protocol.Ready.KIND, protocol.ShardNamed.KIND) and message.get("shard") is not None:
            self._named(rank, str(message["shard"]))
        state = self._states.get(rank)
        if state is None or state["inc"] != incarnation:
            return

        match kind:
            case protocol.Ready.KIND:
                state.update(gen=message["gen"], entered=False, finished=False, done=message["done"])
            case protocol.Entered.KIND:
                state.update(gen=message["gen"], entered=True)
            case protocol.Finished.KIND:
                state.update(finished=True, done=message["done"])
            case protocol.Sample.KIND:
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
        self.ranks.send(process, protocol.Shards(dict(self._shards)).message())

    def take(self, message: Message, payload: bytes) -> None:
        """Carry out an order of the coordinator."""
        match protocol.from_coordinator(message):
            case protocol.Start(rank, incarnation, generation, active):
                # ranks that end on request are not replaced
                if self._terminated is None:
                    self._start(rank, incarnation, generation, active)
            case protocol.End(rank, incarnation, why):
                process = self.ranks.of(rank)
                if process is None:
                    # its end was reported to a coordinator that is lost
                    self._send_up([(Lost(rank, incarnation, "is not there").message(), b"")])
                elif process.incarnation == incarnation:
                    self.ranks.stop(process, why)
            case OfRank(rank, incarnation, said):
                process = self.ranks.of(rank)
                if process is not None and process.incarnation == incarnation:
                    self._ordered(rank, said)
                    self.ranks.send(process, said, payload)
            case protocol.AllFinished():
                self._leave()
            case protocol.JobEnded(code, text):
                self.ended = EndJob(code, text)

    def _ordered(self, rank: int, said: Message) -> None:
        """Record what the coordinator orders a rank, for one that this node joins later."""
        match said["t"]:
            case protocol.RecoverOrder.KIND:
                self._states[rank].update(gen=said["gen"], entered=False, active=said.get("active", ()))
            case LeaveFunction.KIND:
                self._states[rank].update(leaving=bool(said["all"]))

    def _start(self, rank: int, incarnation: int, generation: int, active: Sequence[int]) -> None:
        old = self.ranks.of(rank)
        if old is not None:
            self.ranks.stop(old, "is replaced")
        self._started_at = time.monotonic()
        local = self.settings.local[rank]
        body = {"rank": rank, "inc": incarnation, "gen": generation, "done": -1, "active": active}
        self._states[rank] = {**body, "entered": False, "finished": False, "leaving": False}
        env = {**self.settings.env, "RANK": str(rank), "LOCAL_RANK": str(local), "ROLE_RANK": str(rank)}
        assignment = Assign(rank, local, self.settings.world, incarnation, generation, self.address, env, tuple(active))
        process = self.ranks.start(rank, incarnation, assignment.message())
        if self._shards:
            self._send_shards(process)
        if rank in self._orders:
            self.ranks.send(process, KeepOrders().message(), self._orders[rank])

    def _progress(self) -> None:
        """Report how far the ranks are, and where they are while none finishes a step."""
        processes = [process for process in self.ranks.processes.values() if process.rank is not None and process.pid]
        steps, firsts, median, advanced = [], [], 0, False
        for process in processes:
            done, at, length = process.page.read()
            median = max(median, length)
            if done < 0 or self._seen.get(process.pid) == (done, at):
                continue
            # the first number that an agent reads may be of its predecessor's time
            advanced = advanced or process.pid in self._seen
            self._seen[process.pid] = done, at
            steps.append((process.rank, process.incarnation, done))
            firsts += self._first_step(process)

        self._median = median / 1e9
        if advanced and not self._advanced:
            self._advanced = True
            self._tell(WORKED_ON)
        now = time.monotonic()
        if steps:
            self._waits.clear()
            self._looked_at = now

        # a finished step says more than that a rank works
        working = not steps and (
            self._work.since((process.pid for process in processes), now) or self._outside(processes, now)
        )
        progress = Progress(tuple(steps), self._median, tuple(firsts), tuple(self._where(processes, now)), working)
        self._send_up([(progress.message(), b"")])

    def _first_step(self, process: RankProcess) -> list[tuple[Any, ...]]:
        """For how many seconds the first step of a process's generation has been finished, once for each; the first
        generation is not a recovery."""
        generation, first = process.page.first()
        if not first or generation <= self._firsts.get(process.pid, 1):
            return []
        self._firsts[process.pid] = generation
        age = max(0.0, time.monotonic() - first / 1e9)
        return [(process.rank, process.incarnation, generation, age)]

    def _where(self, processes: list[RankProcess], now: float) -> list[tuple[Any, ...]]:
        """Ask ranks that finish no step where they are; what they said last."""
        if now - self._looked_at < self.settings.look:
            return []
        self._looked_at = now
        found: list[tuple[Any, ...]] = []
        for process in processes:
            said = self._waits.get(process.pid)
            if said is not None:
                found.append((process.rank, process.incarnation, said[0].text, said[0].idle))
            self.ranks.send(process, protocol.Look().message())
        return found

    def _outside(self, processes: list[RankProcess], now: float) -> bool:
        """Whether a rank waits for something that is not its group and that may end: then all others wait for
        that rank."""
        for process in processes:
            waits, at = self._waits.get(process.pid, (Waits("", 0.0, 0.0), 0.0))
            seconds = waits.outside
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
                self.ranks.send(process, LeaveFunction(True).message())

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
