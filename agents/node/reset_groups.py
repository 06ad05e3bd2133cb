"""Which chips of the node reset together, as the driver says: for the report, so that the engine orders such groups.

On A3 servers the driver alone knows which modules share optical ports; on A2 servers, whether there is an HCCS ring.
"""

from __future__ import annotations

import contextlib

from belay.agents.common.clock import Clock
from belay.agents.drivers.base import Driver, DriverError
from belay.agents.node.state import NodeState


async def learn(state: NodeState, driver: Driver, clock: Clock, limit: float) -> None:
    """Ask the driver about the chips that it has not answered for yet, ``limit`` seconds at most.

    A driver that does not answer is asked again with the next poll: until then the engine takes its product's groups.
    """
    with contextlib.suppress(DriverError, TimeoutError):
        if any(chip not in state.reset_with for chip in state.ids):
            await clock.limit(_ask(state, driver), limit)


async def group_of(chip: int, state: NodeState, driver: Driver, clock: Clock, limit: float) -> set[int]:
    """Ask the driver what resets with a chip. Where it says other than before, all it said before is asked again, so
    that the report names groups for the next order that fit together.

    Raises:
        DriverError, TimeoutError: the driver does not say.
    """
    said = tuple(sorted({chip, *await clock.limit(driver.reset_group(chip), limit)}))
    if state.reset_with.get(chip) != said:
        state.reset_with = {chip: said}
        await learn(state, driver, clock, limit)
    return set(said)


async def _ask(state: NodeState, driver: Driver) -> None:
    for chip in state.ids:
        if chip not in state.reset_with:
            state.reset_with[chip] = tuple(sorted({chip, *await driver.reset_group(chip)}))
