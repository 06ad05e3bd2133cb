"""Sizes of vNPUs: the resource of each template and what it takes of a chip, from policies/ (kind VNPUTemplates)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from belay import SHIPPED
from belay.engine.model.vnpu import ChipCapacity, TemplateSize

_FOLDER: Final = SHIPPED / "policies" / "vnpu"
_MAX_FILE: Final = 1 << 20


def suffixes(resource: str, chip_name: str, folder: Path | None = None) -> dict[str, str]:
    """Return template → resource suffix (``vir02_1c`` → ``2c.1cpu``) for the chips of a node.

    The document that names the chip applies; where none does, all documents of the resource do. Raises ValueError
    naming a file that cannot be read.
    """
    root = folder or (_FOLDER if _FOLDER.is_dir() else None)
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


def sizes(
    resource: str, chip_name: str, server_type: str, folder: Path | None = None
) -> tuple[ChipCapacity, tuple[TemplateSize, ...]] | None:
    """What a chip has, and what each of its templates takes; None where its chips are not cut as pods need them.

    Raises ValueError naming a file that cannot be read, or a template whose figures are none.
    """
    root = folder or (_FOLDER if _FOLDER.is_dir() else None)
    rows = [
        (spec, chip)
        for spec in (_documents(root) if root is not None else ())
        if str(spec.get("resourcePrefix", "")) == f"{resource}-" and spec.get("dynamic") == "true"
        for chip in spec.get("chips") or ()
    ]
    # the server type says how many cores a chip has, which its name leaves open
    by_type = next((row for row in rows if server_type in (row[1].get("serverTypes") or ())), None)
    found = by_type or next((row for row in rows if chip_name in (row[1].get("chipNames") or ())), None)
    if found is None:
        return None
    spec, chip = found
    try:
        return _capacity(chip), tuple(_size(row, chip) for row in spec.get("templates") or ())
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"VNPUTemplates of {spec.get('family')}: {error!r} is not a number") from error


def _capacity(row: Mapping[str, Any]) -> ChipCapacity:
    most = int(row["maxVnpus"]) if row.get("maxVnpus") else None
    return ChipCapacity(int(row["aicore"]), int(row["aicpu"]), int(row["memoryMiB"]), _engines(row), most)


def _size(row: Mapping[str, Any], chip: Mapping[str, Any]) -> TemplateSize:
    memory = (row.get("memoryByAicore") or {}).get(str(chip["aicore"]), row["memoryMiB"])
    name, cores, cpus = str(row["name"]), int(row["aicore"]), int(row["aicpu"])
    return TemplateSize(name, cores, cpus, int(memory), _engines(row), row.get("dvppFlag"))


def _engines(row: Mapping[str, Any]) -> dict[str, int]:
    return {str(engine): int(count) for engine, count in (row.get("dvpp") or {}).items()}


def _documents(root: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(root.glob("*.y*ml")):
        if path.stat().st_size > _MAX_FILE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            documents = list(yaml.load_all(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {error}") from error
        for document in documents:
            if isinstance(document, dict) and document.get("kind") == "VNPUTemplates":
                spec = document.get("spec")
                if isinstance(spec, dict):
                    yield spec
