"""Messages between controller and processors: JSON objects in frames, checked on arrival. Nothing is unpickled.

A frame is the length of the text (4 bytes, big-endian), then the text. Belay's own format: MindIO's layout of C
structures is not supported, so all ranks and the controller of a job must be Belay's. The first message of a processor
lists its versions; the controller answers with the one to use, or refuses.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

VERSIONS = (1,)
MAX_FRAME = 10 * 1024 * 1024
HEADER = struct.Struct(">I")

Message = dict[str, Any]

# from the controller; each carries term, gen and sn and is answered by `reply`
COLLECT = "collect"
LOCK = "lock"
UNLOCK = "unlock"
STOP = "stop"
CLEAN = "clean"
REBUILD = "rebuild"
REPAIR = "repair"
ROLLBACK = "rollback"
NORMAL = "normal"
PAUSE = "pause"
CONTINUE = "continue"
SAVE = "save"
RENAME = "rename"
EXIT = "exit"
DOWNGRADE = "downgrade"
UP_REBUILD = "upgrade rebuild"
UP_REPAIR = "upgrade repair"
UP_ROLLBACK = "upgrade rollback"
ACTIONS = frozenset(
    {COLLECT, LOCK, UNLOCK, STOP, CLEAN, REBUILD, REPAIR, ROLLBACK, NORMAL, PAUSE, CONTINUE, SAVE, RENAME, EXIT}
    | {DOWNGRADE, UP_REBUILD, UP_REPAIR, UP_ROLLBACK}
)
# from the controller, without an answer
REGISTERED = "registered"
STANDBY = "standby"
REFUSED = "refused"
BACKUPS = "backups"
NOTED = "noted"
GOODBYE = "goodbye"
# from a processor
REGISTER = "register"
REPLICAS = "replicas"
STATUS = "status"
REPLY = "reply"
BYE = "bye"

_STATUS: dict[str, type] = {
    "n": int, "step": int, "backup": int, "data": int, "state": int, "code": str, "parked": bool, "gen": int,
    "loaded": int,
}  # fmt: skip
_STEP: dict[str, type] = {"step": int}
_FIELDS: dict[str, dict[str, type]] = {
    LOCK: _STEP,
    STOP: _STEP,
    REBUILD: {"ranks": list},
    REPAIR: {"step": int, "type": int, "kinds": list, "src": list, "dst": list, "ranks": list, "param": str},
    UP_REPAIR: {"step": int, "type": int, "kinds": list, "src": list, "dst": list, "ranks": list, "param": str},
    ROLLBACK: _STEP,
    UP_ROLLBACK: {"step": int, "param": str},
    UP_REBUILD: {"ranks": list, "param": str},
    NORMAL: _STEP,
    PAUSE: {"step": int, "hot": bool},
    SAVE: {"step": int, "info": list},
    RENAME: _STEP,
    DOWNGRADE: {"step": int, "world": list, "group": list, "param": str},
    REGISTERED: {"version": int, "term": int, "repair_id": int, "hot": bool, "heartbeat": float},
    REFUSED: {"reason": str, "final": bool},
    BACKUPS: {"addresses": list},
    REGISTER: {
        "versions": list, "rank": int, "world": int, "job": str, "session": str, "repair_id": int, "local_copy": bool,
        "uce": bool, "arf": bool, "zit": bool, "controller": str, "status": dict,
    },
    REPLICAS: {"n": int, "replicas": list, "dp": list},
    NOTED: {"n": int},
    STATUS: {"status": dict},
    BYE: {"status": dict},
    REPLY: {"term": int, "sn": int, "result": int, "status": dict},
}  # fmt: skip


class BadMessage(ValueError):
    """A frame or message of another format; the text names the problem."""


def encode(message: Message) -> bytes:
    """A frame. Raises BadMessage when it would be too long."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MAX_FRAME:
        raise BadMessage(f"a message of {len(text)} bytes is too long, at most {MAX_FRAME} are sent")
    return HEADER.pack(len(text)) + text


def decode(text: bytes) -> Message:
    """The message of a frame, checked. Raises BadMessage."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON ({text[:40]!r}): is this the port of another service?") from error
    if not isinstance(message, dict):
        raise BadMessage(f"a message must be an object, got {type(message).__name__}")
    check(message)
    return message


def check(message: Message) -> None:
    """Raises BadMessage for an unknown message, a missing field or one of another type."""
    op = message.get("op")
    if not isinstance(op, str):
        raise BadMessage("a message must name its `op`")
    fields = _FIELDS.get(op, {})
    if op in ACTIONS:
        fields = fields | {"term": int, "gen": int, "sn": int, "strategy": str}
    elif op not in _FIELDS and op not in (STANDBY, GOODBYE):
        raise BadMessage(f"message {op[:40]!r} is unknown; do all ranks run the same version of Belay?")
    _check_fields(op, message, fields)
    if "status" in fields:
        _check_fields(f"{op}.status", message["status"], _STATUS)
    for name in ("src", "dst", "ranks", "kinds", "world", "group", "dp"):
        if fields.get(name) is list and not all(type(item) is int for item in message[name]):
            raise BadMessage(f"{op}.{name} must be a list of whole numbers")


def _check_fields(where: str, message: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    for name, kind in fields.items():
        value = message.get(name)
        if kind is float and type(value) is int:
            continue
        if type(value) is not kind:
            raise BadMessage(f"{where}.{name} must be {kind.__name__}, got {type(value).__name__}")


class MessageDecoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes. Raises BadMessage for the first one of another format."""
        self._buffer += data
        found: list[Message] = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise BadMessage(f"a frame of {length} bytes is longer than {MAX_FRAME}: is this another service?")
            if len(self._buffer) < HEADER.size + length:
                break
            text = bytes(self._buffer[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            found.append(decode(text))
        return found
