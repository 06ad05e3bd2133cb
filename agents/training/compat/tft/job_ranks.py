"""The ranks of a job as its controller knows them: processes, faults, steps and replica groups. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import FAULT_OF, DataStatus, FaultType, TrainState
from belay.agents.training.compat.tft.controller_commands import (
    Close,
    ControllerCommand,
    ControllerSettings,
    LogLine,
    SendTo,
)
from belay.agents.training.compat.tft.messages import Message
from belay.agents.training.compat.tft.peers import Peer
from belay.agents.training.compat.tft.replicas import ReplicaGroup, groups_of
from belay.agents.training.compat.tft.steplock import RankStep

FAULTY = frozenset(
    {TrainState.UCE_HIGH, TrainState.UCE_LOW, TrainState.UCE_CORRUPTED, TrainState.PRECISION_ERROR}
    | {TrainState.HCCL_FAILED, TrainState.ABNORMAL}
)


class JobRanks:
    """The ranks, and the commands that concern them."""

    def __init__(self, settings: ControllerSettings, now: float) -> None:
        self.s = settings
        self.now = now
        self.generation = 0
        self.peers: dict[int, Peer] = {}
        self.standby: dict[int, Peer] = {}  # new processes of a hot switch
        self.links: dict[int, tuple[int, str]] = {}
        self.faults: dict[int, FaultType] = {}
        self.codes: dict[int, str] = {}
        self.resumed: set[int] = set()
        """Faulty ranks that have been repaired and train again while others still roll back."""
        self.isolated: frozenset[int] = frozenset()
        self.fresh = False
        """Whether a fault has come that no procedure knows yet."""
        self._groups: tuple[ReplicaGroup, ...] | None = None
        """What `groups` answers, until a rank declares others or a process comes."""
        self._out: list[ControllerCommand] = []

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

    def refuse(self, link: int, reason: str, final: bool = True) -> None:
        """Refuse a process."""
        self._out.append(SendTo(link, {"op": m.REFUSED, "reason": reason, "final": final}))
        self._out.append(Close(link))
        self.log(f"a process is refused: {reason}", warning=True)

    def close(self, link: int) -> None:
        """Close a connection that is no longer used."""
        self.links.pop(link, None)
        self._out.append(Close(link))

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
