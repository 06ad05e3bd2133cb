"""Create vNPUs while a container waits, and destroy those that no container uses.

Source: component/ascend-device-plugin/pkg/device/ascendtools.go (CreateVirtualDevice, DestroyNotUsedVNPU).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import VNPU, Driver, DriverError
from belay.agents.kubelet import names
from belay.agents.node.state import NodeState

SECONDS: Final = 30.0
_log = Log("kubelet")


class Refused(Exception):
    """Devices are refused; kubelet shows the text in the pod's status."""


class Cutter:
    """Create and destroy vNPUs through the driver. ``suffixes``: template → spec in the vNPU's name."""

    def __init__(self, driver: Driver, state: NodeState, suffixes: Mapping[str, str], clock: Clock) -> None:
        self._driver, self._state, self._suffixes, self._clock = driver, state, suffixes, clock

    async def cut(self, chip: int, template: str, used: set[int]) -> tuple[str, int]:
        """Create a vNPU and return its name and id. Raises Refused."""
        kind = self._state.machine.prefix.rstrip("-")
        spec = self._suffixes.get(template, "")
        if not names.legal_spec(kind, spec):
            raise Refused(f"NPUSegmentFailed: {template!r} is not a template of {self._state.machine.chip_name}")
        try:
            await self.clear(used)
            made = await self._clock.limit(self._driver.create_vnpu(chip, template), SECONDS)
            self._state.vnpus = await self._clock.limit(self._driver.vnpus(), SECONDS)
        except DriverError as error:
            raise Refused(f"NPUSegmentFailed: {self._state.name(chip)} cannot be cut: {error}"[:300]) from error
        except TimeoutError as error:
            raise Refused(f"NPUSegmentFailed: the driver did not cut {self._state.name(chip)} in time") from error
        return self.name(made), made.id

    def name(self, vnpu: VNPU) -> str:
        """Return a vNPU's name in annotations; empty when its template is unknown."""
        spec = self._suffixes.get(vnpu.template, "")
        kind = self._state.machine.prefix.rstrip("-")
        return names.realised(kind, spec, vnpu.id, vnpu.chip, vnpu.vgroup) if spec else ""

    async def clear(self, used: set[int]) -> int:
        """Destroy every unused vNPU and return their number; chips of resource claims are not the plugin's.

        Raises DriverError and TimeoutError.
        """
        found = await self._clock.limit(self._driver.vnpus(), SECONDS)
        idle = [vnpu for vnpu in found if vnpu.id not in used and vnpu.chip not in self._state.claimed]
        for vnpu in idle:
            await self._clock.limit(self._driver.destroy_vnpu(vnpu.id), SECONDS)
            _log.info("unused vNPU is destroyed", vnpu=vnpu.id, chip=self._state.name(vnpu.chip))
        return len(idle)
