"""The data folder of one `belay up`: its lock and its paths."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import IO

from belay.engine.errors import InputError

_PREFIX = "belay-"


def running_folder(path: str | None) -> DataFolder:
    """The folder of a sandbox that runs: the one named, else the temporary one that began last.

    Raises:
        InputError: no sandbox runs there.
    """
    given = [Path(path)] if path is not None else list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/lock"))
    roots = given if path is not None else [lock.parent for lock in given]
    running = [root for root in roots if _is_used(root)]
    if not running:
        where = f"--data {path}" if path is not None else "--env"
        hint = "Start one: belay up" + (f" --data {path}" if path is not None else ", or name its folder: --data DIR")
        raise InputError("no sandbox runs", where=where, hint=hint)
    return DataFolder(str(max(running, key=lambda root: (root / "lock").stat().st_mtime)))


def _is_used(root: Path) -> bool:
    """Whether a sandbox holds the folder's lock and has its API server's kubeconfig."""
    try:
        with (root / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return (root / "kubeconfig").is_file()
    except OSError:  # another person's, or gone meanwhile
        return False
    return False


class DataFolder:
    """A folder that one sandbox uses at a time; without a path a temporary one, removed at the end."""

    def __init__(self, path: str | None) -> None:
        self.temporary = path is None
        self.root = Path(tempfile.mkdtemp(prefix=_PREFIX) if path is None else path).resolve()
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Create the folder and lock it.

        Raises:
            InputError: the folder cannot be created, holds other things, or another sandbox uses it.
        """
        try:
            found = os.listdir(self.root) if self.root.is_dir() else []
            if found and "lock" not in found:
                raise InputError(
                    f"holds other things, {min(found)} for one",
                    where=f"--data {self.root}",
                    hint="Name a folder that is empty, not there yet, or of an earlier belay up.",
                )
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in (self.logs, self.api, self.agents, self.engine):
                part.mkdir(exist_ok=True, mode=0o700)
            lock = (self.root / "lock").open("a+")
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror}", where=f"--data {self.root}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read(32).strip() or "unknown"
            lock.close()
            raise InputError(
                f"another sandbox uses this folder (process {owner})",
                where=f"--data {self.root}",
                hint="Stop it, or give another --data DIR.",
            ) from error
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def close(self) -> None:
        """Unlock the folder; remove it if it is temporary."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self.temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the sandbox's API server."""
        return self.root / "kubeconfig"

    @property
    def repository(self) -> Path:
        """The bare repository to push to."""
        return self.root / "state.git"

    @property
    def api(self) -> Path:
        """The API server's objects."""
        return self.root / "api"

    @property
    def agents(self) -> Path:
        """The agents' journals."""
        return self.root / "agents"

    @property
    def engine(self) -> Path:
        """Mirrors of repositories and recordings of passes."""
        return self.root / "engine"

    @property
    def batch_keys(self) -> Path:
        """The key that seals what goes through Redis, made on first use for our eyes only."""
        file = self.root / "batch-keys"
        if not file.exists():
            fresh = self.root / "batch-keys.new"
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
                output.write(f"{secrets.token_hex(32)}\n")
            fresh.rename(file)
        return file

    @property
    def redis(self) -> Path:
        """Redis' socket and log."""
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"
