"""The proxy of a pod: agent and workers reach the manager through it on 127.0.0.1:9602."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import grpc

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.constants import own_port
from belay.agents.training.compat.bus import codes, wire
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.position import PROXY, Position, natural
from belay.engine.wire.clusterd import tasknet_pb2 as pb
from belay.engine.wire.clusterd import tasknet_pb2_grpc

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
PORT: Final = 9602
PROBE_SECONDS: Final = 3.0


def port(environ: Mapping[str, str]) -> str:
    """The proxy's port: 9602, or TASKD_PROXY_PORT where two jobs share a host's network."""
    return own_port(environ, "TASKD_PROXY_PORT", PORT)


def manager_port(environ: Mapping[str, str]) -> str:
    """The manager's port: 9601, or TASKD_MANAGER_PORT."""
    return own_port(environ, "TASKD_MANAGER_PORT", constants.PORT)


def address(host: str, port: str) -> str:
    """host:port; an IPv6 literal gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def server_rank(environ: Mapping[str, str]) -> str:
    """The pod's number: RANK, else MS_NODE_RANK, else 0. Raises ValueError when it is not a number."""
    rank = environ.get("RANK") or environ.get("MS_NODE_RANK") or "0"
    if not natural(rank):
        raise ValueError(f"RANK is {rank[:20]!r}, a number from 0 is needed")
    return rank


def start(listen: str, upstream: str, rank: str, job: str) -> Member | None:
    """Listen and begin to join. None when a proxy of the same job and pod serves the address: it is shared.

    Raises OSError that names the program which holds the address.
    """
    member = Member(Position(PROXY, rank), listen=listen, upstream=upstream, job=job)
    try:
        member.start()
        return member
    except OSError as error:
        member.close()
        other = probe(listen, job)
        if other == Position(PROXY, rank):
            log.info("this pod's proxy already serves %s; it is shared", listen)
            return None
        who = "another program" if other is None else f"{other} of the bus"
        raise OSError(f"{error}; {who} listens there. Reserve 9601 and 9602 (ip_local_reserved_ports)") from error


def probe(listen: str, job: str) -> Position | None:
    """The position of the member that serves an address for this job; None without one."""
    metadata = ((wire.JOB_KEY, job),) if job and job.isascii() else ()
    with grpc.insecure_channel(listen, wire.CLIENT_OPTIONS) as channel:
        stub = tasknet_pb2_grpc.TaskNetStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.TransferMessage(pb.Message(), timeout=PROBE_SECONDS, metadata=metadata)
        except grpc.RpcError:
            return None
    # a member of the same job answers an empty message with 4000, another one with 4999
    return wire.from_wire(answer.src) if answer.code == codes.NO_MESSAGE else None
