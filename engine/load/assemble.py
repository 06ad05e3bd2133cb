"""Many files to one layer: identities, duplicates, last good versions, references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.documents import Declared, Manifest
from engine.documents.problems import Problem
from engine.load.cache import LoadCache
from engine.load.layers import Item, Layer, is_belay
from engine.load.parse import Entry, FileResult
from engine.load.references import Names, check_references, check_schedule_policy
from engine.model.diagnostics import Diagnostic, ObjectKey, Origin, Severity

MAX_VERSIONS: Final = 50
"""Older versions of one file that are looked at for a good one."""
#: Fields that name other documents whatever stands beside them.
_NAMING: Final = frozenset(("spec", name) for name in ("product", "pool", "scope", "levels", "frequency", "duration"))


@dataclass
class Assembly:
    """One tree of files on its way to a layer of usable documents.

    ``broken`` are documents that can be named but not used; ``fallbacks`` those of which an older version is in force;
    ``lost`` are files of which not even that much is known.
    """

    files: Mapping[str, bytes]
    previous: Mapping[str, Sequence[bytes]]
    cache: LoadCache
    diagnostics: list[Diagnostic] = field(default_factory=list)
    layer: Layer = field(default_factory=dict)
    broken: dict[ObjectKey, Origin] = field(default_factory=dict)
    fallbacks: dict[ObjectKey, str] = field(default_factory=dict)
    nameless: dict[str, FileResult] = field(default_factory=dict)
    lost: dict[str, FileResult] = field(default_factory=dict)
    remains: list[Entry] = field(default_factory=list)

    @property
    def budget_broken(self) -> bool:
        """Whether a SafetyBudget cannot be read and no good version of it is known."""
        unreadable = any(key.kind == "SafetyBudget" and is_belay(key) and key not in self.layer for key in self.broken)
        return unreadable or any(result.names_budget for result in self.lost.values())

    def take(self, path: str, result: FileResult) -> None:
        """Add a file: usable documents, broken ones, and whether some could not even be named."""
        self.diagnostics.extend(result.diagnostics)
        if not result.readable:
            self.nameless[path] = result
        for entry in result.entries:
            if entry.remains is not None:
                self.remains.append(entry)
            if entry.key is None:
                self.nameless[path] = result
            elif entry.key in self.layer:
                self._duplicate(entry, self.layer[entry.key].entry.origin, "the first one counts")
            else:
                self._add(entry, entry.key, path)

    def _add(self, entry: Entry, key: ObjectKey, path: str) -> None:
        """Take a document of which no good one is known yet."""
        if key in self.broken:
            self._duplicate(entry, self.broken[key], "the first one is broken")
        if entry.value is None:
            self.broken.setdefault(key, entry.origin)
        else:
            self.layer[key] = Item(entry, path)

    def _duplicate(self, entry: Entry, first: Origin, verdict: str) -> None:
        text = f"declared twice: at {first} and here; {verdict}"
        self._say("error", entry, entry.origin, text)

    def _say(self, severity: Severity, entry: Entry, origin: Origin, text: str) -> None:
        found = Diagnostic(severity, str(entry.key), origin.file, origin.line, origin.column, "", text)
        self.diagnostics.append(found)

    def refuse_manifests(self, folder: str) -> None:
        """Manifests below a folder of policies are refused: nobody looks for jobs there."""
        for key, item in list(self.layer.items()):
            if isinstance(item.entry.value, Manifest) and item.path.startswith(folder):
                del self.layer[key]
                self.broken[key] = item.entry.origin
                self._say("error", item.entry, item.entry.origin, "policies hold no manifests: move it below desired/")

    def recover(self) -> None:
        """Put the last good versions of broken documents in force."""
        for path, result in self.nameless.items():
            if not self._recover_file(path):
                self.lost[path] = result
        for key in sorted(self.broken):
            if key not in self.layer:
                self.recover_document(key)

    def _versions(self, path: str) -> Iterator[tuple[int, FileResult]]:
        """Older contents of a path, newest first, numbered from 1."""
        for number, data in enumerate(self.previous.get(path, ())[:MAX_VERSIONS], start=1):
            yield number, self.cache.read(f"{path}~{number}", data)

    def _recover_file(self, path: str) -> bool:
        """Some documents of the file are unknown: those of its newest good version that are missing stay in force."""
        for number, result in self._versions(path):
            if result.good:
                for entry in result.entries:
                    if entry.key is not None and entry.key not in self.layer:
                        self._restore(entry, path, number, self.broken.get(entry.key, Origin(path)))
                return True
        return False

    def recover_document(self, key: ObjectKey, names: Names | None = None) -> None:
        """Look for a good older version of one document, in its own file first, then in files that are gone.

        With ``names`` only a version counts that names nothing unknown.
        """
        origin = self.broken[key]
        gone = sorted(path for path in self.previous if path not in self.files)
        for path in [origin.file, *gone]:
            for number, result in self._versions(path):
                for entry in result.entries:
                    if entry.key == key and entry.value is not None and (names is None or _sound(entry, names)):
                        self._restore(entry, path, number, origin)
                        return

    def _restore(self, entry: Entry, path: str, number: int, origin: Origin) -> None:
        """Put one older version in force and say so where the broken one stands."""
        assert entry.key is not None
        self.layer[entry.key] = Item(entry, path)
        self.fallbacks[entry.key] = f"{path}~{number}"
        count = "1 version" if number == 1 else f"{number} versions"
        moved = "" if path == origin.file else f" of {path}"
        self._say("info", entry, origin, f"the last good version{moved} stays in force ({count} back)")

    def settle_references(self, names: Names) -> None:
        """Refuse documents that name what does not exist; sound last good versions take over."""
        for key in sorted(key for key in self.layer if is_belay(key)):
            item = self.layer[key]
            problems = _reference_problems(item.entry, names)
            self.diagnostics.extend(map(item.entry.report, problems))
            if any(problem.severity == "error" for problem in problems):
                del self.layer[key]
                self.fallbacks.pop(key, None)
                self.broken.setdefault(key, item.entry.origin)
                self.recover_document(key, names)
        for item in self.layer.values():
            if item.entry.policies:
                self.diagnostics.extend(_policy_warnings(item.entry, names))
        for entry in self.remains:
            found = check_references(entry.remains, names) if entry.remains is not None else ()
            # Other fields may be judged by a neighbour that is wrong and was cut.
            self.diagnostics.extend(entry.report(problem) for problem in found if problem.path[:2] in _NAMING)


def _policy_warnings(entry: Entry, names: Names) -> Iterator[Diagnostic]:
    for policy, line, column, where in entry.policies:
        if text := check_schedule_policy(policy, names):
            yield Diagnostic("warning", str(entry.key), entry.origin.file, line, column, where, text)


def _reference_problems(entry: Entry, names: Names) -> list[Problem]:
    return list(check_references(entry.value.document, names)) if isinstance(entry.value, Declared) else []


def _sound(entry: Entry, names: Names) -> bool:
    return all(problem.severity != "error" for problem in _reference_problems(entry, names))
