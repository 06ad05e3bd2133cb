"""The record of one session in its ConfigMap, written by compare-and-swap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from belay.engine.kube import CONFIGMAP, Conflict, KubeError, NotFound, Object
from belay.engine.log import get
from belay.engine.model.recovery import Conversation
from belay.engine.serve.grpc.recovery.context import SessionContext
from belay.engine.wire import recoveryrecord
from belay.engine.wire.errors import WireError
from belay.engine.wire.recoveryrecord import Record

_log = get("grpc.recover")
_TRIES: Final = 3
_FRESH: Final = Conversation(job="")
#: Fields that alone do not justify a record; reports outside of any round are of no use later.
_NOT_WORTH_SAVING: Final = frozenset({"job", "since", "story", "code", "stop", "offer", "status", "reply"})


class TakenOver(Exception):
    """Another server serves the job."""


class SessionStore:
    """The record of a job. ``behind``: the stored one is older than ``record``.

    ``taken_over`` is called before Ousted is raised: a newer server has written.
    """

    def __init__(
        self, context: SessionContext, record: Record, stored: Object | None, taken_over: Callable[[], None]
    ) -> None:
        self.record = record
        self.behind = False
        self._context = context
        self._stored = stored
        self._taken_over = taken_over

    async def save(self) -> None:
        """Store the record, or erase it when nothing is under way. Raises TakenOver."""
        if _blank(self.record.conversation) and not self.record.owed:
            await self.erase()
            return
        for attempt in range(_TRIES):
            body = recoveryrecord.build(self.record, self._stored, self._context.namespace)
            try:
                write = self._context.kube.replace if self._stored is not None else self._context.kube.create
                self._stored = await write(CONFIGMAP, body)
                self.behind = False
                return
            except (Conflict, NotFound):
                await self._reread()
            except KubeError as error:
                _log.warning("conversation not stored", job=self._job, attempt=attempt + 1, reason=str(error))
                self.behind = True
                if attempt + 1 < _TRIES:
                    await asyncio.sleep(0.2 * (attempt + 1))

    async def erase(self) -> None:
        """Delete the stored record. Raises TakenOver."""
        stored, self._stored = self._stored, None
        self.behind = False
        if stored is None:
            return
        metadata = stored["metadata"]
        try:
            await self._context.kube.delete(
                CONFIGMAP, metadata["name"], metadata["namespace"], rv=metadata.get("resourceVersion")
            )
        except NotFound:
            return
        except Conflict:
            await self._reread()
            if self._stored is not None:
                await self.erase()
        except KubeError as error:
            _log.warning("conversation not deleted", job=self._job, reason=str(error))
            self._stored, self.behind = stored, True

    @property
    def _job(self) -> str:
        return self.record.conversation.job

    async def _reread(self) -> None:
        """Read the record again after a conflict. Raises TakenOver when a newer server wrote it."""
        live = await self._context.kube.get(CONFIGMAP, recoveryrecord.name_of(self._job), self._context.namespace)
        self._stored = live
        if live is None:
            return
        try:
            epoch = recoveryrecord.parse(live).epoch
        except WireError:
            return
        if epoch > self._context.epoch:
            self._taken_over()
            raise TakenOver(self._job)


def _blank(conversation: Conversation) -> bool:
    return all(
        getattr(conversation, name) == getattr(_FRESH, name)
        for name in conversation.__struct_fields__
        if name not in _NOT_WORTH_SAVING
    )


__all__ = ["SessionStore", "TakenOver"]
