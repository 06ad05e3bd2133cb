"""``belay-commit``: the signed commit in force, for agents and people who check it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from belay.engine import log
from belay.engine.errors import SourceError
from belay.engine.kube import Kube, KubeError
from belay.engine.source import GitSource, Revision
from belay.engine.wire import commitproof

RETRY_SECONDS = 30.0
_log = log.get("controller")


class CommitProofs:
    """Writes one shard's proof when the revision changes. ``clock`` gives Unix seconds."""

    def __init__(self, kube: Kube, shard: str, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._shard = shard
        self._clock = clock
        self._written = ""
        self._again = 0.0

    async def put(self, revision: Revision, source: GitSource, older: str) -> None:
        """Write the proof of a signed revision unless it is written; ``older`` is the revision accepted before.

        What cannot be read or written is logged and tried again; until then agents that ask for it wait.
        """
        if not revision.commit or revision.sha == self._written or self._clock() < self._again:
            return
        try:
            proof = await asyncio.to_thread(source.proof, revision, older)
            await self._kube.apply(commitproof.build(proof, self._shard))
        except (KubeError, SourceError, ValueError) as error:
            self._again = self._clock() + RETRY_SECONDS
            _log.warning("signed commit not written for agents", sha=revision.sha, reason=str(error))
            return
        self._written = revision.sha
        if proof.left_out:
            _log.warning(
                "documents that are not in the proof entitle to nothing on nodes with allowed-signers",
                sha=revision.sha, files=proof.left_out,
            )  # fmt: skip


__all__ = ["CommitProofs"]
