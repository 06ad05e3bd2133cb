"""Whether a person's signature entitles to an act: checked on the node, without believing the engine.

With a list of allowed signers pinned beside the engine's keys, a destructive order needs the commit it follows from
(``belay-commit``): signed by a listed key, not older than the one believed last, made for the pinned source if one is
named, and holding the document of the order's rule, proven by Git's own object names. Rules of documents that come with
this agent's release need no commit that holds them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common.log import Log
from belay.agents.node.facts import FactUnavailable
from belay.engine.model.seals import BUILT_IN_RULES, Warrant
from belay.engine.wire import commitproof, committext, sshsignatures
from belay.engine.wire.commitproof import CommitProof
from belay.engine.wire.errors import WireError
from belay.engine.wire.sshsignatures import AllowedSigner

TRAILER: Final = "Belay-Source"
_KEPT: Final = "commit-trust.json"
_log = Log("agent")


class _Believed(msgspec.Struct):
    """The commit believed last, when it came and when its author says it was made (Unix seconds)."""

    revision: str
    came: float
    committed: int


class CommitTrust:
    """The signers, source and exception that are pinned, and the commit believed last, kept in the folder ``state``."""

    def __init__(self, state: Path) -> None:
        self._file = state / _KEPT
        self._signers: tuple[AllowedSigner, ...] = ()
        self._source = self._back_to = ""
        self._last = self._read()
        self._proven: tuple[bytes, frozenset[str]] | None = None

    @property
    def required(self) -> bool:
        """Whether destructive orders need a signed commit."""
        return bool(self._signers)

    def pin(self, signers: str, source: str = "", back_to: str = "") -> None:
        """Take a list of allowed signers (ssh-keygen(1)), the source that commits must be made for (``REPOSITORY BRANCH
        [FOLDER]``), and the one older commit that may come back. Raises ValueError for a list that cannot be read."""
        found = sshsignatures.allowed_signers(signers)
        if signers.strip() and not found:
            raise ValueError("names no key that may sign commits")
        self._signers, self._source, self._back_to = found, " ".join(source.split()), back_to.strip()
        self._proven = None

    def refusal(
        self, body: Mapping[str, Any] | None, warrants: Sequence[Warrant], shipped: frozenset[str], now: float
    ) -> str:
        """Why the commit in force does not entitle to an act with these warrants; empty when it does.

        Args:
            body: the ConfigMap ``belay-commit`` as it stands.
            shipped: rules of documents that come with this release.
            now: Unix seconds.

        Raises:
            FactUnavailable: there is no commit that can be believed, or the order names another one; no epoch is taken.
        """
        if body is None:
            raise FactUnavailable("the signed commit of the order is not there (ConfigMap belay-commit)")
        try:
            proof = commitproof.parse(body)
            rules = self._rules(proof, body, now)
        except (WireError, ValueError) as error:
            raise FactUnavailable(f"the commit is not believed: {error}") from error
        for warrant in warrants:
            if warrant.rule in rules or warrant.rule in shipped or warrant.rule in BUILT_IN_RULES:
                continue
            if warrant.revision != proof.revision:
                raise FactUnavailable(
                    f"commit {warrant.revision[:12]} of the order is not there, only {proof.revision[:12]}"
                )
            return f"rule {warrant.rule[:80]!r} is in no document of commit {proof.revision[:12]}"
        return ""

    def _rules(self, proof: CommitProof, body: Mapping[str, Any], now: float) -> frozenset[str]:
        """The rules that the commit holds, if it is believed. Raises ValueError saying why it is not."""
        mark = msgspec.json.encode(body.get("data"))
        if self._proven is not None and self._proven[0] == mark:
            return self._proven[1]
        short, raw, last = proof.revision[:12], proof.commit(), self._last
        text = committext.parse(raw, len(proof.revision))
        if text.refusal:
            raise ValueError(f"{short} {text.refusal}")
        known = last is not None and last.revision == proof.revision
        came = last.came if last is not None and known else now
        try:
            signer = sshsignatures.signer_of(text.payload, text.signature, self._signers, (text.committed, came))
        except ValueError as error:
            raise ValueError(f"{short} {error}") from error
        self._check_source(proof, text.payload)
        if last is not None and not known and proof.revision != self._back_to:
            older = text.committed < last.committed and not proof.follows(last.revision)
            if older:
                raise ValueError(f"{short} is older than {last.revision[:12]}, which was believed before")
        rules = proof.rules()
        if not known:
            _log.info("commit believed", commit=short, signer=signer)
            self._keep(_Believed(proof.revision, now, text.committed))
        self._proven = mark, rules
        return rules

    def _check_source(self, proof: CommitProof, payload: bytes) -> None:
        if not self._source:
            return
        named = committext.trailers(payload, TRAILER)
        without_folder = " ".join(self._source.split()[:2])
        if named and self._source not in named and without_folder not in named:
            raise ValueError(
                f"{proof.revision[:12]} was made for {named[0][:80]!r}, this node follows {self._source!r}"
            )
        folder = " ".join(self._source.split()[2:])
        if proof.folder != folder:
            raise ValueError(f"it is read in folder {proof.folder[:80]!r}, this node follows {self._source!r}")

    def _read(self) -> _Believed | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Believed)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            _log.warning("the commit believed last is not known, so an older one may be", file=self._file, reason=error)
            return None

    def _keep(self, believed: _Believed) -> None:
        self._last = believed
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._file.with_suffix(".new")
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(believed))
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._file)
        except OSError as error:
            _log.warning("the commit believed last cannot be kept on disk", reason=error)
