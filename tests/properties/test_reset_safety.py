"""Whatever happens to a node and in whatever order: no chip in use is reset, and no epoch runs twice."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.agents.drivers.base import DriverError
from belay.agents.node.witness import WitnessError
from tests.agent_world import FAULT, World, play, pod

GROUP = tuple(range(8))


class Kubelet:
    """Knows of holders that the API server does not show."""

    name = "kubelet pod resources"

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self.silent = False

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        if self.silent:
            raise WitnessError("no answer")
        return dict(self.held)


class Watched(World):
    """Notes every reset that reaches the hardware, and who was on the chips at that moment."""

    def watch(self) -> None:
        self.kubelet = Kubelet()
        self.witnesses.append(self.kubelet)
        self.used: list[str] = []
        self.ran: list[int] = []
        self.expired: list[int] = []
        real = self.driver.reset

        async def reset(chips: Sequence[int], *, out_of_band: bool = True) -> None:
            processes = await self.driver.processes()
            self.used += [f"process on {c}" for c in chips if processes.get(c)]
            self.used += [f"held {c}" for c in chips if c in self.kubelet.held]
            for body in self.cluster.pod_list:
                names = body["metadata"]["annotations"].get("huawei.com/AscendReal", "").split(",")
                self.used += [n for n in names if n and int(n.rpartition("-")[2]) in chips]
            self.ran.append(self.epoch)
            if self.clock.now_ms() > self.not_after:
                self.expired.append(self.epoch)
            await real(chips)

        self.driver.reset = reset  # type: ignore[method-assign]
        self.epoch = self.not_after = 0

    def ordered(self, more: int, life: float) -> None:
        """Write an order: the last one again, or one of a higher epoch. The engine never goes back."""
        epoch = max(1, self.epoch + more)
        self.epoch, self.not_after = epoch, self.clock.now_ms() + int(life * 1000)
        self.order(dict.fromkeys(GROUP, epoch), life=life)


STEPS = st.one_of(
    st.tuples(st.just("order"), st.integers(0, 2), st.sampled_from([20.0, 200.0, 900.0])),
    st.tuples(st.just("fault"), st.integers(0, 7)),
    st.tuples(st.just("heal"), st.integers(0, 7)),
    st.tuples(st.just("pod"), st.integers(0, 7)),
    st.tuples(st.just("gone")),
    st.tuples(st.just("process"), st.integers(0, 7), st.integers(0, 2)),
    st.tuples(st.just("held"), st.integers(0, 7)),
    st.tuples(st.just("free")),
    st.tuples(st.just("deaf"), st.booleans()),
    st.tuples(st.just("offline"), st.booleans()),
    st.tuples(st.just("crash")),
    st.tuples(st.just("journal")),
    st.tuples(st.just("broken"), st.integers(0, 2)),
    st.tuples(st.just("clock"), st.sampled_from([-3600.0, 3600.0])),
    st.tuples(st.just("time"), st.sampled_from([1.0, 3.0, 20.0, 70.0, 200.0])),
)


async def take(world: Watched, step: tuple[Any, ...]) -> None:
    match step:
        case ("order", more, life):
            world.ordered(more, life)
        case ("fault", chip):
            world.driver.inject(chip, FAULT)
        case ("heal", chip):
            world.driver.clear(chip, FAULT)
        case ("pod", chip):
            world.cluster.set_pods([pod("p", [f"Ascend910-{chip}"])])
        case ("gone",):
            world.cluster.set_pods([])
        case ("process", chip, count):
            world.driver.occupy(chip, count)
        case ("held", chip):
            world.kubelet.held = {chip: "train/hidden"}
        case ("free",):
            world.kubelet.held = {}
        case ("deaf", silent):
            world.kubelet.silent = silent
        case ("offline", away):
            world.cluster.offline = away
            world.cluster.notify()
        case ("crash",):
            await world.restart(0.5)
        case ("journal",):
            await world.kill()
            for file in world.folder.rglob("journal*"):
                file.unlink()
            await world.start(0.5)
        case ("broken", times):
            world.driver.fail_resets(times)
        case ("clock", seconds):
            world.clock.wall += seconds
        case ("time", seconds):
            await world.run(seconds)


async def live(steps: Sequence[tuple[Any, ...]], folder: str) -> Watched:
    """A faulty, idle node lives through the steps, then has peace for a while."""
    world = Watched(Path(folder))
    world.watch()
    try:
        await world.start()
        world.driver.inject(3, FAULT)
        await world.run(70)
        for step in steps:
            with contextlib.suppress(DriverError):
                await take(world, step)
            await world.run(1.0)
        world.cluster.offline = False
        world.cluster.notify()
        await world.run(200)
    finally:
        await world.kill()
    return world


@given(steps=st.lists(STEPS, min_size=3, max_size=14))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_chip_in_use_is_reset_and_no_epoch_runs_twice(steps: list[tuple[Any, ...]]) -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = await live(steps, folder)
            assert world.used == [], world.used
            assert world.expired == [], "an order past its time ran"
            assert world.ran == sorted(set(world.ran)), f"epochs only grow and run once: {world.ran}"

    play(story)


def test_the_watch_sees_what_it_is_there_for() -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = await live([("order", 1, 900.0), ("time", 70.0), ("fault", 2), ("time", 70.0)], folder)
            assert world.ran == [1]
            again = [("order", 1, 900.0), ("time", 70.0), ("fault", 2), ("order", 1, 900.0), ("time", 200.0)]
        with tempfile.TemporaryDirectory() as folder:
            assert (await live(again, folder)).ran == [1, 2]

    play(story)
