"""The seal of a snapshot: one number that every object in Redis must agree with.

Each object has a tag, an HMAC over its field and bytes; the tags are added up (modulo 2^256), and the seal is an HMAC
over the sum, the sequence number, the watermarks and whether the snapshot is complete. So a reader that knows the tags
of its copy checks every change at the cost of that change alone, and notices an object that was altered, added, left
out or put back. Without the key a sum cannot be met (incremental multiset hash with a secret key, MSet-Add-Hash:
Clarke, Devadas, van Dijk, Gassend, Suh, ASIACRYPT 2003).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from belay.engine.store.keyring import Key

SEAL: Final = "|seal"
"""The name under which the seal stands among the watermarks, whose names begin with an apiVersion."""
_SIZE: Final = 1 << 256


class SnapshotSeal:
    """The tags of one copy of a snapshot, and their sum."""

    def __init__(self, key: Key, shard: str, generation: str) -> None:
        self.key = key
        self.generation = generation
        self._place = f"{shard}/{generation}"
        self._tags: dict[str, int] = {}
        self._sum = 0

    def put(self, changed: Mapping[str, bytes | None]) -> None:
        """Take over changed objects; None deletes."""
        for field, value in changed.items():
            old, new = self._tags.pop(field, 0), 0
            if value is not None:
                new = int.from_bytes(self.key.digest(f"object/{self._place}/{field}", value), "big")
                self._tags[field] = new
            self._sum = (self._sum - old + new) % _SIZE

    def text(self, seq: int, synced: bool, watermarks: Mapping[str, str]) -> str:
        """The seal for the copy as it is now."""
        marks = "\n".join(f"{kind}={version}" for kind, version in sorted(watermarks.items()) if kind != SEAL)
        parts = (b"%d" % seq, b"%d" % synced, marks.encode(), self._sum.to_bytes(32, "big"))
        return self.key.seal(f"snapshot/{self._place}", *parts)

    def holds(self, seal: str, seq: int, synced: bool, watermarks: Mapping[str, str]) -> bool:
        """Whether a seal was made for just this copy."""
        return hmac.compare_digest(self.text(seq, synced, watermarks).encode(), seal.encode())
