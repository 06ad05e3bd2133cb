"""Random histories of a host without Kubernetes: what must hold whatever happens, and that everything comes back."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from belay.agents.containers.manager import Manager
from belay.agents.containers.resets import COOL_DOWN
from belay.agents.containers.states import STRATEGIES, Strategy
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from tests.agent_world import VirtualClock
from tests.test_containers import BUSINESS, CODES, FREE, SEPARATE, Memory

STEPS = 50
RINGS = (tuple(range(4)), tuple(range(4, 8)))


class Watched(SimulatedDriver):
    """A driver that checks every reset."""

    runtime: Memory
    clock: VirtualClock
    accepted: list[float]

    async def reset(self, chips: Sequence[int], *, out_of_band: bool = True) -> None:
        """No reset of a chip that a container or a process uses, none within the cool-down of the last."""
        using = [name for name in self.runtime.running if not set(self.runtime.chips[name]).isdisjoint(chips)]
        assert not using, f"{chips} are reset under {using}"
        assert not any(self._processes.get(chip) for chip in chips)
        assert not self._booting, "two resets at a time"
        if self.accepted:
            assert self.clock.monotonic() - self.accepted[-1] >= COOL_DOWN
        await super().reset(chips)
        self.accepted.append(self.clock.monotonic())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(5))
def test_histories(strategy: Strategy, seed: int) -> None:
    chance = random.Random(f"{strategy}/{seed}")

    async def main(folder: Path) -> None:
        clock, runtime = VirtualClock(), Memory(a=[0, 1], b=[2], c=[5, 6], d=[3, 4])
        driver = Watched("host", ServerModel(reset_groups=RINGS), now_ms=clock.now_ms, sleep=clock.sleep)
        driver.runtime, driver.clock, driver.accepted = runtime, clock, []
        stopped_by_hand: set[str] = set()

        def manager() -> tuple[Manager, asyncio.Task[None]]:
            made = Manager(driver, runtime, CODES, strategy, clock, file=folder / "status.json")

            async def work() -> None:
                await made.prepare()
                await made.run()

            return made, asyncio.create_task(work())

        _, task = manager()
        try:
            for _ in range(STEPS):
                await step(chance, driver, runtime, stopped_by_hand)
                if chance.random() < 0.05:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    # the pause after a reset that has ended is remembered by one life only
                    driver.accepted.clear()
                    _, task = manager()
                await clock.advance(chance.choice([0.3, 1, 3, 10, 40, 90]))
                if task.done():
                    task.result()
            # the world is well again: what this manager stopped is started, and nothing else happens
            runtime.down, runtime.stuck = False, set()
            driver.hang = False
            driver.fail_resets(0)
            for chip in range(8):
                driver.occupy(chip, 0)
                for _, code in list(driver._codes[chip]):
                    driver.clear(chip, code)
            await clock.advance(700)
            if task.done():
                task.result()
            assert set(runtime.chips) - runtime.running <= stopped_by_hand
            if strategy == "never":
                assert not runtime.story
            count, story = len(driver.resets), len(runtime.story)
            await clock.advance(400)
            assert (len(driver.resets), len(runtime.story)) == (count, story)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(main(Path(folder)), 100))


async def step(chance: random.Random, driver: Watched, runtime: Memory, by_hand: set[str]) -> None:
    """Something happens."""
    chip, name = chance.randrange(8), chance.choice(sorted(runtime.chips))
    match chance.randrange(10):
        case 0 | 1 | 2:
            driver.inject(chip, chance.choice([FREE, BUSINESS, SEPARATE, "FFFFFFFF"]))
        case 3 | 4:
            for _, code in list(driver._codes[chip]):
                driver.clear(chip, code)
                if chance.random() < 0.3:
                    driver._events.clear()
        case 5:
            driver.occupy(chip, chance.randrange(2))
        case 6:
            runtime.down = chance.random() < 0.5
        case 7:
            runtime.stuck = {name} if chance.random() < 0.5 else set()
        case 8:
            driver.fail_resets(chance.randrange(6))
        case _ if name in runtime.running:
            runtime.running.discard(name)
            by_hand.add(name)
        case _:
            runtime.running.add(name)
            by_hand.discard(name)
