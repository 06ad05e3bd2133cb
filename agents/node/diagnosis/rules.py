"""The shipped rules about logs, as an agent needs them: read from the policies that come with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import yaml

from belay import SHIPPED
from belay.engine.model.log_evidence import LogRule

_FOLDER: Final = SHIPPED / "policies" / "diagnosis"
_MAX_FILE: Final = 1 << 20


def shipped_rules(folder: Path | None = None) -> tuple[LogRule, ...]:
    """The rules below ``folder`` (default: the shipped ones), by file; none where there is no such folder.

    Raises ValueError naming the file that cannot be read.
    """
    root = folder or (_FOLDER if _FOLDER.is_dir() else None)
    found: list[LogRule] = []
    for path in sorted(root.glob("*.y*ml")) if root is not None else ():
        if path.stat().st_size > _MAX_FILE:
            continue
        try:
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
            if document.get("kind") == "DiagnosisRules":
                found += [msgspec.convert(rule, LogRule) for rule in document["spec"]["rules"]]
        except (yaml.YAMLError, msgspec.ValidationError, KeyError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a document of kind DiagnosisRules: {error}") from error
    return tuple(found)
