"""From a commit to a revision: verified, accepted, its files chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from belay.engine.errors import SourceError
from belay.engine.source.acceptance import Acceptance
from belay.engine.source.commit_files import CommitFiles
from belay.engine.source.confirmations import confirmed
from belay.engine.source.emptied import EmptyTreeGuard
from belay.engine.source.last_changes import LastChanges
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits, Revision, SourceConfig
from belay.engine.source.signatures import Signature, Verifier
from belay.engine.source.tree import capped, changed_paths

_OBJECT: Final = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")


def is_object_id(text: str) -> bool:
    """Whether this names a commit or a blob, and not a state of a folder."""
    return _OBJECT.match(text) is not None


class Commits:
    """Makes revisions of the commits of one source, wherever they come from.

    ``floor`` is the commit that this machine has in force or remembers, where no revision is known: verified commits
    must follow it.
    """

    def __init__(self, config: SourceConfig, limits: Limits, verifier: Verifier, emptied: EmptyTreeGuard) -> None:
        self.files = CommitFiles(config.prefix, limits, verifier)
        self.acceptance = Acceptance(config)
        self.changes = LastChanges(config.prefix)
        self.emptied = emptied
        self.floor: str | None = None
        self.verifier = verifier
        self._accepted: tuple[str, str] | None = None

    def revision(self, objects: ObjectStore, sha: str, base: Revision | None) -> Revision:
        """Verify one commit and choose its files; ``base`` is the revision in force.

        Raises SourceError VerificationFailed, LogBroken, OtherSource, RolledBack, NotFastForward, EmptyTree,
        EmptyLayer, TooManyFiles or TreeTooLarge.
        """
        stamp = self.verifier.stamp()
        if base and base.sha == sha and self._accepted == (sha, stamp):
            return base

        signature = self._verified(objects, sha, base)
        selection = self.files.hold_refused(objects, sha, self.files.select(objects, sha))
        older = base.sha if base else self.floor or ""
        before = base.files if base else {} if older == sha else self._files_at(objects, older)
        self.emptied.check(before, selection.files, lambda: confirmed(objects, self.verifier, older, sha))
        self._accepted = (sha, stamp)

        about = objects.commit(sha)
        return Revision(
            sha=sha,
            files=selection.files,
            changed=changed_paths(base.files if base else {}, selection.files),
            problems=capped(selection.problems),
            author=about.author,
            authored=about.authored,
            committed=about.committed,
            subject=about.subject,
            signer=signature.signer,
            commit=signature.raw,
            last_changes=self.changes.of(objects, sha, selection.files),
        )

    def _verified(self, objects: ObjectStore, sha: str, base: Revision | None) -> Signature:
        """A commit's signature; an empty one where none is required."""
        if not self.verifier.required:
            return Signature(None)
        signature = self.verifier.check(objects.git, sha)
        if signature.signer is None:
            raise SourceError(
                "VerificationFailed", signature.refusal, hint="Sign it with a key of spec.verify.allowedSigners"
            )
        self.acceptance.check(objects, sha, signature.text.payload, base.sha if base else self.floor)
        return signature

    def _files_at(self, objects: ObjectStore, sha: str) -> Mapping[str, str]:
        """The files of an earlier commit; empty where it is not known here."""
        return self.files.whole_tree(objects, sha).files if is_object_id(sha) and objects.has_commit(sha) else {}


__all__ = ["Commits", "is_object_id"]
