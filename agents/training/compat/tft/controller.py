"""The controller of a job's fault tolerance: it tracks every rank and runs one procedure at a time. Pure: events in,
commands out (`handle`), the clock is an argument.

States and transitions are MindIO TFT's (component/mindio/tft, controller; `constants.TRANSITIONS`); the procedures
of states are in `training_states`, `repair_states`, `elastic_states` and `final_states`, as generators that wait by
`Controller.until`. Belay's own rules: a closed connection counts as a death at once, a silent rank after two checks;
every fault starts a new generation, and actions of an older one are not carried out; training continues at the highest
step whose every shard is held by a living rank.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.action_requests import ActionRequest, ActionRequests
from belay.agents.training.compat.tft.constants import ControllerState, FaultType, Result, TrainState, after
from belay.agents.training.compat.tft.controller_commands import (
    Close,
    ControllerCommand,
    ControllerSettings,
    EndController,
    Order,
    Report,
)
from belay.agents.training.compat.tft.messages import Message

Steps = Generator[float | None, None, Any]
READY = frozenset({TrainState.INIT_FINISH, TrainState.PREREPAIR_FINISH})


class Stage(enum.Enum):
    """Progress of the recovery protocol with ClusterD."""

    STOP = "waits for stop_train"
    GLOBAL = "waits for on_global_rank"
    STRATEGY = "waits for change_strategy"
    DECIDED = "decided"


class NewFaultError(Exception):
    """A rank failed while a procedure was waiting."""


class DestroyedError(Exception):
    """The controller was ordered to end."""


class Controller(ActionRequests):
    """The state machine."""

    def __init__(self, settings: ControllerSettings, now: float) -> None:
        super().__init__(settings, now)
        self.state = ControllerState.INIT
        self.master = settings.backup == 0
        self.unclean = False
        """Whether the order to rebuild groups is to begin with cleaning."""
        self.stage = Stage.STOP
        self.params = ""
        self.awaiting: tuple[str, int] | None = None
        self.repaired: dict[int, int] = {}  # the faults that the current strategy has repaired
        self.step = 0
        self.orders: dict[str, Order] = {}
        self.hot: frozenset[int] = frozenset()
        self.backups_announced = False
        self.ended = False
        self.retired: set[str] = set()  # sessions that a new process replaced
        self.finished = 0
        self._next_look = 0.0
        self._answering: ActionRequest | None = None
        """The request whose answers the machine waits for: until the last one comes it need not look."""
        self._deadline: float | None = None
        self._procedures: dict[ControllerState, Callable[[Controller], Steps]] = {}

    def run(
        self,
        procedures: Mapping[ControllerState, Callable[[Controller], Steps]],
        register: Callable[[Controller, int, Message], None],
    ) -> None:
        """Start with a procedure for each state and the function that admits processors."""
        self._register = register
        self._procedures = dict(procedures)
        self._main = self._machine()
        self._deadline = next(self._main)

    def _machine(self) -> Generator[float | None, None, None]:
        try:
            while self.state is not ControllerState.FINAL:
                try:
                    result = yield from self._procedures[self.state](self)
                except NewFaultError:
                    result = Result.AGAIN
                before, self.state = self.state, after(self.state, result)
                if before is not self.state:
                    self.log(f"controller: {before.value} -> {self.state.value}, generation {self.generation}")
            reason = "training ended"
        except DestroyedError:
            reason = "destroyed"
        for peer in self.everyone():
            if peer.link is not None:
                self.send(peer, {"op": m.GOODBYE})
        self.ended = True
        self._out.append(EndController(reason))

    # -- events --------------------------------------------------------------------------------------------------

    def handle(self, now: float) -> list[ControllerCommand]:
        """Continue after events (`received`, `unlinked`, …) or at a deadline; the commands to carry out."""
        self.now = max(self.now, now)
        if not self.ended:
            self._check_silence()
            self._resend()
            if not self._only_answers():
                try:
                    self._deadline = next(self._main)
                except StopIteration:
                    self._deadline = None
        found, self._out = self._out, []
        return found

    def _only_answers(self) -> bool:
        """Whether nothing has happened but that one of several ranks answered."""
        ask = self._answering
        if ask is None or not ask.missing or self.fresh or self.orders:
            return False
        return self._deadline is None or self.now < self._deadline

    def deadline(self) -> float | None:
        """The time at which `handle` must be called without an event; None: never."""
        if self.ended:
            return None
        found = [time for time, _ in self._leaving.values()]
        found += [] if self._deadline is None else [self._deadline]
        if self.asked and self.asked.missing:
            found.append(self.asked.resend)
        if self.links:
            found.append(self._next_look)
        return min(found, default=None)

    def order(self, order: Order) -> None:
        """An order of ClusterD or of the process that hosts this controller."""
        self.orders[order.kind] = order

    def received(self, link: int, message: Message, now: float) -> None:
        """A message of a processor."""
        if now > self.now:
            self.now = now
        op = message["op"]
        if op == m.REGISTER:
            self._register(self, link, message)
            return
        peer = self._peer(link)
        if peer is None:
            return
        peer.seen, peer.suspect = self.now, None
        if op == m.REPLY:
            self._status(peer, message["status"])
            if message["term"] == self.term:
                self._reply(peer, message)
        elif op == m.STATUS:
            self._status(peer, message["status"])
        elif op == m.REPLICAS:
            self._replicas(peer, message)
        elif op == m.BYE:
            self._status(peer, message["status"])
            self.finished += not peer.finished
            peer.finished, peer.state = True, TrainState.EXIT
            self.drop(peer.rank)

    def unlinked(self, link: int, now: float) -> None:
        """A connection was closed: the process of its rank is dead unless it has left regularly."""
        self.now = max(self.now, now)
        peer = self._peer(link)
        self.links.pop(link, None)
        self._leaving.pop(link, None)
        if peer is None or peer.link != link:
            return
        peer.link = None
        if self.standby.get(peer.rank) is peer:
            del self.standby[peer.rank]
            return
        self.drop(peer.rank)
        if not peer.finished and peer.rank not in self.isolated:
            peer.state = TrainState.ABNORMAL
            self.fault(peer.rank, FaultType.PROCESS, "connection closed")

    def _check_silence(self) -> None:
        """Declare a rank lost after two checks one heartbeat apart without a message."""
        if self.now < self._next_look:
            return
        self._next_look = self.now + self.s.heartbeat / 2
        for peer in self.peers.values():
            if peer.link is None or peer.finished or self.now - peer.seen < self.s.lost:
                continue
            if peer.suspect is None:
                peer.suspect = self.now
            elif self.now - peer.suspect >= self.s.heartbeat and peer.rank not in self.isolated:
                silent = self.now - peer.seen
                self._out.append(Close(peer.link))
                self.links.pop(peer.link, None)
                peer.link, peer.state = None, TrainState.ABNORMAL
                self.drop(peer.rank)
                self.fault(peer.rank, FaultType.PROCESS, f"silent for {silent:.1f} s")

    # -- for procedures -----------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], limit: float | None = None, absorb: bool = False) -> Steps:
        """Wait until ``condition`` holds, at most ``limit`` seconds; whether it holds. A new fault ends the procedure
        (NewFaultError) unless ``absorb`` is set.
        """
        deadline = None if limit is None else self.now + limit
        return (yield from self._wait(condition, deadline, absorb))

    def answered(self, ask: ActionRequest, limit: float, absorb: bool = False) -> Steps:
        """Wait for all answers to a request, as ``until`` does for a condition."""
        self._answering = ask
        try:
            return (yield from self._wait(ask.done, self.now + limit, absorb))
        finally:
            self._answering = None

    def _wait(self, condition: Callable[[], bool], deadline: float | None, absorb: bool) -> Steps:
        while True:
            if "destroy" in self.orders:
                raise DestroyedError
            if self.fresh and not absorb:
                raise NewFaultError
            if condition():
                return True
            if deadline is not None and self.now >= deadline:
                return False
            yield deadline

    def settled(self, ask: ActionRequest, limit: float) -> Steps:
        """Wait for all answers; the ranks that failed. Ranks that do not answer are lost (a new generation starts)."""
        done = yield from self.answered(ask, limit)
        if not done:
            for rank in sorted(ask.missing):
                self.give_up(rank, f"no answer for {limit:g} s")
            yield from self.until(lambda: False, 0.0)
        return ask.failed()

    def give_up(self, rank: int, why: str) -> None:
        """End a process that does not respond; a new process replaces it."""
        self.leave(self.peers[rank])
        self.fault(rank, FaultType.PROCESS, why)

    def report(self, name: str, *arguments: Any) -> None:
        """Report to ClusterD, if it takes part."""
        if self.s.clusterd and self.term == 0:
            self._out.append(Report(name, arguments))

    def result(self, code: int, text: str, strategy: str, ranks: Iterable[int] | None = None) -> None:
        """Report the result of a strategy: at most once per generation and strategy."""
        faults = self.reported_faults() or self.repaired
        if ranks is not None:
            faults = {rank: int(FaultType.PROCESS) for rank in ranks}
        self.report("report_result", code, text, faults, strategy)
        self.log(f"result of {strategy or 'recovery'}: {code} {text}", warning=code not in (0, 201))
