"""Log lines of an agent: a constant message with fields, in the form of the engine's logs.

Fields travel as the record's `belay_fields`, which the engine's formatter knows too, so lines look alike wherever
an agent runs.
`JsonLines` is for an agent that runs alone.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

MAX_LINE: Final = 2048
"""Longest line in bytes, its newline included."""

_LONGEST_VALUE: Final = 300
_FIELDS: Final = "belay_fields"


class Log:
    """A named log. Fields hold names, numbers and error texts of our own making, never credentials."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"belay.{name}")

    def info(self, message: str, **fields: object) -> None:
        """Write what happened in normal operation."""
        self._logger.info(message, extra={_FIELDS: fields})

    def warning(self, message: str, **fields: object) -> None:
        """Write an unexpected event that was handled."""
        self._logger.warning(message, extra={_FIELDS: fields})

    def error(self, message: str, **fields: object) -> None:
        """Write an event that needs an operator."""
        self._logger.error(message, extra={_FIELDS: fields})

    def exception(self, message: str, **fields: object) -> None:
        """Write an event that needs an operator, with the exception being handled."""
        self._logger.exception(message, extra={_FIELDS: fields})


class JsonLines(logging.Formatter):
    """One bounded JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage()[:_LONGEST_VALUE],
            "logger": record.name,
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = repr(record.exc_info[1])[:_LONGEST_VALUE]
            # the end of a traceback names the cause
            entry["traceback"] = self.formatException(record.exc_info)[-_LONGEST_VALUE:]
        for name, value in (getattr(record, _FIELDS, None) or {}).items():
            entry.setdefault(name, value if isinstance(value, bool | int | float) else str(value)[:_LONGEST_VALUE])
        line = json.dumps(entry, separators=(",", ":"))
        while len(line) >= MAX_LINE:
            entry.popitem()
            line = json.dumps(entry, separators=(",", ":"))
        return line
