"""Random histories of pods, faults, crashes of kubelet and agent: no chip ever has two owners, and what kubelet can
still give is what is free."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from tests.agent_world import FAULT
from tests.kubelet_world import Node

STEPS = 60
ALL = frozenset(range(8))


class History:
    """One node with what really happened to it: who got which chips."""

    def __init__(self, node: Node, chance: random.Random) -> None:
        self.node, self.chance = node, chance
        self.real: dict[str, frozenset[int]] = {}
        self.waiting: dict[str, frozenset[int]] = {}
        self.bad: set[int] = set()
        self.number = 0
        self.refused = 0

    async def step(self) -> None:
        """Do something, then look at the invariants."""
        does = self.chance.choices(
            ["bind", "admit", "end", "fault", "heal", "crash", "kubelet", "die", "sneak"], [6, 6, 2, 1, 1, 1, 1, 1, 1]
        )[0]
        await getattr(self, does)()
        owners = [chip for chips in self.real.values() for chip in chips]
        assert len(owners) == len(set(owners)), (does, self.real)

    def free(self) -> frozenset[int]:
        """What the engine believes to be free: not held, not meant for a pod, not faulty."""
        taken = {chip for chips in (*self.real.values(), *self.waiting.values()) for chip in chips}
        return ALL - taken - self.bad

    async def bind(self) -> None:
        free = sorted(self.free())
        if not free:
            return
        self.number += 1
        name, count = f"p{self.number}", min(len(free), self.chance.choice([1, 1, 1, 2, 3]))
        chips = frozenset(self.chance.sample(free, count))
        self.waiting[name] = chips
        self.node.pod(name, [f"Ascend910-{c}" for c in sorted(chips)], time=self.number)

    async def sneak(self) -> None:
        """A scheduler that knows nothing binds a pod to a chip in use."""
        if self.real:
            self.number += 1
            name = f"p{self.number}"
            chips = self.chance.choice(sorted(self.real.values(), key=sorted))
            self.node.pod(name, [f"Ascend910-{c}" for c in sorted(chips)], time=self.number)
            await self.admitted(name, len(chips))

    async def admit(self) -> None:
        if self.waiting:
            name = self.chance.choice(sorted(self.waiting))
            await self.admitted(name, len(self.waiting[name]))

    async def admitted(self, name: str, count: int) -> None:
        body = next(b for b in self.node.cluster.pod_list if b["metadata"]["name"] == name)
        await self.node.seen(name)
        try:
            answer = await self.node.kubelet.admit(body, prefer=self.chance.random() < 0.7)
        except (grpc.aio.AioRpcError, RuntimeError):
            # kubelet ends the pod, and the engine takes it away
            self.refused += 1
            self.waiting.pop(name, None)
            self.node.finish(name)
            self.node.delete(name)
            return
        given = frozenset(int(c) for c in answer.envs["ASCEND_VISIBLE_DEVICES"].split(","))
        assert len(given) == count and not given & self.bad
        meant = next((key for key, chips in self.waiting.items() if chips == given), None)
        if meant is not None and meant != name and name in self.waiting:
            self.waiting[meant] = self.waiting[name]
        self.waiting.pop(name, None)
        self.real[name] = given

    async def end(self) -> None:
        if self.real:
            name = self.chance.choice(sorted(self.real))
            del self.real[name]
            self.node.finish(name, "Succeeded")
            self.node.delete(name)

    async def fault(self) -> None:
        free = sorted(self.free())
        if free and len(self.bad) < 2:
            self.bad.add(chip := self.chance.choice(free))
            self.node.driver.inject(chip, FAULT)
            known = self.node.agent.state
            assert known is not None
            await self.node.until(lambda: bool(known.book.chip(chip)))

    async def heal(self) -> None:
        if self.bad:
            chip = self.chance.choice(sorted(self.bad))
            self.bad.discard(chip)
            self.node.driver.clear(chip, FAULT)

    async def crash(self) -> None:
        """The agent ends where it stands and comes back, now and then without its memory."""
        await self.node.crash()
        grants = self.node.root / "state" / "grants"
        if self.chance.random() < 0.3 and set(self.real) == {name for _, name in self.node.kubelet.names.values()}:
            grants.unlink(missing_ok=True)
        await self.node.boot()
        for name in self.waiting:
            await self.node.seen(name)

    async def kubelet(self) -> None:
        await self.node.kubelet.restart()
        await self.node.until(lambda: bool(self.node.kubelet.devices))

    async def die(self) -> None:
        """Kubelet ends after it was answered, before it wrote that down."""
        if self.waiting:
            self.node.kubelet.forget_answer = True
            name = self.chance.choice(sorted(self.waiting))
            body = next(b for b in self.node.cluster.pod_list if b["metadata"]["name"] == name)
            await self.node.seen(name)
            try:
                await self.node.kubelet.admit(body)
            except (grpc.aio.AioRpcError, RuntimeError):
                pass
            self.node.kubelet.forget_answer = False
            await self.kubelet()


@pytest.mark.parametrize("seed", range(4))
def test_a_chip_has_one_owner_whatever_happens(seed: int) -> None:
    async def scenario() -> None:
        async with Node() as node:
            history = History(node, random.Random(seed))
            for _ in range(STEPS):
                await history.step()
            for chip in sorted(history.bad):
                node.driver.clear(chip, FAULT)
            history.bad.clear()
            while history.waiting:
                await history.admit()
            held = {chip for chips in history.real.values() for chip in chips}
            await node.until(lambda: len(node.kubelet.free()) == 8 - len(held))
            for name, chips in history.real.items():
                text = ",".join(f"Ascend910-{c}" for c in sorted(chips))
                await node.until(lambda n=name, t=text: node.notes(n).get("huawei.com/AscendReal") == t)
            rest = sorted(ALL - held)
            if rest:
                last = node.pod("last", [f"Ascend910-{c}" for c in rest], time=10_000)
                answer = await node.kubelet.admit(last)
                assert answer.envs["ASCEND_VISIBLE_DEVICES"] == ",".join(map(str, rest))

    asyncio.run(asyncio.wait_for(scenario(), 100))
