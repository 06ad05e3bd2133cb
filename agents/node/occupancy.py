"""The users of the node's chips and vNPUs, on the safe side. A pod that was placed without naming its chips may use
any, so it counts as a user of everything it could hold. Device names: docs/zh/scheduling/06_api/12_k8s.md,
component/ascend-device-plugin/pkg/common/device.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from belay.agents.drivers.base import VNPU
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import HUAWEI_PREFIX, NPU_CORE
from belay.engine.wire.podannotations import chip_ids


class Users(msgspec.Struct, frozen=True):
    """Users by chip and by vNPU, as ``namespace/pod``. A user of a vNPU is also listed for its chip."""

    chips: dict[int, tuple[str, ...]]
    vnpus: dict[int, str]

    def of(self, chips: Iterable[int]) -> tuple[str, ...]:
        """Return the users of any of the chips, sorted."""
        return tuple(sorted({user for chip in chips for user in self.chips.get(chip, ())}))


def users(
    pods: Iterable[Pod],
    chips: Sequence[int],
    vnpus: Sequence[VNPU],
    prefix: str,
    physical: Mapping[str, str] | None = None,
) -> Users:
    """Derive the users of chips and vNPUs. `pods` are those of this node; finished ones hold nothing, terminating ones
    still do.

    `physical` maps device names in pods' annotations to the physical ones where they differ (Ascend950 servers offer
    logic ids): without it a pod would be seen on the wrong chip, and a chip in use could be taken for idle.
    """
    by_chip: dict[int, set[str]] = {chip: set() for chip in chips}
    by_vnpu: dict[int, str] = {}
    for pod in pods:
        if not pod.holds_chips or not pod.resource.startswith(HUAWEI_PREFIX):
            continue
        whole, parts = _held(pod, vnpus, prefix, physical or {})
        # placed without naming its chips
        if not whole and not parts:
            whole, parts = _possible(pod, chips, vnpus, prefix)
        for chip in whole:
            by_chip.setdefault(chip, set()).add(pod.key)
        for vnpu in parts:
            by_chip.setdefault(vnpu.chip, set()).add(pod.key)
            by_vnpu.setdefault(vnpu.id, pod.key)
    return Users({chip: tuple(sorted(found)) for chip, found in by_chip.items() if found}, by_vnpu)


def _held(
    pod: Pod, vnpus: Sequence[VNPU], prefix: str, physical: Mapping[str, str]
) -> tuple[Sequence[int], Sequence[VNPU]]:
    """What the pod's annotations name: chips `Ascend910-3`, vNPUs `Ascend310P-4c-100-0`."""
    ids = {part[2] for name in pod.chips if len(part := name.split("_")[0].split("-")) == 4}
    names = [physical.get(name, name) for name in pod.chips]
    return chip_ids(names, prefix), [vnpu for vnpu in vnpus if str(vnpu.id) in ids]


def _possible(
    pod: Pod, chips: Sequence[int], vnpus: Sequence[VNPU], prefix: str
) -> tuple[Sequence[int], Sequence[VNPU]]:
    suffix = pod.resource.removeprefix(HUAWEI_PREFIX).removeprefix(prefix)
    if pod.resource == NPU_CORE:
        return chips, vnpus
    if pod.resource.removeprefix(HUAWEI_PREFIX) == prefix.rstrip("-"):
        carved = {vnpu.chip for vnpu in vnpus}
        return [chip for chip in chips if chip not in carved], ()
    same = [vnpu for vnpu in vnpus if matches(vnpu.template, suffix)]
    return (), same or vnpus


def matches(template: str, suffix: str) -> bool:
    """Return whether a resource suffix such as ``2c.1cpu`` belongs to a template such as ``vir02_1c``.

    The suffix says cores and AI CPUs, the template cores and then what differs; equal cores are enough to be possible.
    """
    digits = template.removeprefix("vir").split("_")[0]
    return digits.isdigit() and suffix.split(".")[0] == f"{int(digits)}c"
