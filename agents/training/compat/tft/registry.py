"""Admits processors to the job by their first message. Pure."""

from __future__ import annotations

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import ControllerState, DataStatus, FaultType, TrainState
from belay.agents.training.compat.tft.controller import Controller
from belay.agents.training.compat.tft.messages import Message
from belay.agents.training.compat.tft.peers import Peer
from belay.agents.training.compat.tft.steplock import RankStep

MAX_BACKUPS = 2


def register(c: Controller, link: int, message: Message) -> None:
    """Admit a process, or refuse it with the reason. The first process of a rank is admitted at any time before the
    end, another one only as the replacement of a lost one; a process that reconnects continues in its role.
    """
    rank, session = message["rank"], message["session"]
    shared = [version for version in m.VERSIONS if version in message["versions"]]
    if not shared:
        spoken = ", ".join(str(v)[:8] for v in message["versions"][:8])
        c.refuse(link, f"versions {spoken} of the protocol are not spoken here, only {m.VERSIONS[-1]}: use one Belay")
    elif message["job"] != c.s.job:
        c.refuse(link, f"this is the controller of job {c.s.job!r}, not of {message['job'][:64]!r}: check TTP_ADDR")
    elif message["world"] != c.s.world:
        c.refuse(link, f"world size {message['world']} differs from the controller's {c.s.world}")
    elif not 0 <= rank < c.s.world:
        c.refuse(link, f"rank {rank} lies outside 0..{c.s.world - 1}")
    elif message["local_copy"] != c.s.local_copy:
        c.refuse(link, "enable_local_copy differs between controller and processor")
    elif session in c.retired:
        c.refuse(link, f"another process took the place of rank {rank}")
    elif c.state in (ControllerState.EXIT, ControllerState.FINAL, ControllerState.DUMP):
        c.refuse(link, "the job is ending")
    else:
        _place(c, link, message, rank, session, shared[-1])


def _place(c: Controller, link: int, message: Message, rank: int, session: str, version: int) -> None:
    known, peer = c.peers.get(rank), _peer(c, link, message)
    # who reconnects keeps its role; only then may a process take one over
    if known is None:
        _first(c, link, peer, version)
    elif known.session == session:
        _again(c, known, peer, version)
    elif rank in c.standby and c.standby[rank].session == session:
        _again(c, c.standby[rank], peer, version)
    elif rank in c.hot and c.state in (ControllerState.STEP_FINISH, ControllerState.NORMAL):
        _stand_by(c, link, peer, version)
    elif known.link is None or (not known.new and (rank in c.faults or rank in c.isolated)):
        _replace(c, known, peer, version)
    else:
        c.refuse(link, f"rank {rank} is alive and healthy; two processes cannot be the same rank", final=False)


def _first(c: Controller, link: int, peer: Peer, version: int) -> None:
    """Admit the first process of a rank."""
    has_steps = any(other.step.step for other in c.peers.values())
    if c.term and c.master and not peer.step.step and has_steps:
        c.refuse(link, "a backup controller saves the job and ends it; it takes no new process in")
        return
    c.peers[peer.rank] = peer
    _accept(c, peer, version)


def _stand_by(c: Controller, link: int, peer: Peer, version: int) -> None:
    """Admit a process that takes over from one that still trains."""
    old = c.standby.get(peer.rank)
    if old is not None and old.link is not None:
        c.refuse(link, f"rank {peer.rank} already has a new process for the hot switch", final=True)
        return
    peer.new, peer.hot, peer.repair_id = True, True, max(1, c.generation)
    c.standby[peer.rank] = peer
    _accept(c, peer, version)


def _replace(c: Controller, known: Peer, peer: Peer, version: int) -> None:
    """Admit a process in the place of one that is lost or faulty."""
    rank = peer.rank
    if known.link is not None:
        c.leave(known)
    c.retired.add(known.session)
    c.drop(rank)
    if rank not in c.isolated and c.faults.get(rank) is not FaultType.PROCESS:
        c.fault(rank, FaultType.PROCESS, "a new process came in the place of the old one")

    peer.new, peer.replicas, peer.dp = True, known.replicas, known.dp
    peer.repair_id = max(1, c.generation)
    c.peers[rank] = peer
    _accept(c, peer, version)


def _peer(c: Controller, link: int, message: Message) -> Peer:
    status = message["status"]
    return Peer(
        rank=message["rank"], link=link, session=message["session"], status=status["n"],
        step=RankStep(status["step"], status["backup"], DataStatus(status["data"]), c.s.local_copy),
        state=TrainState(status["state"]), parked=status["parked"], generation=status["gen"], seen=c.now,
        controller=message["controller"], uce=message["uce"],
    )  # fmt: skip


def _again(c: Controller, known: Peer, peer: Peer, version: int) -> None:
    """The same process reconnects: its fault is dropped unless a decision was based on it."""
    if known.link is not None and known.link != peer.link:
        c.close(known.link)
    known.link, known.seen, known.suspect = peer.link, c.now, None
    if peer.status > known.status:
        known.status, known.step, known.parked, known.generation = peer.status, peer.step, peer.parked, peer.generation
        known.state = peer.state
    assert peer.link is not None
    c.links[peer.link] = (peer.rank, peer.session)
    if known.new or known.rank not in c.faults:
        _accept(c, known, version)
        if c.asked is not None and known.rank in c.asked.messages and known.rank not in c.asked.results:
            c.asked.missing.add(known.rank)
            c.asked.resend = c.now
        return
    # it was given up: its state may be older than the step at which the others continue
    c.leave(known)
    known.state = TrainState.ABNORMAL


def _accept(c: Controller, peer: Peer, version: int) -> None:
    assert peer.link is not None
    c.links[peer.link] = (peer.rank, peer.session)
    if not c.master:
        c.send(peer, {"op": m.STANDBY})
        return
    c.send(
        peer,
        {
            "op": m.REGISTERED, "version": version, "term": c.term, "repair_id": peer.repair_id, "hot": peer.hot,
            "heartbeat": c.s.heartbeat,
        },
    )  # fmt: skip
    announce_backups(c)


def announce_backups(c: Controller) -> None:
    """Announce the backup controllers once every rank is connected: at most two, on hosts other than the master's."""
    if not c.master or c.term or len(c.peers) < c.s.world or c.backups_announced:
        return
    c.backups_announced = True
    own = c.peers[c.s.rank].controller.rsplit(":", 1)[0] if c.s.rank in c.peers else ""
    found: dict[str, str] = {}
    for peer in sorted(c.peers.values(), key=lambda p: p.rank):
        host = peer.controller.rsplit(":", 1)[0]
        if peer.controller and peer.rank != c.s.rank and host != own:
            found.setdefault(host, peer.controller)
    addresses = list(found.values())[:MAX_BACKUPS]
    for peer in c.peers.values() if addresses else ():
        c.send(peer, {"op": m.BACKUPS, "addresses": addresses})
