"""The event loop of a node agent: its ranks, and the coordinator in this process or over TCP."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from belay.agents.training.train import protocol
from belay.agents.training.train.agent.coordinator_host import CoordinatorHost, Outgoing
from belay.agents.training.train.agent.link import SILENT, VERSION, CoordinatorLink, NodeListener
from belay.agents.training.train.agent.node_ranks import NodeRanks, NodeSettings
from belay.agents.training.train.agent.peers import Peers
from belay.agents.training.train.agent.ranks import Ranks
from belay.agents.training.train.decide.coordinator_commands import EndJob
from belay.agents.training.train.decide.election import Claim, Election, Follow, Lead
from belay.agents.training.train.frames import Message
from belay.agents.training.train.notices import say

WATCH = 0.1
"""Seconds between checks of stopped processes and time limits."""
PROGRESS = 0.25
"""Seconds between reads of the ranks' pages."""
SPARE_AFTER = 0.5
"""Seconds after the last start of a rank until a new spare is started, so that a repair has the processor alone."""
JOIN = 600.0
"""Seconds that a node waits for the coordinator, or an elected coordinator for the other nodes."""
FAREWELL = 2.0
"""Seconds for which a node whose ranks have all left waits for a lost coordinator."""
LAST_CALL = 10.0
"""The same for a node that runs the coordinator again: others, whose ranks may wait for its word, may be cut off."""


@dataclass(frozen=True)
class Candidacy:
    """What a node needs where the coordinator is elected: the other nodes, the election, and how to make a coordinator
    when it leads."""

    peers: Peers
    election: Election
    coordinator: Callable[[], CoordinatorHost]


class NodeAgent(NodeRanks):
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
        super().__init__(settings, ranks)
        self.candidacy = candidacy
        self.coordinator, self.listener, self.link = coordinator, listener, link
        self._watched = self._progressed = 0.0
        self._alone_at: float | None = None
        """Since when the ranks have left and no coordinator is there, or another node came since."""
        self._here = 0
        """Number of nodes that were connected then."""
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
        hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGTERM, signal.SIGINT, *hang_up):
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
            self.ended = EndJob(128 + self._terminated_by, "")

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
            self._carry_out(self.coordinator.node_joined(self.node, living, now, self._shards))
        elif self.link is not None and self.link.connect(now):
            self.address = self.settings.address or self.link.address
            self._joined, self._followed_at = True, None
            join = protocol.Join(
                version=VERSION,
                job=self.settings.job,
                nodes=self.settings.nodes,
                nproc=len(self.settings.local),
                node=self.node,
                living=tuple(living),
                shards=dict(self._shards),
            )
            self.link.send(join.message())

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
                self._follow(node, now)

        peers.ask(election.asks(joined), self.claim(), now)
        if self._followed_at is not None and now - self._followed_at > SILENT:
            self._search(now)
        if peers.refused:
            self.ended = EndJob(2, f"this node was refused by {peers.refused}")
        elif len(joined) + 1 >= (self.settings.least or self.settings.nodes) or self._linked():
            self._leader_at = now
        elif now - self._leader_at > JOIN:
            self.ended = self._not_together(joined)

    def _follow(self, node: int, now: float) -> None:
        """Join the node that leads."""
        assert self.candidacy is not None
        self._step_back()
        peers = self.candidacy.peers
        address = peers.address(node)
        if address is None:
            self._search(now)
        else:
            self.link, self._joined, self._followed_at = CoordinatorLink(*address, peers.key), False, now

    def _not_together(self, joined: set[int]) -> EndJob:
        """How the job ends when too few nodes have come together."""
        assert self.candidacy is not None
        missing = sorted(set(range(self.settings.nodes)) - joined - {self.node})[:20]
        text = f"not all nodes came together for {JOIN:g} s; not seen from here: nodes {missing}"
        others = self.candidacy.peers.others
        if others:
            # the agent of a former job ends sooner
            return EndJob(2, f"{text}; refused by {next(iter(others.values()))}")
        return EndJob(1, text)

    def _linked(self) -> bool:
        return self.link is not None and self.link.line is not None

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

    def _receive_from_nodes(self, ready: set[int], now: float) -> None:
        """Take what other nodes say: to the coordinator where this node runs it, else from the one that it follows."""
        if self.listener is not None:
            came, lost = self.listener.handle(ready, now)
            if self.coordinator is not None:
                self._coordinate(self.coordinator, came, lost, now)
        if self.link is not None:
            self._obey(self.link, ready, now)

    def _coordinate(
        self,
        coordinator: CoordinatorHost,
        came: list[tuple[int, Message, bytes]],
        lost: list[tuple[int, str]],
        now: float,
    ) -> None:
        for node, why in lost:
            self._carry_out(coordinator.node_lost(node, why, now))
        up: list[tuple[Message, bytes]] = []
        for node, message, payload in came:
            if message["t"] != protocol.Join.KIND:
                up.append((message, payload))
                continue
            try:
                living, shards = list(message.get("living", [])), message.get("shards", {})
                self._carry_out(coordinator.node_joined(node, living, now, shards))
            except ValueError as error:
                say(str(error))
        if up:
            self._carry_out(coordinator.take(up, now))

    def _obey(self, link: CoordinatorLink, ready: set[int], now: float) -> None:
        """Carry out what the coordinator of another node orders, and notice when that node is lost."""
        for message, payload in link.handle(ready, now):
            self.take(message, payload)
        if link.line is None and self._joined:
            self._joined, self._joins_at = False, now
            if self.candidacy is not None:
                self._search(now)
                return

        if link.refused:
            self.ended = EndJob(2, f"the coordinator refused this node: {link.refused}")
        elif self.candidacy is None and link.lost_at is not None and now - link.lost_at > JOIN:
            self.ended = EndJob(
                1, f"no coordinator at {link.host}:{link.port} for {JOIN:g} s: is the node of rank 0 up?"
            )

    def _send_up(self, messages: list[tuple[Message, bytes]]) -> None:
        if self.coordinator is not None:
            self._carry_out(self.coordinator.take(messages, time.monotonic()))
        elif self.link is not None:
            for message, payload in messages:
                self.link.send(message, payload)

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

    def _close(self, end: EndJob) -> int:
        if self.coordinator is not None:
            self.coordinator.close()
        if self.listener is not None:
            self.listener.farewell(protocol.JobEnded(end.code, end.text).message())
            self.listener.close()
        if self.link is not None:
            self.link.close()
        if self.candidacy is not None:
            self.candidacy.peers.close()
        if end.text and end.code:
            say(end.text)
        return end.code


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
