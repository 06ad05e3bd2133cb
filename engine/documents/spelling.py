"""Unknown fields: most are harmless, but a mistyped ``namespace`` or ``replicas`` moves or shrinks a job."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Final

from belay.engine.documents.problems import Path, Problems
from belay.engine.model.codes.findings import FindingCode

_ALIKE: Final = 0.8
"""Similarity (``difflib``, 1.0 is equal) from which a field counts as another one mistyped."""


def unknown_fields(
    problems: Problems, found: Mapping[str, Any], known: Collection[str], path: Path, decisive: Collection[str] = ()
) -> None:
    """Warn of fields that the API server would drop or refuse, with the nearest known name.

    A field that looks like a missing ``decisive`` one is an error: without it the object would be another one, or have
    fewer pods.
    """
    for key in found:
        if key in known:
            continue
        if not _misspelt(problems, found, key, decisive, path):
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else "it has no effect"
            problems.warn((*path, key), f"unknown field: {hint}", at_key=True, code=FindingCode.UNKNOWN_FIELD)


def misspelt_fields(
    problems: Problems, found: Mapping[str, Any], decisive: Collection[str], path: Path, known: Collection[str] = ()
) -> None:
    """Report only the errors of ``unknown_fields``, where not all fields are known; ``known`` ones are accepted."""
    for key in found:
        if key not in decisive and key not in known:
            _misspelt(problems, found, key, decisive, path)


def _misspelt(problems: Problems, found: Mapping[str, Any], key: str, decisive: Collection[str], path: Path) -> bool:
    missing = {name.lower(): name for name in sorted(decisive) if name not in found}
    near = difflib.get_close_matches(key.lower(), list(missing), n=1, cutoff=_ALIKE)
    if near:
        problems.error((*path, key), f"unknown field: did you mean {missing[near[0]]}?", at_key=True)
    return bool(near)
