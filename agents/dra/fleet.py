"""The devices of simulated nodes: published while the cluster has the driver's DeviceClass, to try claims.

Nothing prepares their claims: simulated kubelets need no device nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.dra.devices import devices
from belay.agents.dra.publisher import GROUP, SliceApi, SlicePublisher
from belay.agents.node.agent import NodeAgent
from belay.engine.wire.dra import DRIVER, VERSIONS

#: Pause between looks at the class and at the nodes (s).
PERIOD: Final = 2.0


class FleetSlices:
    """Publish the slices of a fleet's nodes until cancelled. ``agents`` are those that run, by node."""

    def __init__(self, api: SliceApi, agents: Mapping[str, NodeAgent], clock: Clock) -> None:
        self._api, self._agents, self._clock = api, agents, clock
        self._publishers: dict[str, SlicePublisher] = {}

    async def run(self) -> None:
        """Follow the class and the nodes; an API server that is away is asked again."""
        while True:
            try:
                if await self._wanted():
                    await self.publish()
            except ApiError:
                pass  # the API server is away: asked again after the pause
            await self._clock.sleep(PERIOD)

    async def publish(self) -> None:
        """Bring the slices of every node in line with its chips."""
        for name, agent in sorted(self._agents.items()):
            state = agent.state
            if state is None or not state.polled:
                continue
            publisher = self._publishers.setdefault(name, SlicePublisher(name, self._api))
            withheld = {chip for chip in state.ids if state.out_of_service(chip)}
            found = devices(state.machine, state.chips, state.vnpus, withheld, users=state.users)
            await publisher.keep(found, self._clock.monotonic())

    async def _wanted(self) -> bool:
        for version in VERSIONS:
            if await self._api.read_object(f"{GROUP}/{version}/deviceclasses/{DRIVER}") is not None:
                return True
        return False
