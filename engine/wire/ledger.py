"""``belay-ledger-<shard>``: chips that pods have claimed whose binding is not yet observed.

The worker writes claims by compare-and-swap before a batch of bindings, so that two passes can never give one chip to
two pods. A claim ends when the binding is observed or the pod is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.model.cluster import ids_of
from engine.wire.errors import WireError
from engine.wire.names import LEDGER_PREFIX, SYSTEM

KEY = "claims.json"


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Chips of ``node`` that a pod (``namespace/name``) claimed at ``time`` (Unix ms); ``mask`` is hexadecimal."""

    pod: str
    node: str
    prefix: str
    mask: str
    time: int

    def chips(self) -> tuple[str, ...]:
        """``node/device name`` of every claimed chip."""
        head = f"{self.node}/{self.prefix}"
        return tuple([f"{head}{i}" for i in ids_of(int(self.mask, 16))])


def parse(config_map: Mapping[str, Any]) -> dict[str, Claim]:
    """Claims by pod UID.

    Raises:
        WireError: the ledger cannot be read; the caller must not place any pod until it can.
    """
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    text = (config_map.get("data") or {}).get(KEY) or "{}"
    try:
        claims = msgspec.json.decode(text, type=dict[str, Claim])
        for claim in claims.values():
            int(claim.mask, 16)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(
            where, f"data.{KEY}", f"is not a ledger: {error}; nothing is placed until it is readable"
        ) from error
    return claims


def build(shard: str, claims: Mapping[str, Claim]) -> dict[str, Any]:
    """The ledger ConfigMap of a shard."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": LEDGER_PREFIX + shard,
            "namespace": SYSTEM,
            "labels": {"app.kubernetes.io/managed-by": "belay"},
        },
        "data": {KEY: msgspec.json.encode(dict(sorted(claims.items()))).decode()},
    }
