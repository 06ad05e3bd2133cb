"""Input of the vCANN runtime in a container with a share of a chip: a small file and a shared memory segment.

Source: component/ascend-device-plugin/pkg/device/ (soft share), docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from belay.agents.kubelet.pods import PodFacts
from belay.engine.model.labels import SHARE_CORES, SHARE_MEMORY, SHARE_POLICY
from belay.engine.wire.parts import POLICY_NUMBERS

FILE: Final = "npu_info.config"
INSIDE: Final = "/etc/enpu/vcann-rt/"
SHARED_MEMORY: Final = "/dev/shm"
VIDS: Final = 100
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_OWN: Final = re.compile(r"(\d{1,4})_(\d{1,2})")


class ShareError(Exception):
    """A share cannot be set up; the text states why."""


def folder_of(root: Path, pod: PodFacts) -> Path:
    """``<root>/<namespace>.<job>``. Raises ShareError for invalid names."""
    name = f"{pod.namespace}.{pod.owner}"
    if not _SAFE.fullmatch(name) or ".." in name:
        raise ShareError(f"{name!r} cannot name a folder")
    return root / name


def prepare(root: Path, pod: PodFacts, chip: int, die: str, config_dir: str) -> list[tuple[str, str, bool]]:
    """Write a share's file and return its container's mounts (host, container, read-only). Raises ShareError.

    ``die`` names the shared memory (VDIE id, on A5 the DDIE). The share's number is the smallest free
    one on this chip.
    """
    base = folder_of(root, pod)
    try:
        taken = {
            int(match[2]) for path in root.glob("*/*") if (match := _OWN.fullmatch(path.name)) and int(match[1]) == chip
        }
        number = next((n for n in range(VIDS) if n not in taken), None)
        if number is None:
            raise ShareError(f"all {VIDS} shares of chip {chip} are taken")
        own = base / f"{chip}_{number}"
        os.makedirs(own, mode=0o755)
        path = own / FILE
        path.write_text(content(pod, chip, number, die), encoding="ascii")
        path.chmod(0o644)
    except OSError as error:
        raise ShareError(f"{base}: {error.strerror}") from error
    mounts = [(str(own), INSIDE, True)]
    if die:
        mounts.insert(0, (f"{config_dir.rstrip('/')}/{chip}/{die}", f"{SHARED_MEMORY}/{die}", False))
    return mounts


def content(pod: PodFacts, chip: int, number: int, die: str) -> str:
    """Return the file's content; a key without a value is left out."""
    notes: Mapping[str, str] = {**pod.labels, **pod.annotations}
    policy = notes.get(SHARE_POLICY, "")
    rows = {
        "physical-npu-id": str(chip),
        "virtual-npu-id": str(number),
        "aicore-quota": notes.get(SHARE_CORES, ""),
        "memory-quota": notes.get(SHARE_MEMORY, ""),
        "shm-id": die,
        "scheduling-policy": POLICY_NUMBERS.get(policy, policy),
    }
    for key, value in rows.items():
        if value and not _SAFE.fullmatch(value):
            raise ShareError(f"{key} {value[:40]!r} of pod {pod.key} is not allowed")
    return "".join(f"{key}={value}\n" for key, value in rows.items() if value)


def clean(root: Path, pods: Iterable[PodFacts]) -> list[str]:
    """Remove the folders of jobs without a live pod on this node, and return their names."""
    keep = set()
    for pod in pods:
        try:
            keep.add(folder_of(root, pod).name) if pod.live else None
        except ShareError:
            continue
    gone = []
    for path in sorted(root.glob("*.*")):
        if path.name not in keep and path.is_dir() and not path.is_symlink() and any(map(_own, path.iterdir())):
            shutil.rmtree(path, ignore_errors=True)
            gone.append(path.name)
    return gone


def _own(path: Path) -> bool:
    return _OWN.fullmatch(path.name) is not None
