"""A worker's copy of a shard's snapshot, read by changed field; a pass waits until it holds our own writes."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from belay.engine import freed_memory
from belay.engine.log import get
from belay.engine.model.cluster import Observed
from belay.engine.model.labels import MANAGED_BY
from belay.engine.observe.observed import Observer, key_of
from belay.engine.store import ObjectWrite, PassState, PassStore, StoredSnapshots, field_of

_log = get("reconcile")
STUCK_SECONDS = 30.0
"""Seconds without having seen a finished pass' writes after which a fresh list is requested."""


class _Seen(NamedTuple):
    rv: str
    uid: str
    deleting: bool


class SnapshotReader:
    """The snapshot of one shard in one worker."""

    def __init__(self, shard: str, reader: StoredSnapshots, *, keep_raw: bool = False) -> None:
        self.generation = ""
        self.raw: dict[str, bytes] = {}
        self.own_changes: dict[tuple[str, str], dict[str, Any] | None] = {}
        """Belay's own ConfigMaps that changed since the caller last cleared this; None: deleted."""
        self.answered: set[str] = set()
        """UIDs of pods that the last finished pass wrote: their bindings were answered, and the snapshot has them."""
        self._shard = shard
        self._reader = reader
        self._keep_raw = keep_raw
        self._observer = Observer()
        self._seen: dict[str, _Seen] = {}
        self._watermarks: dict[str, str] = {}
        self._asked = ""

    def refresh(self, passes: PassStore, patience: float) -> str:
        """Read what changed. Returns what a pass waits for, empty when it may start.

        A pass starts only on a complete snapshot that holds every write of the previous pass. When a batch of that pass
        has been silent for ``patience`` seconds, its writes are unknown, and a fresh consistent list is requested.
        """
        if not self._read_changes():
            return "the snapshot is not complete yet"
        state = passes.state(self._shard)
        if state is None or (state.record.generation and state.record.generation != self.generation):
            return ""  # writes from before this generation are in its list
        unseen = next((write for write in state.writes if not self._has_seen(write)), None)
        if unseen is None and state.finished:
            self.answered = {write.uid for write in state.writes if write.kind == "Pod" and not write.deleted}
            return ""
        if passes.now() - state.beat > (STUCK_SECONDS if state.finished else patience):
            self._ask_relist(passes, state)
        if unseen is not None:
            return f"{unseen.kind} {unseen.namespace}/{unseen.name} is not seen at version {unseen.rv or 'deleted'} yet"
        return f"pass {state.record.pass_id} still has batches to run"

    def observed(self) -> Observed:
        """The snapshot for the planner."""
        return self._observer.observed(self._shard)

    def version(self, field: str) -> str:
        """The resourceVersion of an object in the snapshot; empty when there is none."""
        seen = self._seen.get(field)
        return seen.rv if seen else ""

    def seen_up_to(self, api_version: str, kind: str) -> str:
        """The resourceVersion up to which changes of a kind have been seen; empty when unknown."""
        return self._watermarks.get(f"{api_version}|{kind}", "")

    def _read_changes(self) -> bool:
        changes = self._reader.changes(self._shard)
        if changes.reset:
            self._observer, self._seen, self.raw = Observer(), {}, {}
        for field in list(changes.changed):
            try:
                self._receive(field, changes.changed.pop(field))
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # no controller wrote this
                self._reader.damaged[self._shard] = f"{field[:100]} is not an object: {type(error).__name__}"
                self._reader.forget(self._shard)
                return False
        self.generation, self._watermarks = changes.generation, changes.watermarks
        if changes.reset:
            freed_memory.give_back()
        return changes.synced

    def _receive(self, field: str, value: bytes | None) -> None:
        if value is None:
            self._seen.pop(field, None)
            self.raw.pop(field, None)
            name = field_of(field)
            if name.kind == "ConfigMap":
                self.own_changes[(name.namespace, name.name)] = None
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
            self.own_changes[(metadata["namespace"], metadata["name"])] = obj
        if self._keep_raw:
            self.raw[field] = value
        self._observer.put(obj)

    def _has_seen(self, write: ObjectWrite) -> bool:
        watermark = self._watermarks.get(f"{write.api_version}|{write.kind}")
        if watermark is None:
            return True  # the kind is not watched, so no plan rests on it
        seen = self._seen.get(write.field)
        if write.deleted:
            return seen is None or seen.deleting or bool(write.uid and seen.uid != write.uid)
        return _at_least(watermark, write.rv) or (seen is not None and _at_least(seen.rv, write.rv))

    def _ask_relist(self, passes: PassStore, state: PassState) -> None:
        if self._asked == state.record.pass_id:
            return
        self._asked = state.record.pass_id
        _log.warning("the last pass did not report its writes, a fresh list is requested", last=self._asked)
        passes.ask_relist(self._shard)


def _at_least(version: str, wanted: str) -> bool:
    """Whether a version is at least the wanted one; versions that are not numbers must be equal."""
    if version.isdecimal() and wanted.isdecimal():
        return int(version) >= int(wanted)
    return version == wanted
