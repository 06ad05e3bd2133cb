"""The manager of a host: receives faults, stops and starts containers, resets chips, writes the state file.

Modules and timing: component/container-manager (device, fault, container and reset managers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.containers import status
from belay.agents.containers.codes import PAUSING, Codes
from belay.agents.containers.faults import Faults
from belay.agents.containers.resets import Resets
from belay.agents.containers.runtime import Runtime, RuntimeFailure
from belay.agents.containers.states import States, Status, Strategy, Tracked
from belay.agents.drivers.base import Code, Driver, DriverError

START_SECONDS: Final = 60.0
START_POLL: Final = 1.0
MAX_CHIPS: Final = 100
CONTROL_EVERY: Final = 2.0
RESET_EVERY: Final = 1.0
STALE_EVERY: Final = 50.0
EVENT_PAUSE: Final = (0.5, 1.0, 5.0, 30.0)
#: Stops or starts at the same time.
AT_ONCE: Final = 8
_log = Log("containers")


class Manager:
    """Manage the containers of a host until cancelled; call `prepare` first."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        codes: Codes,
        strategy: Strategy,
        clock: Clock,
        *,
        file: Path = status.FILE,
    ) -> None:
        self._driver, self._runtime, self._codes, self._clock, self._file = driver, runtime, codes, clock, file
        self._wake = asyncio.Event()
        self._rings: dict[int, tuple[int, ...]] = {}
        self.faults = Faults(codes)
        self.states = States(strategy, lambda chip: self._rings.get(chip, (chip,)))
        self.resets = Resets(
            driver, codes, self.faults, clock, rings=self._rings, refresh=self.refresh, held=self.states.held
        )
        self._written: list[tuple[str, str, int]] | None = None
        self._complaints: dict[str, str] = {}
        self._seen = False

    async def prepare(self) -> None:
        """Find the chips and their rings, and the present faults. Raises DriverError after a minute."""
        deadline = self._clock.monotonic() + START_SECONDS
        while True:
            try:
                chips = await self._driver.chips()
                if not chips or len(chips) > MAX_CHIPS:
                    raise DriverError(f"the driver lists {len(chips)} chips; 1 to {MAX_CHIPS} can be managed")
                for chip in chips:
                    self._rings[chip.id] = tuple(await self._driver.reset_group(chip.id))
                self.faults.read(await self._driver.faults(), self._clock.now_ms())
                break
            except DriverError as error:
                if self._clock.monotonic() >= deadline:
                    raise
                _log.warning("the driver does not answer yet", error=error)
                await self._clock.sleep(START_POLL)
        self.states.remember(status.earlier(self._file))
        _log.info("chips are managed", chips=sorted(self._rings), codes=len(self._codes))

    async def run(self) -> None:
        """Run all tasks, each at its own interval."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._every(STALE_EVERY, self.check_stale))
            group.create_task(self._control())
            group.create_task(self._every(RESET_EVERY, self.reset))

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                events = await self._driver.events()
                failures = 0
            except DriverError as error:
                self._complain("events", error)
                await self._clock.sleep(EVENT_PAUSE[min(failures, len(EVENT_PAUSE) - 1)])
                failures += 1
                continue
            self._well("events")
            if self.faults.receive((e for e in events if e.chip in self._rings), self._clock.now_ms()):
                self._wake.set()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await work()
            await self._clock.sleep(seconds)

    async def _control(self) -> None:
        while True:
            await self.control()
            await self._clock.wait(self._wake, CONTROL_EVERY)

    async def check_stale(self) -> None:
        """Compare old faults with the driver's; also read chips without known faults."""
        present = await self._present("stale faults")
        if present is None:
            return
        if self.faults.stale(self._clock.now_ms()):
            self.faults.settle(present)
        if self.faults.read(present, self._clock.now_ms()):
            self._wake.set()

    async def reset(self) -> None:
        """Reset the chips that are due, then read every chip again."""
        if not self._seen:
            # the users of the chips are not known yet
            return
        if await self.resets.step() and (present := await self._present("faults after a reset")) is not None:
            self.faults.settle(present)
            self.faults.read(present, self._clock.now_ms())
            self._wake.set()

    async def control(self) -> None:
        """Run one round: list the containers, stop and start those that need it, write the state file."""
        if not await self.refresh():
            return
        self._seen = True
        self._write()
        await self._all("pausing", "paused", self.states.to_pause(self._bad()), self._runtime.stop)
        if any(state in ("paused", "resuming") for _, state, _ in self.states.listed()):
            present = await self._present("faults before a start")
            if present is not None:
                await self._all("resuming", "running", self.states.to_resume(self._unfit(present)), self._runtime.start)
        self._write()

    async def refresh(self) -> bool:
        """List the containers; return whether that succeeded."""
        try:
            found = await self._runtime.containers()
        except RuntimeFailure as error:
            self._complain("runtime", error)
            return False
        self._well("runtime")
        self.states.see(found, int(self._clock.now()))
        return True

    def _bad(self) -> set[int]:
        return {chip for chip in self.faults.chips() if self.faults.level(chip) in PAUSING} | self.resets.under_way

    def _unfit(self, present: Mapping[int, Sequence[Code]]) -> Collection[int]:
        """Chips on which no container may start: in reset, not read, or with a code of the levels that stop
        containers."""
        bad = set(self.resets.under_way) | (set(self._rings) - set(present))
        return bad | {chip for chip, codes in present.items() if self._codes.worst(c.code for c in codes) in PAUSING}

    async def _all(
        self,
        during: Status,
        after: Status,
        which: Sequence[Tracked],
        act: Callable[[str, str], Awaitable[None]],
    ) -> None:
        if not which:
            return
        limit = asyncio.Semaphore(AT_ONCE)
        for one in which:
            self.states.move(one, during, int(self._clock.now()))
        self._write()

        async def do(one: Tracked) -> None:
            async with limit:
                try:
                    await act(one.namespace, one.id)
                except RuntimeFailure as error:
                    self._complain(f"{during} {one.id}", error)
                    return
            self._well(f"{during} {one.id}")
            self.states.move(one, after, int(self._clock.now()))
            _log.info("container is " + after, namespace=one.namespace, container=one.id, chips=list(one.chips))

        await asyncio.gather(*(do(one) for one in which))

    async def _present(self, what: str) -> Mapping[int, Sequence[Code]] | None:
        try:
            present = await self._driver.faults()
        except DriverError as error:
            self._complain(what, error)
            return None
        self._well(what)
        return {chip: codes for chip, codes in present.items() if chip in self._rings}

    def _write(self) -> None:
        listed = self.states.listed()
        if listed == self._written:
            return
        try:
            status.write(self._file, listed)
        except status.StatusError as error:
            self._complain("state file", error)
            return
        self._well("state file")
        self._written = [*listed]

    def _complain(self, what: str, error: Exception) -> None:
        # once for each text: rounds repeat every second or two
        text = str(error) or type(error).__name__
        if self._complaints.get(what) != text and len(self._complaints) < 1000:
            self._complaints[what] = text
            _log.warning("does not work and is tried again", what=what, error=text)

    def _well(self, what: str) -> None:
        if self._complaints.pop(what, None) is not None:
            _log.info("works again", what=what)
