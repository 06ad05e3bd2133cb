"""Pages that list commands to type, as tests walk them: their blocks of commands, run by a shell to the letter."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.needs import lacking

ROOT = Path(__file__).resolve().parents[1]
#: What the pages speak of as "this folder", without its code: that is found through the virtual environment.
PARTS = ("Makefile", "README.md", "pyproject.toml", "requirements.lock", "deploy", "desired", "policies")


def blocks(page: Path) -> dict[str, list[str]]:
    """Heading of a section (``## …``) → its indented and fenced blocks of code, without their indent."""
    found: dict[str, list[str]] = {}
    section, block, fenced, before = "", list[str](), False, ""
    for line in [*page.read_text().splitlines(), ""]:
        fence = line.startswith("```")
        indented = line.startswith("    ") and (bool(block) or not before.strip())
        if not fence and (fenced or indented):
            block.append(line if fenced else line[4:])
        elif block:
            found.setdefault(section, []).append("\n".join(block))
            block = []
        fenced = fenced != fence
        if line.startswith("## ") and not fenced:
            section = line.removeprefix("## ").strip()
        before = line
    return found


def folder(place: Path) -> Path:
    """A copy of the repository as its readers have it after ``make venv``; skips where that was not called."""
    installed = Path(sys.prefix) / ".installed"
    if not installed.exists():
        lacking(f"{installed} is not there: make venv")
    copy = place / "belay"
    copy.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part)
        else:
            shutil.copy2(source, copy / part)
    then = installed.stat().st_mtime - 1.0
    for part in (
        "pyproject.toml",
        "requirements.lock",
    ):  # these tests run in that environment, so make need not renew it
        os.utime(copy / part, (then, then))
    (copy / ".venv").symlink_to(sys.prefix)
    return copy


def shell(script: str, where: Path, environment: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run it in bash, which reads it as a person types it."""
    return subprocess.run(
        ["bash", "--norc", "-s"], input=script, cwd=where, env=dict(environment), text=True, timeout=seconds,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


def person(home: Path) -> dict[str, str]:
    """The environment of a person at a fresh machine: no Belay on the path, Git knows their name."""
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text("[user]\n  name = Ada\n  email = ada@example.org\n")
    own = str(Path(sys.prefix) / "bin")
    path = ":".join(part for part in _PATH.split(":") if part != own)
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Heard:
    """What a process prints, read all the time, so that a test waits for words and not for a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._lines, self._ended = process, list[str](), False
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def text(self) -> str:
        with self._news:
            return "".join(self._lines)

    def until(self, words: str, seconds: float) -> str:
        """Everything up to now, once the words are in it. Fails when the process ends or the time is over before."""
        with self._news:
            self._news.wait_for(lambda: self._ended or words in "".join(self._lines), seconds)
            text = "".join(self._lines)
        assert words in text, f"{words!r} was not printed: {text[-3000:]}"
        return text

    def whole(self, seconds: float) -> str:
        """Everything that was printed, once the process has closed its output."""
        with self._news:
            self._news.wait_for(lambda: self._ended, seconds)
            return "".join(self._lines)

    def more(self, seen: int, seconds: float) -> int:
        """Wait until more than ``seen`` lines were printed or the process has ended; how many there are."""
        with self._news:
            self._news.wait_for(lambda: self._ended or len(self._lines) > seen, seconds)
            return len(self._lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


def gone(pids: Sequence[int], seconds: float) -> None:
    """Wait until these processes have ended, children of others too; the time is shared."""
    ends = time.monotonic() + seconds
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                select.select([handle], [], [], max(0.0, ends - time.monotonic()))
            finally:
                os.close(handle)
