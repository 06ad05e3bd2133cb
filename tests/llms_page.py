"""`docs/llms.txt`, by which a language model finds its way: written from the documentation's index (make reference).

Source: llmstxt.org, "The /llms.txt file": a title, a summary in a quotation, then lists of links with notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILE = DOCS / "llms.txt"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")
_FOLDERS = {"Tasks": "tasks", "Concepts": "concepts", "Kinds": "reference/kinds", "Reference": "reference",
            "Decisions": "decisions"}  # fmt: skip


def page() -> str:
    """The whole file."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    title, summary = index.splitlines()[0], index.split("\n\n")[1].replace("\n", " ")
    guides: dict[str, str] = {}
    for target, line in _of_index(index):
        guides.setdefault(target, line)
    parts = [title, f"> {summary}", "## Guides\n\n" + "\n".join([*guides.values(), *_others(set(guides))])]
    for section, folder in _FOLDERS.items():
        rows = [_row(file) for file in sorted((DOCS / folder).glob("*.md")) if file.name != "README.md"]
        parts.append(f"## {section}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _of_index(index: str) -> Iterator[tuple[str, str]]:
    """Rows of the tables "you want to": each page, and a line with what it is read for."""
    for line in index.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 2 or not _LINK.search(cells[1]):
            continue
        for title, target in _LINK.findall(cells[1]):
            if "/" not in target or target.startswith("guides/"):
                yield _html(target), f"- [{title}]({_html(target)}): to {cells[0]}"


def _others(named: set[str]) -> Iterator[str]:
    for file in sorted(DOCS.glob("*.md")):
        if file.name != "README.md" and _html(file.name) not in named:
            yield _row(file)


def _row(file: Path) -> str:
    """A page by its title."""
    title = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return f"- [{title}]({_html(str(file.relative_to(DOCS)))})"


def _html(page_name: str) -> str:
    """Where the site has a page."""
    return re.sub(r"(^|/)README\.md$", r"\1index.html", page_name).replace(".md", ".html")


def write() -> None:
    """Write the file."""
    FILE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
