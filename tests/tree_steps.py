"""A state repository step by step, without Git: each tree is loaded upon what ``belay-sync`` remembers of the last."""

from __future__ import annotations

from collections.abc import Mapping

from belay.engine.controller.retained import before_of, identities, refused_unread, remembered_after
from belay.engine.load import LoadCache, Loaded, load
from belay.engine.load.cache import content_id
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.store import RevisionRecord
from belay.engine.wire.sync import FileVersions, file_versions_data, parse_file_versions


class TreeSteps:
    """``data`` is what stands in ``belay-sync``: all that is left from one step to the next."""

    def __init__(self, shipped: Mapping[str, bytes] | None = None) -> None:
        self.data: dict[str, str] = {}
        self.contents: dict[str, bytes] = {}
        self.cache = LoadCache()
        self.shipped = shipped

    def push(self, files: Mapping[str, str | bytes], problems: Mapping[str, str] | None = None) -> Loaded:
        """Load a tree as a worker does; ``problems`` are files that the source refuses, and why."""
        raw = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        blobs = {path: content_id(data) for path, data in raw.items()}
        self.contents.update({blobs[path]: data for path, data in raw.items()})
        rows = [{"path": path, "reason": "FileTooLarge", "message": why} for path, why in (problems or {}).items()]
        record = RevisionRecord("r", blobs, {"problems": rows})
        loaded = self.look(raw, record, self.memory)
        after = remembered_after(self.memory, record, loaded)
        self.data = file_versions_data(after)
        again = self.look(raw, record, self.memory)
        assert again.desired == loaded.desired, "the same revision upon its own memory declares the same"
        assert remembered_after(self.memory, record, again) == self.memory
        return loaded

    @property
    def memory(self) -> FileVersions:
        """What is remembered, as a new process reads it."""
        return parse_file_versions({"data": self.data})

    def look(self, files: Mapping[str, bytes], record: RevisionRecord, memory: FileVersions) -> Loaded:
        """Load a tree upon a memory."""
        return load(
            files,
            shipped=self.shipped,
            before=before_of(memory, identities(record), self.contents),
            refused_files=[path for path, _ in refused_unread(record.meta)],
            blob_ids=record.files,
            cache=self.cache,
        )


def declared(loaded: Loaded) -> set[str]:
    """What is in force, of the repository's own: ``Kind/namespace/name`` of manifests and of Belay's documents."""
    desired = loaded.desired
    groups = (
        desired.pools, desired.layouts, desired.fault_policies, desired.isolations, desired.budgets,
        desired.scheduling, desired.links,
    )  # fmt: skip
    own = {
        str(ObjectKey("", document.document.KIND, "", document.document.name))
        for group in groups
        for document in group
        if not document.origin.file.startswith("shipped:")
    }
    return own | {str(manifest.key) for manifest in desired.manifests}
