"""Carrying out a reset that may run: in band, else by the board controller and the site's plugins, and reporting it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import BOOTED, Chip, Driver, DriverError
from belay.agents.node.acts import Act
from belay.agents.node.hooks import Device, Hooks
from belay.agents.node.in_place_recovery import READY_SECONDS
from belay.agents.node.notices import Notice, reset_ended, reset_started
from belay.agents.node.plugins import OUT_OF_BAND, RECORD, ResetPlugins
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState

#: Seconds that chips may take to boot after their board controller has reset them.
OUT_OF_BAND_BOOT: Final = 150.0
LATE: Final = "the driver or the chips did not come back in time"
_log = Log("agent")


class Resetter:
    """Carries out resets; the executor decides whether they are allowed."""

    def __init__(
        self,
        state: NodeState,
        driver: Driver,
        clock: Clock,
        settings: Settings,
        plugins: ResetPlugins,
        notify: Callable[[Notice], None],
        hooks: Hooks | None = None,
    ) -> None:
        self._hooks = hooks or Hooks(None)
        self._state, self._driver, self._clock, self._settings = state, driver, clock, settings
        self._plugins, self._notify = plugins, notify

    def started(self, act: Act) -> str:
        """Begin a reset: read the switches, report the reset if enabled. Returns the problem of the switches."""
        self._plugins.read()
        if self._plugins.on(RECORD):
            state = self._state
            faulty = [c for c in act.chips if not state.judge.healthy(state.book.chip(c))]
            self._notify(reset_started(state.node, self._ring(act), faulty, act.left, self._clock.now_ms()))
        return self._plugins.problem

    async def reset(self, act: Act) -> None:
        """Reset and wait for the boot, under a job also until the chips are ready for it.

        Raises DriverError or TimeoutError when the chips did not come back.
        """
        ring, plugins = self._devices(act), self._plugins.others
        await self._hooks.run("PreReset", plugins, ring)
        failure: DriverError | TimeoutError | None = None
        try:
            await self._reset(act, plugins, ring)
        except (DriverError, TimeoutError) as error:
            failure = error
        # not while the agent stops: that time is for the journal
        await self._hooks.run("AfterReset", plugins, ring)
        if failure is not None:
            raise failure
        if act.online is not None:
            await self._clock.sleep(self._settings.scaled(READY_SECONDS))

    async def _reset(self, act: Act, plugins: Sequence[str], ring: Sequence[Device]) -> None:
        settings, error = self._settings, ""
        boot = settings.boot_timeout if act.online is None else min(settings.boot_timeout, act.online.boot_seconds)
        try:
            try:
                # the board controller takes longer than a driver's call may: it is called separately
                await self._clock.limit(self._driver.reset(act.chips, out_of_band=False), settings.driver_timeout)
                await self._clock.limit(self._booted(act.chips), settings.scaled(boot))
            except (DriverError, TimeoutError):
                if not self._plugins.on(OUT_OF_BAND) or not await self._ask_the_board(act):
                    raise
        except (DriverError, TimeoutError) as failure:
            if not plugins:
                raise
            error = str(failure) or LATE
        left = await self._hooks.custom(plugins, ring, error)
        if left:
            raise DriverError(left)
        if error:
            # accepted once the chips confirm it
            await self._clock.limit(self._booted(act.chips), settings.scaled(OUT_OF_BAND_BOOT))

    @property
    def trouble(self) -> str:
        """The failures of plugins since the last call; empty without any."""
        return self._hooks.taken()

    def _devices(self, act: Act) -> list[Device]:
        """The ring, in the form that plugins get."""
        state, family = self._state, self._state.machine.server_type.rpartition("-")[0]
        return [
            Device(
                logic=chip.logic_id, card=chip.card, device=chip.die, phy=chip.id, card_type=family,
                faulty=not state.judge.healthy(state.book.chip(chip.id)), tokens_left=act.left,
            )
            for chip in self._ring(act)
        ]  # fmt: skip

    def ended(self, act: Act, result: str) -> None:
        """Report the end of a reset if enabled."""
        if self._plugins.on(RECORD):
            self._notify(reset_ended(self._state.node, self._ring(act), result, self._clock.now_ms()))

    async def _ask_the_board(self, act: Act) -> bool:
        """Have chips that refuse or do not come back reset by their board controller; False if there is none."""
        settings = self._settings
        asked = self._driver.reset_out_of_band(act.chips)
        if not await self._clock.limit(asked, settings.scaled(settings.boot_timeout)):
            return False
        _log.warning("chips were reset by their board controller", node=self._state.node, epoch=act.epoch)
        await self._clock.limit(self._booted(act.chips), settings.scaled(OUT_OF_BAND_BOOT))
        return True

    def _ring(self, act: Act) -> list[Chip]:
        return [chip for chip in self._state.chips if chip.id in act.chips]

    async def _booted(self, chips: Sequence[int]) -> None:
        for chip in chips:
            while await self._driver.boot_status(chip) != BOOTED:
                await self._clock.sleep(self._settings.scaled(self._settings.boot_poll))
