"""Levels of fault codes on a host without Kubernetes.

The shipped table and the rules for a file that replaces it: component/container-manager/pkg/fault/domain/config.go.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from belay import SHIPPED
from belay.agents.common.log import Log
from belay.engine.model.levels import (
    FREE_RESTART,
    NORMAL,
    NOT_HANDLE,
    RESTART,
    RESTART_BUSINESS,
    RESTART_REQUEST,
    SEPARATE,
)

LEVELS: Final = (NOT_HANDLE, RESTART_REQUEST, RESTART_BUSINESS, FREE_RESTART, RESTART, SEPARATE)
UNKNOWN: Final = "Unknown"
AT_ONCE: Final[frozenset[str]] = frozenset({FREE_RESTART, RESTART})
"""Levels whose chip is reset at once."""
LASTING: Final[frozenset[str]] = frozenset({RESTART_REQUEST, RESTART_BUSINESS})
"""Levels whose chip is reset when the fault persists."""
PAUSING: Final = AT_ONCE | LASTING
"""Levels that stop the containers on a chip."""
MAX_FILE: Final = 1 << 20
_KEYS: Final = tuple(f"{level}Codes" for level in LEVELS)
#: Levels by key; as in Go, capital letters make no difference.
_LEVEL_OF: Final = {key.lower(): level for key, level in zip(_KEYS, LEVELS, strict=True)}
_TABLE: Final = Path("faults") / "container.yaml"

_log = Log("containers")


class Codes:
    """Levels by code; codes are compared as numbers."""

    def __init__(self, levels: Mapping[str, Iterable[str]]) -> None:
        self._levels = {int(code, 16): level for level in LEVELS for code in levels.get(level, ())}

    def __len__(self) -> int:
        return len(self._levels)

    def level(self, code: str) -> str:
        """The level of one code; `UNKNOWN` when no list names it."""
        return self._levels.get(int(code, 16), UNKNOWN)

    def worst(self, codes: Iterable[str]) -> str:
        """The highest level of several codes; `NORMAL` without any, `UNKNOWN` when no list names one of them."""
        levels = [self.level(code) for code in codes]
        known = [LEVELS.index(level) for level in levels if level != UNKNOWN]
        return LEVELS[max(known)] if known else UNKNOWN if levels else NORMAL


def shipped(folder: Path | None = None) -> Codes:
    """The shipped table, from ``policies/``. Raises ValueError naming the file that cannot be read."""
    file = (folder or SHIPPED / "policies") / _TABLE
    try:
        # every scalar as text: a code such as 80818200 is not a number
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        return Codes(document["spec"]["levels"])
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file}: the table of fault codes cannot be read: {error}") from error


def custom(file: Path) -> Codes:
    """The table of a file that replaces the shipped one. Raises ValueError when it is not trusted or malformed."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as source:
            found = os.fstat(descriptor)
            mode = stat.S_IMODE(found.st_mode)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{file} is not a regular file")
            if found.st_uid != os.geteuid() or mode & ~0o640:
                raise ValueError(
                    f"{file} belongs to user {found.st_uid} with mode {mode:04o}; it must be this user's, 0640 or less"
                )
            data = source.read(MAX_FILE + 1)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror} (links are not followed)") from error
    if len(data) > MAX_FILE:
        raise ValueError(f"{file} is longer than {MAX_FILE} bytes")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must be a JSON object with keys such as RestartNPUCodes")
    levels: dict[str, list[str]] = {}
    for key, value in content.items():
        if (level := _LEVEL_OF.get(key.lower())) is None:
            _log.warning("key of no level is ignored", file=str(file), key=key[:80], known=", ".join(_KEYS))
            continue
        levels[level] = _codes(file, key, value)
    return Codes(levels)


def _codes(file: Path, key: str, value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
        raise ValueError(f"{file}: {key} must be a list of codes in quotes")
    for code in value:
        try:
            good = 0 < int(code, 16) < 1 << 63
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"{file}: {key}: {code[:40]!r} is not a hexadecimal code")
    return value
