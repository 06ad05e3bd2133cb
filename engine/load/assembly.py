"""From many files to one layer: identities, duplicates, last good versions, references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from belay.engine.documents import Declared, FaultTable, Manifest, NodePool, Product, SafetyBudget, VNPUTemplates
from belay.engine.documents.problems import Problem
from belay.engine.load.cache import LoadCache
from belay.engine.load.layers import Layer, LayerItem, is_belay
from belay.engine.load.parser import FileEntry, FileResult, similar_kind
from belay.engine.load.prior_state import FileVersion, PriorState, Retained
from belay.engine.load.references import KnownNames, check_references, check_schedule_policy
from belay.engine.load.workloads import check_use
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey, Origin, Severity

#: Kinds that other documents name.
_NAMED: Final = frozenset((NodePool.KIND, Product.KIND, VNPUTemplates.KIND, FaultTable.KIND))
#: Fields that name other documents, independent of other fields.
_NAMING: Final = frozenset(("spec", name) for name in ("product", "pool", "scope", "levels", "frequency", "duration"))


@dataclass
class Assembly:
    """Builds a layer of usable documents from one tree of files.

    ``broken``: documents that can be named but not used. ``fallbacks``: documents of which an older version is in
    force. ``refused``: files with at least one unusable document. ``lost``: refused files whose documents have no
    readable name and no known good version. For a key in ``duplicates``, the earlier version takes precedence over
    what the files hold.
    """

    files: Mapping[str, bytes]
    before: PriorState
    cache: LoadCache
    diagnostics: list[Diagnostic] = field(default_factory=list)
    layer: Layer = field(default_factory=dict)
    broken: dict[ObjectKey, Origin] = field(default_factory=dict)
    fallbacks: dict[ObjectKey, FileVersion] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    kept: tuple[Retained, ...] = ()
    unnamed: dict[str, FileResult] = field(default_factory=dict)
    lost: dict[str, FileResult] = field(default_factory=dict)
    salvaged: list[FileEntry] = field(default_factory=list)
    duplicates: set[ObjectKey] = field(default_factory=set)

    @property
    def incomplete(self) -> bool:
        """Whether a refused file may declare something that was declared before and is no longer known."""
        unknown = any(version.data is None for one in self.kept for version in one.versions)
        return unknown or (bool(self.refused) and not self.before.complete)

    @property
    def budget_broken(self) -> bool:
        """Whether a SafetyBudget cannot be read and has no known good version."""
        good = {version for key, version in self.fallbacks.items() if _is_maybe_budget(key)}
        covered = {path for one in self.kept if good.intersection(one.versions) for path in one.until}
        unreadable = any(
            _is_maybe_budget(key) and key not in self.layer and origin.file not in covered
            for key, origin in self.broken.items()
        )
        return unreadable or any(result.names_budget for path, result in self.lost.items() if path not in covered)

    def add_file(self, path: str, result: FileResult) -> None:
        """Add a file's documents: usable, broken and unnamed ones."""
        self.diagnostics.extend(result.diagnostics)
        if not result.good:
            self.refused.add(path)
        if not result.readable:
            self.unnamed[path] = result
        for entry in result.entries:
            if entry.salvaged is not None:
                self.salvaged.append(entry)
            if entry.key is None:
                self.unnamed[path] = result
            elif entry.key in self.layer:
                self._add_second(entry, entry.key, path)
            else:
                self._add(entry, entry.key, path)

    def _add(self, entry: FileEntry, key: ObjectKey, path: str) -> None:
        """Add a document whose key has no usable document yet."""
        if key in self.broken:
            self._duplicate(entry, path, self.broken[key], "the first one is broken")
        if entry.value is None:
            self.broken.setdefault(key, entry.origin)
        else:
            self.layer[key] = LayerItem(entry, path)

    def _add_second(self, entry: FileEntry, key: ObjectKey, path: str) -> None:
        """Add a second declaration of a key: the one that was there before counts, else the first."""
        first = self.layer[key]
        if entry.value is not None and self._change_rank(path) < self._change_rank(first.path):
            self.layer[key] = LayerItem(entry, path)
            self._duplicate(first.entry, first.path, entry.origin, "that one was there before and counts")
            return
        self._duplicate(entry, path, first.entry.origin, "the first one counts")
        if min(self._change_rank(path), self._change_rank(first.path)) > 0:
            self.duplicates.add(key)

    def _change_rank(self, path: str) -> int:
        """0: the file is unchanged and was good; 1: it is unchanged and was refused; 2: it has changed."""
        return 2 if path not in self.before.same else int(path in self.before.settled)

    def _duplicate(self, entry: FileEntry, path: str, first: Origin, verdict: str) -> None:
        text = f"declared twice: at {first} and here; {verdict}"
        self.refused.add(path)
        self._report("error", entry, entry.origin, text, FindingCode.DECLARED_TWICE)

    def _report(self, severity: Severity, entry: FileEntry, origin: Origin, text: str, code: str) -> None:
        found = Diagnostic(severity, str(entry.key), origin.file, origin.line, origin.column, "", text, code)
        self.diagnostics.append(found)

    def refuse_manifests(self, folder: str) -> None:
        """Refuse manifests below a folder of policies, where people would not look for jobs."""
        for key, item in list(self.layer.items()):
            if isinstance(item.entry.value, Manifest) and item.path.startswith(folder):
                del self.layer[key]
                self.broken[key] = item.entry.origin
                self.refused.add(item.path)
                text = "policies hold no manifests: move it below desired/"
                self._report("error", item.entry, item.entry.origin, text, FindingCode.MISPLACED)

    def recover(self) -> None:
        """Put back in force what refused files may declare; may be repeated when more files are refused."""
        fresh = frozenset(self.refused) - self.before.settled
        kept = [Retained(fresh, versions) for versions in self._changed() if fresh]
        kept += [Retained(until, one.versions) for one in self.before.kept if (until := self._until(one, fresh))]
        self.kept = _merged(Retained(one.until, self._restore_all(one)) for one in kept)
        for path, result in self.unnamed.items():
            if not any(self._read(version).good for version in self.before.versions_of(path)):
                self.lost[path] = result

    def _changed(self) -> Iterator[tuple[FileVersion, ...]]:
        """Versions in force of every file that changed or is gone, refused files first."""
        for path in sorted(self.before.in_force, key=lambda path: (path not in self.refused, path)):
            versions = self.before.in_force[path]
            whole = next((n for n, version in enumerate(versions, start=1) if self._read(version).good), len(versions))
            yield versions[:whole]

    def _until(self, kept: Retained, fresh: frozenset[str]) -> frozenset[str]:
        """Refused files that may still hold what ``kept`` retains; with newly refused ones if its files changed."""
        until = kept.until & self.refused
        return until | fresh if not until or kept.until - self.before.same else until

    def _restore_all(self, kept: Retained) -> tuple[FileVersion, ...]:
        """Restore documents that are declared nowhere now; return the versions that were needed."""
        return tuple(version for version in kept.versions if self._restore_version(version, kept.until))

    def _restore_version(self, version: FileVersion, until: frozenset[str]) -> bool:
        needed = version.data is None
        for entry in self._read(version).entries:
            if entry.key is None or entry.value is None:
                continue
            if isinstance(entry.value, Manifest) and version.path.startswith("policies/"):
                continue  # it was refused before as well
            source = self.fallbacks.get(entry.key)
            if source is None and (entry.key not in self.layer or entry.key in self.duplicates):
                self._restore(entry, version, until)
                needed = True
            elif source == version:
                needed = True
        return needed

    def _read(self, version: FileVersion) -> FileResult:
        if version.data is None:
            return FileResult(readable=False)
        return self.cache.read(str(version), version.data, version.blob or None)

    def _recover_document(self, key: ObjectKey, own: str, names: KnownNames) -> None:
        """Restore the newest version of a document without unknown names, from its ``own`` file first."""
        gone = sorted(path for path in self.before.in_force if path not in self.files)
        for path in [own, *gone]:
            for version in self.before.versions_of(path):
                for entry in self._read(version).entries:
                    if entry.key == key and entry.value is not None and _resolves(entry, names):
                        self._restore(entry, version, frozenset((path,)))
                        return

    def _restore(self, entry: FileEntry, version: FileVersion, until: frozenset[str]) -> None:
        """Put an older version in force and report it at the place of the broken one."""
        assert entry.key is not None
        self.layer[entry.key] = LayerItem(entry, version.path)
        self.fallbacks[entry.key] = version
        origin = self.broken.get(entry.key, Origin(version.path if version.path in until else min(until)))
        moved = "" if version.path == origin.file else f" of {version.path}"
        why = "" if version.path in until else f" while {min(until)} cannot be used, which may declare it"
        text = f"the last good version{moved} stays in force{version.distance}{why}"
        self._report("info", entry, origin, text, FindingCode.OLDER_VERSION)

    def refuse_unresolved(self, names: KnownNames) -> bool:
        """Refuse files whose documents name unknown documents; return whether any file was added."""
        count = len(self.refused)
        for key, item in self.layer.items():
            if not is_belay(key) or key in self.fallbacks:
                continue
            problems = _reference_problems(item.entry, names)
            if any(problem.severity == "error" for problem in problems):
                self.diagnostics.extend(map(item.entry.report, problems))
                self.refused.add(item.path)
                if item.path in self.before.same:  # valid until a document that it names changed: that waits, too
                    self.duplicates.update(key for key in self.layer if key.kind in _NAMED and is_belay(key))
        return len(self.refused) > count

    def settle_references(self, names: KnownNames) -> None:
        """Refuse documents that name unknown documents; valid last good versions take over."""
        for key in sorted(key for key in self.layer if is_belay(key)):
            item = self.layer[key]
            problems = _reference_problems(item.entry, names)
            self.diagnostics.extend(map(item.entry.report, problems))
            if any(problem.severity == "error" for problem in problems):
                del self.layer[key]
                self.fallbacks.pop(key, None)
                self.broken.setdefault(key, item.entry.origin)
                self._recover_document(key, item.path, names)
        for item in self.layer.values():
            if item.entry.policies:
                self.diagnostics.extend(_policy_warnings(item.entry, names))
            if item.entry.uses:
                self.diagnostics.extend(_use_warnings(item.entry, names))
        for entry in self.salvaged:
            found = check_references(entry.salvaged, names) if entry.salvaged is not None else ()
            # other findings may come from a wrong field that was removed
            self.diagnostics.extend(entry.report(problem) for problem in found if problem.path[:2] in _NAMING)


def _merged(several: Iterable[Retained]) -> tuple[Retained, ...]:
    """Join versions that are retained until the same files are good; drop entries without versions."""
    by_reason: dict[frozenset[str], dict[FileVersion, None]] = {}
    for one in several:
        if one.versions:
            by_reason.setdefault(one.until, {}).update(dict.fromkeys(one.versions))
    return tuple(Retained(until, tuple(versions)) for until, versions in by_reason.items())


def _is_maybe_budget(key: ObjectKey) -> bool:
    return is_belay(key) and SafetyBudget.KIND in (key.kind, similar_kind(key.kind))


def _policy_warnings(entry: FileEntry, names: KnownNames) -> Iterator[Diagnostic]:
    for policy, line, column, where in entry.policies:
        if text := check_schedule_policy(policy, names):
            code = FindingCode.UNKNOWN_NAME
            yield Diagnostic("warning", str(entry.key), entry.origin.file, line, column, where, text, code)


def _use_warnings(entry: FileEntry, names: KnownNames) -> Iterator[Diagnostic]:
    """Warnings of pods that cannot run as they are written, one of a kind for a document."""
    seen: set[str] = set()
    for use, line, column, where in entry.uses:
        for text in check_use(use, names):
            if text not in seen:
                seen.add(text)
                code = FindingCode.UNPLACEABLE_POD
                yield Diagnostic("warning", str(entry.key), entry.origin.file, line, column, where, text, code)


def _reference_problems(entry: FileEntry, names: KnownNames) -> list[Problem]:
    return list(check_references(entry.value.document, names)) if isinstance(entry.value, Declared) else []


def _resolves(entry: FileEntry, names: KnownNames) -> bool:
    return all(problem.severity != "error" for problem in _reference_problems(entry, names))
