"""Profiling records of one rank: one JSON object a line, files of 10 MiB, a quota for the job's folder.

Layout and limits: component/taskd/taskd/go/framework_backend/worker/monitor/profiling of MindCluster.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

BASE: Final = Path("/user/cluster-info/profiling")
FILE_BYTES: Final = 10 << 20
FLUSH_SECONDS: Final = 5.0
QUOTA_SECONDS: Final = 60.0
PARTS: Final = 5
KEPT_FILES: Final = 3
MAX_WAITING: Final = 20_000


def folder(environ: Mapping[str, str], rank: int, base: Path = BASE) -> Path:
    """The rank's folder."""
    task = environ.get("MINDX_TASK_ID") or f"default_task_id_{int(time.time())}"
    if "/" in task or task in (".", ".."):
        raise ValueError(f"MINDX_TASK_ID is {task[:40]!r}, which names no folder")
    return base / task / str(rank)


class Records:
    """Accepts records from any thread without blocking, writes them every 5 s; buffers the newest 20,000."""

    def __init__(self, where: Path, limit_mb: int) -> None:
        self._where, self._limit = where, limit_mb << 20
        self._waiting: deque[Mapping[str, Any]] = deque(maxlen=MAX_WAITING)
        self._file: Path | None = None
        self._quota_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.trouble = ""

    def put(self, record: Mapping[str, Any]) -> None:
        """Add a record; a full buffer drops the oldest."""
        self._waiting.append(record)

    def start(self) -> None:
        """Start writing; a second call changes nothing."""
        with self._lock:
            if self._thread is None:
                self._stopped.clear()
                self._thread = threading.Thread(target=self._run, name="profiling-files", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Write the remaining records and end."""
        with self._lock:
            thread, self._thread = self._thread, None
        self._stopped.set()
        if thread is not None:
            thread.join(10.0)

    def _run(self) -> None:
        while not self._stopped.wait(FLUSH_SECONDS):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write now. When the disk fails, the records are lost and ``trouble`` holds the reason."""
        lines = []
        while self._waiting:
            lines.append(json.dumps(self._waiting.popleft(), separators=(",", ":")) + "\n")
        if not lines:
            return
        try:
            self._where.mkdir(mode=0o755, parents=True, exist_ok=True)
            if self._file is None or not self._file.exists() or self._file.stat().st_size >= FILE_BYTES:
                self._file = self._where / str(int(time.time()))
            with open(self._file, "a", encoding="utf-8", opener=_opener) as stream:
                stream.writelines(lines)
            self.trouble = ""
            if time.monotonic() - self._quota_at >= QUOTA_SECONDS:
                self._quota_at = time.monotonic()
                self._keep_quota()
        except OSError as error:
            if not self.trouble:
                log.error("profiling records are not written to %s: %s", self._where, error.strerror)
            self.trouble = str(error.strerror)

    def _keep_quota(self) -> None:
        """When the job's folder exceeds the limit, remove the oldest fifth of the rank's files; three files stay."""
        job = self._where.parent
        total = sum(file.stat().st_size for file in job.glob("*/*") if file.is_file() and not file.is_symlink())
        if total <= self._limit:
            return
        files = sorted((file for file in self._where.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
        for file in files[: max(0, min(max(1, len(files) // PARTS), len(files) - KEPT_FILES))]:
            file.unlink(missing_ok=True)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
