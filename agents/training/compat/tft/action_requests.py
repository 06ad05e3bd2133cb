"""Actions that a controller requests from ranks: numbered, repeated until they are answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import Result
from belay.agents.training.compat.tft.controller_commands import ControllerSettings, SendTo
from belay.agents.training.compat.tft.job_ranks import FAULTY, JobRanks
from belay.agents.training.compat.tft.messages import Message
from belay.agents.training.compat.tft.peers import Peer

RESEND = 2.0


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


class ActionRequests(JobRanks):
    """The newest request, and orders to end that are repeated until a connection closes."""

    def __init__(self, settings: ControllerSettings, now: float) -> None:
        super().__init__(settings, now)
        self.term = settings.backup
        self.strategy = ""
        self.asked: ActionRequest | None = None
        self._leaving: dict[int, tuple[float, Message]] = {}
        self._sn = 0

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

    def leave(self, peer: Peer) -> None:
        """Order the process of ``peer`` to end; the order is repeated until its connection closes."""
        self._sn += 1
        if peer.link is not None:
            message = {"op": m.EXIT, **self._head()}
            self._out.append(SendTo(peer.link, message))
            self._leaving[peer.link] = (self.now + RESEND, message)

    def drop(self, rank: int) -> None:
        """Stop waiting for the answer of this rank."""
        if self.asked is not None:
            self.asked.missing.discard(rank)

    def _head(self) -> Message:
        return {"term": self.term, "gen": self.generation, "sn": self._sn, "strategy": self.strategy}

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
