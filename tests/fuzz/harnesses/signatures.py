"""Signatures of commits as nodes check them: lists of signers, SSH signatures, proofs of commits."""

from __future__ import annotations

from typing import Any, Final

from belay.engine.wire import commitproof, sshsignatures
from belay.engine.wire.errors import WireError
from tests.fuzz.harness import Form, Harness, objects, text

_PAYLOAD: Final = b"tree " + b"a" * 40 + b"\n\nsubject\n"
_MOMENTS: Final = (1_788_249_600.0,)


def _signers(found: str) -> None:
    sshsignatures.allowed_signers(found)


def _signature(data: bytes) -> None:
    """A list of signers, an empty line, and the signature."""
    listed, _, signature = data.partition(b"\n\n")
    signers = sshsignatures.allowed_signers(listed.decode("utf-8", "surrogateescape"))
    sshsignatures.signer_of(_PAYLOAD, signature, signers, _MOMENTS)


def _proof(obj: Any) -> None:
    data = obj.get("data")
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        return
    proof = commitproof.parse(obj)
    proof.follows("b" * 40)
    for look in (proof.commit, proof.rules):
        try:
            look()
        except ValueError as error:
            assert len(str(error)) < 1000


HARNESSES: Final = (
    Harness("allowed-signers", text(_signers), ("engine/wire/sshsignatures.py",), (ValueError,), Form.TEXT),
    Harness("ssh-signature", _signature, ("engine/wire/sshsignatures.py",), (ValueError,), Form.TEXT),
    Harness("commit-proof", objects(_proof), ("engine/wire/commitproof.py",), (WireError,), steps=1_000_000),
)
