"""Which version this is: from the tag in Git, from what the build wrote beside this file, or from the changelog.

A release is a signed tag ``vMAJOR.MINOR.PATCH``, maybe with ``-rc.1``. Between releases a version is the next one's
development version, with the commit: ``0.2.0.dev5+g1a2b3c4d5e6f``, and ``.dirty`` where files were changed (PEP 440).
The builds of both packages load this file by its path, so it imports nothing of Belay.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
BUILT: Final = "build.json"
"""What a build writes beside this file: version, commit and the commit's time."""
GIVEN: Final = "BELAY_BUILD_VERSION"
"""Environment of a build without Git, such as an image from a copy of the files: the version to write."""
UNKNOWN: Final = "0.0.0.dev0"
_TAG = re.compile(r"v(\d+\.\d+\.\d+)(?:-?(a|b|rc)\.?(\d+))?")
_DESCRIBED = re.compile(rf"({_TAG.pattern})(?:-(\d+)-g([0-9a-f]{{7,40}}))?(-dirty)?")
_HASH = re.compile(r"([0-9a-f]{7,40})(-dirty)?")
_HEADING = re.compile(r"^## (\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?) \((.+)\)$", re.MULTILINE)
_VERSION = re.compile(r"\d+(\.\d+)+((a|b|rc)\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")


class Build(NamedTuple):
    """A version (PEP 440), the commit and its time in seconds since 1970; empty and 0 if they are unknown."""

    version: str
    commit: str = ""
    time: int = 0


class Entry(NamedTuple):
    """A version in the changelog, and its date or ``unreleased``."""

    version: str
    date: str


@cache
def build() -> Build:
    """What runs: as the build wrote it, else as the tree of sources says. Never raises."""
    try:
        body = json.loads(Path(__file__).with_name(BUILT).read_bytes())
        return Build(str(body["version"]), str(body["commit"]), int(body["time"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return of_tree(ROOT)


def version() -> str:
    """Belay's version, such as ``0.2.0``."""
    return build().version


def for_build() -> str:
    """The version that a build writes: ``BELAY_BUILD_VERSION`` where it is set, else the tree's.

    Raises:
        ValueError: what is set is not a version.
    """
    given = os.environ.get(GIVEN, "").strip().removeprefix("v")
    if given and not _VERSION.fullmatch(given):
        raise ValueError(f"{GIVEN}={given!r} is not a version: write 0.2.0, 0.2.0rc1 or 0.2.0.dev5+g1a2b3c4d5e6f")
    return given or of_tree(ROOT).version


def of_tree(root: Path) -> Build:
    """The version of a tree of sources: by Git, by what ``git archive`` wrote into it, or by its changelog alone."""
    entries = changelog(root)
    if (root / ".git").exists():
        described = _git(root, "describe", "--tags", "--match", "v[0-9]*", "--always", "--dirty", "--abbrev=12")
        commit, _, when = _git(root, "show", "-s", "--format=%H %ct", "HEAD").partition(" ")
        if described:
            return Build(from_description(described, entries, commit), commit, int(when) if when.isdigit() else 0)
    archived = _archived(root)
    commit = archived.get("commit", "")
    if re.fullmatch(r"[0-9a-f]{40}", commit):
        when = archived.get("time", "")
        described = archived.get("describe") or commit[:12]
        return Build(from_description(described, entries, commit), commit, int(when) if when.isdigit() else 0)
    return Build(f"{_next('', entries)}.dev0" if entries else UNKNOWN)


def from_description(described: str, entries: list[Entry], commit: str = "") -> str:
    """The version that ``git describe`` stands for.

    Args:
        described: ``v0.2.0``, ``v0.2.0-5-g1a2b3c4d5e6f``, or a bare hash where no tag is known; maybe ``-dirty``.
        entries: the changelog, newest first.
        commit: the commit, where ``described`` does not name it.
    """
    if found := _HASH.fullmatch(described):
        return f"{_next('', entries)}.dev0+g{found[1][:12]}{'.dirty' if found[2] else ''}"
    found = _DESCRIBED.fullmatch(described)
    if not found:
        return f"{_next('', entries)}.dev0"
    tagged = of_tag(found[1])
    if not found[5] and not found[7]:
        return tagged
    local = f"+g{(commit or found[6])[:12]}" if commit or found[6] else "+"
    dirty = f"{'.' if len(local) > 1 else ''}dirty" if found[7] else ""
    return f"{_next(tagged, entries)}.dev{found[5] or 0}{local}{dirty}"


def of_tag(tag: str) -> str:
    """The version of a tag: ``v0.2.0-rc.1`` is ``0.2.0rc1``.

    Raises:
        ValueError: not the tag of a release.
    """
    found = _TAG.fullmatch(tag)
    if not found:
        raise ValueError(f"{tag!r} is not a tag of a release: write v0.2.0 or v0.2.0-rc.1")
    return found[1] + (f"{found[2]}{found[3]}" if found[2] else "")


def changelog(root: Path) -> list[Entry]:
    """The versions of a tree's changelog, newest first; none where it has no changelog."""
    try:
        text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [Entry(found[1], found[2]) for found in _HEADING.finditer(text)]


def _next(tagged: str, entries: list[Entry]) -> str:
    """The version that is being made: the changelog's newest if it is newer than the tag, else the tag's next patch."""
    newest = entries[0].version if entries else ""
    if newest and (not tagged or order(newest) > order(tagged)):
        return re.split(r"a|b|rc", newest)[0]
    if not tagged:
        return UNKNOWN.removesuffix(".dev0")
    major, minor, patch = order(tagged)[:3]
    # a candidate comes before its version, so what follows it is that version's
    return f"{major}.{minor}.{patch if re.search('a|b|rc', tagged) else patch + 1}"


def order(text: str) -> tuple[int, int, int, int, int]:
    """A key by which versions of releases sort: candidates before their version."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?", text)
    if not found:
        return 0, 0, 0, 0, 0
    stage = {"a": 0, "b": 1, "rc": 2, None: 3}[found[4]]
    return int(found[1]), int(found[2]), int(found[3]), stage, int(found[5] or 0)


def _archived(root: Path) -> dict[str, str]:
    try:
        lines = (root / ".git_archival.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines[:10]) if "$" not in value}


def _git(root: Path, *words: str) -> str:
    """What a git command prints; empty where it fails or takes long. Hooks of Git set GIT_DIR, which must not count."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            env={**bare, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
