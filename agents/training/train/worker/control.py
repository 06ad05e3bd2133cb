"""A rank's connection to its node agent, with a listening thread that frees the rank as soon as a fault is known,
whatever the main thread does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from belay.agents.training.train import protocol
from belay.agents.training.train.frames import FrameDecoder, FrameError, Message, pack
from belay.agents.training.train.home import AGENT_GONE, Home
from belay.agents.training.train.protocol import Assign, Plan, Said, StoreAnswer
from belay.agents.training.train.worker import waiting
from belay.agents.training.train.worker.interruption import Interrupted

FREE_AGAIN = (0.05, 0.15, 0.4, 1.0, 3.0, 10.0)
"""Seconds after which a rank that is still blocked is freed again: a socket may have been opened meanwhile."""


KEPT = 8
"""Number of generations whose ranks are known."""


class Control:
    """Orders of the coordinator to this rank, for the threads that wait for them."""

    def __init__(self, sock: socket.socket, page: int = -1, home: Home | None = None) -> None:
        """``home``: where another agent is found when this one is lost."""
        sock.setblocking(True)
        self.home = home
        self._page = page
        self._sock = sock
        self._sending = threading.Lock()

        # what the agent and the coordinator have said; threads wait for a change
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[StoreAnswer, bytes] | None] = {}
        self.assignment: Assign | None = None
        self.generation = 0
        """The newest generation that the coordinator has begun."""
        self._active: dict[int, tuple[int, ...]] = {}
        """Generation → its ranks, where these are not all of the job."""
        self.explained = True
        """Whether a lost process or node was the reason of the newest generation."""
        self.plan: Plan | protocol.OfferRequest | None = None
        self.pace: tuple[int, ...] = (0, 0, -1, 0, 0)
        """As `protocol.NewPace` says."""
        self.commit: protocol.CommitStep | None = None
        """Whether to make the update of an interrupted step, as others have made it."""
        self.leave = False
        """Whether the training function may return."""
        self.all_finished = False

        # what this rank has come to; an agent that replaces a lost one gets it
        self.joined = 0
        """The generation that the main thread has joined."""
        self.entered = 0
        """The generation in which it entered the training function."""
        self.finished = False
        """Whether that function has returned."""
        self.done = -1
        """Finished steps in the last message to the agent."""
        self.divides: bool | None = None
        """Whether the script does the shares of ranks that are away; None before its first update."""
        self.idle_until = 0.0
        """Until when the script waits on purpose (``run.idle``), by the monotonic clock."""
        self.orders = b""
        """Orders of DDP's buckets that the agent keeps: this rank's own, or those that its predecessor left."""
        self.shards: dict[int, str] = {}
        """Rank → shard, of the ranks of this node: for an agent that replaces a lost one, when a rank dies
        meanwhile."""

        # who is called when a generation ends, and how often
        self.freeing: list[Callable[[int], object]] = []
        """Called with the next generation when one ends, in the listening thread; must not block. Called again while
        this rank has not left the former one."""
        self.ended: list[Callable[[int, bool], object]] = []
        """Called several times after a generation has ended, in a thread of its own, with the next one and whether this
        rank has left the groups of the former."""
        self.called: list[Callable[[int], object]] = []
        """Called in the listening thread when a generation begins."""
        self._timers: list[threading.Timer] = []

    def start(self) -> None:
        """Start the listening thread."""
        threading.Thread(target=self._listen, name="belay-control", daemon=True).start()

    def send(self, said: Said, payload: bytes = b"") -> None:
        """Send a message to the agent."""
        frame = pack(said.message(), payload)
        match said:
            case protocol.Entered(generation):
                self.entered, self.finished = generation, False
            case protocol.Finished():
                self.finished = True
            case protocol.Ready():
                self.entered = 0
            case protocol.KeepOrders():
                self.orders = payload
        self.done = getattr(said, "done", self.done)

        with self._sending:
            try:
                self._sock.sendall(frame)
            except OSError:
                # the listening thread notices too, and reports the state of this rank to the next agent
                pass

    def active(self, generation: int) -> tuple[int, ...]:
        """The ranks of a generation, by their numbers in the whole job."""
        assert self.assignment is not None
        return self._active.get(generation) or tuple(range(self.assignment.world))

    def wait_assignment(self) -> Assign:
        """Wait for the rank of this process; a spare waits here."""
        with self._changed:
            while self.assignment is None:
                self._changed.wait()
            return self.assignment

    def wait_plan(self, generation: int) -> Plan | protocol.OfferRequest:
        """Wait for the plan of a generation. Raises ``Interrupted`` when a newer one begins."""
        with self._changed:
            while self.plan is None or self.plan.generation != generation:
                self._check(generation)
                self._changed.wait()
            self._check(generation)
            plan, self.plan = self.plan, None
            return plan

    def ask_commit(self, generation: int, step: int) -> bool:
        """Whether to make the update of ``step``, for which this rank is ready. Raises ``Interrupted`` when a newer
        generation begins before the answer."""
        with self._changed:
            self._check(generation)
            self.commit = None
        self.send(protocol.Prepared(generation, step))
        with self._changed:
            while self.commit is None or self.commit.generation != generation:
                self._check(generation)
                self._changed.wait()
            return self.commit.go

    def wait_leave(self, generation: int) -> None:
        """Wait until all ranks have finished. Raises ``Interrupted`` when one was lost in the last step."""
        with self._changed:
            while not self.leave:
                self._check(generation)
                self._changed.wait()

    def wait_called(self, generation: int, seconds: float) -> bool:
        """Whether a newer generation begins within ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.generation > generation, seconds)

    def check(self, generation: int) -> None:
        """Raises ``Interrupted`` when ``generation`` is over."""
        if self.generation != generation:
            raise Interrupted(f"generation {generation} of the training is over, {self.generation} has begun")

    _check = check

    def ask(
        self, generation: int, verb: str, keys: Sequence[str], payload: bytes, number: int
    ) -> tuple[StoreAnswer, bytes]:
        """Ask the store and wait for its answer. Raises ``Interrupted`` when the generation ends first."""
        request = next(self._numbers)
        with self._changed:
            self._check(generation)
            self._answers[request] = None

        self.send(protocol.Store(generation, request, verb, tuple(keys), number), payload)
        with self._changed:
            try:
                while (answer := self._answers[request]) is None:
                    self._check(generation)
                    self._changed.wait()
            finally:
                del self._answers[request]

        if answer[0].error:
            self.check(generation)
            raise Interrupted(answer[0].error)
        return answer

    def _listen(self) -> None:
        frames = FrameDecoder()
        while True:
            try:
                data = self._sock.recv(1 << 16)
                messages = frames.feed(data) if data else []
            except (OSError, FrameError):
                data = b""
            if not data:
                self._come_back()
                frames = FrameDecoder()
                continue
            for message, payload in messages:
                self._take(message, payload)

    def _come_back(self) -> None:
        """Connect to the agent that replaces a lost one; training continues meanwhile. Exits when there is none."""
        sock = self.home.come_back(self._state, self._page) if self.home is not None else None
        if sock is None:
            os._exit(AGENT_GONE)
        with self._sending:
            self._sock.close()
            self._sock = sock
            with contextlib.suppress(OSError):
                if self.orders:
                    sock.sendall(pack(protocol.KeepOrders().message(), self.orders))
        with self._changed:
            # requests to the former agent will not be answered
            for number, answer in self._answers.items():
                if answer is None:
                    self._answers[number] = (StoreAnswer(number, error="the coordinator was lost"), b"")
            self._changed.notify_all()

    def _state(self) -> Message:
        """What another agent must know of this process; a spare has no rank."""
        assigned = self.assignment
        return {
            "rank": assigned.rank if assigned else None,
            "inc": assigned.incarnation if assigned else 0,
            "gen": self.generation,
            "entered": self.entered == self.generation,
            "finished": self.finished,
            "leaving": self.all_finished,
            "done": self.done,
            "shards": {str(rank): shard for rank, shard in self.shards.items()},
            "active": self._active.get(self.generation, ()),
            "divides": self.divides,
        }

    def _take(self, message: Message, payload: bytes) -> None:
        said = protocol.to_rank(message)
        match said:
            case protocol.Look():
                wait = waiting.of_main_thread()
                idle = max(0.0, self.idle_until - time.monotonic())
                self.send(protocol.Waits(wait.text, wait.outside, idle))
            case protocol.RecoverOrder(generation, explained, active) if generation > self.generation:
                self._begin(generation, active, explained)
            case protocol.RecoverOrder():
                # repeated by a coordinator that has taken over
                pass
            case Assign(generation=generation, active=active):
                self._begin(generation, active, True, said)
            case _:
                self._tell_waiting(said, payload)

    def _begin(
        self, generation: int, active: tuple[int, ...], explained: bool, assignment: Assign | None = None
    ) -> None:
        """Free this rank for a generation."""
        with self._changed:
            self._active = {number: ranks for number, ranks in self._active.items() if number > generation - KEPT}
            if active:
                self._active[generation] = active
            self.generation = max(self.generation, generation)
            self.explained = explained
            self.assignment = assignment or self.assignment
            self._changed.notify_all()

        for free in self.freeing:
            free(generation)
        for call in self.called:
            call(self.generation)

        # those of this generation do what those of an earlier one would
        for timer in self._timers:
            timer.cancel()
        self._timers = [threading.Timer(delay, self._free_again, (generation,)) for delay in FREE_AGAIN]
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def _tell_waiting(self, said: Said | None, payload: bytes) -> None:
        """Keep what threads of this rank wait for."""
        with self._changed:
            match said:
                case Plan():
                    self.plan, self.pace = said, said.pace
                case protocol.OfferRequest():
                    self.plan = said
                case protocol.NewPace(pace):
                    self.pace = pace
                case protocol.CommitStep():
                    self.commit = said
                case protocol.LeaveFunction(everyone):
                    self.leave, self.all_finished = True, everyone
                case protocol.KeepOrders():
                    self.orders = payload
                case protocol.Shards(shards):
                    self.shards = shards
                case StoreAnswer(request) if request in self._answers:
                    self._answers[request] = said, payload
            self._changed.notify_all()

    def _free_again(self, generation: int) -> None:
        if generation != self.generation:
            return
        left = self.joined >= generation
        for free in self.freeing if not left else ():
            free(generation)
        for call in self.ended:
            call(generation, left)
