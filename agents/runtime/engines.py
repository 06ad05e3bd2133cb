"""Edits of container engines' configuration that add the runtime and remove it.

Rules of component/ascend-docker-runtime/install/process: an entry `ascend` for the runtime, made the default. The
functions map text to text; install.py handles the files.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from belay.agents.runtime import tomltext

NAME: Final = "ascend"
FALLBACK: Final = "runc"
STANDARD_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONTAINERD_PLUGINS: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_NEWEST_PLUGIN: Final = "io.containerd.cri.v1.runtime"


class EngineError(ValueError):
    """An engine's configuration cannot be edited; the text names the key."""


class Edit(NamedTuple):
    """The new text, the previous default runtime, and notes for the operator."""

    text: str
    default: str | None
    notes: tuple[str, ...] = ()


class Engine(NamedTuple):
    """One container engine: its file, whether the runtime becomes its default, and its two edits."""

    file: str
    default: bool
    add: Callable[[str, str, bool], Edit]
    remove: Callable[[str, str], str]
    restart: str


# -- Docker and iSula: JSON


def _object(text: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise EngineError(f"{name[:80]!r} is there twice; keep one")
            found[name] = value
        return found

    if not text.strip():
        return {}
    try:
        found = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise EngineError(f"{error.lineno}:{error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, EngineError):
            raise
        raise EngineError("nests too deeply, or holds a number of thousands of digits") from error
    if not isinstance(found, dict):
        raise EngineError("holds no JSON object")
    return found


def _runtimes(document: Mapping[str, Any]) -> dict[str, Any]:
    runtimes = document.get("runtimes")
    if runtimes is not None and not isinstance(runtimes, dict):
        raise EngineError("runtimes is not an object")
    return dict(runtimes or {})


def _json_text(document: Mapping[str, Any], like: str) -> str:
    indent = next((len(line) - len(line.lstrip(" ")) for line in like.splitlines() if line.startswith(" ")), 4)
    return json.dumps(document, indent="\t" if "\n\t" in like else indent, ensure_ascii=False) + "\n"


def _add_docker(text: str, runtime: str, default: bool) -> Edit:
    document = _object(text)
    before = document.get("default-runtime")
    document["runtimes"] = _runtimes(document) | {NAME: {"path": runtime, "runtimeArgs": []}}
    if default:
        document["default-runtime"] = NAME
    return Edit(_json_text(document, text), before if isinstance(before, str) else None)


def _remove_docker(text: str, before: str) -> str:
    document = _object(text)
    runtimes = _runtimes(document)
    if runtimes.pop(NAME, None) is not None:
        document["runtimes"] = runtimes
    if not runtimes:
        document.pop("runtimes", None)
    if document.get("default-runtime") == NAME:
        del document["default-runtime"]
        if before:
            document["default-runtime"] = before
    return _json_text(document, text)


# -- containerd


def _containerd_path(document: Mapping[str, Any]) -> tuple[str, ...]:
    version = document.get("version", 2)
    if not isinstance(version, int) or version < 1:
        raise EngineError(f"version: {version!r} is not a version of containerd's configuration")
    return ("plugins", _CONTAINERD_PLUGINS.get(version, _NEWEST_PLUGIN), "containerd")


def _add_containerd(text: str, runtime: str, default: bool) -> Edit:
    document = tomltext.read(text)
    path = _containerd_path(document)
    runc = tomltext.table(document, (*path, "runtimes", FALLBACK))
    entry: dict[str, Any] = copy.deepcopy(dict(runc)) if runc is not None else _containerd_defaults()
    options = entry.setdefault("options", {})
    if not isinstance(options, dict):
        raise EngineError(f"{tomltext.dotted((*path, 'runtimes', FALLBACK, 'options'))} is not a table")
    notes: tuple[str, ...] = ()
    if options.get("BinaryName") not in (None, "", FALLBACK, "/usr/bin/runc", "/usr/sbin/runc", "/usr/local/sbin/runc"):
        notes = (f"containers were made by {options['BinaryName']}; now the runc (or docker-runc) on PATH makes them",)
    options["BinaryName"] = runtime
    before = (tomltext.table(document, path) or {}).get("default_runtime_name")
    text = tomltext.add_table(text, (*path, "runtimes", NAME), entry)
    if default:
        text = tomltext.set_value(text, path, "default_runtime_name", NAME)
    return Edit(text, before if isinstance(before, str) else None, notes)


def _containerd_defaults() -> dict[str, Any]:
    return {
        "runtime_type": "io.containerd.runc.v2",
        "runtime_root": "",
        "runtime_engine": "",
        "privileged_without_host_devices": False,
        "options": {"SystemdCgroup": True},
    }


def _remove_containerd(text: str, before: str) -> str:
    document = tomltext.read(text)
    path = _containerd_path(document)
    found = tomltext.table(document, path)
    if found is not None and found.get("default_runtime_name") == NAME:
        text = tomltext.set_value(text, path, "default_runtime_name", before or FALLBACK)
    return tomltext.remove_table(text, (*path, "runtimes", NAME))


# -- CRI-O: a file of its own


def _add_crio(text: str, runtime: str, default: bool) -> Edit:
    document = tomltext.read(text)
    path = ("crio", "runtime")
    runc = tomltext.table(document, (*path, "runtimes", FALLBACK))
    entry = {"runtime_type": "oci", "runtime_root": ""} if runc is None else copy.deepcopy(dict(runc))
    entry |= {"runtime_path": runtime, "monitor_env": [STANDARD_PATH]}
    before = (tomltext.table(document, path) or {}).get("default_runtime")
    if default:
        text = tomltext.set_value(text, path, "default_runtime", NAME)
    return Edit(tomltext.add_table(text, (*path, "runtimes", NAME), entry), before if isinstance(before, str) else None)


def _remove_crio(text: str, before: str) -> str:
    path = ("crio", "runtime")
    found = tomltext.table(tomltext.read(text), path)
    if found is not None and found.get("default_runtime") == NAME:
        text = tomltext.set_value(text, path, "default_runtime", before or FALLBACK)
    return tomltext.remove_table(text, (*path, "runtimes", NAME))


ENGINES: Final[Mapping[str, Engine]] = {
    "docker": Engine("/etc/docker/daemon.json", True, _add_docker, _remove_docker, "systemctl restart docker"),
    "containerd": Engine(
        "/etc/containerd/config.toml", True, _add_containerd, _remove_containerd, "systemctl restart containerd"
    ),
    "crio": Engine(
        "/etc/crio/crio.conf.d/99-ascend-runtime.conf", True, _add_crio, _remove_crio, "systemctl restart crio"
    ),
    "isula": Engine("/etc/isulad/daemon.json", False, _add_docker, _remove_docker, "systemctl restart isulad"),
}


def add(scene: str, text: str, runtime: str, default: bool | None = None) -> Edit:
    """The configuration with the runtime in it. ``default``: whether it becomes the default (None: the engine's usual
    choice).

    Raises EngineError naming the key.
    """
    engine = ENGINES[scene]
    try:
        return engine.add(text, runtime, engine.default if default is None else default)
    except tomltext.EditError as error:
        raise EngineError(str(error)) from error


def remove(scene: str, text: str, before: str | None) -> str:
    """The configuration without it; ``before`` is the previous default. Raises EngineError naming the key."""
    try:
        return ENGINES[scene].remove(text, before if before and before != NAME else "")
    except tomltext.EditError as error:
        raise EngineError(str(error)) from error
