"""Problems of one document, by path; the loader turns paths into lines and columns."""

from __future__ import annotations

from typing import Any, NamedTuple

from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.diagnostics import Severity

Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """One finding at a path; ``at_key`` when the key is wrong rather than its value. ``code`` where one says more than
    that the value cannot be used, or is doubtful.
    """

    path: Path
    message: str
    severity: Severity = "error"
    at_key: bool = False
    code: str = ""

    @property
    def coded(self) -> str:
        """The code of the finding."""
        return self.code or (FindingCode.INVALID_VALUE if self.severity == "error" else FindingCode.DOUBTFUL_VALUE)


class Problems(list[Problem]):
    """Findings in the order they are made."""

    def error(self, path: Path, message: str, *, at_key: bool = False, code: str = "") -> None:
        """Add an error at a path; ``at_key`` marks the key rather than the value."""
        self.append(Problem(path, message, "error", at_key, code))

    def warn(self, path: Path, message: str, *, at_key: bool = False, code: str = "") -> None:
        """Add a warning: legal, but probably not meant."""
        self.append(Problem(path, message, "warning", at_key, code))

    def mapping(self, parent: Any, key: str, path: Path, *, required: bool = False) -> dict[str, Any]:
        """The mapping under a key; reports another type, or a missing required one, and returns an empty mapping."""
        return self._typed(parent, key, path, dict, "a mapping", required) or {}

    def sequence(self, parent: Any, key: str, path: Path, *, required: bool = False) -> list[Any]:
        """The list under a key; reports another type, or a missing required one, and returns an empty list."""
        return self._typed(parent, key, path, list, "a list", required) or []

    def text(self, parent: Any, key: str, path: Path, *, required: bool = False) -> str | None:
        """The text under a key, or ``None``."""
        found: str | None = self._typed(parent, key, path, str, "text (in quotes if it looks like a number)", required)
        return found

    def integer(self, parent: Any, key: str, path: Path, *, minimum: int | None = None) -> int | None:
        """The whole number under a key, or ``None``."""
        found: int | None = self._typed(parent, key, path, int, "a whole number", False)
        if found is not None and minimum is not None and found < minimum:
            self.error((*path, key), f"must be at least {minimum}, but is {found}")
        return found

    def flag(self, parent: Any, key: str, path: Path) -> bool | None:
        """True or false under a key, or ``None``."""
        found: bool | None = self._typed(parent, key, path, bool, "true or false", False)
        return found

    def choice(self, parent: Any, key: str, path: Path, allowed: tuple[str, ...]) -> str | None:
        """The text under a key if it is among the allowed ones, else ``None``."""
        found = self.text(parent, key, path)
        if found is not None and found not in allowed:
            shown = ", ".join(repr(word) if word else '""' for word in allowed)
            self.error((*path, key), f"must be one of {shown}, but is {found!r:.80}")
            return None
        return found

    def _typed(self, parent: Any, key: str, path: Path, kind: type, wanted: str, required: bool) -> Any:
        value = parent.get(key) if isinstance(parent, dict) else None
        if value is None:
            if required:
                self.error((*path, key), "required field is missing", code=FindingCode.MISSING_FIELD)
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            text = f"must be {wanted}, but is {_type_name(value)}"
            self.error((*path, key), text, code=FindingCode.WRONG_TYPE)
            return None
        return value


def _type_name(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), "empty")
