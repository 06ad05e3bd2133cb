"""Licences and versions of what the locks install: `python -m tests.licences`, or `make licences`.

A package counts as reviewed by its row in requirements-licences.toml; the row is compared with the package's own
metadata (core metadata 2.4, License-Expression; before that License and classifiers), where it is installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (
    "requirements.lock", "requirements-training.lock", "requirements-frameworks.lock", "requirements-helm.lock",
    "requirements-docs.lock", "requirements-mcp.lock",
)  # fmt: skip
TABLE = "requirements-licences.toml"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)(?P<rest>.*)$")
_WORD = re.compile(r"\(|\)|[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.+-]+)?")
#: What older metadata calls the licences, in lower case; "bsd" alone may be either of two.
_SPELLINGS: Mapping[str, frozenset[str]] = {
    "apache": frozenset({"Apache-2.0"}),
    "mit": frozenset({"MIT"}),
    "bsd": frozenset({"BSD-2-Clause", "BSD-3-Clause"}),
    "isc": frozenset({"ISC"}),
    "mozilla": frozenset({"MPL-2.0"}),
    "mpl": frozenset({"MPL-2.0"}),
    "psf": frozenset({"PSF-2.0"}),
    "python software foundation": frozenset({"PSF-2.0"}),
}


class Pin(NamedTuple):
    """One package of a lock."""

    lock: str
    name: str
    version: str
    hashes: int


def pins(text: str, lock: str) -> Iterator[Pin]:
    """The packages of a lock. Raises ValueError for a line that pins nothing."""
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.startswith("#"):
            continue
        found = _PIN.match(entry)
        if found is None:
            raise ValueError(f"{lock}: no NAME==VERSION: {entry[:80]}")
        yield Pin(lock, _normal(found["name"]), found["version"], found["rest"].count("--hash=sha256:"))


def accepts(expression: str, accepted: frozenset[str]) -> bool:
    """Whether an SPDX expression leaves a choice of accepted licences only. Raises ValueError where it is none."""
    words = _WORD.findall(expression)
    if "".join(words).replace(" ", "") != expression.replace(" ", ""):
        raise ValueError(f"{expression!r} is not an SPDX expression")
    found = _either(words, accepted)
    if words:
        raise ValueError(f"{expression!r} is not an SPDX expression")
    return found


def _either(words: list[str], accepted: frozenset[str]) -> bool:
    found = _both(words, accepted)
    while words[:1] == ["OR"]:
        del words[0]
        other = _both(words, accepted)
        found = found or other
    return found


def _both(words: list[str], accepted: frozenset[str]) -> bool:
    found = _one(words, accepted)
    while words[:1] == ["AND"]:
        del words[0]
        other = _one(words, accepted)
        found = found and other
    return found


def _one(words: list[str], accepted: frozenset[str]) -> bool:
    if not words or words[0] in (")", "AND", "OR"):
        raise ValueError("an operand is missing")
    word = words.pop(0)
    if word != "(":
        return word in accepted
    found = _either(words, accepted)
    if words[:1] != [")"]:
        raise ValueError("a bracket is not closed")
    del words[0]
    return found


def claimed(name: str) -> tuple[str, frozenset[str]] | None:
    """What an installed package says: its SPDX expression, else the identifiers that older fields may mean."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    expression = metadata.get("License-Expression") or ""
    labels = [row.rpartition(" :: ")[2] for row in metadata.get_all("Classifier") or () if row.startswith("License")]
    text = " ".join([(metadata.get("License") or "")[:200], *labels]).lower()
    return expression, frozenset().union(*(ids for word, ids in _SPELLINGS.items() if word in text))


def findings(root: Path = ROOT) -> list[str]:
    """What is wrong, one line each; empty when every package was reviewed and is what its row says."""
    table = tomllib.loads((root / TABLE).read_text())
    accepted, rows = frozenset(table["accepted"]), dict(table["packages"])
    found: list[str] = []
    locked: dict[str, set[str]] = {}
    for lock in LOCKS:
        for pin in pins((root / lock).read_text(), lock):
            locked.setdefault(pin.name, set()).add(pin.version)
            if not pin.hashes:
                found.append(f"{lock}: {pin.name} has no hash")
    for name in sorted(locked.keys() - rows.keys()):
        found.append(f"{TABLE}: {name} has no row: look at its licence and add one")
    for name in sorted(rows.keys() - locked.keys()):
        found.append(f"{TABLE}: {name} is in no lock: remove its row")
    for name in sorted(rows.keys() & locked.keys()):
        found += _row_findings(name, rows[name], locked[name], accepted)
    return found


def _row_findings(name: str, row: str, versions: set[str], accepted: frozenset[str]) -> Iterator[str]:
    try:
        if not accepts(row, accepted):
            yield f"{TABLE}: {name}: {row} is not accepted"
    except ValueError as error:
        yield f"{TABLE}: {name}: {error}"
        return
    said = claimed(name)
    if said is None:
        return  # for another system, or PyTorch is not installed
    expression, meant = said
    if importlib.metadata.version(name) not in versions:
        yield f"{name} {importlib.metadata.version(name)} is installed, the locks have {', '.join(sorted(versions))}"
    if expression and expression != row:
        yield f"{TABLE}: {name}: the package says {expression}, its row {row}"
    ids = set(re.split(r" (?:AND|OR) |[()]", row)) - {""}
    if not expression and meant and not ids & meant:
        yield f"{TABLE}: {name}: the package says {', '.join(sorted(meant))}, its row {row}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Print every package with its licence, then what is wrong; 1 if anything is."""
    table = tomllib.loads((ROOT / TABLE).read_text())["packages"]
    for lock in LOCKS:
        for pin in pins((ROOT / lock).read_text(), lock):
            sys.stdout.write(f"{pin.name:28} {pin.version:20} {table.get(pin.name, '?')}\n")
    found = findings()
    end = "\n".join(found) or f"{len(table)} packages: each reviewed, pinned by hash, with an accepted licence"
    sys.stdout.write(f"{end}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
