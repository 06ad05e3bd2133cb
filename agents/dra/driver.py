"""The DRA driver of a node, a part of the agent: it reads the agent's state and shares chips with the device plugin.

Source: component/ascend-dynamic-resource-allocation (driver npu.huawei.com).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.dra.claims import ClaimError, Claims, PreparedClaim
from belay.agents.dra.cutting import ClaimCutter
from belay.agents.dra.devices import Device, devices
from belay.agents.dra.parts import ChipParts, parts_of
from belay.agents.dra.publisher import GROUP, SliceApi, SlicePublisher
from belay.agents.dra.server import DraServer
from belay.agents.dra.settings import DraSettings
from belay.agents.drivers.base import Driver
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState

#: Pause between looks at whether prepared claims still exist (s). Kubelet takes claims back itself; one that is gone
#: from the API server at two looks in a row was forgotten, e.g. by a kubelet that lost its own records.
SWEEP: Final = 300.0
_log = Log("dra")


class DraDriver:
    """Publish the node's devices and prepare claims until cancelled. ``state`` returns the agent's state, None until
    the driver of the chips has answered. ``claims.held`` is what the agent must count as used. With ``cuts``, the
    driver of the chips, they are offered in parts, too, and cut when a claim gets one.
    """

    def __init__(
        self,
        node: str,
        api: SliceApi,
        folder: Path,
        settings: DraSettings,
        clock: Clock,
        state: Callable[[], NodeState | None],
        cuts: Driver | None = None,
    ) -> None:
        self._node, self._api, self._settings, self._clock, self._state_of = node, api, settings, clock, state
        self.claims = Claims(folder, node, settings)
        self._cutter = ClaimCutter(cuts, self.claims, clock) if cuts is not None else None
        self._parts: ChipParts | None = None
        self.publisher = SlicePublisher(node, api)
        self._server = DraServer(node, settings, clock, self._prepare, self._unprepare, self._health)
        self._busy = asyncio.Lock()
        self._missing: set[str] = set()
        self._sweep_due = 0.0

    async def run(self) -> None:
        """Serve kubelet and keep the slices."""
        while (state := self._state_of()) is None or not state.polled:
            await self._clock.sleep(0.05)
        if self._cutter is not None:
            self._parts = parts_of(state.machine)
        async with self._busy:
            await asyncio.to_thread(self.claims.describe_again, self._devices(state), state)
        self._sweep_due = self._clock.monotonic() + SWEEP
        before: list[Device] = []
        try:
            while True:
                await self._listen(state)
                found = self._devices(state)
                if found != before:
                    before = found
                    self._server.changed.set()
                problem = await self.publisher.keep(found, self._clock.monotonic())
                self._say(state, "dra slices", self.claims.problem or problem)
                if self._clock.monotonic() >= self._sweep_due:
                    self._sweep_due = self._clock.monotonic() + SWEEP
                    await self._sweep()
                await self._clock.sleep(self._settings.period)
        finally:
            await self._server.stop()

    async def _listen(self, state: NodeState) -> None:
        if not self._server.listening:
            try:
                await self._server.start()
            except OSError as error:
                self._say(state, "dra socket", f"kubelet's folders for plugins: {error.strerror or error}")
                return
        self._say(state, "dra socket", self._server.refusal)

    def _say(self, state: NodeState, topic: str, problem: str) -> None:
        if problem:
            state.problems[topic] = f"DRA driver: {problem}"[:MAX_TEXT]
        else:
            state.problems.pop(topic, None)

    def _devices(self, state: NodeState) -> list[Device]:
        withheld = {chip for chip in state.ids if self.claims.problem or state.out_of_service(chip)}
        return devices(state.machine, state.chips, state.vnpus, withheld, self._parts, state.users)

    def _health(self) -> dict[str, bool]:
        state = self._state_of()
        if state is None:
            return {}
        return {one.name: state.healthy(one.chip) for one in self._devices(state)}

    async def _prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        state = self._state_of()
        if state is None or not state.polled:
            raise ClaimError("the agent has not read the node's chips yet")
        if self.claims.problem:
            raise ClaimError(self.claims.problem)
        async with self._busy:
            body = None
            if uid not in self.claims.prepared:
                if not self.publisher.version:
                    raise ClaimError("the API server has not been reached yet")
                path = f"{GROUP}/{self.publisher.version}/namespaces/{_name(namespace)}/resourceclaims/{_name(name)}"
                try:
                    body = await self._api.read_object(path)
                except ApiError as error:
                    raise ClaimError(f"ResourceClaim {namespace}/{name} cannot be read: {error}") from error
            await asyncio.to_thread(self.claims.hold, uid, body, self._devices(state), state)
            if self._cutter is not None:
                await self._cutter.cut(uid, state)
            await asyncio.to_thread(self.claims.describe, uid, self._devices(state), state)
            return self.claims.prepared[uid]

    async def _unprepare(self, uid: str) -> None:
        async with self._busy:
            if self._cutter is not None:
                await self._cutter.give_back(uid, self._state_of())
            await asyncio.to_thread(self.claims.unprepare, uid)

    async def _sweep(self) -> None:
        """Take back claims that are gone from the API server at two looks in a row, and that no pod here names."""
        gone: set[str] = set()
        used = self._named_by_pods()
        for uid, claim in list(self.claims.prepared.items()):
            path = f"{GROUP}/{self.publisher.version}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
            try:
                body = await self._api.read_object(path) if self.publisher.version else {"metadata": {"uid": uid}}
            except ApiError:
                continue
            if body is None and (used is None or (claim.namespace, claim.name) in used):
                continue
            if body is None or (body.get("metadata") or {}).get("uid") != uid:
                gone.add(uid)
        if gone and not await self._serves_claims():
            gone.clear()  # without the API every claim looks gone, and containers still use its chips
        for uid in gone & self._missing:
            _log.warning("a claim that no longer exists is taken back", uid=uid)
            try:
                await self._unprepare(uid)
            except (ClaimError, OSError) as error:
                _log.warning("a claim is not taken back", uid=uid, reason=error)
        self._missing = gone - self._missing

    async def _serves_claims(self) -> bool:
        try:
            return await self._api.read_object(f"{GROUP}/{self.publisher.version}") is not None
        except ApiError:
            return False

    def _named_by_pods(self) -> set[tuple[str, str]] | None:
        """Namespace and name of the claims of pods on the node that have not ended; None while they are unknown."""
        state = self._state_of()
        if state is None or not state.pods_read:
            return None
        named = set()
        for body in state.bodies:
            status, spec = body.get("status") or {}, body.get("spec") or {}
            if status.get("phase") in ("Succeeded", "Failed"):
                continue
            namespace = str((body.get("metadata") or {}).get("namespace"))
            for row in (*(status.get("resourceClaimStatuses") or ()), *(spec.get("resourceClaims") or ())):
                if isinstance(row, dict) and row.get("resourceClaimName"):
                    named.add((namespace, str(row["resourceClaimName"])))
        return named


def _name(text: str) -> str:
    """A name of Kubernetes, safe in a path. Raises ClaimError."""
    if not text or len(text) > 253 or not all(part.isalnum() or part in "-." for part in text) or ".." in text:
        raise ClaimError(f"{text[:80]!r} is not the name of a ResourceClaim or namespace")
    return text
