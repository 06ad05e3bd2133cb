"""Installing the container runtime on a host, and removing it.

Each step is recorded in the runtime's folder before it is taken, with the engine's original file: so an interrupted
installation can be undone, and the engine's file is restored byte for byte unless it was edited in between. Rules of
component/ascend-docker-runtime/build/scripts/run_main.sh and install/process.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from belay.agents.runtime import engines
from belay.agents.runtime.build import DRIVER, RUNTIME, BuildError, build, compiler
from belay.agents.runtime.containers import running
from belay.agents.runtime.installed import (
    FOLDER,
    HOME,
    INFO,
    LISTS,
    NAMES,
    RECORD,
    Host,
    InstallError,
    check,
    digest,
    info_of,
    read_record,
    status,
    text_of,
    write,
)
from belay.agents.runtime.tables import policies

TYPES: Final[Mapping[str, str]] = {
    "A500": "Atlas 500 (model 3000)",
    "A200": "Atlas 200 (RC mode)",
    "A200ISoC": "Atlas 200I SoC A1",
    "A500A2": "Atlas 500 A2",
    "A200IA2": "Atlas 200I A2 and Atlas 200I DK A2 (RC mode)",
}
"""Products whose containers need more of their host than chips, by name in ``--install-type``; each has a list."""
#: What the shipped list is called beside one that was edited; the runtime reads only names that end with .list.
_NEW: Final = ".new"
GENERAL: Final = "general"
"""The product type of every product that has no list of its own."""
_NEEDS_OS_LIBRARIES: Final = ("A500A2", "A200IA2")
_OS_LISTS: Final = {"ubuntu": "ubuntu.append", "openeuler": "openeuler.append"}


@dataclass(frozen=True)
class InstallOptions:
    """What an operator chooses; the fields are the options of `belay runtime install`.

    ``None`` keeps what is installed, or without an installation means the default: Docker, mode legacy, no product type
    (``kind`` GENERAL removes one).
    """

    scene: str | None = None
    mode: str | None = None
    base: str = HOME
    config: str | None = None
    kind: str | None = None
    default: bool | None = None
    programs: Path | None = None


def install(options: InstallOptions, version: str, host: Host | None = None) -> Sequence[str]:
    """Install, or renew an earlier installation. Returns the steps taken, one per line. Raises InstallError."""
    host = host or Host()
    home = f"{options.base.rstrip('/')}/{FOLDER}"
    record = read_record(host, home)
    options = _completed(options, record, host)
    _check_options(options, host)
    _check_home(options, host, home, record)
    scene, config = str(options.scene), str(options.config)
    text, made_up = _engine_text(host, config, scene)
    edit = _edit(config, scene, text, f"{home}/{RUNTIME}", options.default)
    lists = _lists(options, host)

    # nothing was written yet; the record comes first, so that what follows can be undone
    host.at(home).mkdir(parents=True, exist_ok=True)
    host.at(home).chmod(0o755)
    record = (
        _new_record(host, scene, config, edit, made_up) if record is None else _renewed_record(host, config, record)
    )
    edited = _edited_lists(host, record, lists)
    record |= {"after": digest(edit.text.encode()), "version": version, "asDefault": _is_default(options)}
    record["lists"] = {**record["lists"], **{name: digest(body) for name, body in lists.items()}}
    write(host.at(f"{home}/{RECORD}"), json.dumps(record, indent=1).encode(), 0o600)

    _programs(options, host, home)
    done = [f"programs in {home}"]
    write(host.at(f"{home}/{INFO}"), _info(options, home, config, version).encode(), 0o640)
    done += _write_lists(host, lists, edited)
    record["programs"] = {name: digest(host.at(f"{home}/{name}").read_bytes()) for name in (RUNTIME, DRIVER)}
    write(host.at(f"{home}/{RECORD}"), json.dumps(record, indent=1).encode(), 0o600)

    # the engine's file comes last: it names programs, which are there now
    if not made_up and edit.text == text:
        return [*done, f"{config}: holds runtime {engines.NAME} already"]
    write(host.at(config), edit.text.encode(), 0o600)
    done.append(f"{config}: runtime {engines.NAME}" + (", the default" if _is_default(options) else ""))
    return [*done, *edit.notes, f"restart {scene} to use it: {engines.ENGINES[scene].restart}"]


def _check_home(options: InstallOptions, host: Host, home: str, record: Mapping[str, Any] | None) -> None:
    """Refuse a folder that holds another installation."""
    if record is None:
        if host.at(home).is_dir() and any(host.at(home).iterdir()):
            raise InstallError(
                f"{home}: holds another installation; remove that first or choose another --install-path"
            )
    elif (record["scene"], record["config"]) != (str(options.scene), str(options.config)):
        raise InstallError(f"{home}: is installed for {record['scene']} ({record['config']}); uninstall that first")


def _new_record(host: Host, scene: str, config: str, edit: engines.Edit, made_up: bool) -> dict[str, Any]:
    """A record that holds the engine's original file, if it is one of an operator."""
    record: dict[str, Any] = {
        "scene": scene,
        "config": config,
        "default": edit.default,
        "lists": {},
        "before": None,
        "mode": None,
        "edited": False,
    }
    path = host.at(config)
    if path.exists() and not made_up:
        record["before"] = base64.b64encode(path.read_bytes()).decode()
        record["mode"] = stat.S_IMODE(path.stat().st_mode)
    return record


def _renewed_record(host: Host, config: str, record: Mapping[str, Any]) -> dict[str, Any]:
    path = host.at(config)
    if path.exists() and digest(path.read_bytes()) not in _ours(record):
        # restoring the original would lose later edits
        return {**record, "edited": True}
    return dict(record)


def _write_lists(host: Host, lists: Mapping[str, bytes], edited: Collection[str]) -> list[str]:
    """Write the mount lists; one that was edited is kept, and the shipped one is put beside it."""
    host.at(LISTS).mkdir(parents=True, exist_ok=True)
    for name, body in lists.items():
        write(host.at(f"{LISTS}/{name}{_NEW if name in edited else ''}"), body, 0o440)
        if name not in edited:
            host.at(f"{LISTS}/{name}{_NEW}").unlink(missing_ok=True)
    kept = [f"{LISTS}/{name}: was edited, kept; the shipped one is {name}{_NEW} beside it" for name in sorted(edited)]
    return [f"mount lists in {LISTS}: {', '.join(sorted(lists))}", *kept]


def upgrade(options: InstallOptions, version: str, host: Host | None = None) -> Sequence[str]:
    """Renew the installation at ``options.base`` and keep every choice that ``options`` does not change.

    Raises InstallError, also where nothing is installed.
    """
    host = host or Host()
    home = f"{options.base.rstrip('/')}/{FOLDER}"
    record = read_record(host, home)
    if record is None:
        raise InstallError(f"{home}: nothing of belay's is installed there; use belay runtime install")
    return [f"from {record['version']} to {version}", *install(options, version, host)]


def uninstall(base: str = HOME, *, force: bool = False, host: Host | None = None) -> Sequence[str]:
    """Undo an installation; what was done, line by line.

    Refused (InstallError) while containers made by the runtime run: their engine needs it to stop them. With ``force``
    the engine's file and the lists go now, and the programs stay until the next uninstall without such containers.
    """
    host = host or Host()
    home = f"{base.rstrip('/')}/{FOLDER}"
    record = read_record(host, home)
    if record is None:
        raise InstallError(f"{home}: nothing of belay's is installed there; --install-path names another place")
    alive = running(host.root)
    if alive and not force:
        names = ", ".join(found.name for found in alive[:10]) + (" …" if len(alive) > 10 else "")
        raise InstallError(f"{len(alive)} containers made by it run ({names}); stop them, or give --force")
    done = [_restore(host, record)]
    for name, known in record["lists"].items():
        path = host.at(f"{LISTS}/{name}")
        host.at(f"{LISTS}/{name}{_NEW}").unlink(missing_ok=True)
        if path.is_file() and digest(path.read_bytes()) != known:
            done.append(f"{LISTS}/{name}: was edited, kept")
        else:
            path.unlink(missing_ok=True)
    if host.at(LISTS).is_dir() and not any(host.at(LISTS).iterdir()):
        host.at(LISTS).rmdir()
    if alive:
        done.append(f"{home}: stays for {len(alive)} running containers; uninstall again when they are gone")
    else:
        shutil.rmtree(host.at(home))
        done.append(f"{home}: removed")
    return [*done, f"restart {record['scene']}: {engines.ENGINES[record['scene']].restart}"]


# -- before any change


def _completed(options: InstallOptions, record: Mapping[str, Any] | None, host: Host) -> InstallOptions:
    """The choices with what is installed, else the defaults, in the place of those that were not made."""
    home = f"{options.base.rstrip('/')}/{FOLDER}"
    info = info_of(host, home) if record is not None else {}
    kind = options.kind or next((kind for kind in TYPES if info.get(kind.lower()) == "y"), None)
    scene = options.scene or (record["scene"] if record is not None else "docker")
    default = options.default
    if default is None and record is not None and scene == record["scene"]:
        default = record.get("asDefault")
    config = options.config or (record["config"] if record is not None and scene == record["scene"] else None)
    return replace(
        options,
        scene=scene,
        mode=options.mode or info.get("injection-mode") or "legacy",
        kind=None if kind == GENERAL else kind,
        default=default,
        config=config or (engines.ENGINES[scene].file if scene in engines.ENGINES else ""),
    )


def _edited_lists(host: Host, record: Mapping[str, Any], lists: Mapping[str, bytes]) -> set[str]:
    """The lists on the host that were edited, or written before the installation."""
    edited = set()
    for name, body in lists.items():
        path = host.at(f"{LISTS}/{name}")
        if path.is_file() and digest(path.read_bytes()) not in (record["lists"].get(name), digest(body)):
            edited.add(name)
    return edited


def _check_options(options: InstallOptions, host: Host) -> None:
    if not host.root.is_dir():
        raise InstallError(f"--root: {host.root} is not a folder")
    if host.root == Path("/") and os.geteuid() != 0:
        raise InstallError("only root can install a container runtime")
    if options.scene not in engines.ENGINES:
        raise InstallError(f"--install-scene: {options.scene!r} is none of {', '.join(engines.ENGINES)}")
    if options.mode not in ("legacy", "cdi"):
        raise InstallError(f"--injection-mode: {options.mode!r} is neither legacy nor cdi")
    if options.kind is not None and options.kind not in TYPES:
        raise InstallError(f"--install-type: {options.kind!r} is none of {', '.join(TYPES)}, {GENERAL}")
    if not options.base.startswith("/"):
        raise InstallError(f"--install-path: {options.base!r} is not an absolute path")

    _check_writers(options.base, host)
    usual = engines.ENGINES[str(options.scene)].file
    if options.config != usual and not host.at(str(options.config)).is_file():
        raise InstallError(f"--config-file-path: {options.config} does not exist")
    _check_programs(options.programs)


def _check_writers(base: str, host: Host) -> None:
    """Refuse a folder that others may write: every container that requests chips would be refused later."""
    for folder in (base, *map(str, Path(base).parents)):
        path = host.at(folder)
        mode = path.stat().st_mode if path.exists() else 0
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise InstallError(f"{folder}: mode {stat.S_IMODE(mode):04o} lets others write; chmod go-w it")


def _check_programs(programs: Path | None) -> None:
    """Refuse a folder without the programs; without a folder, a host that cannot build them."""
    if programs is not None:
        for name in (RUNTIME, DRIVER):
            if not (programs / name).is_file():
                raise InstallError(f"{programs}/{name}: is missing; belay runtime build makes it")
        return
    try:
        compiler()
    except BuildError as error:
        raise InstallError(f"{error}; or build elsewhere (belay runtime build) and give --programs DIR") from error


def _engine_text(host: Host, config: str, scene: str) -> tuple[str, bool]:
    """The engine's configuration, and whether the file is missing."""
    path = host.at(config)
    if not path.exists():
        return (_containerd_default(host) if scene == "containerd" else ""), True
    return text_of(path), False


def _containerd_default(host: Host) -> str:
    if host.root != Path("/") or not shutil.which("containerd"):
        return "version = 2\n"
    try:
        return subprocess.run(
            ["containerd", "config", "default"], capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"containerd config default: {error}; write a configuration first") from error


def _edit(config: str, scene: str, text: str, runtime: str, default: bool | None) -> engines.Edit:
    try:
        return engines.add(scene, text, runtime, default)
    except engines.EngineError as error:
        raise InstallError(f"{config}: {error}") from error


def _is_default(options: InstallOptions) -> bool:
    return engines.ENGINES[str(options.scene)].default if options.default is None else options.default


def _lists(options: InstallOptions, host: Host) -> Mapping[str, bytes]:
    folder = policies() / "runtime"
    base = (folder / ("base.list" if options.kind is None else f"base.list_{options.kind}")).read_bytes()
    if options.kind in _NEEDS_OS_LIBRARIES:
        name = _os_name(host)
        if name not in _OS_LISTS:
            raise InstallError(
                f"/etc/os-release: ID {name!r} is unknown for {options.kind}; ubuntu and openEuler are known"
            )
        base += (folder / _OS_LISTS[name]).read_bytes()
    lists = {"base.list": base}
    if host.at("/sys/class/unified_bus").exists():
        lists["ub_driver.list"] = (folder / "ub_driver.list").read_bytes()
    return lists


def _os_name(host: Host) -> str:
    path = host.at("/etc/os-release")
    for line in text_of(path).splitlines() if path.exists() else ():
        if line.startswith("ID="):
            return line[3:].strip().strip("\"'").lower()
    return ""


# -- files


def _programs(options: InstallOptions, host: Host, home: str) -> None:
    target = host.at(home)
    if options.programs is None:
        try:
            build(target)
        except BuildError as error:
            raise InstallError(str(error)) from error
    else:
        for name in (RUNTIME, DRIVER):
            write(target / name, (options.programs / name).read_bytes(), 0o550)
    for name in NAMES:
        # links to the file itself: a symbolic one would fail the checks of programs
        fresh = target / f".{name}.new"
        fresh.unlink(missing_ok=True)
        os.link(target / RUNTIME, fresh)
        # renaming onto another link to the same file does nothing
        (target / name).unlink(missing_ok=True)
        fresh.rename(target / name)


def _info(options: InstallOptions, home: str, config: str, version: str) -> str:
    values = {
        "version": version, "arch": platform.machine(), "os": "linux", "path": home, "build": f"belay {version}",
        **{kind.lower(): "y" if kind == options.kind else "n" for kind in TYPES},
        "install-scene": options.scene, "config-file-path": config, "injection-mode": options.mode,
    }  # fmt: skip
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _restore(host: Host, record: Mapping[str, Any]) -> str:
    config, path = record["config"], host.at(record["config"])
    before = None if record["before"] is None else base64.b64decode(record["before"])
    now = path.read_bytes() if path.is_file() else None
    if now is not None and digest(now) == record["after"] and not record.get("edited"):
        if before is None:
            path.unlink()
            return f"{config}: removed, as it was not there before"
        write(path, before, record["mode"])
        return f"{config}: as it was, byte for byte"
    if now is None or now == before:
        return f"{config}: holds nothing of ours"
    try:
        text = engines.remove(record["scene"], now.decode("utf-8"), record["default"])
    except (engines.EngineError, UnicodeDecodeError) as error:
        raise InstallError(f"{config}: {error}; take the runtime {engines.NAME} out by hand, then try again") from error
    write(path, text.encode(), stat.S_IMODE(path.stat().st_mode))
    return f"{config} was edited since it was installed; only the runtime {engines.NAME} was taken out"


def _ours(record: Mapping[str, Any]) -> set[str]:
    """Digests of the engine's file that are known: the installed and the original one."""
    before = set() if record["before"] is None else {digest(base64.b64decode(record["before"]))}
    return {record["after"], *before}


__all__ = [
    "FOLDER", "GENERAL", "HOME", "Host", "InstallError", "InstallOptions", "LISTS", "check", "install", "status",
    "uninstall", "upgrade",
]  # fmt: skip
