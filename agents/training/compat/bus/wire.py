"""Positions, acknowledgements and headers as TaskNet's protobuf messages, and checks of received ones."""

from __future__ import annotations

import time
import uuid as uuids
from typing import Any, Final

from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.message import MAX_BYTES
from belay.agents.training.compat.bus.position import NONE, Position
from belay.engine.wire.clusterd import tasknet_pb2 as pb

ACK_SECONDS: Final = 3.0
KEEPALIVE_MS: Final = 5000
KEEPALIVE_TIMEOUT_MS: Final = 1000
JOB_KEY: Final = "job"
"""Metadata key of Belay's members: their job. A member of another job is refused; one without the key is not."""
SIZE_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MAX_BYTES + 65536), ("grpc.max_send_message_length", MAX_BYTES + 65536),
]  # fmt: skip
CLIENT_OPTIONS: Final = [
    *SIZE_OPTIONS, ("grpc.keepalive_time_ms", KEEPALIVE_MS), ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1), ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0),
]  # fmt: skip
SERVER_OPTIONS: Final = [
    *SIZE_OPTIONS, ("grpc.so_reuseport", 0), ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS), ("grpc.http2.min_recv_ping_interval_without_data_ms", 3000),
    ("grpc.http2.min_ping_interval_without_data_ms", 3000), ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
]  # fmt: skip


def new_uuid() -> str:
    """An identifier for a message."""
    return str(uuids.uuid4())


def to_wire(position: Position) -> Any:
    """A position as a protobuf message."""
    return pb.Position(role=position.role, serverRank=position.server, processRank=position.process)


def from_wire(position: Any) -> Position:
    """A received position; a missing process rank is -1."""
    return Position(position.role, position.serverRank, position.processRank or NONE)


def ack(uuid: str, code: int, own: Position) -> Any:
    """An answer of this member."""
    return pb.Ack(uuid=uuid, code=code, src=to_wire(own))


def message(src: Position, dst: Position, body: str, *, mtype: str, sync: bool, uuid: str = "") -> Any:
    """Return a message; without ``uuid`` it gets a new identifier."""
    header = pb.MessageHeader(
        uuid=uuid or new_uuid(), mtype=mtype, sync=sync, src=to_wire(src), dst=to_wire(dst),
        createTime=int(time.time() * 1000),
    )  # fmt: skip
    return pb.Message(header=header, body=body)


def checked(found: Any) -> int:
    """Whether a message has its required fields: 0, or 4000..4002."""
    if not found.HasField("header"):
        return codes.NO_MESSAGE if not found.body else codes.NO_HEADER
    if not found.header.HasField("dst") or not found.header.HasField("src"):
        return codes.NO_POSITION
    return codes.OK
