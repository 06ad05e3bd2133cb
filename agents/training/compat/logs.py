"""Log files of training helpers, as TaskD's variables say (component/taskd, docs 06_api/07_taskd).

TASKD_LOG_PATH (folder, ./taskd_log/), TASKD_FILE_LOG_LEVEL and TASKD_STD_LOG_LEVEL (DEBUG, INFO, WARNING, ERROR; INFO),
TASKD_LOG_STDOUT (False keeps the terminal quiet).
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAME: Final = "belay.agents.training"
FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
MAX_BYTES: Final = 10 << 20
BACKUPS: Final = 10
MAX_LINE: Final = 1023
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

_lock = threading.Lock()
_open: set[tuple[int, str]] = set()


class OneLine(logging.Formatter):
    """Formats a record as one line of at most 1,023 characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of at most 1,023 characters."""
        text = super().format(record).replace("\r", "\\r").replace("\n", "\\n")
        return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


def level(environ: Mapping[str, str], name: str) -> int:
    """The level that a variable names; INFO when it is not set or unknown."""
    asked = environ.get(name, "INFO").upper()
    return int(getattr(logging, asked if asked in LEVELS else "INFO"))


def to_file(name: str, environ: Mapping[str, str] | None = None) -> logging.Logger:
    """Write all records of `belay.agents.training` to the file ``name`` too; the logger.

    When the folder cannot be written, there is no file: one warning on the terminal, and training goes on.
    """
    environ = os.environ if environ is None else environ
    logger = logging.getLogger(NAME)
    with _lock:
        key = (os.getpid(), name)
        if key in _open:
            return logger
        _open.add(key)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        if not any(isinstance(handler, _Terminal) for handler in logger.handlers):
            terminal = _Terminal(sys.stderr)
            shown = environ.get("TASKD_LOG_STDOUT", "True").lower() not in ("false", "0", "off")
            terminal.setLevel(level(environ, "TASKD_STD_LOG_LEVEL") if shown else logging.ERROR)
            terminal.setFormatter(OneLine(FORMAT))
            logger.addHandler(terminal)
        folder = Path(environ.get("TASKD_LOG_PATH") or "./taskd_log/")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = logging.handlers.RotatingFileHandler(
                folder / name, maxBytes=MAX_BYTES, backupCount=BACKUPS, delay=True, encoding="utf-8"
            )
        except OSError as error:
            logger.warning("no log file %s: %s; TASKD_LOG_PATH names the folder", folder / name, error.strerror)
            return logger
        file.setLevel(level(environ, "TASKD_FILE_LOG_LEVEL"))
        file.setFormatter(OneLine(FORMAT))
        logger.addHandler(file)
    return logger


class _Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler of the terminal; its class keeps it from being added twice."""
