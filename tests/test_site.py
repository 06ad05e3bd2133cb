"""The documentation: its reference is what the code says, its links lead somewhere, its samples are valid."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from belay.engine.load import load
from tests import external_links, reference_pages
from tests.walking import blocks

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: Formats that are no prose: their brackets are no links.
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|^(?: {4,}|\t).*$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found = set()
    fenced = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6} +(.*)$", fenced, re.MULTILINE):
        words = re.sub(r"\]\([^)]*\)", "", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def broken(file: Path, known: dict[Path, set[str]]) -> Iterator[str]:
    """Links of a document that lead to no file, or to no heading of it."""
    for link in LINK.findall(CODE.sub("", file.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md":
            if target not in known:
                known[target] = anchors(target.read_text())
            if anchor not in known[target]:
                yield f"{link}: {target.name} has no such heading"


def test_links_and_anchors_lead_somewhere() -> None:
    known: dict[Path, set[str]] = {}
    found = [f"{file.relative_to(ROOT)}: {text}" for file in documents() for text in broken(file, known)]
    assert not found, "\n".join(found)


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One `two`\n\n[x](b.md) [y](#one-two) [z](#three)\n\n    [code](c.md)\n")
    assert list(broken(page, {})) == ["b.md: there is no such file", "#three: a.md has no such heading"]


def test_the_reference_is_what_the_code_says() -> None:
    made = reference_pages.pages()
    kept = {str(file.relative_to(reference_pages.FOLDER)): file for file in reference_pages.FOLDER.rglob("*.md")}
    assert set(kept) == set(made), "make reference"
    stale = [name for name, text in made.items() if kept[name].read_text() != text]
    assert not stale, "make reference"


def test_every_field_verb_flag_and_setting_is_described() -> None:
    rows = [
        f"{name}: {line}"
        for name, text in reference_pages.pages().items()
        for line in text.splitlines()
        if re.search(r"\|\s*\|\s*$", line) and not re.match(r"kinds/.*-", name)  # others' fields are theirs to describe
    ]
    assert not rows, "\n".join(rows)


def test_samples_of_belays_kinds_are_valid() -> None:
    count = 0
    # samples speak of these pools
    pools = {str(file.relative_to(ROOT)): file.read_bytes() for file in (ROOT / "desired" / "pools").glob("*.yaml")}
    for file in documents():
        if not file.is_relative_to(DOCS):
            continue
        for section in blocks(file).values():
            for block in section:
                if not re.match(r"apiVersion: belay\.dev/\S+\n", block) or "kind: Source\n" in block:
                    continue
                count += 1
                loaded = load({"desired/a.yaml": block.encode(), **({} if "kind: NodePool\n" in block else pools)})
                said = [str(one.message) for one in loaded.diagnostics if one.severity == "error"]
                assert not said, f"{file.name}: {said}\n{block}"
    assert count >= 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "see [a](https://kubernetes.io/x), <https://grafana.com/y>",
            ["https://kubernetes.io/x", "https://grafana.com/y"],
        ),
        ("`https://grafana.com/z`, https://git.example.org/x and http://127.0.0.1:8080/ and https://$HOST/x", []),
        ("(https://grafana.com/a.)", ["https://grafana.com/a"]),
    ],
)
def test_external_addresses_are_found_in_prose_only(text: str, found: list[str]) -> None:
    assert list(external_links.addresses(text)) == found


SECTIONS = ("Install", "Operate", "Migrate", "Train", "Secure", "Reference")


class SiteLoader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python functions that are of no interest here."""


SiteLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def homes(entry: object) -> Iterator[str]:
    """The pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    for part in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from homes(part)


def test_each_page_has_one_home_in_one_of_six_sections() -> None:
    site = yaml.load((DOCS / "site" / "mkdocs.yml").read_text(), SiteLoader)
    assert [next(iter(section)) for section in site["nav"]] == ["Belay", *SECTIONS]
    named = sorted(homes(site["nav"]))
    assert len(named) == len(set(named)), "a page has two homes"
    by_hand = [page for folder in ("", "guides", "tasks") for page in (DOCS / folder).glob("*.md")]
    assert named == sorted([*(str(page.relative_to(DOCS)) for page in by_hand), "reference/README.md"])


def test_the_landing_page_leads_to_the_six_sections() -> None:
    text = (DOCS / "README.md").read_text()
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == SECTIONS
    assert all(f"[{section}](#{section.lower()})" in text for section in SECTIONS)


def glossary(page: Path, heading: str) -> list[str]:
    """The words of a section's table, without their links."""
    section = page.read_text().partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    return [re.sub(r"\[(.*)\]\(.*\)", r"\1", row) for row in rows if row != "word"]


def test_the_glossary_has_at_most_forty_words_and_the_readme_ten_of_them() -> None:
    index = DOCS / "concepts" / "README.md"
    words = glossary(index, "# Concepts")
    assert len(words) == len(set(words)) <= 40
    pages = {page.name for page in index.parent.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"^\| \[[^]]*\]\(([^)]*)\)", index.read_text(), re.MULTILINE)), (
        "a page without its word"
    )
    few = glossary(ROOT / "README.md", "## Words")
    assert len(few) == 10 and set(few) <= set(words)
