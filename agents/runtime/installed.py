"""What an installation of the container runtime is on its host: folder, record, lists; and whether it is sound."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belay.agents.runtime.build import DRIVER, RUNTIME
from belay.agents.runtime.containers import running

FOLDER: Final = "Ascend-Docker-Runtime"
HOME: Final = "/usr/local/Ascend"
LISTS: Final = "/etc/ascend-docker-runtime.d"
INFO: Final = "ascend_docker_runtime_install.info"
RECORD: Final = "belay-install.json"
NAMES: Final = ("ascend-docker-runtime", "ascend-docker-hook", "ascend-docker-cli", "ascend-docker-destroy")
_MAX_CONFIG: Final = 4 << 20
_MAX_LINKS: Final = 16


class InstallError(Exception):
    """The operation failed; the text names the file (and key) and the next step."""


@dataclass(frozen=True)
class Host:
    """The file system to change; ``root`` is not ``/`` where the host is mounted into a container."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """Resolve a path of the host; a link at its end is followed as the host would."""
        for _ in range(_MAX_LINKS):
            found = self.root / path.lstrip("/")
            if not found.is_symlink():
                return found
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(found)))
        raise InstallError(f"{path}: too many links")


def status(base: str = HOME, *, host: Host | None = None) -> Mapping[str, Any]:
    """Describe the installation and whether the engine's file still contains it. Raises InstallError for a damaged
    record."""
    host = host or Host()
    home = f"{base.rstrip('/')}/{FOLDER}"
    record = read_record(host, home)
    alive = running(host.root)
    found: dict[str, Any] = {
        "installed": record is not None, "path": home,
        "containers": [{"id": it.name, "pid": it.pid} for it in alive],
    }  # fmt: skip
    if record is None:
        return found
    info = info_of(host, home)
    missing = [name for name in (RUNTIME, DRIVER, *NAMES) if not host.at(f"{home}/{name}").is_file()]
    return found | {
        "version": record["version"],
        "scene": record["scene"],
        "config": record["config"],
        "injectionMode": info.get("injection-mode", "legacy"),
        "engine": engine_state(host, record, f"{home}/{RUNTIME}"),
        "missing": missing,
    }


def check(base: str = HOME, *, host: Host | None = None) -> Sequence[str]:
    """What is wrong with the installation, one line each with the next step; empty when it is sound.

    Raises InstallError where nothing is installed, or its record is damaged."""
    host = host or Host()
    home = f"{base.rstrip('/')}/{FOLDER}"
    record = read_record(host, home)
    if record is None:
        raise InstallError(f"{home}: nothing of belay's is installed there; use belay runtime install")
    renew = "belay runtime upgrade renews it"
    wrong = [f"{home}/{name}: is missing; {renew}" for name in status(base, host=host)["missing"]]
    for name, known in (record.get("programs") or {}).items():
        path = host.at(f"{home}/{name}")
        if path.is_file() and digest(path.read_bytes()) != known:
            wrong.append(f"{home}/{name}: is not what was installed; {renew}")
    for name in record["lists"]:
        if not host.at(f"{LISTS}/{name}").is_file():
            wrong.append(f"{LISTS}/{name}: is missing, containers lack what it names; {renew}")
    state = engine_state(host, record, f"{home}/{RUNTIME}")
    if state in ("missing", "removed"):
        wrong.append(f"{record['config']}: does not name the runtime any more; {renew}, then restart {record['scene']}")
    if not host.at(f"{home}/{INFO}").is_file():
        wrong.append(f"{home}/{INFO}: is missing, so the injection mode is legacy; {renew}")
    for name in (home, *map(str, Path(home).parents), f"{home}/{RUNTIME}", f"{home}/{DRIVER}"):
        found = host.at(name)
        mode = found.stat().st_mode if found.exists() else 0
        if mode & 0o022 and not mode & stat.S_ISVTX:
            wrong.append(f"{name}: mode {stat.S_IMODE(mode):04o} lets others write; chmod go-w it")
    return wrong


def info_of(host: Host, home: str) -> dict[str, str]:
    """What the installation's info file says; empty without one."""
    path = host.at(f"{home}/{INFO}")
    if not path.is_file():
        return {}
    return dict(line.split("=", 1) for line in text_of(path).splitlines() if "=" in line)


def engine_state(host: Host, record: Mapping[str, Any], runtime: str) -> str:
    path = host.at(record["config"])
    if not path.is_file():
        return "missing"
    text = path.read_bytes()
    if digest(text) == record["after"]:
        return "installed"
    return "edited" if runtime.encode() in text else "removed"


def read_record(host: Host, home: str) -> dict[str, Any] | None:
    path = host.at(f"{home}/{RECORD}")
    if not path.is_file():
        return None
    try:
        record = json.loads(text_of(path))
        if not {"scene", "config", "after", "before", "lists", "version"} <= record.keys():
            raise ValueError("a field is missing")
        return dict(record)
    except (ValueError, AttributeError, RecursionError) as error:
        raise InstallError(f"{home}/{RECORD}: damaged ({error}); restore the engine's file by hand") from error


def text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise InstallError(f"{path}: larger than {_MAX_CONFIG} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InstallError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def write(path: Path, body: bytes, mode: int) -> None:
    """Write a file atomically and sync it."""
    fresh = path.with_name(f".{path.name}.belay")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), mode)
        fresh.replace(path)
    except OSError as error:
        raise InstallError(f"{path}: {error.strerror}") from error


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
