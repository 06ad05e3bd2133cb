"""Resets of faulty chips.

One reset at a time, of the chip's whole ring; a chip that a container or process uses is not reset, and after three
consecutive failures a chip is skipped until its faults are gone. Source: component/container-manager/pkg/reset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.containers.codes import AT_ONCE, LASTING, PAUSING, Codes
from belay.agents.containers.faults import Faults
from belay.agents.drivers.base import BOOTED, Driver, DriverError

LASTING_MS: Final = 60_000
COOL_DOWN: Final = 30.0
FAILURES: Final = 3
CALLS: Final = 4
BOOT_SECONDS: Final = 150.0
BOOT_POLL: Final = 1.0
CALL_SECONDS: Final = 300.0
_LONG_AGO: Final = float("-inf")
_log = Log("resets")


class Resets:
    """Reset faulty chips. ``refresh`` lists the containers and returns whether that succeeded; ``held`` names the
    containers on given chips that are not paused; ``rings`` maps a chip to those that reset with it."""

    def __init__(
        self,
        driver: Driver,
        codes: Codes,
        faults: Faults,
        clock: Clock,
        *,
        rings: Mapping[int, Collection[int]],
        refresh: Callable[[], Awaitable[bool]],
        held: Callable[[Collection[int]], list[str]],
    ) -> None:
        self._driver, self._codes, self._faults, self._clock = driver, codes, faults, clock
        self._rings, self._refresh, self._held = rings, refresh, held
        self._failures: dict[int, int] = {}
        self._last_success: float | None = None
        self._said: dict[int, str] = {}
        self._starting: dict[int, float] = {}
        self.under_way: frozenset[int] = frozenset()

    def due(self) -> list[tuple[int, tuple[int, ...]]]:
        """The chips whose faults ask for a reset, each with its ring; for each ring only the first chip."""
        faulty = self._faults.chips()
        self._failures = {chip: count for chip, count in self._failures.items() if chip in faulty}
        self._said = {chip: why for chip, why in self._said.items() if chip in faulty}
        if self.under_way:
            return []
        if self._last_success is not None and self._clock.monotonic() - self._last_success < COOL_DOWN:
            return []
        found: list[tuple[int, tuple[int, ...]]] = []
        covered: set[int] = set()
        for chip in faulty:
            if chip in covered or chip not in self._rings or not self._asks(chip):
                continue
            if self._failures.get(chip, 0) >= FAILURES:
                self._say(chip, f"given up after {FAILURES} resets that failed; look at the chip")
                continue
            ring = tuple(sorted(self._rings[chip]))
            found.append((chip, ring))
            covered.update(ring)
        return found

    def _asks(self, chip: int) -> bool:
        now_ms = self._clock.now_ms()
        for code, since in self._faults.since(chip).items():
            level = self._codes.level(code)
            if level in AT_ONCE or (level in LASTING and now_ms - since > LASTING_MS):
                return True
        return False

    async def step(self) -> bool:
        """Reset the first chip that is due and free; return whether there was one."""
        for chip, ring in self.due():
            if await self._free(chip, ring):
                await self._reset(chip, ring)
                return True
        return False

    async def _free(self, chip: int, ring: tuple[int, ...]) -> bool:
        try:
            processes = await self._driver.processes()
            present = await self._driver.faults()
            starting = await self._still_starting()
        except DriverError as error:
            self._say(chip, f"the driver cannot be asked: {error}")
            return False
        if starting:
            self._say(chip, f"chip {starting[0]} is still starting")
            return False
        if used := [other for other in ring if processes.get(other)]:
            self._say(chip, f"processes use chip {used[0]}")
            return False
        worst = [self._codes.worst(code.code for code in present.get(other, ())) for other in ring]
        if not any(level in PAUSING for level in worst):
            self._say(chip, "the fault is gone")
            return False
        # a container may have been started by hand since the last round
        if not await self._refresh():
            self._say(chip, "the containers cannot be listed")
            return False
        # last, with nothing awaited before the chips are marked: this manager must not start one in between
        if held := self._held(ring):
            self._say(chip, f"container {held[0][:64]} is not paused")
            return False
        return True

    async def _still_starting(self) -> list[int]:
        """Return chips that an earlier process of the manager, or another tool, has just reset; each has
        `BOOT_SECONDS` to boot, then it may be reset again."""
        now, found = self._clock.monotonic(), []
        for chip in sorted(self._rings):
            if await self._driver.boot_status(chip) == BOOTED:
                if self._starting.pop(chip, _LONG_AGO) != _LONG_AGO:
                    # a reset that was begun elsewhere ended well: the pause after one holds for it too
                    self._last_success = now
                    found.append(chip)
            elif now - self._starting.setdefault(chip, now) < BOOT_SECONDS:
                found.append(chip)
        return found

    async def _reset(self, chip: int, ring: tuple[int, ...]) -> None:
        self.under_way = frozenset(ring)
        _log.info("chips are reset", chip=chip, chips=list(ring))
        try:
            await self._call(ring)
            await self._booted(ring)
        except (DriverError, TimeoutError) as error:
            self._failures[chip] = self._failures.get(chip, 0) + 1
            # its time to start has passed already
            self._starting.update(dict.fromkeys(ring, _LONG_AGO))
            _log.error("a reset failed", chip=chip, times=self._failures[chip], error=error or "no answer in time")
        else:
            self._failures.pop(chip, None)
            self._last_success = self._clock.monotonic()
            _log.info("chips are back", chip=chip, chips=list(ring))
        finally:
            self.under_way = frozenset()

    async def _call(self, ring: tuple[int, ...]) -> None:
        for attempt in range(1, CALLS + 1):
            try:
                await self._clock.limit(self._driver.reset(ring), CALL_SECONDS)
                return
            except DriverError:
                if attempt == CALLS:
                    raise

    async def _booted(self, ring: tuple[int, ...]) -> None:
        deadline = self._clock.monotonic() + BOOT_SECONDS
        while True:
            if all([await self._driver.boot_status(other) == BOOTED for other in ring]):
                return
            if self._clock.monotonic() >= deadline:
                raise DriverError(f"not every chip of {list(ring)} started in {BOOT_SECONDS:g} s")
            await self._clock.sleep(BOOT_POLL)

    def _say(self, chip: int, why: str) -> None:
        # once for each reason: this is checked every second
        if self._said.get(chip) != why:
            self._said[chip] = why
            _log.warning("no reset", chip=chip, reason=why)
