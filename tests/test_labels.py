"""Names of labels, annotations and resources stand once, in ``belay.engine.model.labels``."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from belay.engine.model import labels

ROOT = Path(__file__).resolve().parents[1]
NAMES = {name: value for name, value in vars(labels).items() if name.isupper() and isinstance(value, str)}
#: A name with its domain; versions of APIs look the same.
KEY = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z0-9._-]+")
API_VERSION = re.compile(r".*/v[0-9]+((alpha|beta)[0-9]+)?")
#: Names that are also words of other documents: fields, keys of data, values.
WORDS = frozenset(
    {"app", "distributed", "framework", "jobID", "minReplicas", "serverIndex", "serverType", "sharedTorIp"}
)
#: Training processes need nothing of the engine.
WITHOUT_THE_ENGINE = ("agents/training",)


def _texts(tree: ast.Module) -> Iterator[str]:
    """String constants of a module, but docstrings and pieces of f-strings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    pieces = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose | pieces:
            yield node.value


def _product() -> dict[str, list[str]]:
    """Texts of every module of the product but ``belay.engine.model.labels``, by path."""
    found = {}
    for path in sorted((*ROOT.glob("engine/**/*.py"), *ROOT.glob("agents/**/*.py"))):
        name = path.relative_to(ROOT).as_posix()
        if "_pb2" not in name and name != "engine/model/labels.py" and not name.startswith(WITHOUT_THE_ENGINE):
            found[name] = list(_texts(ast.parse(path.read_text())))
    return found


PRODUCT = _product()


def test_no_two_names_stand_for_one_word() -> None:
    assert [value for value, times in Counter(NAMES.values()).items() if times > 1] == []


def test_a_name_of_the_table_is_written_nowhere_else() -> None:
    known = set(NAMES.values()) - WORDS
    again = sorted((path, text) for path, texts in PRODUCT.items() for text in set(texts) & known)
    assert again == [], "import these from belay.engine.model.labels"


def test_a_name_that_two_places_use_is_in_the_table() -> None:
    used = Counter(text for texts in PRODUCT.values() for text in texts if KEY.fullmatch(text))
    twice = sorted(text for text, times in used.items() if times > 1 and not API_VERSION.fullmatch(text))
    assert twice == [], "give these a name in belay.engine.model.labels"


def test_words_with_other_meanings_are_names_of_the_table() -> None:
    assert set(NAMES.values()) >= WORDS
