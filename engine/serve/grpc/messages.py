"""Reading requests: bytes that are no message of the method are refused before a handler sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

LONGEST: Final = 200


class Malformed(msgspec.Struct, frozen=True):
    """Stands for a request that cannot be read; ``reason`` says why. gRPC itself would answer UNKNOWN."""

    reason: str


def reader(kind: Any) -> Callable[[bytes], Any]:
    """The deserializer of one message class; it returns ``Malformed`` instead of raising."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except (DecodeError, ValueError, RecursionError) as error:
            return Malformed(f"the request is no {kind.DESCRIPTOR.full_name}: {error}"[:LONGEST])

    return read


__all__ = ["Malformed", "reader"]
