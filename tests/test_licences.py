"""Every dependency of both locks was reviewed, and its licence is one that users may pass on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.licences import LOCKS, ROOT, TABLE, accepts, findings

OPEN = frozenset({"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"})


def test_every_dependency_has_a_reviewed_licence() -> None:
    assert findings() == []


def copy(folder: Path) -> Path:
    for name in (*LOCKS, TABLE):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        (LOCKS[0], "aiohttp==", "leftpad==1.0 \\\n    --hash=sha256:00\naiohttp==", "leftpad has no row"),
        (LOCKS[0], "aiohttp==", "leftpad==1.0\naiohttp==", "leftpad has no hash"),
        (LOCKS[0], "aiohttp==3", "aiohttp==0", "is installed, the locks have 0"),
        (TABLE, 'aiohttp = "Apache-2.0 AND MIT"\n', "", "aiohttp has no row"),
        (TABLE, 'aiohttp = "Apache-2.0 AND MIT"', 'aiohttp = "GPL-3.0-only"', "GPL-3.0-only is not accepted"),
        (TABLE, 'aiohttp = "Apache-2.0 AND MIT"', 'aiohttp = "MIT"', "the package says Apache-2.0 AND MIT"),
        (TABLE, 'pyyaml = "MIT"', 'pyyaml = "ISC"', "pyyaml: the package says MIT"),
        (TABLE, "[packages]", '[packages]\nleftpad = "MIT"', "leftpad is in no lock"),
        (TABLE, 'pyyaml = "MIT"', 'pyyaml = "MIT OR"', "pyyaml: an operand is missing"),
    ],
)
def test_what_was_not_reviewed_is_named(file: str, before: str, after: str, said: str, tmp_path: Path) -> None:
    root = copy(tmp_path)
    text = (root / file).read_text()
    assert before in text
    (root / file).write_text(text.replace(before, after, 1))
    assert any(said in line for line in findings(root)), findings(root)


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT", True),
        ("GPL-2.0-only", False),
        ("MIT OR GPL-2.0-only", True),
        ("MIT AND GPL-2.0-only", False),
        ("MIT AND (Apache-2.0 OR GPL-2.0-only)", True),
        ("(MIT OR Apache-2.0) AND GPL-2.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH LLVM-exception", False),
    ],
)
def test_expressions_are_read_as_spdx_means_them(expression: str, accepted: bool) -> None:
    assert accepts(expression, OPEN) is accepted


@pytest.mark.parametrize("text", ["", "MIT MIT", "MIT OR", "(MIT", "MIT)", "the MIT licence"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"SPDX|operand|bracket"):
        accepts(text, OPEN)
