"""The port to Redis: working memory that may be flushed at any moment.

The controller writes with ``SnapshotWriter`` and ``RevisionWriter`` (asyncio). Workers read ``StoredSnapshots`` and
``StoredRevisions``, and keep pass records in ``PassStore`` (blocking). Data that Redis lost reads as ``reset``,
unsynced or None, never as an error; an unreachable Redis raises ``StoreUnavailable``.
"""

from __future__ import annotations

from belay.engine.store.keyring import Key, Keyring
from belay.engine.store.liveness import ProcessLiveness
from belay.engine.store.news import ShardNews
from belay.engine.store.passes import (
    CONTROLLER_BEAT,
    ActionOutcome,
    BatchResult,
    ObjectWrite,
    PassRecord,
    PassState,
    PassStore,
    Requests,
)
from belay.engine.store.port import (
    PREFIX,
    VALUE_LIMIT,
    StoreUnavailable,
    ValueTooLarge,
    connect,
    connect_async,
    eviction_warning,
    require_room,
    translated,
)
from belay.engine.store.repair import heal, repair
from belay.engine.store.revisions import RevisionRecord, RevisionWriter, StoredRevisions
from belay.engine.store.snapshot import Changes, Field, SnapshotWriter, StoredSnapshots, field_of, fits

__all__ = [
    "CONTROLLER_BEAT",
    "PREFIX",
    "VALUE_LIMIT",
    "ActionOutcome",
    "BatchResult",
    "Changes",
    "Field",
    "Key",
    "Keyring",
    "ProcessLiveness",
    "PassRecord",
    "PassState",
    "PassStore",
    "Requests",
    "StoredRevisions",
    "RevisionRecord",
    "RevisionWriter",
    "ShardNews",
    "StoredSnapshots",
    "SnapshotWriter",
    "StoreUnavailable",
    "ValueTooLarge",
    "ObjectWrite",
    "connect",
    "connect_async",
    "eviction_warning",
    "field_of",
    "fits",
    "heal",
    "repair",
    "require_room",
    "translated",
]
