"""The job's ConfigMaps that training managers read, as files: ``reset-config-<job>`` and ``data-trace-<job>``.

Containers mount ``/user/restore/reset/<namespace>.reset-config-<job>/`` (``reset.json``, ``restartType``) and
``/user/cluster-info/datatrace-config/<namespace>.data-trace-<job>/`` (``profilingSwitch``) from their host. The files
follow the ConfigMaps for as long as a pod here mounts the folder, and go with it. ConfigMaps without label
``reset=true`` are left alone, as are folders of other namespaces than the pod's own.
Source: component/ascend-device-plugin/pkg/device/ascendtolerance.go (writeCMToFile), pkg/common/file_manager.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from belay.agents.common.client import ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.hostfiles import open_folder, read, remove, replace
from belay.agents.common.log import Log
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.engine.wire.resetinfo import PREFIX, RESET_KEY, TYPE_KEY

RESET_ROOT: Final = Path("/user/restore/reset")
TRACE_ROOT: Final = Path("/user/cluster-info/datatrace-config")
TRACE_PREFIX: Final = "data-trace-"
TRACE_KEY: Final = "profilingSwitch"
FOLDER_MODE: Final = 0o755
#: A ConfigMap takes a mebibyte in all.
MAX_BYTES: Final = 1 << 20
#: Folders that one node follows at most; a node has few chips, so more of them are a mistake.
MAX_FOLDERS: Final = 256
#: Seconds between two checks of the folders that pods mount here, and after a failed write.
PERIOD: Final = 1.0
_ENDED: Final = ("Succeeded", "Failed")
_log = Log("job files")


class Roots(NamedTuple):
    """The folders on the host below which pods mount theirs."""

    reset: Path = RESET_ROOT
    trace: Path = TRACE_ROOT


class Place(NamedTuple):
    """One folder: that of a ConfigMap, with the keys that become files."""

    folder: Path
    namespace: str
    config_map: str
    keys: tuple[str, ...]


def mounted(state: NodeState, roots: Roots) -> list[Place]:
    """The folders that live pods of this node mount, in order."""
    kinds = ((roots.reset, PREFIX, (RESET_KEY, TYPE_KEY)), (roots.trace, TRACE_PREFIX, (TRACE_KEY,)))
    found = set()
    for body in state.bodies:
        if (body.get("status") or {}).get("phase") in _ENDED:
            continue
        namespace = str((body.get("metadata") or {}).get("namespace") or "")
        for path in _host_paths(body):
            for root, prefix, keys in kinds:
                name = path.name.removeprefix(f"{namespace}.")
                if path.parent == root and path.name != name and name.startswith(prefix):
                    found.add(Place(path, namespace, name, keys))
    return sorted(found)[:MAX_FOLDERS]


def _host_paths(body: Mapping[str, Any]) -> list[Path]:
    volumes = (body.get("spec") or {}).get("volumes") or ()
    texts = [(volume.get("hostPath") or {}).get("path") for volume in volumes if isinstance(volume, Mapping)]
    return [Path(text) for text in texts if isinstance(text, str) and text.startswith("/") and ".." not in text]


def write(place: Place, config_map: Mapping[str, Any] | None) -> bool:
    """Bring a folder's files in line with the ConfigMap. Returns whether anything changed. Raises OSError for what
    the disk or a hostile link does not allow."""
    labels = ((config_map or {}).get("metadata") or {}).get("labels") or {}
    data = ((config_map or {}).get("data") or {}) if labels.get("reset") == "true" else {}
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.folder.mkdir(mode=FOLDER_MODE)
    handle = open_folder(place.folder)
    changed = False
    try:
        for key in place.keys:
            text, there = data.get(key), read(handle, key, MAX_BYTES)
            if text is None and there is not None:
                remove(handle, key)
                changed = True
            elif text is not None and there != str(text).encode():
                replace(handle, key, str(text).encode())
                changed = True
    finally:
        os.close(handle)
    return changed


def clear(place: Place) -> None:
    """Remove the files and their folder; files of others stay. Raises OSError."""
    try:
        handle = open_folder(place.folder)
    except FileNotFoundError:
        return
    try:
        for key in place.keys:
            remove(handle, key)
    finally:
        os.close(handle)
    with contextlib.suppress(OSError):
        place.folder.rmdir()


async def keep_job_files(state: NodeState, cluster: ApiServer, clock: Clock, roots: Roots) -> None:
    """Follow the ConfigMaps whose folders pods here mount. Never returns."""
    following = dict[Place, tuple[asyncio.Task[None], asyncio.Lock]]()
    async with asyncio.TaskGroup() as group:
        while True:
            wanted = mounted(state, roots) if state.pods_read else list(following)
            for place in wanted:
                if place not in following:
                    writing = asyncio.Lock()
                    following[place] = group.create_task(_follow(state, cluster, clock, place, writing)), writing
            for place in sorted(following.keys() - set(wanted)):
                follower, writing = following.pop(place)
                # a thread that writes outlives the cancellation, and would create the folder again after its removal
                async with writing:
                    follower.cancel()
                    await _clear(place)
            await clock.pause(PERIOD)


async def _clear(place: Place) -> None:
    try:
        await asyncio.to_thread(clear, place)
    except OSError as error:
        _log.warning("job files cannot be removed", folder=place.folder.name, reason=error.strerror)


async def _follow(state: NodeState, cluster: ApiServer, clock: Clock, place: Place, writing: asyncio.Lock) -> None:
    problem = f"job files {place.folder.name}"
    async for body in cluster.config_map(place.namespace, place.config_map):
        while True:
            try:
                async with writing:
                    changed = await asyncio.to_thread(write, place, body)
                if changed:
                    _log.info("job files written", folder=place.folder.name)
                state.problems.pop(problem, None)
                break
            except OSError as error:
                state.problems[problem] = f"{problem} cannot be written: {error.strerror or error}"[:MAX_TEXT]
            await clock.sleep(PERIOD)
