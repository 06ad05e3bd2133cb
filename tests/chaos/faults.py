"""What is broken: each kind of fault begins, says what it did, and can be taken back.

``Site.calm`` takes everything back too, so an undo that the end of a round overtakes is no loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import redis

from belay.engine.kube import LEASE, Kube, KubeError
from tests.chaos.proxy import Weather
from tests.chaos.site import Machine, Site

Undo = Callable[[], None]
Begin = Callable[[Site, Kube, random.Random], Awaitable[tuple[str, Undo]]]
JUMPS: Final = (-86_400.0, -600.0, -20.0, 20.0, 600.0, 86_400.0)


def nothing() -> None:
    """There is nothing to take back."""


def _some(chance: random.Random, machines: list[Machine], most: int = 2) -> list[Machine]:
    return chance.sample(machines, min(len(machines), chance.randint(1, most)))


def _names(machines: list[Machine]) -> str:
    return ", ".join(machine.name for machine in machines)


async def kill(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    machines = _some(chance, site.of(), 3)
    for machine in machines:
        machine.kill()
    return f"kill -9 {_names(machines)}", nothing


async def kill_again_and_again(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    kind = chance.choice(("controller", "worker", "agent"))
    ends = [False]

    async def go() -> None:
        while not ends[0]:
            chance.choice(site.of(kind)).kill()
            await asyncio.sleep(chance.uniform(0.3, 3.0))

    task = asyncio.create_task(go())

    def undo() -> None:
        ends[0] = True
        task.cancel()

    return f"kill -9 of one {kind} after the other", undo


async def kill_all(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    for machine in site.of():
        machine.kill()
    site.redis.kill()
    return "kill -9 of everything, Redis too", nothing


async def pause(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    machines = _some(chance, site.of("controller", "worker", "agent"))
    for machine in machines:
        machine.pause()

    def undo() -> None:
        for machine in machines:
            machine.resume()

    return f"SIGSTOP {_names(machines)}", undo


def _weather(what: str, weather: Weather, *kinds: str, everybody: bool = False) -> Begin:
    async def begin(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
        machines = site.of(*kinds) if everybody else _some(chance, site.of(*kinds))
        site.weather(weather, *machines)
        return f"{what} for {_names(machines)}", lambda: site.weather(Weather(), *machines)

    return begin


async def unplug(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    machines = _some(chance, [machine for machine in site.of() if machine.host is not None])
    for machine in machines:
        assert machine.host is not None
        machine.host.drop()

    def undo() -> None:
        for machine in machines:
            assert machine.host is not None
            machine.host.pass_again()

    return f"no packet to or from {_names(machines)}", undo


async def jump(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    machines, seconds = _some(chance, [one for one in site.of() if one.clocked], 3), chance.choice(JUMPS)
    for machine in machines:
        machine.set_clock(seconds)

    def undo() -> None:
        for machine in machines:
            machine.set_clock(0)

    return f"the clock of {_names(machines)} jumps by {seconds:+.0f} s", undo


async def fill_disks(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    machines = _some(chance, site.of("agent", "controller", "worker"), 4)
    for machine in machines:
        machine.fill_disk()

    def undo() -> None:
        for machine in machines:
            machine.empty_disk()

    return f"the disk of {_names(machines)} is full", undo


async def fill_disk_and_kill(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    machine = chance.choice(site.of("agent"))
    machine.fill_disk()
    machine.kill()
    return f"{machine.name} starts with a full disk", machine.empty_disk


async def redis_full(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    def limit(size: int) -> None:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(site.redis.url) as client:
            client.config_set("maxmemory", size)

    limit(1)
    return "Redis refuses writes: OOM", lambda: limit(0)


async def redis_flush(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    for _ in range(chance.randint(1, 3)):
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(site.redis.url) as client:
            client.flushall()
        await asyncio.sleep(chance.uniform(0.0, 1.0))
    return "FLUSHALL", nothing


async def redis_kill(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    site.redis.kill()
    return "kill -9 of Redis, which comes back empty", nothing


async def steal(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    """Another holder is written into a Lease, once, or again and again as a second installation would."""
    name, ends = chance.choice(("belay-shard-main", "belay-controller-main")), [False]
    once = chance.random() < 0.5

    async def go() -> None:
        while not ends[0]:
            with contextlib.suppress(KubeError):
                found = await kube.get(LEASE, name, "belay-system")
                if found is not None:
                    spec = found["spec"]
                    if spec.get("holderIdentity") != "thief":
                        spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
                    spec["holderIdentity"] = "thief"
                    spec["renewTime"] = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
                    found["metadata"].pop("managedFields", None)
                    await kube.replace(LEASE, found)
                    if once:
                        return
            await asyncio.sleep(0.3)

    task = asyncio.create_task(go())

    def undo() -> None:
        ends[0] = True
        task.cancel()

    return f"{name} is stolen{' once' if once else ' again and again'}", undo


async def git_away(site: Site, kube: Kube, chance: random.Random) -> tuple[str, Undo]:
    away = site.repository.bare.with_suffix(".away")
    site.repository.bare.rename(away)

    def undo() -> None:
        if away.exists():
            away.rename(site.repository.bare)

    return "Git is away", undo


KINDS: Final[dict[str, Begin]] = {
    "kill": kill,
    "kill again and again": kill_again_and_again,
    "kill all": kill_all,
    "pause": pause,
    "hole": _weather("no answer and no error from API server and Redis", Weather(hole=True)),
    "network": unplug,
    "clock": jump,
    "disk": fill_disks,
    "disk at start": fill_disk_and_kill,
    "redis full": redis_full,
    "redis flush": redis_flush,
    "redis kill": redis_kill,
    "429": _weather("429", Weather(refuse=(429,), often=0.6), everybody=True),
    "500": _weather("500 and 503", Weather(refuse=(500, 503), often=0.4), everybody=True),
    "410": _weather("410", Weather(expire=True), everybody=True),
    "lost answers": _weather("every third answer is lost", Weather(lose=0.33), everybody=True),
    "slow": _weather("slow answers and watches", Weather(slow=4.0)),
    "cut watches": _weather("watches break in the middle", Weather(cut=0.3), everybody=True),
    "stolen lease": steal,
    "git": git_away,
}
NEEDS: Final = {"network": "network", "clock": "clock", "disk": "disk", "disk at start": "disk"}
"""What of the machine a kind needs (``Site.missing``)."""


def possible(site: Site) -> list[str]:
    """The kinds that can be had here."""
    return [kind for kind in KINDS if NEEDS.get(kind, "") not in site.missing]
