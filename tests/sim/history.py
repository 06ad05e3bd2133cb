"""One seed, one history: a storm over a simulated cluster, then calm. Invariants hold throughout, and calm heals."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from pathlib import Path

import msgspec

from belay.engine.model.actions import kind_of
from tests.sim.clock import Clock, run
from tests.sim.clock import seed as begin
from tests.sim.gangs import torn
from tests.sim.process import Weather
from tests.sim.world import World
from tests.soak.histories import TIGHT, _repository

CODES = ("80C98001", "80E01801", "80DF8402", "8C084E00", "80CB8002", "80E18402")
STORM_SECONDS = 150.0
HEAL_SECONDS = 3600.0
QUIET_LOOKS = 3
BACKUP_SECONDS, RESTORE_SECONDS, STOPPED_SECONDS = 40.0, 60.0, 10.0
"""From the storm's beginning to the snapshot, from there to the loss, and from the restore to the engine's start."""
STORMS = (
    Weather(kill=0.002),
    Weather(api=0.05, slow=0.01),
    Weather(redis=0.03),
    Weather(double=0.3, late=0.2, lose=0.1),
    Weather(kill=0.001, api=0.02, redis=0.01, slow=0.005, double=0.1, late=0.05, lose=0.05),
    Weather(stray=0.3, double=0.3),
)
EVENTS = (
    *("fault", "fault", "fault", "heal", "job", "job", "job", "pod", "silence", "speak"),
    *("flush", "redis", "api", "jump", "kill", "compact", "stubborn", "git"),
)


class Report(msgspec.Struct):
    """What a history came to: points passed, deaths, how often which fault struck, what was done all the same, and how
    long healing took (s).
    """

    seed: int
    steps: int
    deaths: int
    faults: dict[str, int]
    done: dict[str, int]
    healed: float


def history(seed: int, kill_at: int = -1, *, restored: bool = False) -> Report:
    """Run one history; raises AssertionError with what broke. With ``kill_at`` the one fault is a death at that
    point. ``restored``: in the middle of the storm etcd is put back to a snapshot of its beginning.
    """
    folder = Path(tempfile.mkdtemp(prefix="belay-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    begin(seed)
    clock = Clock()
    try:
        report: Report = run(clock, _history(seed, kill_at, folder, clock, restored))
        return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _history(seed: int, kill_at: int, folder: Path, clock: Clock, restored: bool) -> Report:
    chance = random.Random(f"history/{seed}")
    tight = chance.random() < 0.3
    files = _repository(chance, {"desired/budget.yaml": TIGHT} if tight else {})
    world = World(seed, folder, clock, files)
    world.outside.kill_at = kill_at
    keeper = asyncio.get_running_loop().create_task(world.keep())
    try:
        if kill_at < 0:
            world.outside.weather = msgspec.structs.replace(chance.choice(STORMS))
        restoring = asyncio.get_running_loop().create_task(_restore(world)) if restored else None
        await _storm(world, chance, files, sweep=kill_at >= 0)
        if restoring is not None:
            await restoring
        _calm(world)
        healed = await _healing(world)
        if tight:
            _check_budget(world)
        world.check()
        if keeper.done():
            keeper.result()
    finally:
        keeper.cancel()
    outside = world.outside
    faults, done = dict(sorted(outside.faults.items())), dict(sorted(world.done.items()))
    return Report(seed, outside.steps, len(outside.deaths), faults, done, healed)


async def _restore(world: World) -> None:
    """etcd is lost, and put back to a snapshot that is a while old, with the engine stopped: pods that were made since
    are gone, and those that went since are there again."""
    await asyncio.sleep(BACKUP_SECONDS)
    backup = world.api.backup()
    await asyncio.sleep(RESTORE_SECONDS)

    engine = {name for name in world.processes if not name.startswith("agent-")}
    world.stopped |= engine
    for name in engine:
        world.processes[name].kill("stopped for the restore")
    world.api.restore(backup)
    world.outside.count("event restore")
    await asyncio.sleep(STOPPED_SECONDS)
    world.stopped -= engine


async def _storm(world: World, chance: random.Random, files: dict[str, bytes], *, sweep: bool) -> None:
    ends = world.clock.now + STORM_SECONDS
    events = ("fault", "job", "heal", "pod") if sweep else EVENTS
    while world.clock.now < ends:
        await asyncio.sleep(chance.uniform(0.5, 9.0))
        files = _event(world, chance, chance.choice(events), files)
        world.check()


def _event(world: World, chance: random.Random, kind: str, files: dict[str, bytes]) -> dict[str, bytes]:
    node = chance.choice(sorted(world.drivers))
    driver = world.drivers[node]
    outside, loop = world.outside, asyncio.get_running_loop()
    outside.count(f"event {kind}")
    if kind == "fault":
        driver.inject(chance.randrange(8), chance.choice(CODES))
    elif kind == "heal":
        for chip in range(8):
            for code in CODES:
                driver.clear(chip, code)
    elif kind == "job":
        files = _repository(chance, files)
        world.repository.push(files)
    elif kind == "pod" and (pods := world.api.objects("pods")):
        meta = chance.choice(pods)["metadata"]
        world.api.drop("pods", meta["name"], meta["namespace"])
    elif kind in ("silence", "speak"):
        world.readiness(node, kind == "speak")
    elif kind == "flush":
        world.memory.flushall()
    elif kind == "redis":
        outside.redis_down = True
        world.memory.flushall()
        loop.call_later(chance.uniform(1.0, 20.0), setattr, outside, "redis_down", False)
    elif kind == "api":
        outside.api_down = True
        loop.call_later(chance.uniform(1.0, 20.0), setattr, outside, "api_down", False)
    elif kind == "jump":
        process = world.processes[chance.choice(sorted(world.processes))]
        process.offset = chance.choice((-600.0, -20.0, 20.0, 600.0))
        loop.call_later(chance.uniform(5.0, 60.0), setattr, process, "offset", 0.0)
    elif kind == "kill":
        for name in chance.sample(sorted(world.processes), chance.choice((1, 1, 3, 7))):
            world.processes[name].kill("event")
    elif kind == "compact":
        world.api.store.compact()
    elif kind == "stubborn":
        driver.fail_resets(chance.randrange(4))
    elif kind == "git":
        world.repository.down = True
        loop.call_later(chance.uniform(5.0, 60.0), setattr, world.repository, "down", False)
    return files


def _calm(world: World) -> None:
    """Faults stop: hardware heals, everybody is there."""
    outside = world.outside
    outside.weather, outside.api_down, outside.redis_down = Weather(), False, False
    world.repository.down = False
    for process in world.processes.values():
        process.offset = 0.0
    for node, driver in world.drivers.items():
        driver.fail_resets(0)
        for chip in range(8):
            for code in CODES:
                driver.clear(chip, code)
        if node in world.silent:
            world.readiness(node, True)


async def _healing(world: World) -> float:
    """Wait until a pass wants nothing and every chip is back that no hold covers; returns the seconds it took."""
    began, quiet, wanted = world.clock.now, 0, "nothing was looked at"
    while world.clock.now - began < HEAL_SECONDS:
        await asyncio.sleep(20.0)
        world.check()
        wanted = _lacking(world)
        quiet = quiet + 1 if not wanted else 0
        if quiet == QUIET_LOOKS:
            return world.clock.now - began
    raise AssertionError(f"not healed {HEAL_SECONDS:.0f} s after the last fault: {wanted}")


def _lacking(world: World) -> str:
    plan = world.plan()
    if plan.actions:
        return f"a pass still wants {[kind_of(a) + ': ' + a.message for a in plan.actions[:3]]}"
    memory = plan.history.nodes
    for row in plan.chips:
        if row.state in ("healthy", "sub-healthy"):
            continue
        held = memory[row.node].chips.get(int(row.chip.rpartition("-")[2])) if row.node in memory else None
        if held is None or not held.holds:
            return f"{row.node}/{row.chip} is {row.state}, its report is clean and nothing holds it"
    return torn(world)


def _check_budget(world: World) -> None:
    """The tight budget lets one gang go per ten minutes; what people and kubelets delete is not counted here."""
    times: list[tuple[float, str]] = []
    for node, rows in world.resets.items():
        times += [(at, node) for at, _, _ in rows]
    times.sort()
    for (first, _), (second, _) in itertools.pairwise(times):
        assert second - first > 0, "two groups were reset at once although the budget allows one"
