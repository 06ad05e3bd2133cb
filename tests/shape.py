"""How dense the product's code is: ``make shape``, or ``python -m tests.shape [FOLDER …]``.

A reader pays for decisions, not for lines. So branches inside expressions count as those of statements: each ``if``,
loop, ``except``, ``assert`` and ``case``, each further part of an ``and`` or ``or``, each ``for`` and ``if`` of a
comprehension. Code that protoc makes is left out.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("engine", "engine/plan", "agents")
LONG: Final = 20
"""Lines of a body from which a reader needs paragraphs."""
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@dataclass
class Shape:
    """Counts of a folder."""

    lines: int = 0
    code_lines: int = 0
    """Lines that hold code; those of docstrings, comments and blank ones do not count."""
    tokens: int = 0
    comments: int = 0
    functions: int = 0
    function_lines: int = 0
    decisions: int = 0
    over_10: int = 0
    over_20: int = 0
    long_bodies: int = 0
    unbroken: int = 0
    """Long bodies without a blank line."""
    nested: int = 0
    """Comprehensions inside comprehensions."""
    names: int = 0
    letters: int = 0

    @property
    def row(self) -> tuple[str, ...]:
        """The figures that ``make shape`` prints."""
        return (
            f"{self.lines:,}",
            f"{self.tokens / max(1, self.code_lines):.1f}",
            f"{self.decisions / max(1, self.function_lines):.2f}",
            f"{100 * self.over_10 / max(1, self.functions):.1f} %",
            f"{self.over_20}",
            f"{100 * self.unbroken / max(1, self.long_bodies):.0f} %",
            f"{self.nested}",
            f"{self.letters / max(1, self.names):.1f}",
            f"{100 * self.comments / max(1, self.code_lines):.1f}",
        )


HEADINGS: Final = (
    "lines", "tokens a code line", "decisions a line", "functions > 10", "functions > 20", "long bodies unbroken",
    "nested comprehensions", "letters a local name", "comments per 100",
)  # fmt: skip


def decisions(function: ast.AST) -> int:
    """Decisions of a function, without those of functions inside it."""
    count = 0
    for node in _own(function):
        if isinstance(node, _BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def shape(folder: str) -> Shape:
    """The counts of all files below a folder of the repository."""
    counted = Shape()
    for file in sorted((ROOT / folder).rglob("*.py")):
        if "_pb2" not in file.name:
            _add(counted, file.read_text(encoding="utf-8"))
    return counted


def _add(counted: Shape, text: str) -> None:
    lines = text.splitlines()
    counted.lines += len(lines)
    _add_tokens(counted, text)

    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            _add_function(counted, node, lines)
        elif isinstance(node, _COMPREHENSIONS):
            counted.nested += _holds_another(node)


def _add_tokens(counted: Shape, text: str) -> None:
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.line.lstrip().startswith(('"""', 'r"""'))
        if token.type == tokenize.COMMENT:
            counted.comments += 1
        elif token.type not in _LAYOUT and not is_docstring:
            counted.tokens += 1
            code.add(token.start[0])
    counted.code_lines += len(code)


def _add_function(counted: Shape, function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> None:
    end = function.end_lineno or function.lineno
    found = decisions(function)
    counted.functions += 1
    counted.function_lines += end - function.lineno + 1
    counted.decisions += found
    # one more, for the way without any branch, as tools for cyclomatic complexity count
    counted.over_10 += found + 1 > 10
    counted.over_20 += found + 1 > 20

    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if body and end - body[0].lineno + 1 >= LONG:
        counted.long_bodies += 1
        counted.unbroken += all(line.strip() for line in lines[body[0].lineno - 1 : end])

    for node in _own(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counted.names += 1
            counted.letters += len(node.id)


def _own(function: ast.AST) -> Iterator[ast.AST]:
    left = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            left.extend(ast.iter_child_nodes(node))


def _holds_another(comprehension: ast.AST) -> bool:
    return any(isinstance(node, _COMPREHENSIONS) for node in ast.walk(comprehension) if node is not comprehension)


def main(folders: list[str]) -> None:
    """Print one line a folder."""
    rows = [("folder", *HEADINGS), *((folder, *shape(folder).row) for folder in folders)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(FOLDERS))
