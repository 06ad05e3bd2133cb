"""From the vNPUs of chips to the ones ordered: the changes needed, the users that block them, and the division."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from belay.agents.common.clock import Clock
from belay.agents.drivers.base import VNPU, Driver, DriverError
from belay.agents.node.facts import ActRefused, Facts, FactUnavailable
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState
from belay.engine.model.vnpu import ExistingVNPU, VNPUChange, change


class Layouts:
    """Cuts the chips of a node as its orders lay them out. ``cutting``: chips that are being cut right now."""

    def __init__(self, state: NodeState, driver: Driver, facts: Facts, clock: Clock, settings: Settings) -> None:
        self._state, self._driver, self._facts, self._clock, self._settings = state, driver, facts, clock, settings
        self.cutting: set[int] = set()

    def wanted(self, lasted: float) -> tuple[dict[int, VNPUChange], dict[int, str]]:
        """The possible changes and the obstacles, by chip; empty when the layout is as ordered.

        ``lasted``: seconds since the order was first seen; users get a grace to leave.

        Raises ActRefused and FactUnavailable.
        """
        state, orders = self._state, self._state.orders
        ordered = dict(orders.vnpu_layout) if orders else {}
        if unknown := [chip for chip in ordered if chip not in state.ids]:
            raise ActRefused(f"there is no chip {state.name(unknown[0])}")
        changes = {chip: needed_change(state, chip, templates) for chip, templates in sorted(ordered.items())}
        needed = {chip: change for chip, change in changes.items() if change.needed}
        blocked = {chip: why for chip, change in needed.items() if (why := blocked_by(state, chip, change))}
        doable = {chip: change for chip, change in needed.items() if chip not in blocked}
        if blocked and lasted < self._settings.scaled(self._settings.in_use_grace):
            raise FactUnavailable(next(iter(blocked.values())))
        idle = self._settings.scaled(self._settings.idle)
        if any(not state.in_use(c) and state.idle_for([c], self._clock.monotonic()) < idle for c in doable):
            raise FactUnavailable("a chip has not been idle for long enough")
        if blocked and not doable:
            raise ActRefused("; ".join(blocked.values()))
        return doable, blocked

    async def cut(self, doable: Mapping[int, VNPUChange], blocked: Mapping[int, str]) -> str:
        """Apply the changes, and return the result. The journal has been written before."""
        self.cutting = set(doable)
        try:
            for chip, change in doable.items():
                for vnpu in change.destroy:
                    await self._unless_used(vnpu)
                    await self._call(self._driver.destroy_vnpu(vnpu))
                for template in change.create:
                    await self._call(self._driver.create_vnpu(chip, template))
        except (DriverError, FactUnavailable) as error:
            return f"failed: {error}"
        except TimeoutError:
            return "failed: the driver did not answer in time"
        finally:
            self.cutting = set()
        return f"refused: {'; '.join(blocked.values())}" if blocked else "ok"

    async def _unless_used(self, vnpu: int) -> None:
        """A pod may have come since the act began, through a kubelet that did not ask this agent. Check before every
        destruction.
        """
        self._state.pods = await self._facts.pods()
        self._state.settle_users(self._clock.monotonic(), self._clock.now_ms())
        if user := self._state.users.vnpus.get(vnpu):
            raise DriverError(f"vNPU {vnpu} is in use by {user}")

    async def _call(self, call: Awaitable[object]) -> None:
        await self._clock.limit(call, self._settings.driver_timeout)


def needed_change(state: NodeState, chip: int, templates: Sequence[str]) -> VNPUChange:
    """Return what to create and destroy on a chip; a vNPU in use is never among what is destroyed."""
    mine = [vnpu for vnpu in state.vnpus if vnpu.chip == chip]
    return change([ExistingVNPU(vnpu.id, vnpu.template, _busy(state, vnpu)) for vnpu in mine], templates)


def blocked_by(state: NodeState, chip: int, wanted: VNPUChange) -> str:
    """Name the users of a chip that prevent a change; empty without any."""
    if wanted.blocked:
        users = {state.users.vnpus.get(vnpu, "a process") for vnpu in wanted.blocked}
        return f"vNPU {wanted.blocked[0]} of {state.name(chip)} is in use by {', '.join(sorted(users))}"
    if chip in state.claimed:
        return f"{state.name(chip)} is given to resource claim {state.claimed[chip]}"
    mine = [vnpu for vnpu in state.vnpus if vnpu.chip == chip]
    on_parts = {user for vnpu in mine if (user := state.users.vnpus.get(vnpu.id))}
    whole = [user for user in state.users.chips.get(chip, ()) if user not in on_parts]
    if whole or (not mine and state.processes.get(chip, 0)):
        return f"{state.name(chip)} is in use by {', '.join(whole) or 'a process'}"
    return ""


def _busy(state: NodeState, vnpu: VNPU) -> bool:
    """A process on the chip that no pod explains may be on any of its vNPUs."""
    unexplained = state.processes.get(vnpu.chip, 0) > 0 and not state.users.chips.get(vnpu.chip)
    return vnpu.id in state.users.vnpus or unexplained
