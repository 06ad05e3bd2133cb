"""Device ids as kubelet, annotations and containers spell them.

Grammar: component/ascend-device-plugin/pkg/common/{constants,device,common}.go. ``Ascend910-3`` is a whole chip by its
physical id, ``Ascend310P-VPro-3`` one of a mixed server, ``Ascend910-3-17`` a share of it, ``Ascend310P-4c.3cpu-100-0``
vNPU 100 on chip 0, with ``_3`` appended one that the plugin has created (vGroup 3), ``npu-core-12`` one AI core of no
particular chip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

CORE: Final = "npu-core"
CORE_PREFIX: Final = "npu-core-"
EDGE_PREFIX: Final = "davinci-mini-"
MAX_NAME: Final = 50
MAX_IDS: Final = 800
#: Devices of one node by family: component/ascend-device-plugin/pkg/common/constants.go.
MAX_DEVICES: Final = {"Ascend310": 256}
MAX_DEVICES_ELSE: Final = 100
MAX_CHIP: Final = 255
FIRST_VDEV: Final = 100
LAST_VDEV: Final = 1123
#: Short specs that a family may have, as a prefix of the whole spec.
_SHORT: Final = {
    "Ascend910": re.compile(r"([2-6]|8|10|12|16)c(?![0-9a-z])"),
    "Ascend310P": re.compile(r"(1|2|4)c(?![0-9a-z])"),
}
_SPEC: Final = re.compile(r"\d{1,3}c(\.\d{1,2}cpu)?(\.\d{1,3}g)?(\.(dvpp|ndvpp))?")
_NUMBER: Final = re.compile(r"\d{1,9}")


class Device(NamedTuple):
    """A parsed id: the chip (physical id), and for a vNPU its id and spec."""

    chip: int
    vdev: int | None = None
    spec: str = ""


def parse(name: str, *, shared: bool = False) -> Device:
    """Parse an id from kubelet or an annotation. Raises ValueError with the id.

    In share mode the last part is the share and is dropped first. The chip is the last part, without a vGroup; the
    third of four parts is the vNPU's id.
    """
    if len(name) > MAX_NAME:
        raise ValueError(f"device id {name[:MAX_NAME]!r}… is longer than {MAX_NAME} characters")
    parts = name.split("-")
    if shared:
        parts = parts[:-1]
    if len(parts) < 2:
        raise ValueError(f"device id {name!r} has no number; it must look like Ascend910-0")
    tail = parts[-1].split("_", 1)[0]
    chip = _number(name, tail)
    if chip > MAX_CHIP:
        raise ValueError(f"device id {name!r} names chip {chip}, the largest possible is {MAX_CHIP}")
    if len(parts) == 4 and _SPEC.fullmatch(parts[1]):
        vdev = _number(name, parts[2])
        if not FIRST_VDEV <= vdev <= LAST_VDEV:
            raise ValueError(f"device id {name!r} names vNPU {vdev}, they are {FIRST_VDEV} to {LAST_VDEV}")
        return Device(chip, vdev, parts[1])
    return Device(chip)


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"device id {name!r} does not end in the number of a chip")
    return int(text)


def shared(name: str, index: int) -> str:
    """Return the name of one share of a chip."""
    return f"{name}-{index}"


def virtual(kind: str, spec: str, vdev: int, chip: int) -> str:
    """Return the name of a vNPU, e.g. ``Ascend310P-4c-100-0``."""
    return f"{kind}-{spec}-{vdev}-{chip}"


def realised(kind: str, spec: str, vdev: int, chip: int, vgroup: int | None) -> str:
    """Return the name of a vNPU that the plugin has created; with the vGroup where the driver reports one."""
    name = virtual(kind, spec, vdev, chip)
    return name if vgroup is None else f"{name}_{vgroup}"


def legal_spec(kind: str, spec: str) -> bool:
    """Return whether a family has resources of this spec."""
    short = _SHORT.get(kind)
    return bool(short and short.match(spec) and _SPEC.fullmatch(spec))


def order(name: str) -> tuple[tuple[int, str | int], ...]:
    """Return a key that sorts ids numerically: ``Ascend910-2`` before ``Ascend910-10``."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part)


def listed(ids: Iterable[str]) -> str:
    """Format ids for annotations: sorted, comma separated."""
    return ",".join(sorted(ids, key=order))
