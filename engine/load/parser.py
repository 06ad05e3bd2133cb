"""One file, from bytes to checked documents and diagnostics; the result depends on path and content alone."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson
import yaml
from pydantic import ValidationError

from belay.engine.documents import KINDS, BelayDocument, Declared, Manifest
from belay.engine.documents.kinds import API_VERSION
from belay.engine.documents.manifests import ACCEPTED, SECRET_HINT, accepted_kinds, check_manifest
from belay.engine.documents.problems import Path, Problem, Problems
from belay.engine.load import yaml12
from belay.engine.load.plain_names import names_read_otherwise
from belay.engine.load.pod_uses import PodUse, pod_uses
from belay.engine.load.validation_errors import problems_of
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey, Origin
from belay.engine.model.labels import SCHEDULE_POLICY

MAX_DIAGNOSTICS: Final = 100
"""Most diagnostics of one file; one more counts the rest."""


class PlacedUse(NamedTuple):
    """What a pod asks for, and its place."""

    use: PodUse
    line: int
    column: int
    field: str


class NamedPolicy(NamedTuple):
    """A ``huawei.com/schedule_policy`` and its place."""

    policy: str
    line: int
    column: int
    field: str


@lru_cache(maxsize=2)
def _composed(text: bytes) -> list[yaml.Node]:
    """The nodes of a file; cached, because several problems of one file are reported in turn."""
    return yaml12.compose(text)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One document of a file.

    ``key`` is ``None`` when the document has no readable name, ``value`` when it must not be used. ``index`` and
    ``path`` lead back to its node. ``text``, the whole file, is kept for Belay's own kinds only, because their
    references are checked later; ``policies`` are the schedule policies that a manifest names, ``uses``
    what its pods ask for. ``salvaged`` is a broken
    document of Belay's without its wrong fields, so that its references are checked all the same.
    """

    key: ObjectKey | None
    value: Declared[BelayDocument] | Manifest | None
    origin: Origin
    index: int
    path: Path = ()
    text: bytes = b""
    policies: tuple[NamedPolicy, ...] = ()
    salvaged: BelayDocument | None = None
    uses: tuple[PlacedUse, ...] = ()

    def report(self, problem: Problem) -> Diagnostic:
        """The diagnostic of a problem that was found after reading."""
        line, column, where = self.origin.line, self.origin.column, ""
        if self.text:
            node = _composed(self.text)[self.index]
            line, column, where = yaml12.locate(node, self.path + problem.path, problem.at_key)
        return Diagnostic(problem.severity, str(self.key), self.origin.file, line, column, where, problem.message,
                          problem.coded)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileResult:
    """The documents of a file; ``readable`` is False when it is not YAML, so that its documents are unknown."""

    entries: tuple[FileEntry, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    readable: bool = True
    names_budget: bool = False

    @property
    def good(self) -> bool:
        """Whether the file has no errors."""
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)


@dataclass(slots=True)
class _Reader:
    path: str
    data: bytes
    entries: list[FileEntry] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def report(self, subject: str, spot: tuple[int, int, str], problem: Problem) -> None:
        line, column, where = spot
        found = Diagnostic(problem.severity, subject, self.path, line, column, where, problem.message, problem.coded)
        self.diagnostics.append(found)

    def document(self, node: yaml.Node, index: int, aliases: bool) -> None:
        body, faults = yaml12.build(node, aliases)
        for fault in faults:
            self.report("", (fault.line, fault.column, ""), Problem((), fault.message, code=FindingCode.SYNTAX))
        if self.is_list(body):
            self.expand(node, index, body, bool(faults))
        else:
            self.item(node, index, (), body, bool(faults))

    @staticmethod
    def is_list(body: Any) -> bool:
        if not isinstance(body, dict) or not isinstance(body.get("items"), list):
            return False
        kind = body.get("kind")
        return isinstance(kind, str) and kind.endswith("List")

    def expand(self, node: yaml.Node, index: int, body: dict[str, Any], spoilt: bool) -> None:
        kind = body["kind"].removesuffix("List")
        for position, item in enumerate(body["items"]):
            if len(self.entries) >= yaml12.MAX_DOCUMENTS:
                raise yaml12.YAMLProblem(f"more than {yaml12.MAX_DOCUMENTS} documents in one file: split it", 1, 1)
            if kind and isinstance(item, dict) and "kind" not in item:
                item = {"apiVersion": body.get("apiVersion"), "kind": kind, **item}
            self.item(node, index, ("items", position), item, spoilt)

    def item(self, node: yaml.Node, index: int, path: Path, body: Any, spoilt: bool) -> None:
        line, column, _ = yaml12.locate(node, path)
        origin = Origin(self.path, line, column)
        key = _key(body)
        problems, value = _check(body, key, origin)
        problems = [*problems, *names_read_otherwise(node, path)]
        subject = str(key) if key else ""
        for problem in problems:
            self.report(subject, yaml12.locate(node, path + problem.path, problem.at_key), problem)
        broken = spoilt or any(problem.severity == "error" for problem in problems)
        policies = [
            NamedPolicy(policy, *yaml12.locate(node, path + where))
            for where, policy in (_policies(body) if isinstance(value, Manifest) else ())
        ]
        uses = [
            PlacedUse(use, *yaml12.locate(node, path + where))
            for where, use in (pod_uses(body) if isinstance(value, Manifest) else ())
        ]
        salvaged = (
            _without_wrong_fields(body)
            if broken and isinstance(body, dict) and body.get("apiVersion") == API_VERSION
            else None
        )
        text = self.data if isinstance(value, Declared) or salvaged else b""
        found = None if broken else value
        self.entries.append(FileEntry(key, found, origin, index, path, text, tuple(policies), salvaged, tuple(uses)))


def read_file(path: str, data: bytes) -> FileResult:
    """Parse and check one file; every problem becomes a diagnostic, none is raised."""
    if path.partition("~")[0].lower().endswith(".json"):
        data = yaml12.json_text(data)
    reader = _Reader(path, data)
    names_budget = b"SafetyBudget" in data or b"S\0a\0f\0e\0t\0y\0B" in data
    try:
        aliases = yaml12.may_alias(data)
        if data.startswith(b"\xef\xbb\xbf"):
            text = "the file begins with a byte order mark: save it as UTF-8 without BOM"
            reader.report("", (1, 1, ""), Problem((), text, "warning"))
        for index, node in enumerate(yaml12.compose(data)):
            reader.document(node, index, aliases)
    except yaml12.YAMLProblem as fault:
        found = Diagnostic("error", "", path, fault.line, fault.column, "", fault.message, FindingCode.SYNTAX)
        # an unreadable file counts as a budget by its name, since a lost budget has to stop disruption
        named = names_budget or "budget" in path.rpartition("/")[2].lower()
        return FileResult((), (found,), readable=False, names_budget=named)
    return FileResult(tuple(reader.entries), _bounded(reader.diagnostics), names_budget=names_budget)


def _bounded(found: list[Diagnostic]) -> tuple[Diagnostic, ...]:
    unique = list(dict.fromkeys(found))
    if len(unique) <= MAX_DIAGNOSTICS:
        return tuple(unique)
    errors_first = sorted(unique, key=lambda item: item.severity != "error")
    last = errors_first[MAX_DIAGNOSTICS - 1]
    rest = len(unique) - MAX_DIAGNOSTICS
    text = f"{rest} more problems are not shown"
    more = Diagnostic("error", "", last.file, last.line, last.column, "", text, FindingCode.MORE_FINDINGS)
    return (*errors_first[:MAX_DIAGNOSTICS], more)


def _key(body: Any) -> ObjectKey | None:
    """The key of a document; ``None`` when it has no readable kind or name."""
    if not isinstance(body, dict):
        return None
    version, kind, metadata = body.get("apiVersion"), body.get("kind"), body.get("metadata")
    if not isinstance(version, str) or not isinstance(kind, str) or not isinstance(metadata, dict):
        return None
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name or not isinstance(namespace, (str, type(None))):
        return None
    namespaced = ACCEPTED.get((version, kind), False)
    return ObjectKey(version, kind, (namespace or "default") if namespaced else "", name)


def _check(
    body: Any, key: ObjectKey | None, origin: Origin
) -> tuple[list[Problem], Declared[BelayDocument] | Manifest | None]:
    if not isinstance(body, dict):
        return [Problem((), "a document is a mapping with apiVersion, kind and metadata")], None
    missing = [field for field in ("apiVersion", "kind") if not isinstance(body.get(field), str) or not body[field]]
    if missing:
        return [Problem((field,), "required field is missing or not text") for field in missing], None
    version, kind = body["apiVersion"], body["kind"]
    if version == API_VERSION:
        return _check_belay(body, kind, origin)
    if (version, kind) not in ACCEPTED:
        return [_refusal(version, kind)], None
    problems: Problems = check_manifest(body)
    if key is None or any(problem.severity == "error" for problem in problems):
        return problems, None
    try:
        return problems, Manifest(key, body, origin, digest(body))
    except orjson.JSONEncodeError as failure:
        problems.error((), f"cannot be written as JSON: {failure}")
        return problems, None


def _check_belay(
    body: dict[str, Any], kind: str, origin: Origin
) -> tuple[list[Problem], Declared[BelayDocument] | None]:
    model = KINDS.get(kind)
    if model is None:
        text = f"unknown kind {kind!r:.80}: {_hint(kind)}known are {', '.join(sorted(KINDS))}"
        return [Problem(("kind",), text)], None
    if kind == "Source":
        text = "a Source is given to the controller, not read from the repository it describes"
        return [Problem(("kind",), text)], None
    try:
        return [], Declared(model.model_validate(body), origin)
    except ValidationError as failure:
        return problems_of(failure, model), None


def _without_wrong_fields(body: dict[str, Any]) -> BelayDocument | None:
    """Read a broken document of Belay's without the fields that are wrong; None when the rest is broken too."""
    model = KINDS.get(str(body.get("kind")))
    if model is None or model.KIND == "Source":
        return None
    left = {**orjson.loads(orjson.dumps(body)), "metadata": {"name": "remains"}}
    for depth in (None, 2, 2):  # first the wrong fields alone, then whole branches
        try:
            return model.model_validate(left)
        except ValidationError as failure:
            for problem in problems_of(failure, model):
                _remove_field(left, problem.path[:depth])
    return None


def _remove_field(holder: Any, path: Path) -> None:
    """Remove the field at a path; list items stay, so that the places of others do not move."""
    for part in path[:-1]:
        if isinstance(holder, dict):
            holder = holder.get(str(part))
        elif isinstance(holder, list) and isinstance(part, int) and part < len(holder):
            holder = holder[part]
    if isinstance(holder, dict) and path:
        holder.pop(str(path[-1]), None)


def _refusal(version: str, kind: str) -> Problem:
    if (version, kind) == ("v1", "Secret"):
        return Problem(("kind",), SECRET_HINT)
    others = [known for known, name in ACCEPTED if name == kind]
    if kind in KINDS:
        others.append(API_VERSION)
    if others:
        return Problem(("apiVersion",), f"{kind} is accepted as {' or '.join(others)}, not as {version!r:.80}")
    text = f"kind {kind!r:.80} is not accepted: {_hint(kind)}write {accepted_kinds()} or a kind of {API_VERSION}"
    return Problem(("kind",), text)


def _hint(kind: str) -> str:
    meant = similar_kind(kind)
    return f"did you mean {meant}? " if meant else ""


def similar_kind(kind: str) -> str:
    """The kind most similar to a mistyped one, in any case; empty if none is similar."""
    known = {name.lower(): name for name in (*(name for _, name in ACCEPTED), *KINDS)}
    near = difflib.get_close_matches(kind[:80].lower(), known, n=1, cutoff=0.85)
    return known[near[0]] if near else ""


def digest(body: dict[str, Any]) -> str:
    """SHA-256, in hex, of the canonical JSON (sorted keys, no blanks, UTF-8) of a body."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _policies(body: dict[str, Any]) -> tuple[tuple[Path, str], ...]:
    """Every ``huawei.com/schedule_policy`` of a manifest and of its pod templates."""
    found: list[tuple[Path, str]] = []
    places: list[tuple[Path, Any]] = [((), body)]
    spec = body.get("spec")
    if isinstance(spec, dict):
        places.append((("spec", "template"), spec.get("template")))
        for part in ("replicaSpecs", "tasks"):
            places += [
                (("spec", part, name, "template"), one.get("template"))
                for name, one in _pairs(spec.get(part))
                if isinstance(one, dict)
            ]
    for path, holder in places:
        metadata = holder.get("metadata") if isinstance(holder, dict) else None
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        policy = annotations.get(SCHEDULE_POLICY) if isinstance(annotations, dict) else None
        if isinstance(policy, str):
            found.append(((*path, "metadata", "annotations", SCHEDULE_POLICY), policy))
    return tuple(found)


def _pairs(several: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(several, dict):
        return several.items()
    return enumerate(several) if isinstance(several, list) else ()
