"""Check that the project's text uses plain words: docstrings, comments, messages, names of tests and the documents.

``REMAINING`` counts the uses that are left in each part of the tree: lower a number after rewording, never raise it.
"""

import collections
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

WORDS = re.compile(
    r"\b(whoever|nobody|somebody|told|tells?|anew|goes\s+for|would\s+do|by\s+itself|comes\s+of|for\s+good|as\s+ever)\b",
    re.IGNORECASE,
)
"""Words that puzzle a reader: persons for components, ``tell`` for every verb, and idioms."""

FORMATTED, FIELD = re.compile(r"[rR]?[fF]"), re.compile(r"\{[^{}\n]*\}")
"""The start of a formatted string, and an expression in it without another in itself."""

CODE = re.compile(r"`[^`\n]*`")
"""A text that a document quotes letter for letter."""

QUOTED: tuple[str, ...] = ("``told``",)
"""Names of fields in formats, and texts of MindCluster and Kubernetes, that keep their words."""

EXEMPT = frozenset({"tests/test_language.py"})

PARTS = ("engine", "agents", "tests", "documents")

REMAINING = {"engine": 0, "agents": 0, "tests": 0, "documents": 0}
"""Uses left in each part."""


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments, strings and names of tests of a Python file, with their lines."""
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and re.search(r"\s", token.string):  # without blanks: a key, an id, a path
            yield token.start[0], _without_fields(token.string)
        elif token.type == tokenize.NAME:
            if previous == "def" and token.string.startswith("test_"):
                yield token.start[0], token.string.replace("_", " ")
            previous = token.string


def _without_fields(text: str) -> str:
    """Return a string's source without the expressions in it, which are code."""
    count = int(FORMATTED.match(text) is not None)
    while count:
        text, count = FIELD.subn("", text)
    return text


def _part(name: str) -> str | None:
    """Return the part of the tree that a tracked file belongs to, None if its text is not checked."""
    if name in EXEMPT:
        return None
    if name.endswith(".md"):
        return "documents"
    part = name.split("/", 1)[0]
    return part if name.endswith(".py") and part in PARTS else None


def _found(text: str) -> list[tuple[int, str]]:
    """Return the words in a text, each with its offset in lines; texts of ``QUOTED`` do not count."""
    for quoted in QUOTED:
        text = text.replace(quoted, "")
    return [(text.count("\n", 0, match.start()), match.group()) for match in WORDS.finditer(text)]


def _uses() -> dict[str, list[str]]:
    """Return the uses of each part, as ``file:line: word``."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    uses: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        part = _part(name)
        path = ROOT / name
        if part is None or not path.is_file():
            continue
        texts = [(1, CODE.sub("", path.read_text()))] if part == "documents" else _texts(path)
        uses[part] += [f"{name}:{line + offset}: {word}" for line, text in texts for offset, word in _found(text)]
    return uses


@pytest.fixture(scope="module")
def uses() -> dict[str, list[str]]:
    return _uses()


@pytest.mark.parametrize("part", PARTS)
def test_the_text_uses_plain_words(part: str, uses: dict[str, list[str]]) -> None:
    found = uses.get(part, [])
    assert len(found) <= REMAINING.get(part, 0), "\n".join(found)


def test_words_are_found_in_comments_strings_and_names_of_tests(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        '# told\nx = "nobody comes"\ny = f"{told} of", "nobody"\ndef test_a_pod_goes_for_a_node():\n    told = 1\n'
    )
    found = [(line, word) for line, text in _texts(path) for _, word in _found(text)]
    assert found == [(1, "told"), (2, "nobody"), (4, "goes for")]
