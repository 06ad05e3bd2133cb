"""A real PostgreSQL of this machine, on loopback, for one test module."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import lacking
from tests.ports import free_port

PASSWORD = "of-the-tests"


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The URL of an empty database; skips the test, outside CI, where PostgreSQL is not installed."""
    initdb, server = _program("initdb"), _program("postgres")
    data, password = folder / "data", folder / "password"
    password.write_text(f"{PASSWORD}\n")
    as_user = _another_user(folder)
    subprocess.run(
        [initdb, "-D", str(data), "-U", "belay", "-A", "scram-sha-256", "--pwfile", str(password),
         "--no-sync", "-E", "UTF8", "--locale", "C"],
        check=True, capture_output=True, timeout=60, user=as_user, cwd=folder,
    )  # fmt: skip
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [server, "-D", str(data), "-p", str(port), "-k", str(folder), "-F",
             "-c", "listen_addresses=127.0.0.1"],
            stdout=log, stderr=subprocess.STDOUT, user=as_user, cwd=folder,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while "ready to accept connections" not in (folder / "log").read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"postgresql://belay:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(30)


def _program(name: str) -> str:
    """A program on PATH, or where Debian's packages have it."""
    found = shutil.which(name) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), "")
    return found or lacking(f"PostgreSQL is not installed: there is no {name} (make test-packages)")


def _another_user(folder: Path) -> int | None:
    """A user that is not root, whom the folder then belongs to: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("nobody").pw_uid
    for part in (folder, *folder.rglob("*")):
        os.chown(part, user, -1)
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and parent != Path("/") and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o711)
    return user
