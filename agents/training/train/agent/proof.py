"""Mutual proof that two nodes know the secret of their job, before either gives the other anything.

    node          Hello(number)
    coordinator   Challenge(number, HMAC-SHA256(secret, "coordinator" + both numbers))
    node          Proven(HMAC-SHA256(secret, "node" + both numbers)), then its question or join

Numbers are fresh for each connection, so nothing that was heard is of use again. Content is not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from belay.agents.training.train.frames import Message
from belay.agents.training.train.protocol import Challenge, Hello, Proven

LEAST = 16
"""Bytes of a secret, at least."""
VARIABLE = "BELAY_TRAIN_SECRET_FILE"
"""The file, where ``--secret-file`` is not given: an operator mounts a Secret there."""


def read_secret(path: str) -> bytes:
    """The secret in a file. Raises ``ValueError``."""
    try:
        found = Path(path).read_bytes()[:4096].strip()
    except OSError as error:
        raise ValueError(f"--secret-file ({VARIABLE}) {path}: {error.strerror}") from None
    if len(found) < LEAST:
        raise ValueError(f"--secret-file ({VARIABLE}) {path} holds {len(found)} bytes; a secret needs at least {LEAST}")
    return found


class Prover:
    """One end of one connection. Without a key nothing is asked for, and ``proven`` is True from the beginning."""

    def __init__(self, key: bytes, side: str) -> None:
        self._key, self._side = key, side
        self._other = "node" if side == "coordinator" else "coordinator"
        self._number, self._theirs = secrets.token_hex(16), ""
        self.proven = not key

    def hello(self) -> Message | None:
        """What a node sends first; None without a key."""
        return None if self.proven else Hello(self._number).message()

    def challenge(self, message: Message) -> Message | None:
        """The coordinator's answer to a hello; None for anything else and for a second one."""
        if message["t"] != Hello.KIND or self._theirs or not self._take(message):
            return None
        return Challenge(self._number, self._proof(self._side)).message()

    def answer(self, message: Message) -> Message | None:
        """A node's answer to a challenge that proves the secret; None for one that does not."""
        if message["t"] != Challenge.KIND or not self._take(message) or not self._check(message):
            return None
        self.proven = True
        return Proven(self._proof(self._side)).message()

    def accept(self, message: Message) -> bool:
        """Whether a node's last message proves that it knows the secret."""
        self.proven = message["t"] == Proven.KIND and bool(self._theirs) and self._check(message)
        return self.proven

    def _take(self, message: Message) -> bool:
        number = message.get("n")
        self._theirs = number if isinstance(number, str) and len(number) <= 64 else ""
        # the own number sent back would let a stranger have its proof made for it
        return bool(self._theirs) and self._theirs != self._number

    def _check(self, message: Message) -> bool:
        given = message.get("proof")
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self._proof(self._other).encode())

    def _proof(self, side: str) -> str:
        first, second = (self._number, self._theirs) if self._side == "node" else (self._theirs, self._number)
        return hmac.new(self._key, f"{side} {first} {second}".encode(), "sha256").hexdigest()
