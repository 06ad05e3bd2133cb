"""docs/guides: every page stands in the list with a test that is there, and figures are those that were measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guides"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def measured() -> dict[tuple[str, str], list[str]]:
    """Section and work of RESULTS.md → what was measured, of each row of these words."""
    found: dict[tuple[str, str], list[str]] = {}
    section = ""
    for line in (ROOT / "tests" / "bench" / "RESULTS.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and (bold := re.search(r"\*\*(.+?)\*\*", line)):
            found.setdefault((section, cells(line)[0]), []).append(bold[1].strip())
    return found


def figures(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, row and figure of each line of a table that names its rows."""
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells(line)
        elif "measured" in header and not line.startswith("|---"):
            row = dict(zip(header, cells(line), strict=True))
            yield row["section"], row["row"], row["measured"]


def test_sizes_are_those_that_were_measured() -> None:
    results = measured()
    listed = list(figures((GUIDES / "sizing.md").read_text()))
    assert len(listed) > 15
    for section, row, figure in listed:
        assert results.get((section, row)) == [figure], f"docs/guides/sizing.md: {section}: {row}: {figure}"


def test_a_figure_that_went_stale_is_found() -> None:
    text = "| x | measured | section | row |\n|---|---|---|---|\n| x | 1 ms | Planner | no such row |\n"
    ((section, row, _),) = figures(text)
    assert (section, row) not in measured()


def test_every_guide_stands_in_the_list_with_a_test_that_is_there() -> None:
    text = (GUIDES / "README.md").read_text()
    for page in sorted(GUIDES.glob("*.md")):
        assert page.name == "README.md" or f"({page.name}" in text, page.name
    rows = [cells(line) for line in text.splitlines() if line.startswith("| ")][1:]
    for _, _, test in rows:
        for name in re.findall(r"`([^`]+\.py)`", test):
            assert (ROOT / "tests" / name).is_file(), name
    assert "(docs/guides/README.md)" in (ROOT / "README.md").read_text(), "one click from the README"
