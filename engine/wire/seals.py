"""Seals: Ed25519 signatures (RFC 8032) of the engine over ConfigMaps that agents act on.

A seal stands beside what it covers, as ``seal.json`` in the same ConfigMap, so a reader that does not know of seals
reads the rest as before. It covers the object's name, the time of signing, and each text with its key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.seals import Seal

SEAL_KEY: Final = "seal.json"
_DOMAIN: Final = b"belay seal v1\0"
MAX_PEM: Final = 16 << 10
"""Largest key file, in bytes."""


class SigningKey:
    """A private Ed25519 key; ``key_id`` is that of its public key."""

    def __init__(self, pem: bytes) -> None:
        """Read a PKCS#8 key in PEM, as `openssl genpkey -algorithm ed25519` writes it. Raises ValueError."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError("is not a private key in PEM without a password") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("is not an Ed25519 key: make one with `belay keys create orders`")
        self._key, self._pem = key, pem
        self.key_id = key_id(key.public_key().public_bytes_raw())

    def public_pem(self) -> bytes:
        """The public key, as agents hold it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        pem: bytes = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem

    def private_pem(self) -> bytes:
        """The key as it was read; it belongs into a file with mode 0600 or a Secret, nowhere else."""
        return self._pem

    def seal(self, name: str, texts: Mapping[str, str], signed_at: int) -> Seal:
        """The seal of the object ``name`` (a ConfigMap's) with these texts by key, at ``signed_at`` (Unix ms)."""
        signature = self._key.sign(_message(name, digests(texts), signed_at))
        return Seal(self.key_id, signed_at, base64.b64encode(signature).decode())


class TrustedKeys:
    """Public keys by identifier."""

    def __init__(self, pems: Iterable[bytes]) -> None:
        """Read public keys in PEM. Raises ValueError for one that is none."""
        found = map(_public_key, pems)
        self._keys: dict[str, Any] = {key_id(key.public_bytes_raw()): key for key in found}

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def names(self) -> list[str]:
        """The identifiers of the keys, sorted."""
        return sorted(self._keys)

    def problem(self, name: str, found: Mapping[str, str], seal: Seal | None) -> str:
        """Why a seal does not count for the object ``name`` whose texts have these digests; empty when it does."""
        if seal is None or not seal.signature:
            return "is not signed"
        key = self._keys.get(seal.key)
        if key is None:
            return f"is signed by the unknown key {seal.key[:32]!r}; known are {', '.join(self.names)}"
        from cryptography.exceptions import InvalidSignature

        try:
            key.verify(base64.b64decode(seal.signature, validate=True), _message(name, found, seal.signed_at))
        except (InvalidSignature, binascii.Error, ValueError):
            return f"has a signature of key {seal.key} that does not fit what it says"
        return ""


def _public_key(pem: bytes) -> Any:
    """An Ed25519 key in PEM. The library takes 7 MiB, which a process without keys is spared."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("is not a public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("is not an Ed25519 key")
    return key


def key_id(raw: bytes) -> str:
    """Identifier of a public key: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(raw).hexdigest()[:16]


def digests(texts: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of each text, by key."""
    return {key: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for key, text in texts.items()}


def covered(config_map: Mapping[str, Any]) -> dict[str, str]:
    """What a seal of this ConfigMap covers: all of its data but the seal itself."""
    data = config_map.get("data")
    if not isinstance(data, Mapping):
        return {}
    return {str(key): text for key, text in data.items() if key != SEAL_KEY and isinstance(text, str)}


def seal_of(config_map: Mapping[str, Any]) -> Seal | None:
    """The seal of a ConfigMap; None without one that can be read."""
    data = config_map.get("data")
    text = data.get(SEAL_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str) or len(text) > 1024:
        return None
    try:
        return msgspec.json.decode(text, type=Seal)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def text_of(seal: Seal) -> str:
    """The seal as it stands in ``seal.json``."""
    return msgspec.json.encode(seal).decode()


def _message(name: str, found: Mapping[str, str], signed_at: int) -> bytes:
    rows = [f"{len(key)}:{key}={digest}" for key, digest in sorted(found.items())]
    return _DOMAIN + "\n".join((name, str(signed_at), *rows)).encode("utf-8", "surrogatepass")
