"""Chip generations, and what their device plugins and networks do differently.

Sources: component/ascend-common/api/default_name.go, component/ascend-device-plugin/pkg/common (``NpuBaseInfo``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never


class Generation(StrEnum):
    """A chip generation, as products name it."""

    ASCEND310 = "Ascend310"
    ASCEND310P = "Ascend310P"
    ASCEND910 = "Ascend910"
    ASCEND950 = "Ascend950"

    @property
    def device_prefix(self) -> str:
        """Prefix of the names of its devices, e.g. ``Ascend910-``."""
        match self:
            case Generation.ASCEND950:
                return "npu-"
            case Generation.ASCEND310 | Generation.ASCEND310P | Generation.ASCEND910:
                return f"{self}-"
            case _:
                assert_never(self)

    @property
    def logical_names(self) -> bool:
        """Whether kubelet and pods know a chip by its logic id; reports name the physical id."""
        return self.unified_bus

    @property
    def unified_bus(self) -> bool:
        """Whether chips are joined by the unified bus: EIDs as addresses, network levels, racks in a super pod."""
        match self:
            case Generation.ASCEND950:
                return True
            case Generation.ASCEND310 | Generation.ASCEND310P | Generation.ASCEND910:
                return False
            case _:
                assert_never(self)


_BY_PREFIX: Final = {generation.device_prefix: generation for generation in Generation}
LOGICAL_PREFIXES: Final = frozenset(g.device_prefix for g in Generation if g.logical_names)
"""Prefixes of devices whose names in pods' annotations carry the logic id."""


def generation_of(prefix: str) -> Generation:
    """Generation of devices named with ``prefix``; an unknown prefix counts as Ascend910."""
    return _BY_PREFIX.get(prefix, Generation.ASCEND910)
