"""Documents of a state repository, each in its file: found by kind and by the names that people type.

A name that no document has is refused with the nearest that one has.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Final, ParamSpec, Self

from belay.engine.cli.acts import splices
from belay.engine.cli.acts.text_nodes import Path, UneditableText
from belay.engine.errors import InputError
from belay.engine.load import yaml12
from belay.engine.load.files import is_document
from belay.engine.model.labels import BELAY_PREFIX

Words = ParamSpec("Words")
_VOLCANO: Final = "batch.volcano.sh/"


@dataclass(frozen=True)
class PlacedDocument:
    """A document of the repository: its file, its number within the file (from 0), and its value."""

    file: str
    number: int
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind, such as ``AscendJob``."""
        return str(self.body.get("kind"))

    @property
    def name(self) -> str:
        """``NAMESPACE/NAME`` of a job, the name alone of a document of Belay's."""
        metadata = _mapping(self.body.get("metadata"))
        name = str(metadata.get("name"))
        return name if str(self.body.get("apiVersion")).startswith(BELAY_PREFIX) else f"{_namespace(metadata)}/{name}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec; empty where it is no mapping, as in a document that the engine refuses."""
        return _mapping(self.body.get("spec"))

    @property
    def names(self) -> tuple[str, ...]:
        """What a person may type for it."""
        return self.name, self.name.rpartition("/")[2], f"{self.kind}/{self.name}"

    @property
    def is_volcano(self) -> bool:
        """Whether this is a job of Volcano's, whose pods stand in tasks."""
        return str(self.body.get("apiVersion")).startswith(_VOLCANO)


@dataclass(frozen=True)
class FileText:
    """The text of a file of the repository; an edit of it that is refused names the file, line and column."""

    file: str
    text: str = ""

    @classmethod
    def of(cls, files: Mapping[str, bytes | None], file: str) -> FileText:
        """The file as it is; empty where there is none. Raises InputError where it is not UTF-8."""
        data = files.get(file)
        return cls(file, text_of(data, file) if data is not None else "")

    @property
    def data(self) -> bytes:
        """What is written."""
        return self.text.encode()

    def edited(self, splice: Callable[Concatenate[str, Words], str], *words: Words.args, **more: Words.kwargs) -> Self:
        """The file with a splice made (engine/cli/acts/splices.py). Raises InputError where it is refused."""
        try:
            return replace(self, text=splice(self.text, *words, **more))
        except UneditableText as error:
            raise InputError(error.message, where=f"{self.file}:{error.where}", hint=error.hint) from error


def documents(files: Mapping[str, bytes], kind: str = "") -> Iterator[PlacedDocument]:
    """The documents of a tree that can be read, of one kind or of all; those inside Lists are left out."""
    for path in sorted(files):
        if not is_document(path) or path.endswith(".json") or (kind and kind.encode() not in files[path]):
            continue
        try:
            bodies = splices.bodies(text_of(files[path], path))
        except (InputError, yaml12.YAMLProblem):
            continue  # a file that cannot be read declares nothing that an act could change
        for number, body in enumerate(bodies):
            if isinstance(body, dict) and (not kind or body.get("kind") == kind):
                yield PlacedDocument(path, number, body)


def one_named(
    name: str, fits: Callable[[PlacedDocument], bool], what: str, files: Mapping[str, bytes]
) -> tuple[PlacedDocument, str]:
    """The only document of this name, and how to name it to a later command: as short as names nothing else.

    Raises:
        InputError: no document that fits has the name, or several; or it stands where no act can change it.
    """
    known = [one for one in documents(files) if fits(one)]
    rows = [one for one in known if name in one.names]
    if not rows:
        _refuse_hidden(name, fits, files)
    if len(rows) != 1:
        raise none_or_many(what, name, rows, known)
    (found,) = rows
    shared = sum(found.name in one.names for one in known) > 1
    return found, f"{found.kind}/{found.name}" if shared else found.name


def none_or_many(what: str, name: str, rows: Sequence[PlacedDocument], known: Sequence[PlacedDocument]) -> InputError:
    """Why a name does not stand for one document: several have it, or none has; with the names that are meant."""
    if rows:
        several = ", ".join(f"{one.kind}/{one.name} ({one.file})" for one in rows[:5])
        return InputError(f"several documents have this name: {several}", where=name,
                          hint="Write NAMESPACE/NAME or KIND/NAMESPACE/NAME")  # fmt: skip
    names = [one.name for one in known]
    near = difflib.get_close_matches(name, [*names, *(one.rpartition("/")[2] for one in names)], 1)
    hint = f"Did you mean {near[0]}?" if near else "Name one that this repository declares"
    return InputError(f"the repository declares no {what} of this name", where=name, hint=hint)


def _refuse_hidden(name: str, fits: Callable[[PlacedDocument], bool], files: Mapping[str, bytes]) -> None:
    """Raises InputError where a file that no act can change names the document: it is said why, and at which line."""
    last = name.rpartition("/")[2]
    for path in sorted(files):
        if not is_document(path) or last.encode() not in files[path]:
            continue
        try:
            text = text_of(files[path], path)
            bodies = splices.bodies(text)
        except yaml12.YAMLProblem as problem:
            raise InputError(problem.message, where=f"{path}:{problem.line}:{problem.column}",
                             hint="Mend the file first: it may hold what you named") from problem  # fmt: skip
        for number, body in enumerate(bodies):
            for place, document in _documents_inside(path, number, body):
                named = name in document.names and fits(document)
                if named and (place or path.endswith(".json")):
                    line = splices.line_of(text, number, place)
                    reason = "JSON is not edited" if path.endswith(".json") else "it stands in a List"
                    raise InputError(f"{reason}: edit it by hand", where=f"{path}:{line}")


def _documents_inside(path: str, number: int, body: Any) -> Iterator[tuple[Path, PlacedDocument]]:
    """A document of a file, and those inside it where it is a List; each with where it stands in the document."""
    if not isinstance(body, dict):
        return
    yield (), PlacedDocument(path, number, body)
    items = body.get("items")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield ("items", index), PlacedDocument(path, number, item)


def text_of(data: bytes, file: str) -> str:
    """The text of a file. Raises InputError where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError("this file is not UTF-8", where=file, hint="Save it as UTF-8") from error


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _namespace(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("namespace") or "default")


def value_at(body: Any, path: Sequence[str | int], default: Any) -> Any:
    """The value at a path, or the default where the path ends early."""
    for part in path:
        inside = isinstance(body, Mapping) and part in body
        listed = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if not inside and not listed:
            return default
        body = body[part]
    return default if body is None else body
