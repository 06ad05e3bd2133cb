"""The body of a message on the bus: JSON with type, code, text and extension. Pure.

Layout: component/taskd/taskd/go/framework_backend/manager/infrastructure/storage (MsgBody).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from belay.agents.training.compat.bus.position import Position

MAX_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Body:
    """``kind`` is msg_type (REGISTER, STATUS, ACTION, KEEP_ALIVE); ``code`` is a number, or a word for GRACE_EXIT."""

    kind: str
    code: int | str = 0
    message: str = ""
    extension: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the body as JSON text."""
        return json.dumps(
            {"msg_type": self.kind, "code": self.code, "message": self.message, "extension": dict(self.extension)},
            separators=(",", ":"),
        )


@dataclass(frozen=True)
class Received:
    """A received message: sender and body."""

    src: Position
    body: Body
    uuid: str = ""
    sync: bool = False


def parse(text: str) -> Body:
    """Read a body. Raises ValueError that names the wrong field and quotes at most a few characters of it."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"the body has {len(text)} characters, at most {MAX_BYTES} are read")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON: {str(error)[:80]}") from None
    if not isinstance(found, dict):
        raise ValueError(f"the body is a {type(found).__name__}, not an object")
    kind, code, message = found.get("msg_type", ""), found.get("code", 0), found.get("message", "")
    if not isinstance(kind, str) or len(kind) > 64:
        raise ValueError("msg_type is not a short text")
    if isinstance(code, bool) or not isinstance(code, int | str):
        raise ValueError(f"code is a {type(code).__name__}, not a number or a word")
    if not isinstance(message, str):
        raise ValueError(f"message is a {type(message).__name__}, not text")
    return Body(kind, code, message, _extension(found.get("extension")))


def _extension(found: Any) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"extension is a {type(found).__name__}, not an object")
    for key, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"extension.{str(key)[:64]} is a {type(value).__name__}, not text")
    return found


def ranks(text: str, limit: int = 100_000) -> tuple[int, ...]:
    """A JSON list of ranks, numbers or their texts, ascending and once each. Raises ValueError."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the list of ranks is not JSON: {str(error)[:80]}") from None
    return rank_set(found, limit)


def rank_set(found: Any, limit: int = 100_000) -> tuple[int, ...]:
    """A list of ranks, numbers or their texts, ascending and once each. Raises ValueError."""
    if not isinstance(found, list) or len(found) > limit:
        raise ValueError(f"not a list of at most {limit} ranks")
    ranks = set()
    for one in found:
        text = str(one)
        if isinstance(one, bool) or not (text.isascii() and text.isdigit()) or len(text) > 9:
            raise ValueError(f"{text[:20]!r} is not a rank")
        ranks.add(int(text))
    return tuple(sorted(ranks))
