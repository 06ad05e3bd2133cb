"""The log of accepted revisions, kept in the cluster: what a repository may never go behind."""

from __future__ import annotations

from collections.abc import Callable

from engine import log
from engine.errors import SourceError
from engine.kube import CONFIGMAP, Conflict, Kube, NotFound
from engine.source import Revision, SourceConfig
from engine.wire import names, revisionlog
from engine.wire.errors import WireError
from engine.wire.revisionlog import RevisionEntry, RevisionLog

_TRIES = 5
_log = log.get("controller")


class AcceptedRevisions:
    """Reads and extends one shard's ``belay-revisions``. ``clock`` gives Unix seconds.

    ``problem`` says why the log of the cluster cannot be trusted; empty while it can. Then nothing new is accepted
    where commits are verified, until a person has looked and deleted the ConfigMap.
    """

    def __init__(self, kube: Kube, shard: str, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._shard = shard
        self._clock = clock
        self._known = RevisionLog()
        self._version = ""
        self.problem = ""

    def of(self, config: SourceConfig) -> dict[str, float]:
        """The source's verified revisions and when they came, oldest first."""
        return self._known.of(config.name)

    async def load(self) -> None:
        """Read the log. Raises KubeError when the cluster does not answer."""
        name = names.revisions_config_map(self._shard)
        found = await self._kube.get(CONFIGMAP, name, names.SYSTEM)
        self._version = str(found["metadata"].get("resourceVersion") or "") if found else ""
        self.problem = ""
        if found is None:
            return  # what this process knows is written again with the next revision
        try:
            log = revisionlog.parse(found)
        except WireError as error:
            self.problem = str(error)
        else:
            if log.continues(self._known):
                self._known = log
                return
            self.problem = f"ConfigMap/{names.SYSTEM}/{name}: entries that this controller wrote are gone or changed"
        _log.error("log of accepted revisions cannot be trusted", shard=self._shard, reason=self.problem)

    async def record(self, revision: Revision, config: SourceConfig) -> None:
        """Append a commit that comes into force, before it does; the newest one again changes nothing.

        Raises KubeError, and SourceError LogBroken while the log cannot be trusted.
        """
        if not revision.sha or revision.sha.startswith("worktree-"):
            return
        entry = RevisionEntry(
            number=0,
            revision=revision.sha,
            source=config.name,
            verified=config.verify_mode,
            signer=revision.signer or "",
            time=int(self._clock() * 1000),
            commit=revisionlog.encoded(revision.commit),
        )
        for attempt in range(_TRIES):
            head = self._known.head
            if head is not None and (head.revision, head.source, head.verified, head.signer) == (
                entry.revision, entry.source, entry.verified, entry.signer,
            ) and self._version:  # fmt: skip
                return
            if self.problem:
                raise SourceError("LogBroken", f"the log of accepted revisions cannot be trusted: {self.problem}")
            log = self._known.appended(entry)
            body = revisionlog.build(log, self._shard, self._version)
            try:
                written = await (self._kube.replace if self._version else self._kube.create)(CONFIGMAP, body)
            except (Conflict, NotFound):
                if attempt == _TRIES - 1:
                    raise
                await self.load()
                continue
            self._known, self._version = log, str(written["metadata"].get("resourceVersion") or "")
            _log.info("revision accepted", shard=self._shard, sha=revision.sha, signer=entry.signer)
            return
