"""``belay-recovery-<job id>``: the recovery conversation of one job, kept while there is one.

Whoever serves the job writes it before each effect, over the version it read last (compare-and-swap), so that a server
that takes over goes on where the last one stopped and an outlived one cannot write any more.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.model.recovery.conversation import Conversation, Effect
from engine.wire import names
from engine.wire.errors import WireError

PREFIX: Final = "belay-recovery-"
KEY: Final = "conversation.json"
PACKED: Final = "conversation.zlib"
ABOUT: Final = "recovery"
SELECTOR: Final = f"{names.ABOUT_LABEL}={ABOUT}"
#: Longer texts are packed; a packed one may unpack to so much at most.
_PLAIN: Final = 128 * 1024
_LIMIT: Final = 16 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation and what its facts are measured against.

    ``epoch`` is the server's that wrote it, ``subscribers`` how many listened, ``uids`` the uid of each pod (by rank)
    when the fault was met, ``software`` the ranks whose faults the job itself told, ``owed`` the effects without an
    outcome that may not have been carried out yet.
    """

    conversation: Conversation
    epoch: int = 0
    subscribers: int = 0
    uids: dict[str, str] = {}
    software: tuple[str, ...] = ()
    owed: tuple[Effect, ...] = ()


def name_of(job: str) -> str:
    """The ConfigMap's name."""
    return names.bounded(PREFIX + job.lower())


def build(record: Record, over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The ConfigMap; ``over`` is the version that it replaces."""
    text = msgspec.json.encode(record)
    metadata: dict[str, Any] = {
        "name": name_of(record.conversation.job),
        "namespace": names.SYSTEM,
        "labels": {names.ABOUT_LABEL: ABOUT},
    }
    if over is not None:
        metadata["resourceVersion"] = (over.get("metadata") or {}).get("resourceVersion")
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    if len(text) <= _PLAIN:
        return {**body, "data": {KEY: text.decode()}}
    return {**body, "binaryData": {PACKED: base64.b64encode(zlib.compress(text, 6)).decode()}}


def parse(config_map: Mapping[str, Any]) -> Record:
    """The record of a ConfigMap.

    Raises:
        WireError: it cannot be read.
    """
    where = f"ConfigMap/{names.SYSTEM}/{(config_map.get('metadata') or {}).get('name', '')}"
    packed = (config_map.get("binaryData") or {}).get(PACKED)
    text = (config_map.get("data") or {}).get(KEY)
    try:
        if isinstance(packed, str):
            unpack = zlib.decompressobj()
            raw = unpack.decompress(base64.b64decode(packed, validate=True), _LIMIT)
            if unpack.unconsumed_tail:
                raise WireError(where, f"binaryData.{PACKED}", f"unpacks to more than {_LIMIT} bytes")
        elif isinstance(text, str):
            raw = text.encode()
        else:
            raise WireError(where, f"data.{KEY}", "is missing")
        return msgspec.json.decode(raw, type=Record)
    except (msgspec.DecodeError, RecursionError, binascii.Error, zlib.error) as error:
        raise WireError(where, f"data.{KEY}", f"cannot be read: {str(error)[:200]}") from error


__all__ = ["ABOUT", "KEY", "PREFIX", "SELECTOR", "Record", "build", "name_of", "parse"]
