"""Sealed values in cookies: the session of a person, and an attempt to sign in. Nothing is kept on the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from belay.engine.errors import InputError
from belay.engine.serve.login.rules import Role

SESSION_SECONDS: Final = 8 * 3600
"""How long a session lasts: until then a person who lost the right still has it."""
ATTEMPT_SECONDS: Final = 600
MOST_CHARS: Final = 4_000
"""Characters of a cookie that browsers keep."""
_MOST_KEYS: Final = 8


class WebSession(msgspec.Struct, frozen=True, tag="session"):
    """Who signed in, as what."""

    user: str
    role: Role


class Attempt(msgspec.Struct, frozen=True, tag="attempt"):
    """A sign-in that was begun: what the issuer must send back, and where the person wanted to go."""

    state: str
    nonce: str
    verifier: str
    to: str = ""


Sealed = TypeVar("Sealed", WebSession, Attempt)


class SealedCookies:
    """Seals with the first key, opens with any: so keys can be changed without signing everyone out. ``wall`` is Unix
    seconds.
    """

    def __init__(self, keys: Sequence[bytes] = (), wall: Callable[[], float] = time.time) -> None:
        self._seal = MultiFernet([Fernet(key) for key in keys or (Fernet.generate_key(),)])
        self._wall = wall

    def sealed(self, value: WebSession | Attempt) -> str:
        """The value as a cookie holds it, with the time at which it was made."""
        return self._seal.encrypt_at_time(msgspec.json.encode(value), int(self._wall())).decode("ascii")

    def opened(self, text: str, kind: type[Sealed], seconds: int) -> Sealed | None:
        """The value of a cookie; None for one that is not of this kind, was changed, or is older than ``seconds``."""
        if not text or len(text) > MOST_CHARS:
            return None
        try:
            body = self._seal.decrypt_at_time(text.encode("ascii"), seconds, int(self._wall()))
            return msgspec.json.decode(body, type=kind)
        except (InvalidToken, UnicodeError, msgspec.DecodeError, RecursionError):
            return None


def session_keys(path: str) -> tuple[bytes, ...]:
    """The keys in a file, one a line, the newest first.

    Raises:
        InputError: the file cannot be read, or a line is no key.
    """
    where, hint = f"BELAY_SESSION_KEY_FILE {path}", "Make one: openssl rand -base64 32 | tr '+/' '-_' > FILE"
    try:
        with open(Path(path), encoding="ascii") as file:
            lines = [line.strip() for line in file.read(_MOST_KEYS * 64).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {type(error).__name__}", where=where, hint=hint) from error
    try:
        for line in lines:
            Fernet(line.encode("ascii"))
    except ValueError as error:
        raise InputError("holds a line that is no key of 32 bytes", where=where, hint=hint) from error
    if not 1 <= len(lines) <= _MOST_KEYS:
        raise InputError(f"must hold 1 to {_MOST_KEYS} keys", where=where, hint=hint)
    return tuple(line.encode("ascii") for line in lines)
