"""The text of a signed commit: what was signed, and the one signature.

A commit with two signature headers is refused: git, hosting services and other verifiers need not agree on which of
them counts. Format: git's documentation of the signature formats (gitformat-signature).
"""

from __future__ import annotations

from typing import Final

import msgspec

SSH: Final = b"-----BEGIN SSH SIGNATURE-----"
PGP: Final = (b"-----BEGIN PGP SIGNATURE-----", b"-----BEGIN PGP MESSAGE-----")
X509: Final = b"-----BEGIN SIGNED MESSAGE-----"
MAX_COMMIT: Final = 256 << 10
"""Largest commit, in bytes, whose signature is checked."""
_SIGNATURES: Final = {40: b"gpgsig", 64: b"gpgsig-sha256"}
"""Header that holds the signature, by the length of the repository's object names."""
_ONCE: Final = (b"tree", b"author", b"committer")


class CommitText(msgspec.Struct, frozen=True):
    """A commit taken apart. ``payload`` is what was signed; ``signature`` is empty for an unsigned commit;
    ``committed`` is the committer date (Unix seconds); ``refusal`` says why the commit must not be accepted.
    """

    payload: bytes = b""
    signature: bytes = b""
    committed: int = 0
    refusal: str = ""

    @property
    def is_ssh(self) -> bool:
        """Whether the signature is one of SSH."""
        return self.signature.startswith(SSH)

    @property
    def kind(self) -> str:
        """How the commit is signed, for messages."""
        if self.is_ssh or self.is_pgp:
            return "SSH" if self.is_ssh else "GnuPG"
        x509 = self.signature.startswith(X509)
        return "a certificate (gitsign, S/MIME), which Belay does not verify," if x509 else "an unknown format"

    @property
    def is_pgp(self) -> bool:
        """Whether the signature is one of OpenPGP."""
        return self.signature.startswith(PGP)


def parse(raw: bytes, name_length: int = 40) -> CommitText:
    """Take the content of a commit object apart; ``name_length`` is the length of its hexadecimal name. Never
    raises."""
    if len(raw) > MAX_COMMIT:
        return CommitText(refusal=f"is larger than {MAX_COMMIT} bytes")
    head, separator, message = raw.partition(b"\n\n")
    if not separator:
        head, message = raw.rstrip(b"\n"), b""
    if b"\0" in head:
        return CommitText(refusal="holds a NUL byte among its headers")
    kept: list[bytes] = []
    signatures: list[tuple[bytes, list[bytes]]] = []
    seen: dict[bytes, list[bytes]] = {}
    inside = False
    for line in head.split(b"\n"):
        name, _, value = line.partition(b" ")
        if line.startswith(b" ") and inside:
            signatures[-1][1].append(line[1:])
        elif name in _SIGNATURES.values():
            signatures.append((name, [value]))
            inside = True
        else:
            inside = False
            kept.append(line)
            if not line.startswith(b" "):
                seen.setdefault(name, []).append(value)
    if strange := next((name for name in _ONCE if len(seen.get(name, ())) != 1), None):
        return CommitText(refusal=f"has {len(seen.get(strange, ()))} {strange.decode()} headers, not one")
    committed = _date(seen[b"committer"][0])
    if committed is None:
        return CommitText(refusal="has no committer date")
    if not signatures:
        return CommitText(committed=committed, refusal="is not signed")
    if len(signatures) > 1:
        return CommitText(
            committed=committed, refusal=f"has {len(signatures)} signature headers; exactly one is accepted"
        )
    name, lines = signatures[0]
    signature = b"\n".join(lines) + b"\n"
    if name != _SIGNATURES.get(name_length):
        return CommitText(committed=committed, refusal="is signed for another object format than the repository's")
    if signature.count(b"-----BEGIN ") != 1:
        return CommitText(committed=committed, refusal="holds more or less than one signature in its signature header")
    return CommitText(b"\n".join(kept) + b"\n\n" + message, signature, committed)


def trailers(payload: bytes, key: str) -> tuple[str, ...]:
    """The values of a trailer in the last paragraph of the signed message, in any case of the key."""
    message = payload.partition(b"\n\n")[2].decode("utf-8", "replace").replace("\r\n", "\n").rstrip()
    last = message.rpartition("\n\n")[2].splitlines() if "\n\n" in message else []
    found = []
    for line in last:
        name, colon, value = line.partition(":")
        if colon and name.strip().lower() == key.lower():
            found.append(" ".join(value.split()))
    return tuple(found)


def _date(person: bytes) -> int | None:
    parts = person.rpartition(b">")[2].split()
    return int(parts[0]) if len(parts) == 2 and parts[0].isdigit() and len(parts[0]) < 12 else None
