"""The revision in force as a worker reads it: files become the desired state, parsed again only where they changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from belay.engine import tracing
from belay.engine.controller.retained import before_of, helpful, identities, needed, refused_unread, remembered_after
from belay.engine.documents import Manifest
from belay.engine.load import UNKNOWN, LoadCache, Loaded, PriorState, load
from belay.engine.load.cluster import belay_objects, copies_from_git, foreign_documents, places_of, with_places
from belay.engine.load.earlier_manifests import manifests_of_files, with_earlier
from belay.engine.log import get, redact
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.last_changes import LastChange
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.traces import of_commit
from belay.engine.model.wording import counted
from belay.engine.plan import declared_keys
from belay.engine.status import StatusCondition, SyncState
from belay.engine.store import RevisionRecord, StoredRevisions
from belay.engine.wire import lastchanges, sourceinfo
from belay.engine.wire.names import SYNC, SYSTEM, source_config_map
from belay.engine.wire.sync import FileVersions, file_versions_data, parse_file_versions

PATIENCE_SECONDS = 10.0
"""Seconds that a revision waits for older versions of its broken files before it comes into force without them."""
_SYNC_KEY = ObjectKey("v1", "ConfigMap", SYSTEM, SYNC)
_LONGEST_MESSAGE = 1024
_OTHER_URL = "this worker's BELAY_SOURCE_URL is not what the controller follows, which counts"
_WAITING = "no revision from the controller yet: nothing is planned until it has fetched one"
_LACKING = {
    True: "nothing is applied from Git, no repository is known: give the controller --source FILE or BELAY_SOURCE_URL",
    False: "nothing is applied from Git, no controller says which repository it follows: is an older one running?",
}
_log = get("reconcile")


class RevisionReader:
    """The desired state, as far as this worker knows.

    ``belay-source``, written by the controller, says whether there is a repository. The worker's own ``source_url``
    counts only where no controller has written it.
    """

    def __init__(
        self, shard: str, reader: StoredRevisions, *, source_url: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.before: PriorState = UNKNOWN
        """What was declared before the revision in force."""
        self.refused_files: tuple[str, ...] = ()
        """Files of the revision in force that the source refused unread."""
        self._files: Mapping[str, str] = {}
        self._shard = shard
        self._reader = reader
        self._source_url = source_url
        self._source_key = ObjectKey("v1", "ConfigMap", SYSTEM, source_config_map(shard))
        self._said: dict[str, str] = {}
        self._cache = LoadCache()
        self._read: tuple[object, ...] | None = None
        self._record: RevisionRecord | None = None
        self._loaded: Loaded | None = None
        self._in_force: Loaded | None = None
        self._remembered = FileVersions()
        self._earlier: tuple[FileVersions, ...] = ()
        self._copies: dict[str, bytes] = {}
        self._foreign: dict[str, bytes] = {}
        self._lacking: frozenset[str] = frozenset()
        self._waiting = ("", 0.0)
        self._clock = clock
        self.earlier: dict[str, bytes] = {}
        """Files as of before the deletion that waits, where they differ now."""
        self._earlier_read: tuple[dict[str, str], tuple[Manifest, ...]] = ({}, ())

    def load(self, observed: Observed) -> Loaded | None:
        """What is declared; None while nothing is known.

        A tree that is refused as a whole leaves the previous one in force. While Git has never answered, the copies of
        the policies in the cluster are in force, and nothing is applied or pruned.
        """
        record = self._reader.current(self._shard)
        if lacking := self._lacks_source(observed, record):
            self._log_once("source", lacking.message)
            self._follow_no_repository(RevisionRecord("", {}, {"conditions": [msgspec.to_builtins(lacking)]}), observed)
            return self._in_force
        if record is not None and record.sha:
            self._take(record, self._memory(observed), foreign_documents(belay_objects(observed)))
        elif record is not None and (self._in_force is None or not self._in_force.desired.has_git):
            self._apply_copies(record, observed)
        self._log_once("wait", "" if self._in_force is not None else _WAITING)
        return self._with_confirmations()

    @property
    def confirmed(self) -> tuple[str, ...]:
        """Digests of the deletions that commits confirm, as the controller read them."""
        digests = self._record.meta.get("confirmed") if self._record is not None else None
        return tuple(str(one) for one in digests) if isinstance(digests, list) else ()

    def _with_confirmations(self) -> Loaded | None:
        """The state in force with the confirmations of deletions; the same object while nothing changes."""
        found, confirmed = self._in_force, self.confirmed
        if found is None:
            return None
        desired = with_earlier(found.desired, self._manifests_earlier())
        if desired.confirmed != confirmed:
            desired = replace(desired, confirmed=confirmed)
        if desired is not found.desired:
            self._in_force = found = replace(found, desired=desired)
        return found

    def _manifests_earlier(self) -> tuple[Manifest, ...]:
        """What was declared before the deletion that waits, as far as Redis has it yet."""
        blobs = self._record.meta.get("earlier") if self._record is not None else None
        wanted = {str(path): str(blob) for path, blob in blobs.items()} if isinstance(blobs, dict) else {}
        if self._earlier_read[0] != wanted:
            contents = self._reader.blobs(wanted.values()) if wanted else {}
            self.earlier = {path: contents[blob] for path, blob in wanted.items() if blob in contents}
            known = wanted if len(self.earlier) == len(wanted) else {}
            self._earlier_read = (known, manifests_of_files(self.earlier))
        return self._earlier_read[1]

    @property
    def has_git(self) -> bool:
        """Whether the state in force came from a repository."""
        return self._in_force is not None and self._in_force.desired.has_git

    @property
    def last_changes(self) -> Mapping[str, LastChange]:
        """Who last changed the files in force, for a recording."""
        return self._in_force.desired.last_changes if self._in_force is not None else {}

    def contents(self) -> dict[str, bytes]:
        """Every file in force by path, for a recording; read again each time rather than kept in memory."""
        if not self.has_git:
            return dict(self._copies)
        blobs = self._reader.blobs(self._files.values())
        return {path: blobs[blob] for path, blob in self._files.items() if blob in blobs}

    def state(self, observed: Observed, cache: PlanCache) -> SyncState:
        """What ``belay-sync`` says about the repository after this pass."""
        if self._record is None or self._loaded is None or self._in_force is None:
            return SyncState(inventory=observed.inventory)
        meta, desired = self._record.meta, self._in_force.desired
        conditions = msgspec.convert(meta.get("conditions") or [], list[StatusCondition])
        findings = (*self._loaded.diagnostics, *_refusals(meta))
        applied = desired.revision if desired.has_git else observed.applied_revision
        declared = declared_keys(desired, observed, cache) if desired.has_git else ()
        return SyncState(
            attempted=str(meta.get("attempted") or self._record.sha),
            applied=applied,
            conditions=_conditions(conditions, findings),
            diagnostics=findings,
            inventory=_inventory(declared, observed) if desired.has_git else observed.inventory,
            declared=declared,
            in_force=_in_force(self._loaded, findings, applied if desired.has_git else ""),
            remembered=self._remembered,
            places=places_of(desired, observed.places),
        )

    def _lacks_source(self, observed: Observed, record: RevisionRecord | None) -> StatusCondition | None:
        """The condition that says why there is no repository; None when one is followed."""
        published = sourceinfo.parse(observed.objects.get(self._source_key) or {})
        if published is not None and published.url:
            other = self._source_url and redact(self._source_url) != published.url
            self._log_once("source", _OTHER_URL if other else "")
            return None
        if published is None and (self._source_url or record is not None):
            return None
        own = " (BELAY_SOURCE_URL of a worker alone has no effect)" if self._source_url else ""
        return StatusCondition(
            "Ready", "False", "NoSource" if published else "SourceUnknown", _LACKING[published is not None] + own
        )

    def _log_once(self, topic: str, text: str) -> None:
        """Log what keeps Git's state from being applied, once per change of the topic's text."""
        if self._said.get(topic, "") != text:
            self._said[topic] = text
            if text:
                _log.warning(text, shard=self._shard)

    def _follow_no_repository(self, record: RevisionRecord, observed: Observed) -> None:
        """Take no repository. If one was applied before, the copies of its policies in the cluster stay in force."""
        self._read = None
        if observed.inventory:
            self._apply_copies(record, observed)
            return
        if self._in_force is None or self._in_force.desired.has_git or self._copies:
            self._copies, self._in_force = {}, load({}, has_git=False)
            self.before, self.refused_files = UNKNOWN, ()
        self._record, self._loaded = record, self._in_force
        self._remembered, self._earlier = _remembered(observed), ()

    def _apply_copies(self, record: RevisionRecord, observed: Observed) -> None:
        objects = belay_objects(observed)
        known, others = copies_from_git(objects), foreign_documents(objects)
        if self._in_force is None or self._in_force.desired.has_git or (known, others) != (self._copies, self._foreign):
            self._loaded = self._in_force = load(known, has_git=False, foreign=others)
            self._copies, self._foreign, self.before, self.refused_files = known, others, UNKNOWN, ()
        placed = with_places(self._in_force.desired, objects)
        if placed != self._in_force.desired:
            self._loaded = self._in_force = replace(self._in_force, desired=placed)
        self._record, self._remembered, self._earlier = record, _remembered(observed), ()

    def _memory(self, observed: Observed) -> FileVersions:
        """What is remembered of files: ``belay-sync``, unless this worker's own memory continues it."""
        published = _remembered(observed)
        return self._remembered if published in self._earlier else published

    def _take(self, record: RevisionRecord, remembered: FileVersions, others: Mapping[str, bytes]) -> None:
        now = identities(record)
        if (record.sha, now, remembered, others) == self._read and not self._reader.blobs(self._lacking):
            self._record = record
            return
        fresh = {blob for path, blob in record.files.items() if self._cache.get(path, blob) is None}
        versions = needed(remembered, now) | helpful(remembered, now)
        contents = self._reader.blobs(fresh | versions)
        if not fresh <= contents.keys():
            return  # Redis lost some: until the controller writes them again, the last revision stays in force
        if self._waits_for(record.sha, versions - contents.keys()):
            return
        before, began = before_of(remembered, now, contents), time.time()
        unread = tuple(sorted(path for path, _ in refused_unread(record.meta)))
        loaded = load(
            _Files(record.files, contents),
            before=before,
            refused_files=unread,
            revision=record.sha,
            blob_ids=record.files,
            cache=self._cache,
            foreign=others,
        )
        loaded = replace(loaded, desired=replace(loaded.desired, last_changes=self._last_changes(record, loaded)))
        said: tracing.Attributes = {
            "belay.files.read": len(fresh),
            "belay.diagnostics": len(loaded.diagnostics),
            "belay.shard": self._shard,
        }
        tracing.record("read", of_commit(record.sha), began, time.time(), said)
        self._record, self._loaded = record, loaded
        if loaded.refused and self._in_force is not None:
            self._read = (record.sha, now, remembered, others)
            return
        self._files, self.before, self.refused_files, self._in_force = record.files, before, unread, loaded
        after = remembered_after(remembered, record, loaded)
        self._earlier = (remembered, parse_file_versions({"data": file_versions_data(after)}))
        self._remembered = after
        self._read = (record.sha, now, after, others)

    def _last_changes(self, record: RevisionRecord, loaded: Loaded) -> dict[str, LastChange]:
        """Who last changed each file in force; not of files that count in an older version."""
        name = str(record.meta.get(lastchanges.META) or "")
        table = self._reader.blobs({name}).get(name, b"") if name else b""
        return {path: one for path, one in lastchanges.decode(table).items() if path not in loaded.refused_files}

    def _waits_for(self, sha: str, lacking: frozenset[str]) -> bool:
        """Whether to wait until the controller has found older versions in Git, without which broken files would be
        lost.
        """
        self._lacking = lacking
        if not lacking:
            self._waiting = ("", 0.0)
            return False
        if self._waiting[0] != sha:
            self._waiting = (sha, self._clock())
        return self._clock() - self._waiting[1] < PATIENCE_SECONDS


def _inventory(declared: Sequence[ObjectKey], observed: Observed) -> tuple[ObjectKey, ...]:
    """What Git applies now, and what it applied before and still exists: its deletion was refused or waits."""
    survivors = {key for key in observed.inventory or () if key in observed.objects}
    return tuple(sorted(survivors.union(declared)))


def _remembered(observed: Observed) -> FileVersions:
    return parse_file_versions(observed.objects.get(_SYNC_KEY) or {})


def _refusals(meta: Mapping[str, Any]) -> list[Diagnostic]:
    return [
        Diagnostic(
            "error", "", str(problem.get("path") or ""), 0, 0, "", str(problem.get("message") or ""),
            str(problem.get("reason") or ""),
        )
        for problem in meta.get("problems") or []
        if isinstance(problem, dict)
    ]  # fmt: skip


def _conditions(conditions: Sequence[StatusCondition], findings: Sequence[Diagnostic]) -> tuple[StatusCondition, ...]:
    """The conditions of source and documents. Ready comes last; a document with an error makes it False."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return tuple(conditions)
    first, count = errors[0], f"{len(errors)} error{'s' if len(errors) > 1 else ''}"
    place = f"{first.file}:{first.line}:{first.column} " if first.line else f"{first.file} " if first.file else ""
    text = f"{count}, first {place}{first.message}"
    refused = StatusCondition("DocumentsRefused", "True", "BadDocuments", text[:_LONGEST_MESSAGE])
    return (*conditions[:-1], refused, *(_not_ready(one, text) for one in conditions[-1:]))


def _in_force(loaded: Loaded, findings: Sequence[Diagnostic], applied: str) -> StatusCondition | None:
    """``Applied`` as far as reading goes: which documents of a revision count. The cluster has the last word on it."""
    sha = _short(applied)
    if not any(finding.severity == "error" for finding in findings):
        return StatusCondition("Applied", "True", "Everything", f"all of {sha} is in force") if applied else None
    if loaded.refused or not applied:
        return None
    rest = (
        f"{sha} is in force but for what cannot be used in {len(loaded.refused_files)} of its files; "
        f"what these declared before stays ({counted(len(loaded.fallbacks), 'document')} in an older version)"
    )
    return StatusCondition("Applied", "True", "ExceptRefused", rest)


def _not_ready(ready: StatusCondition, text: str) -> StatusCondition:
    """Ready as False while a document is refused, unless the source already gives another reason."""
    if ready.type != "Ready" or ready.status != "True":
        return ready
    return StatusCondition("Ready", "False", "Findings", text[:_LONGEST_MESSAGE])


def _short(revision: str) -> str:
    return revision[:21] if revision.startswith("worktree-") else revision[:12]


class _Files(Mapping[str, bytes]):
    """A revision's files, with the contents only of those that have to be parsed."""

    def __init__(self, files: Mapping[str, str], contents: Mapping[str, bytes]) -> None:
        self._files = files
        self._contents = contents

    def __getitem__(self, path: str) -> bytes:
        return self._contents[self._files[path]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: object) -> bool:
        return path in self._files
