"""A claim's devices as a CDI file: device nodes, driver folders and environment of the containers that use the claim.

Containers get what the container runtime gives (policies/runtime, component/ascend-common/cdi): the chip's node, the
family's shared nodes, the mount lists, LD_LIBRARY_PATH. Format: CNCF container device interface 0.6.0, which every
container runtime with DRA reads.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.common import hostfiles
from belay.agents.dra.devices import Device
from belay.agents.dra.settings import DraSettings
from belay.agents.kubelet.response import Given, device_nodes

VERSION: Final = "0.6.0"
KIND: Final = "ascend.com/npu"
_LIBRARIES: Final = ("/usr/local/Ascend/driver/lib64/common", "/usr/local/Ascend/driver/lib64/driver")
_ALWAYS: Final = ("/etc/hccl_rootinfo.json", "/usr/local/Ascend/driver/topo")
#: Mounted where the host has no list: the shipped list of servers and cards (policies/runtime/base.list).
_BASE: Final = (
    "/usr/local/Ascend/driver/lib64", "/usr/local/Ascend/driver/include", "/usr/local/dcmi", "/usr/local/bin/npu-smi",
    "/var/queue_schedule",
)  # fmt: skip
_MAX_LIST: Final = 1 << 16
_MAX_MOUNTS: Final = 128
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


def file_name(uid: str) -> str:
    """The name of a claim's file. Raises ValueError when the UID is none."""
    if not _UID.fullmatch(uid):
        raise ValueError(f"claim UID {uid[:80]!r} is no UID")
    return f"ascend.com-npu_{uid}.json"


def device_id(uid: str, device: str) -> str:
    """The full CDI name of one device of a claim; names of different claims never meet."""
    return f"{KIND}={uid}-{device}"


def describe(uid: str, chosen: Sequence[Device], family: str, settings: DraSettings) -> dict[str, Any]:
    """The description of a claim's devices. Raises ValueError when a required device node is missing."""
    own: list[dict[str, Any]] = []
    shared: list[dict[str, str]] = []
    hosts: list[str] = []
    for device in chosen:
        number = device.chip if device.vnpu is None else device.vnpu.id
        given = Given(visible=(), numbers=[number], virtual=device.vnpu is not None, family=family)
        node, *others = device_nodes(given, settings.dev)
        hosts.append(node[0])
        own.append({"name": f"{uid}-{device.name}", "containerEdits": {"deviceNodes": [_node(*node)]}})
        shared = [_node(*one) for one in others]
    for host in (*hosts, *(node["hostPath"] for node in shared)):
        if not os.path.exists(host):
            raise ValueError(f"device node {host} is missing on this node: is the NPU driver loaded?")
    exists = _existence(settings.host_root)
    edits: dict[str, Any] = {"deviceNodes": shared, "mounts": [_mount(path) for path in _mounts(settings, exists)]}
    libraries = [path for path in _LIBRARIES if exists(path)]
    if libraries:
        edits["env"] = [f"LD_LIBRARY_PATH={':'.join(libraries)}"]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": own, "containerEdits": edits}


def write(folder: Path, uid: str, body: dict[str, Any]) -> None:
    """Write a claim's file in one step, so that no reader sees a part of it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = hostfiles.open_folder(folder)
    try:
        hostfiles.replace(handle, file_name(uid), json.dumps(body, indent=1, sort_keys=True).encode())
    finally:
        os.close(handle)


def remove(folder: Path, uid: str) -> None:
    """Remove a claim's file; succeed when there is none. Raises OSError."""
    try:
        handle = hostfiles.open_folder(folder)
    except FileNotFoundError:
        return
    try:
        hostfiles.remove(handle, file_name(uid))
    finally:
        os.close(handle)


def _mounts(settings: DraSettings, exists: Callable[[str], bool]) -> list[str]:
    found: list[str] = []
    for path in (*_list(settings), *_ALWAYS):
        if path not in found and exists(path):
            found.append(path)
    return found[:_MAX_MOUNTS]


def _list(settings: DraSettings) -> Iterable[str]:
    """The paths of the host's base.list, as the runtime's CDI mode reads it; the shipped ones where it has none."""
    folder = Path(f"{settings.host_root}{settings.lists}")
    try:
        handle = hostfiles.open_folder(folder)
    except OSError:
        return _BASE
    try:
        content = hostfiles.read(handle, "base.list", _MAX_LIST)
    except OSError:
        return _BASE
    finally:
        os.close(handle)
    if content is None or len(content) > _MAX_LIST:
        return _BASE
    lines = (line.strip() for line in content.decode("utf-8", "replace").splitlines())
    return [line for line in lines if line.startswith("/") and not set(line) & set("*?[")]


def _existence(root: str) -> Callable[[str], bool]:
    return lambda path: os.path.lexists(f"{root}{path}")


def _node(host: str, inside: str) -> dict[str, str]:
    return {"path": inside, "hostPath": host, "permissions": "rwm"}


def _mount(path: str) -> dict[str, Any]:
    return {"hostPath": path, "containerPath": path, "options": ["rbind", "rprivate", "ro"]}
