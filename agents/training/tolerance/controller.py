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
import statistics
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.training.tolerance import messages as m
from agents.training.tolerance.constants import (
    FAULT_OF,
    ControllerState,
    DataStatus,
    FaultType,
    Result,
    TrainState,
    after,
)
from agents.training.tolerance.controller_commands import (
    Close,
    ControllerCommand,
    ControllerSettings,
    EndController,
    LogLine,
    Order,
    Report,
    SendTo,
)
from agents.training.tolerance.messages import Message
from agents.training.tolerance.peers import Peer
from agents.training.tolerance.replicas import ReplicaGroup, groups_of
from agents.training.tolerance.steplock import RankStep

Steps = Generator[float | None, None, Any]
RESEND = 2.0
FAULTY = frozenset(
    {TrainState.UCE_HIGH, TrainState.UCE_LOW, TrainState.UCE_CORRUPTED, TrainState.PRECISION_ERROR}
    | {TrainState.HCCL_FAILED, TrainState.ABNORMAL}
)
READY = frozenset({TrainState.INIT_FINISH, TrainState.PREREPAIR_FINISH})


@dataclass
class ActionRequest:
    """An action that was requested from ranks."""

    messages: dict[int, Message]
    missing: set[int]
    resend: float
    results: dict[int, Message] = field(default_factory=dict)

    def done(self) -> bool:
        """Whether all ranks that are still connected have answered."""
        return not self.missing

    def failed(self) -> set[int]:
        """Ranks whose action failed."""
        return {rank for rank, reply in self.results.items() if reply["result"] != Result.OK}


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


class Controller:
    """The state machine."""

    def __init__(self, settings: ControllerSettings, now: float) -> None:
        self.s = settings
        self.now = now
        self.state = ControllerState.INIT
        self.generation = 0
        self.term = settings.backup
        self.master = settings.backup == 0
        self.peers: dict[int, Peer] = {}
        self.standby: dict[int, Peer] = {}  # new processes of a hot switch
        self.links: dict[int, tuple[int, str]] = {}
        self.faults: dict[int, FaultType] = {}
        self.codes: dict[int, str] = {}
        self.resumed: set[int] = set()
        """Faulty ranks that have been repaired and train again while others still roll back."""
        self.isolated: frozenset[int] = frozenset()
        self.fresh = False
        self.unclean = False
        """Whether the order to rebuild groups is to begin with cleaning."""
        self.stage = Stage.STOP
        self.strategy = ""
        self.params = ""
        self.awaiting: tuple[str, int] | None = None
        self.repaired: dict[int, int] = {}  # the faults that the current strategy has repaired
        self.step = 0
        self.orders: dict[str, Order] = {}
        self.hot: frozenset[int] = frozenset()
        self.asked: ActionRequest | None = None
        self.backups_announced = False
        self.ended = False
        self.retired: set[str] = set()  # sessions that a new process replaced
        self._leaving: dict[int, tuple[float, Message]] = {}
        self.finished = 0
        self._next_look = 0.0
        self._answering: ActionRequest | None = None
        """The request whose answers the machine waits for: until the last one comes it need not look."""
        self._groups: tuple[ReplicaGroup, ...] | None = None
        """What `groups` answers, until a rank declares others or a process comes."""
        self._sn = 0
        self._out: list[ControllerCommand] = []
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

    def ask(self, op: str, targets: Iterable[int], **fields: Any) -> ActionRequest:
        """Request an action from all of ``targets``. They share one message, which is encoded once."""
        self._sn += 1
        message = {"op": op, **self._head(), **fields}
        return self._request(dict.fromkeys(targets, message))

    def ask_each(self, op: str, fields: Mapping[int, Mapping[str, Any]]) -> ActionRequest:
        """Request an action, with its own fields for each rank, from the connected ranks."""
        self._sn += 1
        head = {"op": op, **self._head()}
        return self._request({rank: {**head, **more} for rank, more in fields.items()})

    def _request(self, wanted: Mapping[int, Message]) -> ActionRequest:
        messages: dict[int, Message] = {}
        peers, out = self.peers, self._out
        for rank, message in wanted.items():
            peer = peers.get(rank)
            if peer is not None and peer.link is not None:
                messages[rank] = message
                out.append(SendTo(peer.link, message))
        self.asked = ActionRequest(messages, set(messages), self.now + RESEND)
        return self.asked

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

    def leave(self, peer: Peer) -> None:
        """Order the process of ``peer`` to end; the order is repeated until its connection closes."""
        self._sn += 1
        if peer.link is not None:
            message = {"op": m.EXIT, **self._head()}
            self._out.append(SendTo(peer.link, message))
            self._leaving[peer.link] = (self.now + RESEND, message)

    def _head(self) -> Message:
        return {"term": self.term, "gen": self.generation, "sn": self._sn, "strategy": self.strategy}

    def fault(self, rank: int, kind: FaultType, why: str, code: str = "") -> None:
        """Record a fault. The worst fault of a rank counts: a lost process outranks the others."""
        known = self.faults.get(rank)
        if known is not FaultType.PROCESS:
            self.faults[rank] = kind
        self.codes[rank] = code or self.codes.get(rank, "")
        self.fresh = True
        self.log(f"rank {rank}: {why} (fault type {int(kind)})", warning=True)

    def send(self, peer: Peer, message: Message) -> None:
        """Send to one rank if it is connected."""
        if peer.link is not None:
            self._out.append(SendTo(peer.link, message))

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

    def log(self, text: str, warning: bool = False) -> None:
        """A line for the log."""
        self._out.append(LogLine(text[:500], warning))

    def reported_faults(self) -> dict[int, int]:
        """Faults in the form of ClusterD: rank → type."""
        return {rank: int(kind) for rank, kind in sorted(self.faults.items())}

    def everyone(self) -> list[Peer]:
        """All processes, including those of a hot switch."""
        return [*self.peers.values(), *self.standby.values()]

    def living(self) -> list[int]:
        """Ranks whose process is connected and takes part."""
        return [r for r, p in self.peers.items() if p.link is not None and not p.finished and r not in self.isolated]

    def healthy(self) -> list[int]:
        """Living ranks without a fault of their own."""
        return [rank for rank in self.living() if rank not in self.faults]

    def lost(self) -> set[int]:
        """Ranks whose process is gone or cannot continue, and that no new process replaces yet."""
        return {
            rank
            for rank, kind in self.faults.items()
            if kind is FaultType.PROCESS
            and rank not in self.isolated
            and not ((peer := self.peers.get(rank)) is not None and peer.link is not None and peer.new)
        }

    def regroup(self) -> None:
        """The ranks of the job, or what they hold, have changed."""
        self._groups = None

    def groups(self) -> tuple[ReplicaGroup, ...]:
        """Replica groups that ranks declared; those of lost ranks are still known."""
        if self._groups is None:
            self._groups = groups_of({rank: peer.replicas for rank, peer in self.peers.items()})
        return self._groups

    def steps(self, ranks: Iterable[int]) -> dict[int, RankStep]:
        """The step that each of these ranks holds."""
        return {rank: self.peers[rank].step for rank in ranks}

    def grace(self) -> float:
        """Seconds for a survivor to be freed: three median steps, at least one second."""
        paces = [peer.pace for peer in self.peers.values() if peer.pace > 0]
        return max(1.0, 3 * statistics.median(paces)) if paces else 1.0

    def repairable(self) -> bool:
        """Whether every rank allows the repair of memory errors and links in its process."""
        return all(peer.uce for peer in self.peers.values())

    # -- inner ---------------------------------------------------------------------------------------------------

    def _peer(self, link: int) -> Peer | None:
        known = self.links.get(link)
        if known is None:
            return None
        rank, session = known
        peer = self.peers.get(rank)
        if peer is not None and peer.link == link and peer.session == session:
            return peer
        peer = self.standby.get(rank)
        return peer if peer is not None and peer.link == link and peer.session == session else None

    def refuse(self, link: int, reason: str, final: bool = True) -> None:
        """Refuse a process."""
        self._out.append(SendTo(link, {"op": m.REFUSED, "reason": reason, "final": final}))
        self._out.append(Close(link))
        self.log(f"a process is refused: {reason}", warning=True)

    def close(self, link: int) -> None:
        """Close a connection that is no longer used."""
        self.links.pop(link, None)
        self._out.append(Close(link))

    def _replicas(self, peer: Peer, message: Message) -> None:
        self.regroup()
        try:
            peer.replicas = tuple(
                ReplicaGroup(int(g["kind"]), tuple(map(int, g["ranks"])), int(g["copies"]), int(g["shift"]))
                for g in message["replicas"]
            )
        except (KeyError, TypeError, ValueError) as error:
            self.log(f"rank {peer.rank}: its replica groups are ignored: {error}", warning=True)
        peer.dp = tuple(message["dp"])
        self.send(peer, {"op": m.NOTED, "n": message["n"]})

    def _status(self, peer: Peer, status: Mapping[str, Any]) -> None:
        if status["n"] <= peer.status:
            return
        peer.status = status["n"]
        held = peer.step
        if (held.step, held.backup_step, held.data) != (status["step"], status["backup"], status["data"]):
            peer.step = RankStep(status["step"], status["backup"], DataStatus(status["data"]), self.s.local_copy)
        peer.parked, peer.loaded, peer.generation = status["parked"], status["loaded"], status["gen"]
        peer.pace = float(status.get("pace", 0.0))
        if peer.generation != self.generation or not status.get("freed"):
            peer.freed = None
        elif peer.freed is None:
            peer.freed = self.now
        state = peer.state if peer.state == status["state"] else TrainState(status["state"])
        if peer.finished:
            return
        peer.state, peer.code = state, status["code"]
        if state in FAULTY:
            self._faulty(peer)

    def _faulty(self, peer: Peer) -> None:
        """Record the fault that a rank reports, unless it is the one that is being repaired."""
        if peer.rank in self.resumed:
            # that one was repaired: this is another
            self.resumed.discard(peer.rank)
            del self.faults[peer.rank]
        known, kind = self.faults.get(peer.rank), FAULT_OF[peer.state]
        if peer.rank not in self.isolated and known not in (kind, FaultType.PROCESS):
            self.fault(peer.rank, kind, f"reports {peer.state.name}", peer.code)

    def _reply(self, peer: Peer, message: Message) -> None:
        ask = self.asked
        if ask is None or peer.rank not in ask.missing:
            return
        asked = ask.messages[peer.rank]
        if message["sn"] == asked["sn"]:
            ask.missing.discard(peer.rank)
            ask.results[peer.rank] = message
            if "resume" in asked and message["result"] == Result.OK:
                if peer.rank in self.faults:
                    self.resumed.add(peer.rank)
                if peer.state in FAULTY:
                    self._faulty(peer)

    def drop(self, rank: int) -> None:
        """Stop waiting for the answer of this rank."""
        if self.asked is not None:
            self.asked.missing.discard(rank)

    def _resend(self) -> None:
        for link, (time, message) in list(self._leaving.items()):
            if self.now >= time:
                self._out.append(SendTo(link, message))
                self._leaving[link] = (self.now + RESEND, message)
        if self.asked is None or not self.asked.missing or self.now < self.asked.resend:
            return
        self.asked.resend = self.now + RESEND
        for rank in self.asked.missing:
            if rank in self.peers:
                self.send(self.peers[rank], self.asked.messages[rank])

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


__all__ = ["READY", "ActionRequest", "Controller", "NewFaultError", "Stage", "Steps"]
