"""Seals on what passes through Redis: a writer to Redis without a key has no effect on the cluster.

A seal is an HMAC (RFC 2104) with SHA-256 over what it is for and the sealed parts. The keys are in a file that Redis
never sees, in Kubernetes from a Secret: one key a line, the first signs, every one is accepted. So a key is replaced in
three steps, without a stop: add the new key as last line, move it to the first line, remove the old one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from belay.engine import log
from belay.engine.errors import InputError

LEAST_KEY: Final = 32
"""Fewest characters of a key; `openssl rand -hex 32` makes 64."""
MOST_KEYS: Final = 8
_LARGEST_FILE: Final = 16 * 1024
_CHECK_SECONDS: Final = 5.0
"""Seconds between two looks at the file: kubelet takes about a minute to bring a changed Secret."""
_ENVELOPE: Final = re.compile(r"([0-9a-f]{8}\.[0-9a-f]{64}) (.*)\Z", re.DOTALL)
_SEALED: Final = re.compile(rb"([0-9a-f]{8}\.[0-9a-f]{64}) ")
_VARIABLE: Final = "BELAY_BATCH_KEY_FILE"
_log = log.get("store")


class Key(NamedTuple):
    """One key; ``name`` shows in seals which key made them and says nothing about the key."""

    name: str
    secret: bytes

    def seal(self, purpose: str, *parts: bytes) -> str:
        """The seal of these parts for this purpose."""
        return f"{self.name}.{self.digest(purpose, *parts).hex()}"

    def digest(self, purpose: str, *parts: bytes) -> bytes:
        """The 32 bytes of the HMAC; each part goes in with its length, so that no two lists of parts are equal."""
        if len(parts) == 1:
            whole = b"%s\0%s" % (purpose.encode(), parts[0])
        else:
            whole = b"".join((purpose.encode(), b"\0\0", *(b"%d:%s" % (len(part), part) for part in parts)))
        return hmac.digest(self.secret, whole, "sha256")


class Keyring:
    """The keys of a file, read again when it changes; without a file nothing is sealed and everything is accepted.

    Raises InputError when the file cannot be read or holds no key of 32 characters.
    """

    def __init__(self, path: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._stamp = self._now() if self._path else ()
        self._keys = read_keys(self._path) if self._path else ()

    @property
    def signing(self) -> Key | None:
        """The key that seals; None without keys."""
        return next(iter(self._current()), None)

    def named(self, name: str) -> Key | None:
        """The accepted key of that name."""
        return next((key for key in self._current() if key.name == name), None)

    def seal(self, purpose: str, *parts: bytes) -> str:
        """The seal of these parts for this purpose; empty without keys."""
        key = self.signing
        return key.seal(purpose, *parts) if key is not None else ""

    def holds(self, seal: str, purpose: str, *parts: bytes) -> bool:
        """Whether the seal was made for these parts and this purpose by one of the keys; True without keys."""
        keys = self._current()
        if not keys:
            return True
        key = next((key for key in keys if key.name == seal[:8]), None)
        return key is not None and hmac.compare_digest(key.seal(purpose, *parts).encode(), seal.encode())

    def wrap(self, purpose: str, text: str) -> str:
        """A text behind its seal; the text alone without keys."""
        seal = self.seal(purpose, text.encode())
        return f"{seal} {text}" if seal else text

    def unwrap(self, purpose: str, text: str) -> str | None:
        """The text that ``wrap`` sealed for this purpose; None for anything else. Without keys a seal is ignored."""
        found = _ENVELOPE.match(text)
        seal, inner = (found[1], found[2]) if found else ("", text)
        return inner if self.holds(seal, purpose, inner.encode()) else None

    def wrap_bytes(self, purpose: str, content: bytes) -> bytes:
        """Bytes behind their seal; the bytes alone without keys."""
        seal = self.seal(purpose, content)
        return b"%s %s" % (seal.encode(), content) if seal else content

    def unwrap_bytes(self, purpose: str, content: bytes) -> bytes | None:
        """The bytes that ``wrap_bytes`` sealed for this purpose; None for others. Without keys a seal is ignored."""
        found = _SEALED.match(content)
        seal, inner = (found[1].decode(), content[found.end() :]) if found else ("", content)
        return inner if self.holds(seal, purpose, inner) else None

    def _current(self) -> tuple[Key, ...]:
        if self._path is not None and self._clock() - self._looked >= _CHECK_SECONDS:
            with self._lock:
                self._look(self._path)
        return self._keys

    def _look(self, path: Path) -> None:
        """Read the file again if it changed; one that cannot be used leaves the keys as they are."""
        self._looked = self._clock()
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(path)
        except InputError as error:
            _log.error("the keys stay as they were", reason=str(error))
            return
        _log.info("keys read again", signs=self._keys[0].name, accepted=[key.name for key in self._keys])

    def _now(self) -> tuple[int, ...]:
        assert self._path is not None
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file, the signing one first; empty lines and lines after ``#`` do not count.

    Raises:
        InputError: the file cannot be read, or a line is not a key; the text never shows a key.
    """
    where = f"{_VARIABLE} {path}"
    try:
        if not path.is_file():
            raise InputError("is not a file", where=where, hint="Make one: openssl rand -hex 32 > FILE; chmod 600 FILE")
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    if len(content) > _LARGEST_FILE:
        raise InputError(f"is larger than {_LARGEST_FILE} bytes: one key a line is expected", where=where)
    keys = tuple(_keys(content.splitlines(), where))
    if not keys:
        raise InputError("holds no key", where=where, hint="Make one: openssl rand -hex 32 > FILE; chmod 600 FILE")
    if len(keys) > MOST_KEYS:
        raise InputError(f"holds {len(keys)} keys, the most are {MOST_KEYS}: remove old ones", where=where)
    return keys


def _keys(lines: Iterable[bytes], where: str) -> Iterable[Key]:
    seen = set()
    for number, line in enumerate(lines, start=1):
        secret = line.strip()
        if not secret or secret.startswith(b"#") or secret in seen:
            continue
        if len(secret) < LEAST_KEY:
            text = f"line {number} has {len(secret)} characters, a key needs at least {LEAST_KEY}"
            raise InputError(text, where=where, hint="Make one: openssl rand -hex 32")
        seen.add(secret)
        yield Key(key_name(secret), secret)


def key_name(secret: bytes) -> str:
    """The name of a key in seals and logs."""
    return hashlib.sha256(b"belay key name\0" + secret).hexdigest()[:8]
