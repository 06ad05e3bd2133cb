"""Whether the commits in exported objects are signed, and which documents belong to them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from belay.engine.cli.chain_checks import Check, Maps
from belay.engine.errors import InputError, SourceError
from belay.engine.model.seals import BUILT_IN_RULES
from belay.engine.model.wording import counted
from belay.engine.source.records import SourceConfig, VerifyMode
from belay.engine.source.signatures import Verifier
from belay.engine.wire import commitproof, names, revisionlog
from belay.engine.wire.commitproof import object_name
from belay.engine.wire.committext import parse as commit_text
from belay.engine.wire.errors import WireError


def commit_checks(maps: Maps, signers: Path | None) -> list[Check]:
    """Check the commits of logs and proofs: that each is the one it is named, with ``signers`` its signature, and that
    the proof's documents belong to it. Raises InputError for a list of signers that cannot be read."""
    with tempfile.TemporaryDirectory(prefix="belay-verify-") as home:
        verifiers = _verifiers(signers, Path(home)) if signers is not None else {}
        checks: list[Check] = []
        for what, revision, raw, came in _commits(maps):
            problem = "" if object_name("commit", raw, len(revision)) == revision else "it holds another commit"
            checks.append(Check(object=what, check=f"commit {revision[:12]} is the one it names", problem=problem))
            if verifiers and not problem:
                signed = _signature(verifiers, revision, raw, came)
                checks.append(
                    Check(object=what, check=f"commit {revision[:12]} is signed by a given signer", problem=signed)
                )
        for what, body in _maps(maps, names.COMMIT):
            try:
                proof = commitproof.parse(body)
                proof.rules()
                problem = f"it lacks {counted(proof.left_out, 'file')}" if proof.left_out else ""
            except (WireError, ValueError) as error:
                problem = str(error)
            checks.append(Check(object=what, check="its documents are part of the commit", problem=problem))
    return checks


def proven_rules(maps: Maps) -> dict[str, frozenset[str]]:
    """By commit the rules that its documents and those that come with Belay entitle to."""
    from belay.agents.node.shipped import shipped_rules

    found = {}
    for _, body in _maps(maps, names.COMMIT):
        try:
            proof = commitproof.parse(body)
            found[proof.revision] = proof.rules() | shipped_rules() | frozenset(BUILT_IN_RULES)
        except (WireError, ValueError):
            continue  # reported by commit_checks
    return found


def _commits(maps: Maps) -> Iterator[tuple[str, str, bytes, float]]:
    """The commits that the objects hold: where, name, content, and when they came (Unix seconds; 0 unknown)."""
    came: dict[str, float] = {}
    for what, body in _maps(maps, names.REVISIONS):
        try:
            entries = revisionlog.parse(body).entries
        except WireError:
            continue  # reported with the log
        for entry in entries:
            came.setdefault(entry.revision, entry.time / 1000)
            if entry.commit:
                yield what, entry.revision, entry.commit_bytes(), entry.time / 1000
    for what, body in _maps(maps, names.COMMIT):
        try:
            proof = commitproof.parse(body)
            yield what, proof.revision, proof.commit(), came.get(proof.revision, 0.0)
        except (WireError, ValueError):
            continue  # reported with its documents


def _maps(maps: Maps, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for (space, key), body in sorted(maps.items()):
        if space == names.SYSTEM and key.split(".")[0] == name:
            yield f"ConfigMap/{space}/{key}", body


def _verifiers(signers: Path, home: Path) -> dict[str, Verifier]:
    modes: tuple[VerifyMode, ...] = ("ssh", "gpg")
    return {
        mode: Verifier(
            SourceConfig(url="ssh://verify.invalid/repository", verify_mode=mode, allowed_signers=signers), home / mode
        )
        for mode in modes
    }


def _signature(verifiers: Mapping[str, Verifier], revision: str, raw: bytes, came: float) -> str:
    verifier = verifiers["gpg" if commit_text(raw, len(revision)).is_pgp else "ssh"]
    if came:
        verifier.seen = {revision: came}
    try:
        found = verifier.check_text(revision, raw)
    except SourceError as error:
        raise InputError(str(error), where="--signers") from error
    return found.refusal
