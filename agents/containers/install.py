"""Installing the manager as a service of systemd, and removing it.

Options and checks: docs/zh/scheduling 05_developer_guide (container manager, deploy.sh).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from belay import SHIPPED
from belay.agents.containers.commands import SOCKETS, Options

SERVICE: Final = "belay-containers.service"
TIMER: Final = "belay-containers.timer"
UNITS: Final = Path("etc/systemd/system")
FLAGS: Final = Path("etc/belay/containers.env")
SYSTEMD: Final = Path("run/systemd/system")
SECONDS: Final = 60
_FOLDER: Final = SHIPPED / "deploy" / "systemd"
_DELAY: Final = re.compile(r"[0-9]+(s|m|h|sec|secs|min|mins|hr|hrs)?")
_UNSAFE: Final = re.compile(r"[\s'\"\\$`;|&<>]")

Systemctl = Callable[[Sequence[str]], None]


class InstallError(Exception):
    """The manager cannot be installed or removed; the text states the next step."""


def systemctl(arguments: Sequence[str]) -> None:
    """Run systemd's client. Raises InstallError."""
    try:
        done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"systemctl {' '.join(arguments)}: {error}") from error
    if done.returncode and arguments[0] == "is-active":
        raise InstallError(f"{arguments[-1]} does not run; see journalctl -u {arguments[-1]}")
    if done.returncode:
        raise InstallError(f"systemctl {' '.join(arguments)}: {' '.join(done.stderr.split())[:300]}")


def install(
    options: Options, *, delay: str = "60s", root: Path = Path("/"), program: str = "", run: Systemctl = systemctl
) -> list[Path]:
    """Write units and flags, and start the timer. Returns the files written. Nothing is written when a value is
    wrong. Raises InstallError."""
    if not _DELAY.fullmatch(delay):
        raise InstallError(f"timer delay {delay[:40]!r} is none; write a number with s, m or h, such as 60s")
    flags = _flags(options)
    for name, value in flags.items():
        if _UNSAFE.search(value):
            raise InstallError(f"{name} {value[:80]!r} must not hold white space, quotes or any of \\ $ ` ; | & < >")
    _ready(root)
    program = program or shutil.which("belay") or sys.argv[0]
    if not os.path.isabs(program) or _UNSAFE.search(program):
        raise InstallError(f"the program {program[:200]!r} must have an absolute path without white space")
    texts = {
        UNITS / SERVICE: _shipped(SERVICE).replace("/usr/local/bin/belay ", f"{program} "),
        UNITS / TIMER: _shipped(TIMER).replace("OnBootSec=60s", f"OnBootSec={delay}"),
        FLAGS: f"BELAY_CONTAINERS_FLAGS={' '.join(f'{name}={value}' for name, value in flags.items())}\n",
    }
    written = []
    try:
        for path, text in texts.items():
            _write(root / path, text)
            written.append(root / path)
    except OSError as error:
        raise InstallError(f"{error.filename}: {error.strerror}") from error
    run(["daemon-reload"])
    run(["enable", "--now", TIMER])
    return written


def upgrade(
    version: str, flags_problem: Callable[[list[str]], str], *, root: Path = Path("/"), run: Systemctl = systemctl
) -> list[str]:
    """Restart the service, so that it runs the program as it is now. Units and flags stay. Returns the steps taken.

    ``flags_problem`` says why this version would not take the service's flags, empty when it does: then the service is
    not touched. Raises InstallError, also where nothing is installed or the service does not stay up."""
    _ready(root)
    unit = root / UNITS / SERVICE
    if not unit.is_file():
        raise InstallError(f"{unit}: is missing, nothing is installed; use belay containers install")
    starts = [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    program = (" ".join(starts).split() or [""])[0]
    if not os.access(root / program.lstrip("/"), os.X_OK):
        raise InstallError(f"{unit}: its program {program[:200]!r} cannot be run; use belay containers install again")
    flags = root / FLAGS
    text = flags.read_text(encoding="utf-8") if flags.is_file() else ""
    words = text.partition("BELAY_CONTAINERS_FLAGS=")[2].split()
    if problem := flags_problem(words):
        raise InstallError(f"{flags}: {problem}; the service was not touched, use belay containers install again")
    run(["daemon-reload"])
    run(["restart", SERVICE])
    run(["is-active", "--quiet", SERVICE])
    return [f"{SERVICE}: restarted with version {version}", f"{unit} and {flags}: kept"]


def uninstall(*, root: Path = Path("/"), run: Systemctl = systemctl) -> list[Path]:
    """Stop the manager and remove what `install` wrote; logs stay. Returns the files removed. Raises InstallError."""
    _ready(root)
    there = [root / path for path in (UNITS / SERVICE, UNITS / TIMER, FLAGS) if (root / path).is_file()]
    if not there:
        return []
    for unit in (TIMER, SERVICE):
        if (root / UNITS / unit).is_file():
            run(["disable", "--now", unit])
    try:
        for path in there:
            path.unlink()
    except OSError as error:
        raise InstallError(f"{error.filename}: {error.strerror}") from error
    run(["daemon-reload"])
    return there


def _ready(root: Path) -> None:
    if root == Path("/"):
        if os.geteuid() != 0:
            raise InstallError("only root may do this")
        if not (root / SYSTEMD).is_dir():
            raise InstallError("this host does not run systemd; run `belay containers run` by other means")


def _flags(options: Options) -> Mapping[str, str]:
    """Every flag that has a value, including the runtime's socket."""
    given = {
        "--driver": options.driver, "--runtime": options.runtime,
        "--socket": options.socket or str(SOCKETS[options.runtime]), "--strategy": options.strategy,
        "--fault-config": options.fault_config, "--state": options.state,
        "--log-file": options.log_file, "--log-level": str(options.log_level),
        "--log-days": str(options.log_days), "--log-backups": str(options.log_backups),
    }  # fmt: skip
    return {name: value for name, value in given.items() if value}


def _shipped(name: str) -> str:
    file = _FOLDER / name
    if not file.is_file():
        raise InstallError(f"{name} is missing in this installation of Belay")
    return file.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o644)
    os.replace(fresh, path)
