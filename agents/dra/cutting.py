"""Cut chips for claims, and give the parts back: the vNPUs of the parts (``belay.agents.dra.parts``) that claims hold.

A claim is on the disk before its chips are cut. While a claim holds a part of a chip nothing else cuts it: the device
plugin gives none of it, orders for its layout are refused. So a vNPU there that no claim has written down was cut for
one whose agent ended in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

import msgspec

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.dra.claims import ClaimError, Claims, PreparedClaim, PreparedDevice
from belay.agents.drivers.base import VNPU, Driver, DriverError
from belay.agents.node.state import NodeState

#: Time that the driver has for one call (s).
SECONDS: Final = 30.0
_T = TypeVar("_T")
_log = Log("dra")


class ClaimCutter:
    """Create and destroy the vNPUs of claims, one call at a time."""

    def __init__(self, driver: Driver, claims: Claims, clock: Clock) -> None:
        self._driver, self._claims, self._clock = driver, claims, clock

    async def cut(self, uid: str, state: NodeState) -> None:
        """Cut what the claim's parts need; those that it has already stay. Raises ClaimError and OSError."""
        claim = self._claims.prepared[uid]
        if not any(one.template for one in claim.devices):
            return
        there = {vnpu.id: vnpu for vnpu in await self._all(claim)}
        for number in range(len(claim.devices)):
            one = claim.devices[number]
            if not one.template or _is(there, one):
                continue
            everyone = (other for each in self._claims.prepared.values() for other in each.devices)
            owned = {other.vnpu for other in everyone if _is(there, other)}
            made = next((vnpu for vnpu in there.values() if vnpu.id not in owned
                         and (vnpu.chip, vnpu.template) == (one.chip, one.template)), None)  # fmt: skip
            if made is None:
                call = self._driver.create_vnpu(one.chip, one.template)
                made = await self._ask(claim, call, f"{one.name} is not cut")
                there[made.id] = made
                _log.info("a chip is cut for a claim", chip=state.name(one.chip), template=one.template, vnpu=made.id,
                          claim=f"{claim.namespace}/{claim.name}")  # fmt: skip
            changed = self._without(made.id)
            claim = changed.get(uid, claim)
            devices = list(claim.devices)
            devices[number] = msgspec.structs.replace(one, vnpu=made.id)
            claim = changed[uid] = msgspec.structs.replace(claim, devices=tuple(devices))
            await asyncio.to_thread(self._claims.record, changed)
        state.vnpus = await self._all(claim)

    def _without(self, vnpu: int) -> dict[str, PreparedClaim]:
        """The claims that name a vNPU, without it: one of that id was there before the host started again."""
        found = {}
        for uid, claim in self._claims.prepared.items():
            if any(one.template and one.vnpu == vnpu for one in claim.devices):
                devices = (msgspec.structs.replace(one, vnpu=0) if one.template and one.vnpu == vnpu else one
                           for one in claim.devices)  # fmt: skip
                found[uid] = msgspec.structs.replace(claim, devices=tuple(devices))
        return found

    async def give_back(self, uid: str, state: NodeState | None) -> None:
        """Destroy the vNPUs of the claim, and what else no claim has of these chips. Raises ClaimError."""
        claim = self._claims.prepared.get(uid)
        chips = {one.chip for one in claim.devices if one.template} if claim is not None else set()
        if claim is None or not chips:
            return
        there = {vnpu.id: vnpu for vnpu in await self._all(claim)}
        others = (each for other, each in self._claims.prepared.items() if other != uid)
        kept = {one.vnpu for each in others for one in each.devices if _is(there, one)}
        for vnpu in there.values():
            if vnpu.chip in chips and vnpu.id not in kept:
                await self._ask(claim, self._driver.destroy_vnpu(vnpu.id), f"vNPU {vnpu.id} is not destroyed")
                _log.info("the vNPU of a claim is destroyed", vnpu=vnpu.id, claim=f"{claim.namespace}/{claim.name}")
        if state is not None:
            state.vnpus = await self._all(claim)

    async def _all(self, claim: PreparedClaim) -> list[VNPU]:
        return list(await self._ask(claim, self._driver.vnpus(), "the vNPUs of the node are unknown"))

    async def _ask(self, claim: PreparedClaim, call: Awaitable[_T], what: str) -> _T:
        name = f"ResourceClaim {claim.namespace}/{claim.name}"
        try:
            return await self._clock.limit(call, SECONDS)
        except DriverError as error:
            raise ClaimError(f"{name}: {what}: {error}"[:300]) from error
        except TimeoutError as error:
            raise ClaimError(f"{name}: {what}: the driver does not answer in {SECONDS:.0f} s") from error


def _is(there: Mapping[int, VNPU], one: PreparedDevice) -> bool:
    """Whether the vNPU that a part names is there, and is one of its chip and template."""
    found = there.get(one.vnpu)
    return bool(one.template) and found is not None and (found.chip, found.template) == (one.chip, one.template)
