"""Sizes of vNPUs: the resource of each template, from policies/ (kind VNPUTemplates)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

_ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS: Final = (_ROOT / "policies" / "vnpu", _ROOT / "engine" / "shipped" / "policies" / "vnpu")
_MAX_FILE: Final = 1 << 20


def suffixes(resource: str, chip_name: str, folder: Path | None = None) -> dict[str, str]:
    """Return template → resource suffix (``vir02_1c`` → ``2c.1cpu``) for the chips of a node.

    The document that names the chip applies; where none does, all documents of the resource do. Raises ValueError
    naming a file that cannot be read.
    """
    root = folder or next((candidate for candidate in _FOLDERS if candidate.is_dir()), None)
    general: dict[str, str] = {}
    for spec in _documents(root) if root is not None else ():
        if str(spec.get("resourcePrefix", "")) != f"{resource}-":
            continue
        found = {str(row["name"]): str(row["suffix"]) for row in spec.get("templates") or () if row.get("suffix")}
        named = {name for chip in spec.get("chips") or () for name in chip.get("chipNames") or ()}
        if chip_name in named:
            return found
        general |= found
    return general


def _documents(root: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(root.glob("*.y*ml")):
        if path.stat().st_size > _MAX_FILE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            documents = list(yaml.load_all(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from error
        for document in documents:
            if isinstance(document, dict) and document.get("kind") == "VNPUTemplates":
                spec = document.get("spec")
                if isinstance(spec, dict):
                    yield spec
