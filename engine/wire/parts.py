"""Annotations of pods that hold a part of a chip: dynamic vNPUs and soft shares.

Sources: component/ascend-for-volcano/plugin/device_info.go and internal/npu/vnpu/vdynamic.go (``huawei.com/npu-core``),
internal/npu/base/task.go (shares), component/ascend-device-plugin/pkg/common/device.go (names of real devices).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from belay.engine.model.cluster import Pod
from belay.engine.model.labels import ASCEND_REAL, NPU_CORE, SHARE_CORES, SHARE_ID, SHARE_MEMORY, SHARE_POLICY
from belay.engine.model.quantities import whole_number

#: Numbers that the runtime's own configuration uses for the policies of soft sharing.
POLICY_NUMBERS: Final = {"fixed-share": "1", "elastic": "2", "best-effort": "3"}
_POLICY_NAMES: Final = {number: name for name, number in POLICY_NUMBERS.items()}

_PART: Final = re.compile(r"^(\d{1,4})-([a-z0-9_]{1,32})$")
#: ``Ascend310P-2c.1cpu-105-0_3``: size, vNPU, chip, vGroup.
_REAL: Final = re.compile(r"^[A-Za-z0-9]+-[a-z0-9.]+-\d{1,9}-\d{1,4}(?:_(\d{1,3}))?$")
_CHIP: Final = re.compile(r"^[A-Za-z][A-Za-z0-9]*-(\d{1,4})(?:-\d{1,4})?$")
_HEAD: Final = re.compile(r"(\d{1,4})(?:-|$)")
_SHARED: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*-(\d{1,4})-\d{1,4}$")
_TAIL: Final = re.compile(r"-(\d{1,4})(?:_\d{1,3})?$")


class Cores(NamedTuple):
    """The value of ``huawei.com/npu-core``: one chip with a vNPU template, or whole chips without one."""

    chips: tuple[int, ...]
    template: str = ""


class Share(NamedTuple):
    """A soft share: the chip, percent of its AI cores, MiB of its memory, and the policy of all shares on the chip."""

    chip: int
    cores: int
    memory: int
    policy: str


def cores_text(chips: Sequence[int], template: str = "") -> str:
    """The annotation's value: ``0-vir02`` or ``0,1``."""
    return f"{chips[0]}-{template}" if template else ",".join(str(chip) for chip in chips)


@lru_cache(maxsize=65536)
def parse_cores(text: str) -> Cores | None:
    """Parse the annotation's value; None if it is invalid."""
    part = _PART.match(text)
    if part:
        return Cores((int(part[1]),), part[2])
    pieces = text.split(",")
    if all(whole_number(piece, digits=4) is not None for piece in pieces):
        return Cores(tuple(sorted({int(piece) for piece in pieces})))
    return None


@lru_cache(maxsize=65536)
def vgroup(real: str) -> int | None:
    """The vGroup in the name of a vNPU, ``Ascend310P-2c.1cpu-105-0_3`` → 3; None if the name has none."""
    match = _REAL.match(real)
    return int(match[1]) if match and match[1] is not None else None


@lru_cache(maxsize=65536)
def chip_of(name: str) -> int | None:
    """The physical chip of a pod's device name; None if the name contains no chip.

    ``Ascend910-4`` and the vNPUs ``Ascend310P-2c-100-1`` and ``Ascend310P-2c-100-1_3`` (with its vGroup) end with
    the chip, the dynamic ``1-vir02`` begins with it, and the share ``Ascend910-1-17`` has it in the middle.
    """
    match = _HEAD.match(name) or _SHARED.match(name) or _TAIL.search(name)
    return int(match[1]) if match else None


def parse_share(annotations: Mapping[str, str], resource: str) -> Share | None:
    """The soft share that a pod holds; None for pods without one."""
    if SHARE_CORES not in annotations:
        return None
    device = annotations.get(ASCEND_REAL) or annotations.get(resource) or ""
    return _share(
        device, annotations[SHARE_CORES], annotations.get(SHARE_MEMORY, ""), annotations.get(SHARE_POLICY, "")
    )


def held_cores(pod: Pod) -> Cores | None:
    """The vNPU or chips that the scheduler has given to a pod of AI cores; None for other pods."""
    return parse_cores(pod.annotations.get(NPU_CORE, ""))


@lru_cache(maxsize=65536)
def _share(device: str, cores: str, memory: str, policy: str) -> Share | None:
    chip = _CHIP.match(device.split(",")[0].strip())
    percent, mib = whole_number(cores), whole_number(memory)
    if chip is None or percent is None or mib is None or not policy:
        return None
    return Share(int(chip[1]), percent, mib, _POLICY_NAMES.get(policy, policy))


def share_annotations(cores: int, memory: int, policy: str, number: int | None) -> dict[str, str]:
    """Annotations of a soft share in a pod's Binding, besides its chip; ``number`` numbers the shares of a chip."""
    out = {SHARE_CORES: str(cores), SHARE_MEMORY: str(memory), SHARE_POLICY: policy}
    if number is not None:
        out[SHARE_ID] = str(number)
    return dict(sorted(out.items()))
