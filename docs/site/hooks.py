"""Hooks of mkdocs: Reference is filled from its folders, and what pages link to outside docs/ comes along.

A link such as ``../deploy/README.md`` leads to a copy of that file in the site, so that it works offline. Search
leaves the copies out: they speak to people who change Belay.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
#: Where copies of files outside docs/ lie in the site.
REPOSITORY = "repository"
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
#: Sections below Reference that are filled from folders.
_FOLDERS = {"Kinds": "reference/kinds", "Concepts": "concepts", "Decisions": "decisions"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the section Reference from its folders."""
    (reference,) = (section["Reference"] for section in config.nav or [] if "Reference" in section)
    reference += _of("reference")
    for title, folder in _FOLDERS.items():
        index = [f"{folder}/README.md"] if (DOCS / folder / "README.md").is_file() else []
        reference.append({title: index + _of(folder)})
    return config


def _of(folder: str) -> list[str]:
    """The pages of a folder, by title; decisions by number."""
    files = [file for file in (DOCS / folder).glob("*.md") if file.name != "README.md"]
    titled = {file: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").casefold() for file in files}
    order = sorted(files) if folder == "decisions" else sorted(files, key=lambda file: titled[file])
    return [str(file.relative_to(DOCS)) for file in order]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what those link to in turn."""
    waiting = [(DOCS / file.src_uri, (DOCS / file.src_uri).read_text()) for file in files.documentation_pages()]
    added: set[Path] = set()
    while waiting:
        place, text = waiting.pop()
        for match in _LINK.finditer(text):
            target = _outside(place, match[2])
            if target is None or target in added:
                continue
            added.add(target)
            if target.suffix == ".md":
                raw = target.read_text(encoding="utf-8")
                files.append(File.generated(config, _uri(target), content=_turned(raw, target)))
                # pages of the site lead on; copies do not draw in the whole repository
                if place.is_relative_to(DOCS):
                    waiting.append((target, raw))
            else:
                files.append(File.generated(config, _uri(target), abs_src_path=str(target)))
    for file in files:
        if file.src_uri.startswith(f"{REPOSITORY}/"):
            file.inclusion = file.inclusion.__class__.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ towards the copies; links of a copy to what has none become text."""
    if page.file.src_uri.startswith(f"{REPOSITORY}/"):
        page.meta["search"] = {"exclude": True}
        here, known = page.file.src_uri, {file.src_uri for file in files}
        return _LINK.sub(lambda m: m[0] if _known(here, m[2], known) else f"]({_self(here)})", markdown)
    return _turned(markdown, DOCS / page.file.src_uri)


def _known(here: str, link: str, known: set[str]) -> bool:
    return "://" in link or posixpath.normpath(posixpath.join(posixpath.dirname(here), link)) in known


def _self(here: str) -> str:
    """What a link without a copy leads to: the page that has it."""
    return posixpath.basename(here)


def _turned(markdown: str, place: Path) -> str:
    """The text of a page with its links as the site has them."""
    own = str(place.relative_to(DOCS)) if place.is_relative_to(DOCS) else _uri(place)

    def turn(match: re.Match[str]) -> str:
        link = match[2]
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        target = (place.parent / link).resolve()
        if target.is_dir():
            target = target / "README.md"
        uri = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else _uri(target)
        return match[1] + posixpath.relpath(uri, posixpath.dirname(own) or ".") + match[3]

    return _LINK.sub(turn, markdown)


def _outside(place: Path, link: str) -> Path | None:
    """The file outside docs/ that a link of a page leads to; a folder by its README."""
    if "://" in link or link.startswith("mailto:"):
        return None
    target = (place.parent / link).resolve()
    if target.is_dir():
        target = target / "README.md"
    inside = target.is_relative_to(DOCS) or not target.is_relative_to(ROOT)
    return None if inside or not target.is_file() else target


def _uri(target: Path) -> str:
    return f"{REPOSITORY}/{target.relative_to(ROOT)}"
