"""A clone of a state repository whose remote takes pushes, and what people do in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from belay.engine.cli import main

ROOT = Path(__file__).resolve().parent.parent
SHELL = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
"""What runs the commands that an act names: `belay` is that of this repository."""


def state_clone(folder: Path) -> Path:
    """``clone`` below the folder, with this repository's documents; its remote is ``remote.git`` beside it."""
    remote, made = folder / "remote.git", folder / "clone"
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(remote)], check=True)
    subprocess.run(["git", "clone", "-q", str(remote), str(made)], check=True, capture_output=True)
    subprocess.run(["cp", "-r", str(ROOT / "desired"), str(made)], check=True)
    git(made, "config", "user.name", "Ada")
    git(made, "config", "user.email", "ada@example.com")
    git(made, "checkout", "-q", "-B", "main")
    git(made, "add", "--all")
    git(made, "commit", "-qm", "Begin")
    git(made, "push", "-q", "-u", "origin", "main")
    return made


def of_another(clone: Path) -> Path:
    """Another person's clone."""
    other = clone.parent / "other"
    git(clone.parent, "clone", "-q", str(clone.parent / "remote.git"), str(other))
    git(other, "config", "user.name", "Bob")
    git(other, "config", "user.email", "bob@example.com")
    return other


def git(folder: Path, *args: str) -> str:
    """What Git prints; raises CalledProcessError where it fails."""
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(clone: Path, *args: str) -> Result:
    """`belay` in the clone."""
    return CliRunner().invoke(main, [*args, "--repo", str(clone)])


def pushed(clone: Path) -> str:
    """The newest commit of the remote's main: id, author, subject, body."""
    return git(clone.parent / "remote.git", "log", "-1", "--format=%H %an %s%n%b", "main")


def take_back(clone: Path, done: Result) -> None:
    """Type what the act named, as it stands."""
    (back,) = re.findall(r"^take it back: (.+)$", done.output, re.MULTILINE)
    shown = subprocess.run(["bash", "-ec", back], cwd=clone.parent, capture_output=True, text=True, env=SHELL)
    assert shown.returncode == 0, shown.stderr
