"""Log lines to files of 20 MB, limited in number and age."""

from __future__ import annotations

import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 20_000_000
_DAY: Final = 86_400


class LogFile(RotatingFileHandler):
    """The file is readable by its owner and group only."""

    def __init__(self, file: Path, *, backups: int, days: int) -> None:
        file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if file.is_symlink():
            raise ValueError(f"log file {file} is a link; name a file")
        self._days = days
        super().__init__(file, maxBytes=MAX_BYTES, backupCount=backups, encoding="utf-8")
        file.chmod(0o640)
        self._forget()

    def doRollover(self) -> None:
        """Begin a new file."""
        super().doRollover()
        Path(self.baseFilename).chmod(0o640)
        self._forget()

    def _forget(self) -> None:
        oldest = time.time() - self._days * _DAY
        current = Path(self.baseFilename)
        for old in current.parent.glob(f"{current.name}.*"):
            try:
                if old.is_file() and not old.is_symlink() and old.stat().st_mtime < oldest:
                    old.unlink()
            except OSError:
                continue
