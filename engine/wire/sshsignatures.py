"""SSH signatures of commits, checked without ssh-keygen: on nodes neither it nor git need be there.

Formats: OpenSSH PROTOCOL.sshsig (the signature), ssh-keygen(1) ALLOWED SIGNERS (the list), RFC 4253 and RFC 8332 (keys
and signatures), OpenSSH PROTOCOL.u2f (keys in hardware). Certificates are not followed: lines with ``cert-authority``
count for nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

NAMESPACE: Final = "git"
"""What git signs for (gpg.format=ssh)."""
MAX_LIST: Final = 256 << 10
"""Longest list of signers, in bytes."""
_ARMOR: Final = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\s+([A-Za-z0-9+/=\s]{1,65536})-----END SSH SIGNATURE-----\s*\Z"
)
_MAGIC: Final = b"SSHSIG"
_HASHES: Final = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}
_TOKENS: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
_OPTION: Final = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?(?:,|\Z)')
_TIME: Final = re.compile(r"(\d{8})(\d{4})?(\d{2})?(Z?)\Z")
_ED25519: Final = b"ssh-ed25519"
_HARDWARE: Final = (b"sk-ssh-ed25519@openssh.com", b"sk-ecdsa-sha2-nistp256@openssh.com")
_LEAST_RSA: Final = 2048


class AllowedSigner(NamedTuple):
    """One line of the list: who, which key (as in the signature), and from when to when it counts (Unix seconds)."""

    principals: str
    key: bytes
    after: float
    before: float


def fingerprint(key: bytes) -> str:
    """``SHA256:…`` of a public key, as `ssh-keygen -l` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def allowed_signers(text: str) -> tuple[AllowedSigner, ...]:
    """Read a list of allowed signers; lines for other namespaces and of certificate authorities are left out.

    Raises:
        ValueError: a line cannot be read; the message has its number.
    """
    if len(text) > MAX_LIST:
        raise ValueError(f"is longer than {MAX_LIST} characters")
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                signer = _signer(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if signer is not None:
                found.append(signer)
    return tuple(found)


def signer_of(payload: bytes, signature: bytes, signers: Sequence[AllowedSigner], moments: Sequence[float]) -> str:
    """Who signed: principals and fingerprint, ``ada@example.org (SHA256:…)``.

    Args:
        payload: what was signed.
        signature: the armored signature.
        moments: times (Unix seconds) at each of which the key must count.

    Raises:
        ValueError: the signature cannot be read, does not fit, or is by a key that is not listed or did not count then.
    """
    key, message, kind, raw, rest = _opened(signature, payload)
    listed = [signer for signer in signers if signer.key == key]
    if not listed:
        raise ValueError(f"is signed by key {fingerprint(key)}, which is not on the list")
    found = next((one for one in listed if all(one.after <= moment <= one.before for moment in moments)), None)
    if found is None:
        raise ValueError(f"is signed by key {fingerprint(key)} outside its valid-after and valid-before")
    _check(key, kind, raw, rest, message)
    return f"{found.principals} ({fingerprint(key)})"


def _opened(signature: bytes, payload: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The public key, what it signed, and the signature's kind, content and what follows it."""
    armored = _ARMOR.match(signature)
    if armored is None:
        raise ValueError("has no SSH signature")
    try:
        blob = base64.b64decode(b"".join(armored[1].split()), validate=True)
    except binascii.Error as error:
        raise ValueError("has an SSH signature that is not base64") from error
    if blob[:10] != _MAGIC + b"\0\0\0\1":
        raise ValueError("has an SSH signature of an unknown version")
    key, rest = _text(blob[10:])
    namespace, rest = _text(rest)
    reserved, rest = _text(rest)
    algorithm, rest = _text(rest)
    inner, rest = _text(rest)
    if rest or namespace != NAMESPACE.encode():
        raise ValueError(f"has an SSH signature for {namespace[:20]!r}, not for git")
    if algorithm not in _HASHES:
        raise ValueError("has an SSH signature with an unknown hash")
    kind, rest = _text(inner)
    raw, rest = _text(rest)
    digest = _HASHES[algorithm](payload).digest()
    message = _MAGIC + b"".join(
        len(part).to_bytes(4, "big") + part for part in (namespace, reserved, algorithm, digest)
    )
    return key, message, kind, raw, rest


def _check(key: bytes, kind: bytes, raw: bytes, rest: bytes, message: bytes) -> None:
    """Raise ValueError unless the signature fits."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        name, fields = _text(key)
        if name in _HARDWARE:
            _check_hardware(name, fields, kind, raw, rest, message)
        elif rest:
            raise ValueError("has an SSH signature with more than a signature in it")
        elif name == _ED25519:
            _ed25519(_text(fields)[0], kind, name, raw, message)
        else:
            _check_other(name, key, kind, raw, message)
    except (InvalidSignature, UnsupportedAlgorithm) as error:
        raise ValueError("has an SSH signature that does not fit what it says") from error


def _check_hardware(name: bytes, fields: bytes, kind: bytes, raw: bytes, rest: bytes, message: bytes) -> None:
    if len(rest) != 5 or not rest[0] & 1:
        raise ValueError("is signed by a hardware key without its owner's touch")
    from cryptography.hazmat.primitives.asymmetric import ec

    if name.startswith(b"sk-ssh-"):
        public, fields = _text(fields)
        application, _ = _text(fields)
    else:
        _, fields = _text(fields)
        public, fields = _text(fields)
        application, _ = _text(fields)
    signed = hashlib.sha256(application).digest() + rest + hashlib.sha256(message).digest()
    if name.startswith(b"sk-ssh-"):
        _ed25519(public, kind, name, raw, signed)
        return
    if kind != name:
        raise ValueError("has an SSH signature of another kind than its key")
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    _ecdsa(point, raw, signed)


def _check_other(name: bytes, key: bytes, kind: bytes, raw: bytes, message: bytes) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    public: Any = load_ssh_public_key(name + b" " + base64.b64encode(key))
    if isinstance(public, rsa.RSAPublicKey):
        algorithms = {b"rsa-sha2-256": hashes.SHA256(), b"rsa-sha2-512": hashes.SHA512()}
        if kind not in algorithms or public.key_size < _LEAST_RSA:
            raise ValueError("has an RSA signature that is too weak")
        public.verify(raw, message, padding.PKCS1v15(), algorithms[kind])
    elif isinstance(public, ec.EllipticCurvePublicKey) and kind == name:
        _ecdsa(public, raw, message)
    else:
        raise ValueError(f"is signed by a key of kind {name[:40]!r}, which nodes cannot check")


def _ed25519(public: bytes, kind: bytes, name: bytes, raw: bytes, message: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if kind != name:
        raise ValueError("has an SSH signature of another kind than its key")
    Ed25519PublicKey.from_public_bytes(public).verify(raw, message)


def _ecdsa(public: Any, raw: bytes, message: bytes) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    r, rest = _text(raw)
    s, _ = _text(rest)
    size = public.curve.key_size
    algorithm = hashes.SHA256() if size <= 256 else hashes.SHA384() if size <= 384 else hashes.SHA512()
    signature = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
    public.verify(signature, message, ec.ECDSA(algorithm))


def _signer(line: str) -> AllowedSigner | None:
    tokens = _TOKENS.findall(line.strip())
    if len(tokens) < 3:
        raise ValueError("is not a line of principals, key type and key")
    principals = tokens[0].strip('"')
    at = next((index for index, token in enumerate(tokens[1:3], start=1) if _is_key_type(token)), 0)
    if not at or at + 1 >= len(tokens):
        raise ValueError("has no key type such as ssh-ed25519")
    try:
        key = base64.b64decode(tokens[at + 1], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("has a key that is not base64") from error
    if _text(key)[0] != tokens[at].encode():
        raise ValueError(f"has a key of another type than {tokens[at][:40]}")
    after, before = 0.0, float("inf")
    for name, value in _options(tokens[1] if at == 2 else ""):
        match name:
            case "cert-authority":
                return None
            case "namespaces":
                if not any(fnmatchcase(NAMESPACE, pattern) for pattern in value.split(",")):
                    return None
            case "valid-after":
                after = _moment(value)
            case "valid-before":
                before = _moment(value)
            case _:
                raise ValueError(f"has the unknown option {name[:40]!r}")
    return AllowedSigner(principals, key, after, before)


def _is_key_type(token: str) -> bool:
    return token.startswith(("ssh-", "ecdsa-", "sk-"))


def _options(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        option = _OPTION.match(text, at)
        if option is None:
            raise ValueError("has options that cannot be read")
        found.append((option[1].lower(), option[2] or ""))
        at = option.end()
    return found


def _moment(text: str) -> float:
    found = _TIME.match(text)
    if found is None:
        raise ValueError(f"has the time {text[:40]!r}; write YYYYMMDD or YYYYMMDDHHMM[SS], with Z for UTC")
    day, minute, second, zone = found.groups()
    moment = datetime.strptime(f"{day}{minute or '0000'}{second or '00'}", "%Y%m%d%H%M%S")
    return (moment.replace(tzinfo=UTC) if zone else moment).timestamp()


def _text(blob: bytes) -> tuple[bytes, bytes]:
    """The first string of SSH's encoding, and the rest. Raises ValueError."""
    length = int.from_bytes(blob[:4], "big")
    if len(blob) < 4 or len(blob) < 4 + length:
        raise ValueError("has an SSH key or signature that is cut")
    return blob[4 : 4 + length], blob[4 + length :]


__all__ = ["MAX_LIST", "AllowedSigner", "allowed_signers", "fingerprint", "signer_of"]
