"""``belay-recovery-<job id>``: the recovery session of one job, stored while it lasts.

The job's server writes it by compare-and-swap before each effect: a server that takes over continues from it, and the
server that was replaced can no longer write.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.recovery.conversation import Conversation, Effect
from belay.engine.wire import names
from belay.engine.wire.errors import WireError

PREFIX: Final = "belay-recovery-"
KEY: Final = "conversation.json"
PACKED: Final = "conversation.zlib"
ABOUT: Final = "recovery"
SELECTOR: Final = f"{ABOUT_LABEL}={ABOUT}"
#: Longer texts (bytes) are compressed; the second is the limit after decompression.
_PLAIN: Final = 128 * 1024
_LIMIT: Final = 16 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation and the facts it depends on.

    ``epoch``: of the server that wrote it; ``subscribers``: their number; ``uids``: pod uid by rank when the fault was
    found; ``software``: ranks whose faults the job itself reported; ``owed``: effects without an outcome, which may
    not have been carried out yet.
    """

    conversation: Conversation
    epoch: int = 0
    subscribers: int = 0
    uids: dict[str, str] = {}
    software: tuple[str, ...] = ()
    owed: tuple[Effect, ...] = ()


def name_of(job: str) -> str:
    """Return the name of a job's ConfigMap, ``belay-recovery-<job id>``."""
    return names.bounded(PREFIX + job.lower())


def build(record: Record, over: Mapping[str, Any] | None = None, namespace: str = names.SYSTEM) -> dict[str, Any]:
    """The ConfigMap; ``over`` is the version to replace."""
    text = msgspec.json.encode(record)
    metadata: dict[str, Any] = {
        "name": name_of(record.conversation.job),
        "namespace": namespace,
        "labels": {ABOUT_LABEL: ABOUT},
    }
    if over is not None:
        metadata["resourceVersion"] = (over.get("metadata") or {}).get("resourceVersion")
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    if len(text) <= _PLAIN:
        return {**body, "data": {KEY: text.decode()}}
    return {**body, "binaryData": {PACKED: base64.b64encode(zlib.compress(text, 6)).decode()}}


def parse(config_map: Mapping[str, Any]) -> Record:
    """Parse the ConfigMap.

    Raises:
        WireError: not valid.
    """
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', names.SYSTEM)}/{metadata.get('name', '')}"
    packed = (config_map.get("binaryData") or {}).get(PACKED)
    text = (config_map.get("data") or {}).get(KEY)
    try:
        if isinstance(packed, str):
            unpack = zlib.decompressobj()
            raw = unpack.decompress(base64.b64decode(packed.encode(), validate=True), _LIMIT)
            if unpack.unconsumed_tail:
                raise WireError(where, f"binaryData.{PACKED}", f"unpacks to more than {_LIMIT} bytes")
        elif isinstance(text, str):
            raw = text.encode()
        else:
            raise WireError(where, f"data.{KEY}", "is missing")
        return msgspec.json.decode(raw, type=Record)
    except (msgspec.DecodeError, RecursionError, binascii.Error, zlib.error, UnicodeError) as error:
        raise WireError(where, f"data.{KEY}", f"cannot be read: {str(error)[:200]}") from error


__all__ = ["ABOUT", "KEY", "PREFIX", "SELECTOR", "Record", "build", "name_of", "parse"]
