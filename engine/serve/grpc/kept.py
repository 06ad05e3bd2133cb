"""What is kept in the cluster of one conversation: its ConfigMap, over the version read last (compare-and-swap)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from engine.kube import CONFIGMAP, Conflict, KubeError, NotFound, Object
from engine.log import get
from engine.model.recovery import Conversation
from engine.wire import names, recoveryrecord
from engine.wire.errors import WireError
from engine.wire.recoveryrecord import Record

if TYPE_CHECKING:
    from engine.serve.grpc.desk import Desk

_log = get("grpc.recover")
_TRIES: Final = 3
_FRESH: Final = Conversation(job="")
#: What alone is no reason to keep a record; reports that came outside of any round are of no use later.
_KEEPS_NOTHING: Final = frozenset({"job", "since", "story", "code", "stop", "offer", "status", "reply"})


class Ousted(Exception):
    """Another server serves the job now."""


class Kept:
    """The record of a job and where it lies. ``behind`` says that what is stored is older than ``record``.

    ``ousted`` is called before Ousted is raised: a newer server has written.
    """

    def __init__(self, desk: Desk, record: Record, stored: Object | None, ousted: Callable[[], None]) -> None:
        self.record = record
        self.behind = False
        self._desk = desk
        self._stored = stored
        self._ousted = ousted

    async def save(self) -> None:
        """Keep the record; nothing is kept of a job with which nothing is wrong. Raises Ousted."""
        if _blank(self.record.conversation) and not self.record.owed:
            await self.erase()
            return
        for attempt in range(_TRIES):
            body = recoveryrecord.build(self.record, self._stored)
            try:
                write = self._desk.kube.replace if self._stored is not None else self._desk.kube.create
                self._stored = await write(CONFIGMAP, body)
                self.behind = False
                return
            except (Conflict, NotFound):
                await self._meet()
            except KubeError as error:
                _log.warning("conversation not kept", job=self._job, attempt=attempt + 1, reason=str(error))
                self.behind = True
                if attempt + 1 < _TRIES:
                    await asyncio.sleep(0.2 * (attempt + 1))

    async def erase(self) -> None:
        """Remove what is kept. Raises Ousted."""
        stored, self._stored = self._stored, None
        self.behind = False
        if stored is None:
            return
        metadata = stored["metadata"]
        try:
            await self._desk.kube.delete(
                CONFIGMAP, metadata["name"], metadata["namespace"], rv=metadata.get("resourceVersion")
            )
        except NotFound:
            return
        except Conflict:
            await self._meet()
            if self._stored is not None:
                await self.erase()
        except KubeError as error:
            _log.warning("conversation not removed", job=self._job, reason=str(error))
            self._stored, self.behind = stored, True

    @property
    def _job(self) -> str:
        return self.record.conversation.job

    async def _meet(self) -> None:
        """Somebody else wrote: a newer server's word ends ours, anything else is overwritten."""
        live = await self._desk.kube.get(CONFIGMAP, recoveryrecord.name_of(self._job), names.SYSTEM)
        self._stored = live
        if live is None:
            return
        try:
            epoch = recoveryrecord.parse(live).epoch
        except WireError:
            return
        if epoch > self._desk.epoch:
            self._ousted()
            raise Ousted(self._job)


def _blank(talk: Conversation) -> bool:
    return all(
        getattr(talk, name) == getattr(_FRESH, name) for name in talk.__struct_fields__ if name not in _KEEPS_NOTHING
    )


__all__ = ["Kept", "Ousted"]
