"""A real Git repository for tests: a work tree that pushes to a bare repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


class Repo:
    """`work` is what a person edits, `bare` what Belay reads."""

    def __init__(self, folder: Path, branch: str = "main") -> None:
        self.work, self.bare, self.branch = folder / "work", folder / "bare.git", branch
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "--bare", f"--initial-branch={branch}", str(self.bare))
        git(folder, "init", "-q", f"--initial-branch={branch}", str(self.work))
        git(self.work, "remote", "add", "origin", str(self.bare))

    def write(self, files: dict[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(
        self, files: dict[str, str | bytes] | None = None, *options: str, message: str = "change", push: bool = True
    ) -> str:
        self.write(files or {})
        git(self.work, "add", "-A")
        git(self.work, *options, "commit", "-q", "--allow-empty", "-m", message)
        if push:
            self.push()
        return self.head()

    def push(self, *options: str) -> None:
        git(self.work, "push", "-q", *options, "origin", f"HEAD:refs/heads/{self.branch}")

    def head(self) -> str:
        return git(self.work, "rev-parse", "HEAD")


def git(folder: Path, *args: str, data: bytes = b"", env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        ["git", *args], cwd=folder, env=_ENVIRONMENT | (env or {}), input=data, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()
