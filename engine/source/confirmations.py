"""Deletions confirmed in commit messages: trailers ``Belay-Confirm: <digest>`` of verified commits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from belay.engine import log
from belay.engine.errors import SourceError
from belay.engine.model.plan import CONFIRM
from belay.engine.source.git import Git
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits
from belay.engine.source.signatures import Verifier
from belay.engine.source.tree import is_document_path

_DIGEST: Final = re.compile(r"^[0-9a-f]{32}$")
_MAX_COMMITS: Final = 64
"""Most commits with a trailer that are checked, newest first."""
_log = log.get("source")


def confirmed(objects: ObjectStore, verifier: Verifier | None, base: str, tip: str) -> tuple[str, ...]:
    """The digests that commits after ``base`` up to ``tip`` confirm, sorted; with a ``verifier`` that requires
    signatures only those of signed commits.

    Raises:
        SourceError: the repository or the list of signers cannot be read.
    """
    found: set[str] = set()
    for sha, values in objects.trailers(base, tip, CONFIRM)[:_MAX_COMMITS]:
        wanted = {value.lower() for value in values if _DIGEST.match(value.lower())}
        if not wanted:
            continue
        if verifier is not None and verifier.required:
            signature = verifier.check(objects.git, sha)
            if signature.signer is None:
                _log.warning("confirmation ignored: commit not verified", commit=sha, reason=signature.refusal)
                continue
        found |= wanted
    return tuple(sorted(found))


def confirmed_in(folder: Path, base: str) -> tuple[str, ...]:
    """The digests that the checked-out branch of a folder confirms after ``base``; empty if it is not a repository."""
    try:
        objects = ObjectStore(Git(folder.resolve()), Limits())
        tip = objects.resolve("HEAD")
        return confirmed(objects, None, base, tip) if tip else ()
    except SourceError:
        return ()


def declared_in(folder: Path, commit: str, layer: str) -> bool:
    """Whether a commit of the repository that is checked out in ``folder`` had documents below ``layer``; False where
    that is not known.
    """
    try:
        entries = ObjectStore(Git(folder.resolve()), Limits()).entries(commit, "") if commit else []
    except SourceError:
        return False
    paths = [entry.path.decode("utf-8", "replace") for entry in entries]
    return any(path.startswith(f"{layer}/") and is_document_path(path) for path in paths)
