"""What a harness is: one parser, its documented errors, and the limits that any input must stay within."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

CORPUS: Final = Path(__file__).parent / "corpus"


class Form(StrEnum):
    """How inputs are mutated, beside their bytes."""

    JSON = "json"
    """Values of a JSON document, and of JSON texts inside it."""
    TEXT = "text"
    """Lines and words."""
    BYTES = "bytes"
    """Bytes, and whole numbers of 1, 2, 4 and 8 bytes."""


@dataclass(frozen=True)
class Harness:
    """One parser under test.

    ``feed`` gives the parser one input; ``allowed`` are the errors that its documentation names. ``covers`` are the
    modules of ``engine`` and ``agents`` whose parsing it reaches; a test checks that its seeds do. ``seeds`` adds made
    inputs to the files in ``corpus/<name>/``. An input may cost ``steps`` lines of Python
    plus ``steps_per_byte`` of its length, and ``log_lines`` lines in the log; ``words`` are inserted into texts.
    """

    name: str
    feed: Callable[[bytes], object]
    covers: tuple[str, ...]
    allowed: tuple[type[BaseException], ...] = ()
    form: Form = Form.JSON
    seeds: Callable[[], Sequence[bytes]] = tuple
    words: tuple[bytes, ...] = ()
    steps: int = 400_000
    steps_per_byte: int = 600
    large: Callable[[], Sequence[bytes]] = tuple
    """More seeds, for `make fuzz` only: each takes a second or more while its steps are counted."""
    log_lines: int = 20
    prepare: Callable[[], object] = tuple
    """Starts what the parser needs, once, before anything is counted."""
    tries: float = 1.0
    """Share of the usual number of tries in CI; below 1 where one input takes long."""

    def corpus(self, large: bool) -> list[bytes]:
        """Every seed: the kept files in the order of their names, then the made ones."""
        folder = CORPUS / self.name
        kept = [file.read_bytes() for file in sorted(folder.iterdir())] if folder.is_dir() else []
        return [*kept, *self.seeds(), *(self.large() if large else ())]


def objects(parse: Callable[[Any], object]) -> Callable[[bytes], object]:
    """A feed for parsers of Kubernetes objects: what an API server could not store never reaches them."""

    def feed(data: bytes) -> object:
        try:
            value = orjson.loads(data)
        except ValueError:
            return None
        metadata = value.get("metadata") if isinstance(value, dict) else None
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            return None
        if not isinstance(metadata.get("namespace", ""), str):
            return None
        return parse(value)

    return feed


def text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """A feed for parsers of text; bytes that are not UTF-8 become surrogates, as in names of files and arguments."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="belay-fuzz-"))


def scratch(data: bytes, name: str = "input") -> Path:
    """A file with this content, for parsers that open their input themselves."""
    path = _folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


__all__ = ["CORPUS", "Form", "Harness", "objects", "scratch", "text"]
