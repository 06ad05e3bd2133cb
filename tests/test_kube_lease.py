"""The writer's epoch: one holder, epochs only grow, and no foreign clock is trusted."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

from belay.engine.kube import LEASE, Conflict, Kube
from belay.engine.kube.lease import Lease, epoch_of, shard_lease


class Leases:
    """An API server for one Lease: compare-and-swap on resourceVersion, as the real one does."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.rv = 0
        self.before_write: Callable[[], Awaitable[None]] | None = None

    async def get(self, *_: Any) -> dict[str, Any] | None:
        await asyncio.sleep(0)
        return copy.deepcopy(self.stored)

    async def create(self, _: Any, obj: dict[str, Any]) -> dict[str, Any]:
        await self._interleave()
        if self.stored is not None:
            raise Conflict("exists", status=409, reason="AlreadyExists")
        return self._store(obj)

    async def replace(self, _: Any, obj: dict[str, Any]) -> dict[str, Any]:
        await self._interleave()
        if self.stored is None or obj["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise Conflict("moved on", status=409)
        return self._store(obj)

    async def _interleave(self) -> None:
        if self.before_write is not None:
            meanwhile, self.before_write = self.before_write, None
            await meanwhile()

    def _store(self, obj: dict[str, Any]) -> dict[str, Any]:
        self.rv += 1
        self.stored = copy.deepcopy(obj)
        self.stored["metadata"]["resourceVersion"] = str(self.rv)
        return copy.deepcopy(self.stored)


class World:
    def __init__(self) -> None:
        self.leases = Leases()
        self.now = 100.0

    def lease(self, identity: str, wall: float = 0.0) -> Lease:
        return shard_lease(
            self.leases,  # type: ignore[arg-type]
            "main",
            identity,
            duration=15.0,
            clock=lambda: self.now,
            wall=lambda: wall,
        )


def test_the_first_taker_gets_epoch_one_and_another_waits_its_whole_duration() -> None:
    async def case() -> None:
        world = World()
        first, second = world.lease("a"), world.lease("b", wall=9e9)
        assert await first.acquire() == 1
        assert world.leases.stored is not None
        assert world.leases.stored["metadata"]["name"] == "belay-shard-main"
        assert await second.acquire() is None, "a wall clock far ahead changes nothing"
        world.now += 14
        assert await second.acquire() is None
        world.now += 1.1
        assert await second.acquire() == 2
        assert await first.renew() is False and await first.verify(1) is False and await second.verify(2)

    asyncio.run(case())


def test_what_a_dead_holder_has_is_taken_at_once_and_only_that() -> None:
    async def case() -> None:
        world, dead = World(), {"a"}
        lease = {"duration": 15.0, "clock": lambda: world.now, "ended": dead.__contains__}
        first, third = world.lease("a"), world.lease("c")
        second = shard_lease(world.leases, "main", "b", **lease)  # type: ignore[arg-type]
        assert await first.acquire() == 1
        assert await third.acquire() is None and third.holder == "a"
        assert await second.acquire() == 2
        assert await first.renew() is False and await first.verify(1) is False, "it was not dead, and must stop"
        await second.release()
        assert await third.acquire() == 3
        assert await second.acquire() is None and second.holder == "c", "who took over lives"

    asyncio.run(case())


def test_a_renewal_restarts_the_wait() -> None:
    async def case() -> None:
        world = World()
        first, second = world.lease("a"), world.lease("b")
        await first.acquire()
        await second.acquire()
        world.now += 14
        assert await first.renew()
        world.now += 14
        assert await second.acquire() is None
        assert first.epoch == 1 and await first.verify(1)

    asyncio.run(case())


def test_the_same_identity_retakes_at_once_with_a_new_epoch() -> None:
    async def case() -> None:
        world = World()
        before, after = world.lease("a"), world.lease("a")
        assert await before.acquire() == 1
        assert await after.acquire() == 2
        assert await before.renew() is False, "the earlier run of the process must stop"
        assert await before.verify(1) is False

    asyncio.run(case())


def test_a_released_epoch_is_valid_until_the_next_taking() -> None:
    async def case() -> None:
        world = World()
        first, second = world.lease("a"), world.lease("b")
        await first.acquire()
        await first.release()
        assert await second.verify(1)
        assert await second.acquire() == 2
        assert not await second.verify(1)
        await first.release()
        assert await second.verify(2) and await second.renew(), "a late release takes nothing from the new holder"

    asyncio.run(case())


def test_of_two_at_the_same_moment_one_wins() -> None:
    async def case() -> None:
        world = World()
        first, second = world.lease("a"), world.lease("b")
        taken: list[int | None] = []

        async def meanwhile() -> None:
            taken.append(await second.acquire())

        world.leases.before_write = meanwhile
        assert await first.acquire() is None
        assert taken == [1]

    asyncio.run(case())


def test_a_deleted_lease_is_not_verified_and_not_renewed() -> None:
    async def case() -> None:
        world = World()
        first = world.lease("a")
        await first.acquire()
        world.leases.stored = None
        assert not await first.verify(1)
        assert not await first.renew()

    asyncio.run(case())


def test_against_the_real_api_server(kubeconfig: str) -> None:
    async def case() -> None:
        async with Kube.from_config(kubeconfig) as kube:
            first, second = (Lease(kube, "belay-test", who, namespace="default") for who in ("a", "b"))
            one = await first.acquire()
            assert one is not None and await first.renew() and await second.acquire() is None
            await first.release()
            two = await second.acquire()
            assert two == one + 1 and not await first.verify(one)
            stored = await kube.get(LEASE, "belay-test", "default")
            assert stored is not None and epoch_of(stored) == two
            assert stored["spec"]["acquireTime"] <= stored["spec"]["renewTime"]
            await kube.delete(LEASE, "belay-test", "default")

    asyncio.run(case())


def test_a_restarted_process_releases_what_its_former_run_held() -> None:
    world = World()

    async def story() -> None:
        killed, other = world.lease("one"), world.lease("two")
        assert await killed.acquire() == 1 and await other.acquire() is None
        again = world.lease("one")
        assert not await other.release_former(), "another's Lease stays"
        assert not await killed.release_former(), "a Lease that is held now stays"
        assert await again.release_former() and not await again.release_former()
        assert await again.verify(1), "batches of the former run may end"
        assert await other.acquire() == 2
        assert not await again.release_former() and await other.verify(2)

    asyncio.run(story())


def test_a_lease_acquired_meanwhile_is_not_released() -> None:
    world = World()

    async def story() -> None:
        killed, again, working = (world.lease("one") for _ in range(3))
        await killed.acquire()

        async def meanwhile() -> None:
            assert await working.acquire() == 2

        world.leases.before_write = meanwhile
        assert not await again.release_former()
        assert await working.renew()

    asyncio.run(story())
