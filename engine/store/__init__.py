"""The port to Redis: working memory that may be flushed at any moment.

The controller writes with ``SnapshotWriter`` and ``RevisionWriter`` (asyncio); workers read with ``SnapshotReader`` and
``RevisionReader`` and keep pass records with ``PassStore`` (blocking). Whatever was lost shows as ``reset``, unsynced
or None, never as an error; an unreachable Redis raises ``StoreUnavailable``.
"""

from __future__ import annotations

from engine.store.passes import (
    CONTROLLER_BEAT,
    ActionOutcome,
    BatchResult,
    PassRecord,
    PassState,
    PassStore,
    Write,
)
from engine.store.port import (
    PREFIX,
    VALUE_LIMIT,
    StoreUnavailable,
    ValueTooLarge,
    connect,
    connect_async,
    eviction_warning,
    translated,
)
from engine.store.revisions import RevisionReader, RevisionRecord, RevisionWriter
from engine.store.snapshot import Changes, Field, SnapshotReader, SnapshotWriter, field_of, fits

__all__ = [
    "CONTROLLER_BEAT",
    "PREFIX",
    "VALUE_LIMIT",
    "ActionOutcome",
    "BatchResult",
    "Changes",
    "Field",
    "PassRecord",
    "PassState",
    "PassStore",
    "RevisionReader",
    "RevisionRecord",
    "RevisionWriter",
    "SnapshotReader",
    "SnapshotWriter",
    "StoreUnavailable",
    "ValueTooLarge",
    "Write",
    "connect",
    "connect_async",
    "eviction_warning",
    "field_of",
    "fits",
    "translated",
]
