"""A worker's copy of a shard's snapshot: read by changed field, and held back until it has seen our own writes."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from engine.log import get
from engine.model.cluster import Observed
from engine.observe import Observer, key_of
from engine.status.bodies import MANAGED_BY
from engine.store import PassState, PassStore, SnapshotReader, Write, field_of

_log = get("reconcile")
STUCK_SECONDS = 30.0
"""After so long without having seen a finished pass' writes, a fresh list is asked for."""


class _Seen(NamedTuple):
    rv: str
    uid: str
    deleting: bool


class Copy:
    """What one worker knows of one shard."""

    def __init__(self, shard: str, reader: SnapshotReader, *, keep_raw: bool = False) -> None:
        self.generation = ""
        self.raw: dict[str, bytes] = {}
        self.told: dict[tuple[str, str], dict[str, Any] | None] = {}
        """Belay's own ConfigMaps that changed since somebody took them from here; None: deleted."""
        self._shard = shard
        self._reader = reader
        self._keep_raw = keep_raw
        self._observer = Observer()
        self._seen: dict[str, _Seen] = {}
        self._watermarks: dict[str, str] = {}
        self._asked = ""

    def look(self, passes: PassStore, patience: float) -> str:
        """Take over what changed; empty when a pass may start, else what it has to wait for.

        A pass starts only on a complete snapshot that has seen every write of the previous pass. When a batch of that
        has been silent for ``patience`` seconds, nobody knows what it wrote: then a fresh consistent list is asked for.
        """
        if not self._refresh():
            return "the snapshot is not complete yet"
        state = passes.state(self._shard)
        if state is None or (state.record.generation and state.record.generation != self.generation):
            return ""  # whatever was written before this generation is in its list
        unseen = next((write for write in state.writes if not self._has_seen(write)), None)
        if unseen is None and state.finished:
            return ""
        if passes.now() - state.beat > (STUCK_SECONDS if state.finished else patience):
            self._ask_relist(passes, state)
        if unseen is not None:
            return f"{unseen.kind} {unseen.namespace}/{unseen.name} is not seen at version {unseen.rv or 'deleted'} yet"
        return f"pass {state.record.pass_id} still has batches to run"

    def observed(self) -> Observed:
        """The snapshot as the planner takes it."""
        return self._observer.observed(self._shard)

    def version(self, field: str) -> str:
        """The resourceVersion at which an object was seen; empty when it is not there."""
        seen = self._seen.get(field)
        return seen.rv if seen else ""

    def seen_up_to(self, api_version: str, kind: str) -> str:
        """The resourceVersion up to which changes of a kind have been seen; empty when that is not known."""
        return self._watermarks.get(f"{api_version}|{kind}", "")

    def _refresh(self) -> bool:
        changes = self._reader.changes(self._shard)
        if changes.reset:
            self._observer, self._seen, self.raw = Observer(), {}, {}
        for field, value in changes.changed.items():
            self._take(field, value)
        self.generation, self._watermarks = changes.generation, changes.watermarks
        return changes.synced

    def _take(self, field: str, value: bytes | None) -> None:
        if value is None:
            self._seen.pop(field, None)
            self.raw.pop(field, None)
            name = field_of(field)
            if name.kind == "ConfigMap":
                self.told[(name.namespace, name.name)] = None
            self._observer.delete(
                key_of(
                    {
                        "apiVersion": name.api_version,
                        "kind": name.kind,
                        "metadata": {"namespace": name.namespace, "name": name.name},
                    }
                )
            )
            return
        obj = orjson.loads(value)
        metadata = obj["metadata"]
        self._seen[field] = _Seen(
            str(metadata.get("resourceVersion") or ""),
            str(metadata.get("uid") or ""),
            bool(metadata.get("deletionTimestamp")),
        )
        if obj["kind"] == "ConfigMap" and (metadata.get("labels") or {}).get(MANAGED_BY) == "belay":
            self.told[(metadata["namespace"], metadata["name"])] = obj
        if self._keep_raw:
            self.raw[field] = value
        self._observer.put(obj)

    def _has_seen(self, write: Write) -> bool:
        watermark = self._watermarks.get(f"{write.api_version}|{write.kind}")
        if watermark is None:
            return True  # nobody watches that kind, so no plan rests on it
        seen = self._seen.get(write.field)
        if write.deleted:
            return seen is None or seen.deleting or bool(write.uid and seen.uid != write.uid)
        return _at_least(watermark, write.rv) or (seen is not None and _at_least(seen.rv, write.rv))

    def _ask_relist(self, passes: PassStore, state: PassState) -> None:
        if self._asked == state.record.pass_id:
            return
        self._asked = state.record.pass_id
        _log.warning("the last pass left no account of its writes, a fresh list is asked for", last=self._asked)
        passes.ask_relist(self._shard)


def _at_least(version: str, wanted: str) -> bool:
    """Versions of one API server are numbers that grow; should one ever not be, only equality counts."""
    if version.isdecimal() and wanted.isdecimal():
        return int(version) >= int(wanted)
    return version == wanted
