"""The event loop of a node agent: its ranks, and the coordinator in this process or over TCP."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.training.agent.coordinator_host import CoordinatorHost, Outgoing, timeline
from agents.training.agent.link import SILENT, VERSION, CoordinatorLink, NodeListener
from agents.training.agent.peers import Peers
from agents.training.agent.ranks import ProcessLost, RankMessage, Ranks, StartFailed
from agents.training.agent.supervisor import ALL_FINISHED, WORKED_ON
from agents.training.agent.work import LOOK, Work
from agents.training.frames import Message
from agents.training.notices import say
from agents.training.tolerance.coordinator_commands import EndJob
from agents.training.tolerance.election import Claim, Election, Follow, Lead
from agents.training.tolerance.members import Recovery

WATCH = 0.1
"""Seconds between checks of stopped processes and time limits."""
PROGRESS = 0.25
"""Seconds between reads of the ranks' pages."""
SPARE_AFTER = 0.5
"""Seconds after the last start of a rank until a new spare is started, so that a repair has the processor alone."""
RETURN = 1.0
"""Seconds that a new agent waits for the ranks of its predecessor."""
JOIN = 600.0
"""Seconds that a node waits for the coordinator, or an elected coordinator for the other nodes."""
FAREWELL = 2.0
"""Seconds for which a node whose ranks have all left waits for a lost coordinator."""
LAST_CALL = 10.0
"""The same for a node that runs the coordinator again: others, whose ranks may wait for its word, may be cut off."""
SIGTERM_GRACE = 10.0
"""Seconds that ranks get after SIGTERM."""


@dataclass(frozen=True)
class NodeSettings:
    """The job as a node sees it. ``local``: rank → local rank of this node's ranks; ``return_socket``: name of the
    abstract Unix socket at which ranks connect to a new agent; ``supervisor``: pid of the process that starts agents;
    ``returning``: whether ranks of a former agent may connect; ``worked``: a descriptor by which the supervisor
    learns how far the ranks are; ``look``: seconds between looks at whether ranks work; ``leaving``: a former agent
    knew that all ranks of the job have finished."""

    node: int
    nodes: int
    local: dict[int, int]
    world: int
    job: str
    address: str
    env: dict[str, str]
    return_socket: str
    supervisor: int
    returning: bool
    worked: int = -1
    look: float = LOOK
    leaving: bool = False


@dataclass(frozen=True)
class Candidacy:
    """What a node needs where the coordinator is elected: the other nodes, the election, and how to make a coordinator
    when it leads."""

    peers: Peers
    election: Election
    coordinator: Callable[[], CoordinatorHost]


class NodeAgent:
    """The agent of one node. ``coordinator`` is None where another node runs it: then ``link`` leads to that node. With
    several nodes the node of the coordinator has a ``listener``. With a ``candidacy`` these change while the job runs.
    """

    def __init__(
        self,
        settings: NodeSettings,
        ranks: Ranks,
        coordinator: CoordinatorHost | None,
        listener: NodeListener | None,
        link: CoordinatorLink | None,
        candidacy: Candidacy | None = None,
    ) -> None:
        self.candidacy = candidacy
        self.settings, self.node, self.ranks = settings, settings.node, ranks
        self.coordinator, self.listener, self.link = coordinator, listener, link
        self.address = settings.address or "127.0.0.1"
        self.ended: EndJob | None = None
        self._started_at = time.monotonic()
        self._work = Work(settings.look)
        self._watched = self._progressed = 0.0
        self._dones: dict[int, int] = {}
        self._median = 0.0
        self._advanced = False
        self._firsts: dict[int, int] = {}
        """Pid → generation whose first step was reported."""
        self._terminated: float | None = None
        self._leaving = settings.leaving
        """Whether all ranks of the job have finished, so that those of this node leave."""
        self._alone_at: float | None = None
        """Since when the ranks have left and no coordinator is there, or another node came since."""
        self._here = 0
        """Number of nodes that were connected then."""
        self._orders: dict[int, bytes] = {}
        """Rank → orders of DDP's buckets, as it sent them: for its successor, when no other rank can give them."""
        self._states: dict[int, Message] = {}
        """Rank → its state, sent when this node joins (again)."""
        self._return_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._return_socket.bind("\0" + settings.return_socket)
        self._return_socket.listen(64)
        self._return_socket.setblocking(False)
        self._joins_at = time.monotonic() + (RETURN if settings.returning else 0)
        self._joined = False
        self._followed_at: float | None = None
        """When this node began to connect to an elected coordinator, until it has."""
        self._leader_at = self._started_at
        """When this node last was with a coordinator, or began."""
        if candidacy is not None and listener is not None:
            listener.claim, listener.heard = self.claim, candidacy.election.heard

    def run(self) -> int:
        """Run until the job ends; its exit code."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while self.ended is None:
                due = self._watched + WATCH
                if not self._joined and self._joins_at > time.monotonic():
                    due = min(due, self._joins_at)
                ready = self._wait(wake, due - time.monotonic())
                if wake in ready:
                    _drain(wake)
                self.turn(ready)
            return self._close(self.ended)
        finally:
            signal.set_wakeup_fd(-1)
            self.ranks.close()

    def turn(self, ready: set[int]) -> None:
        """Handle what has come (``ready``: descriptors) and what is due."""
        now = time.monotonic()
        self._adopt_ranks(ready)
        self._elect(ready, now)
        if not self._joined and now >= self._joins_at:
            self._join(now)
        self._events(ready)
        self._receive_from_nodes(ready, now)
        if now - self._watched < WATCH:
            return
        self._watched = now
        self.ranks.watch(now)
        if now - self._progressed >= PROGRESS:
            self._progressed = now
            self._progress()
        if self.coordinator is not None:
            self._carry_out(self.coordinator.tick(now))
        if now - self._started_at > SPARE_AFTER:
            self.ranks.keep_spares()
        self._reap()
        self._farewell(now)
        if self._terminated is not None and self._over(now - self._terminated):
            self.ended = EndJob(143, "")

    def _left(self) -> bool:
        """Whether all ranks of the job had finished and those of this node have left: nothing remains to be done."""
        return self._leaving and all(one.rank is None for one in self.ranks.processes.values())

    def _farewell(self, now: float) -> None:
        """End a node whose ranks have left, although its coordinator was lost before it could say so."""
        lost = self.link is None or self.link.line is None
        if self.coordinator is not None:
            lost = self.coordinator.coordinator.generation == 0
        if not lost or now < self._joins_at or not self._left():
            self._alone_at = None
            return
        others = self.settings.nodes - 1 if self.coordinator is not None else 0
        here = len(self.listener.joined()) if self.listener is not None else 0
        if self._alone_at is None or here > self._here:
            # a node that has just come back is to hear of the end
            self._alone_at = now
        self._here = here
        all_here = self.listener is None or here == others
        if now - self._alone_at >= (FAREWELL if all_here or not others else LAST_CALL):
            self.ended = EndJob(0, "done")

    def _join(self, now: float) -> None:
        """Join the coordinator, with the ranks that this node already runs."""
        if self._leaving:
            self._let_go()
        if self._leaving and self.coordinator is not None:
            # one that began again what is done would be worse than none
            self._carry_out(self.coordinator.all_finished())
        if self._left():
            return
        living = list(self._states.values())
        if self.coordinator is not None:
            self._joined = True
            self._carry_out(self.coordinator.node_joined(self.node, living, now))
        elif self.link is not None and self.link.connect(now):
            self.address = self.settings.address or self.link.address
            self._joined, self._followed_at = True, None
            body: Message = {"t": "join", "version": VERSION, "job": self.settings.job, "nodes": self.settings.nodes}
            self.link.send({**body, "nproc": len(self.settings.local), "node": self.node, "living": living})

    def _elect(self, ready: set[int], now: float) -> None:
        """Find the node that runs the coordinator, become it, or step back."""
        if self.candidacy is None or now < self._joins_at or self._left():
            # ranks of a former agent come first: they are reported to the coordinator
            return
        peers, election = self.candidacy.peers, self.candidacy.election
        for claim in peers.handle(ready, now):
            election.heard(claim, now)
        joined = self.listener.joined() if self.listener is not None else set()
        match election.decide(now, len(joined) + 1):
            case Lead(term):
                self._leader_at = now
                if self.settings.nodes > 1:
                    say(f"node {self.node} runs the coordinator (term {term})")
                self.coordinator, self.link, self._joined = self.candidacy.coordinator(), None, False
            case Follow(node):
                self._leader_at = now
                self._step_back()
                address = peers.address(node)
                if address is None:
                    self._search(now)
                else:
                    self.link, self._joined, self._followed_at = CoordinatorLink(*address), False, now
        peers.ask(election.asks(joined), self.claim(), now)
        if self._followed_at is not None and now - self._followed_at > SILENT:
            self._search(now)
        if peers.refused:
            self.ended = EndJob(2, f"this node was refused by {peers.refused}")
        elif len(joined) + 1 == self.settings.nodes or (self.link is not None and self.link.line is not None):
            self._leader_at = now
        elif now - self._leader_at > JOIN:
            missing = sorted(set(range(self.settings.nodes)) - joined - {self.node})[:20]
            text = f"not all nodes came together for {JOIN:g} s; not seen from here: nodes {missing}"
            if peers.others:
                # the agent of a former job ends sooner
                self.ended = EndJob(2, f"{text}; refused by {next(iter(peers.others.values()))}")
            else:
                self.ended = EndJob(1, text)

    def claim(self) -> Claim:
        """What this node says when another one asks who leads."""
        assert self.candidacy is not None and self.listener is not None
        return self.candidacy.election.claim(len(self.listener.joined()) + 1)

    def _search(self, now: float) -> None:
        """The leader is lost: look for one."""
        assert self.candidacy is not None
        self.candidacy.election.lost(now)
        if self.link is not None:
            self.link.close()
        self.link, self._followed_at = None, None

    def _step_back(self) -> None:
        """Give up the coordinator: a heavier one was found. The ranks of this node join it with their state."""
        if self.coordinator is None:
            return
        say(f"node {self.node} gives up the coordinator")
        self.coordinator.close()
        self.coordinator = None
        if self.listener is not None:
            self.listener.dismiss()

    def _adopt_ranks(self, ready: set[int]) -> None:
        """Take over ranks of a former agent, until this node has joined."""
        if self._return_socket.fileno() not in ready:
            return
        try:
            sock, _ = self._return_socket.accept()
        except OSError:
            return
        if self._joined:
            sock.close()
            return
        state = self.ranks.adopt(sock)
        if state is not None:
            self.adopted(state)

    def adopted(self, state: Message) -> None:
        """A rank of a former agent has come, in this state."""
        self._states[int(state["rank"])] = state
        if state["leaving"]:
            self._leave()
        self._joins_at = time.monotonic() + RETURN / 5 if len(self._states) < len(self.settings.local) else 0

    def _receive_from_nodes(self, ready: set[int], now: float) -> None:
        if self.listener is not None:
            came, lost = self.listener.handle(ready, now)
        if self.listener is not None and self.coordinator is not None:
            for node, why in lost:
                self._carry_out(self.coordinator.node_lost(node, why, now))
            up: list[tuple[Message, bytes]] = []
            for node, message, payload in came:
                if message["t"] == "join":
                    try:
                        self._carry_out(self.coordinator.node_joined(node, list(message.get("living", [])), now))
                    except ValueError as error:
                        say(str(error))
                else:
                    up.append((message, payload))
            if up:
                self._carry_out(self.coordinator.take(up, now))
        if self.link is not None:
            for message, payload in self.link.handle(ready, now):
                self.take(message, payload)
            if self.link.line is None and self._joined:
                self._joined, self._joins_at = False, now
                if self.candidacy is not None:
                    self._search(now)
                    return
            if self.link.refused:
                self.ended = EndJob(2, f"the coordinator refused this node: {self.link.refused}")
            elif self.candidacy is None and self.link.lost_at is not None and now - self.link.lost_at > JOIN:
                where = f"{self.link.host}:{self.link.port}"
                self.ended = EndJob(1, f"no coordinator at {where} for {JOIN:g} s: is the node of rank 0 up?")

    def _wait(self, wake: int, seconds: float) -> set[int]:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for descriptor, writing in self.ranks.descriptors():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if writing else 0))
        poll.register(self._return_socket.fileno(), select.POLLIN)
        links = [
            *(self.listener.descriptors() if self.listener else []),
            *(self.link.descriptors() if self.link else []),
            *(self.candidacy.peers.descriptors() if self.candidacy else []),
        ]
        for descriptor, writing in links:
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if writing else 0))
        return {descriptor for descriptor, _ in poll.poll(max(0, seconds * 1000))}

    def _events(self, ready: set[int]) -> None:
        up: list[tuple[Message, bytes]] = []
        for event in self.ranks.handle(ready):
            match event:
                case RankMessage(process, message, payload):
                    if process.rank is not None and message["t"] == "orders":
                        self._orders[process.rank] = payload
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

    def _send_up(self, messages: list[tuple[Message, bytes]]) -> None:
        if self.coordinator is not None:
            self._carry_out(self.coordinator.take(messages, time.monotonic()))
        elif self.link is not None:
            for message, payload in messages:
                self.link.send(message, payload)

    def _record(self, rank: int, incarnation: int, message: Message) -> None:
        """Record the state of a rank, for a coordinator that this node joins later."""
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

    def _carry_out(self, out: list[Outgoing]) -> None:
        for node, message, payload in out:
            if node == self.node:
                self.take(message, payload)
            else:
                self._send_to(node, message, payload)
        if self.coordinator is not None and self.coordinator.ended is not None and self.ended is None:
            self.ended = self.coordinator.ended

    def _send_to(self, node: int, message: Message, payload: bytes) -> None:
        if self.listener is not None:
            self.listener.send(node, message, payload)

    def take(self, message: Message, payload: bytes) -> None:
        """Carry out an order of the coordinator."""
        match message["t"]:
            case "start":
                if self._terminated is not None:
                    # ranks end on request; none is replaced
                    return
                self._start(int(message["rank"]), int(message["inc"]), int(message["gen"]))
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
                        self._states[int(message["rank"])].update(gen=body["gen"], entered=False)
                    elif body["t"] == "leave":
                        self._states[int(message["rank"])].update(leaving=bool(body["all"]))
                    self.ranks.send(process, body, payload)
            case "finished":
                self._leave()
            case "job":
                self.ended = EndJob(int(message["code"]), str(message["text"]))

    def _start(self, rank: int, incarnation: int, generation: int) -> None:
        old = self.ranks.of(rank)
        if old is not None:
            self.ranks.stop(old, "is replaced")
        self._started_at = time.monotonic()
        local = self.settings.local[rank]
        body = {"rank": rank, "inc": incarnation, "gen": generation, "done": -1}
        self._states[rank] = {**body, "entered": False, "finished": False, "leaving": False}
        env = {**self.settings.env, "RANK": str(rank), "LOCAL_RANK": str(local), "ROLE_RANK": str(rank)}
        assignment: dict[str, Any] = {
            "t": "assign",
            "rank": rank,
            "local_rank": local,
            "world": self.settings.world,
            "inc": incarnation,
            "gen": generation,
            "return": self.settings.return_socket,
            "supervisor": self.settings.supervisor,
            "address": self.address,
            "env": env,
        }
        process = self.ranks.start(rank, incarnation, assignment)
        if rank in self._orders:
            self.ranks.send(process, {"t": "orders"}, self._orders[rank])

    def _progress(self) -> None:
        steps, firsts, median, advanced = [], [], 0, False
        processes = [one for one in self.ranks.processes.values() if one.rank is not None and one.pid]
        for process in processes:
            done, _, length = process.page.read()
            median = max(median, length)
            if done >= 0 and self._dones.get(process.pid) != done:
                # the first number that an agent reads may be of its predecessor's time
                advanced = advanced or process.pid in self._dones
                self._dones[process.pid] = done
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
        # a finished step says more
        message["working"] = not steps and self._work.since((one.pid for one in processes), time.monotonic())
        self._send_up([(message, b"")])

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
        self._terminated = time.monotonic()
        for process in self.ranks.processes.values():
            if process.rank is not None:
                self.ranks.stop(process, "", signal.SIGTERM)

    def _over(self, seconds: float) -> bool:
        """Whether ranks have had their time after SIGTERM, or none is left."""
        return seconds > SIGTERM_GRACE or all(one.rank is None for one in self.ranks.processes.values())

    def _close(self, end: EndJob) -> int:
        if self.coordinator is not None:
            self.coordinator.close()
        if self.listener is not None:
            self.listener.farewell({"t": "job", "code": end.code, "text": end.text})
            self.listener.close()
        if self.link is not None:
            self.link.close()
        if self.candidacy is not None:
            self.candidacy.peers.close()
        if end.text and end.code:
            say(end.text)
        return end.code

    @staticmethod
    def _reap() -> None:
        """Reap ranks whose warm process is gone: they are children of this process."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def report(recovery: Recovery) -> None:
    """Report a recovery to the operator."""
    found = json.loads(timeline(recovery))
    say(
        f"generation {recovery.generation} goes on at step {recovery.step}, {found['entered_ms']:g} ms after the fault "
        f"(ranks freed after {found['freed_ms']:g} ms)"
    )


def append_timeline(recovery: Recovery, file: Path | None) -> None:
    """Append a recovery to ``file`` as a line of JSON; nothing without a file."""
    if file is not None:
        with file.open("a") as lines:
            lines.write(timeline(recovery) + "\n")


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
