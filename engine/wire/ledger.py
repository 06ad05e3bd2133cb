"""``belay-ledger-<shard>``: chips that pods have claimed whose binding is not yet observed.

The worker writes claims by compare-and-swap before a batch of bindings, so that two passes can never give one chip to
two pods. A claim ends when its binding is observed. Where a binding may still be under way (the pod is gone, its claim
was moved, or it was sent more than once) the chips stay claimed for a while (``engine/act/claims.py``): kube-apiserver
1.20 ignores the UID in a Binding, so that a late one would bind a pod of the same name made since. A claim whose pod
waits no more has the UID with ``~`` and a time as its key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.labels import MANAGED_BY
from belay.engine.wire import formats
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import LEDGER_PREFIX, SYSTEM

KEY = "claims.json"
SETTLING = "~"
"""Between UID and time in the key of a claim that has ended while a binding may be under way."""
MASK_DIGITS: Final = 256
"""Most hexadecimal digits of a mask: a chip's id is at most 1023 (`deviceinfo`)."""
_MASK: Final = re.compile(rf"[0-9a-fA-F]{{1,{MASK_DIGITS}}}")


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Chips of ``node`` that a pod (``namespace/name``) claimed at ``time`` (Unix ms); ``mask`` is hexadecimal.

    ``again``: more than one pass has sent a binding for it.
    """

    pod: str
    node: str
    prefix: str
    mask: str
    time: int
    again: bool = False

    def chips(self) -> tuple[str, ...]:
        """``node/device name`` of every claimed chip."""
        head = f"{self.node}/{self.prefix}"
        return tuple([f"{head}{i}" for i in ids_of(int(self.mask, 16))])


def settling_key(uid: str, time_ms: int) -> str:
    """The key of a claim that has ended while a binding may be under way; no pod has it as its UID."""
    return f"{uid}{SETTLING}{time_ms}"


def parse(config_map: Mapping[str, Any]) -> dict[str, Claim]:
    """Claims by pod UID.

    Raises:
        WireError: the ledger cannot be read; the caller must not place any pod until it can.
    """
    formats.check(config_map, LEDGER_PREFIX)
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    text = (config_map.get("data") or {}).get(KEY) or "{}"
    try:
        claims = msgspec.json.decode(text, type=dict[str, Claim])
        for claim in claims.values():
            if _MASK.fullmatch(claim.mask) is None:
                raise ValueError(
                    f"mask {claim.mask[:40]!r} is not a hexadecimal number of at most {MASK_DIGITS} digits"
                )
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
            "labels": {MANAGED_BY: "belay"},
        },
        "data": {KEY: msgspec.json.encode(dict(sorted(claims.items()))).decode()},
    }
