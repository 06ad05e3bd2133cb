"""What may come into force besides being signed: commits made for this source, after those already accepted.

A signature says who made a commit, not for what. Three more conditions hold where commits are verified:

- The commit follows the last accepted revision. Going back needs a new commit that reverts, or the operator's allowance
  for one commit (``spec.verify.allowRewriteTo``).
- It descends from the pinned anchor (``spec.verify.anchor``), if there is one.
- If it names a source in its trailers, ``Belay-Source: REPOSITORY BRANCH [FOLDER]``, one of them is this source. It
  must name it with ``spec.verify.requireTrailer``, and where the last accepted revision named it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from belay.engine.errors import SourceError, bounded
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import SourceConfig
from belay.engine.wire.committext import parse, trailers

TRAILER: Final = "Belay-Source"


class Acceptance:
    """The conditions of one source. ``accepted`` are its accepted revisions as the cluster remembers them, oldest
    first; ``distrust`` says why that memory cannot be trusted, empty while it can."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self.accepted: Sequence[str] = ()
        self.distrust = ""

    def check(self, objects: ObjectStore, sha: str, payload: bytes, known: str | None) -> None:
        """Raise SourceError unless a verified commit may come into force. ``payload`` is its signed text, ``known`` the
        revision that this machine has in force or remembers.

        Reasons: LogBroken, OtherSource, RolledBack, NotFastForward.
        """
        if self.distrust and sha != known:
            raise SourceError(
                "LogBroken",
                f"the log of accepted revisions cannot be trusted: {self.distrust}",
                hint="Find out who changed it; deleting the ConfigMap starts it again",
            )
        floors = [self.accepted[-1]] if self.accepted else []
        # what the cluster knows to be older has been followed by others since; what it does not know still counts
        if known and known not in self.accepted:
            floors.append(known)
        allowed = sha == self._config.allow_rewrite_to
        named = not allowed and any(floor != sha and self._names_source(objects, floor) for floor in floors)
        self._check_trailers(sha, payload, named)
        if allowed:
            return
        self._check_anchor(objects, sha)
        for floor in floors:
            if floor != sha and not objects.is_ancestor(floor, sha):
                raise self._not_after(objects, sha, floor)

    def _names_source(self, objects: ObjectStore, floor: str) -> bool:
        """Whether an accepted commit names this source: then those who sign say what for, and one that does not say it
        may be of a branch that was never meant for this cluster."""
        if not objects.has_commit(floor):
            return False
        payload = parse(objects.raw("commit", floor), len(floor)).payload
        return any(name in trailers(payload, TRAILER) for name in self._names())

    def _names(self) -> tuple[str, str]:
        wanted = self._config.name
        return wanted, " ".join(wanted.split(" ")[:2])

    def _check_trailers(self, sha: str, payload: bytes, before: bool) -> None:
        named = trailers(payload, TRAILER)
        wanted = self._config.name
        if any(name in named for name in self._names()):
            return
        if named:
            raise SourceError(
                "OtherSource",
                f"commit {sha[:12]} was made for {bounded(', '.join(named), 120)!r}, this source is {wanted!r}",
                hint="Make a commit for this source",
            )
        if self._config.require_trailer:
            raise SourceError(
                "OtherSource",
                f"commit {sha[:12]} does not say what it is made for, which spec.verify.requireTrailer asks",
                hint=f"Commit with --trailer '{TRAILER}: {wanted}'",
            )
        if before:
            raise SourceError(
                "OtherSource",
                f"commit {sha[:12]} does not say what it is made for, as the accepted one before it does",
                hint=f"Commit with --trailer '{TRAILER}: {wanted}', or set spec.verify.allowRewriteTo to this commit",
            )

    def _check_anchor(self, objects: ObjectStore, sha: str) -> None:
        anchor = self._config.anchor
        if anchor and anchor != sha and not objects.is_ancestor(anchor, sha):
            raise SourceError(
                "OtherSource",
                f"commit {sha[:12]} does not descend from {anchor[:12]}, the pinned spec.verify.anchor",
                hint="It is of another repository or history; change the anchor only if that is meant",
            )

    def _not_after(self, objects: ObjectStore, sha: str, floor: str) -> SourceError:
        if sha in self.accepted or objects.is_ancestor(sha, floor):
            return SourceError(
                "RolledBack",
                f"commit {sha[:12]} is older than {floor[:12]}, which was accepted before",
                hint="Push a new commit that reverts, or set spec.verify.allowRewriteTo to the older one",
            )
        return SourceError(
            "NotFastForward",
            f"commit {sha[:12]} does not follow {floor[:12]}, which was accepted before",
            hint="Merge it, or set spec.verify.allowRewriteTo to its full name",
        )


__all__ = ["TRAILER", "Acceptance"]
