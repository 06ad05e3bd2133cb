"""The node's ResourceSlices at the API server: written when the devices change, looked after once a minute.

The pool's generation grows with every change, so that a scheduler which reads while several slices are written takes
no mixture of them (resource.k8s.io/v1, ResourcePool). Whether the API server keeps shared counters, and where, is tried
without writing anything: parts of chips without them would be given beside the whole chip.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from belay.agents.common.client import ApiError
from belay.agents.common.log import Log
from belay.agents.dra.devices import CounterForm, Device, slices
from belay.engine.wire.dra import DRIVER, VERSIONS

GROUP: Final = "/apis/resource.k8s.io"
RESYNC: Final = 60.0
_BACKOFF: Final = (1.0, 60.0)
_INVALID: Final = 422
_log = Log("dra")


class SliceApi(Protocol):
    """The API server as the driver uses it. Methods raise ApiError."""

    async def read_object(self, path: str) -> Mapping[str, Any] | None:
        """Read one object or document of the API; None without one."""
        ...

    async def list_objects(self, path: str, selector: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        """Read a collection, all pages."""
        ...

    async def write_object(self, method: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST, PUT or DELETE; returns the answer."""
        ...


class SlicePublisher:
    """``version`` is the newest served version of the API that Belay knows, empty while there is none."""

    def __init__(self, node: str, api: SliceApi, chance: random.Random | None = None) -> None:
        self._node, self._api = node, api
        self._chance = chance or random.Random()
        self._published: list[Device] | None = None
        self._generation = 0
        self._taints = True
        self._counters: tuple[str, CounterForm] | None = None
        self._due = 0.0
        self._failures = 0
        self.version = ""

    async def keep(self, devices: Sequence[Device], now: float) -> str:
        """Bring the slices in line with the devices; ``now`` is monotonic (s). Returns what is wrong, else nothing."""
        changed = self._published != list(devices)
        if now < self._due and (self._failures or not changed):
            return "" if not self._failures else self._problem
        try:
            await self._publish(list(devices), changed)
        except ApiError as error:
            self._failures += 1
            low, high = _BACKOFF
            self._due = now + self._chance.uniform(low, min(high, low * 2.0 ** min(self._failures, 6)))
            self._problem = f"ResourceSlices are not published: {error}"
            if self._failures in (1, 10, 100):
                _log.warning("slices cannot be published", node=self._node, attempt=self._failures, error=error)
            return self._problem
        self._failures, self._problem, self._due = 0, "", now + RESYNC * self._chance.uniform(0.8, 1.2)
        return ""

    _problem = ""

    async def _publish(self, devices: list[Device], changed: bool) -> None:
        if not self.version or not changed:
            self.version = await self._served()
        await self._try_counters(devices)
        live = await self._live()
        if not changed and self._same(live, devices):
            return
        known = [int(_pool(body).get("generation") or 0) for body in live.values()]
        self._generation = max(self._generation, *known, 0) + 1 if known else self._generation + 1
        wanted = await self._bodies(devices)
        if not await self._write(wanted, live):
            # the server dropped the taints: chips that take no new work must not be offered by it at all
            self._taints = False
            self._generation += 1
            wanted = await self._bodies(devices)
            await self._write(wanted, await self._live())
        names = {body["metadata"]["name"] for body in wanted}
        for name in live.keys() - names:
            await self._delete(name)
        self._published = devices
        _log.info("slices are published", node=self._node, devices=len(devices), generation=self._generation)

    async def _served(self) -> str:
        group = await self._api.read_object(GROUP)
        served = {str(row.get("version")) for row in (group or {}).get("versions") or () if isinstance(row, Mapping)}
        found = next((version for version in VERSIONS if version in served), "")
        if not found:
            raise ApiError(404, f"the API server serves none of resource.k8s.io/{', '.join(VERSIONS)}")
        return found

    async def _try_counters(self, devices: Sequence[Device]) -> None:
        """Learn once for each version of the API which form of shared counters it keeps, by dry runs."""
        if not any(one.template for one in devices) or (self._counters and self._counters[0] == self.version):
            return
        for form in (CounterForm.BESIDE, CounterForm.APART):
            bodies = slices(self._node, None, devices, 1, self.version, taints=False, counters=form)
            sample = next((body for body in bodies if "sharedCounters" in body["spec"]), None)
            if sample is None:
                return  # no chip can be offered now
            sample["metadata"]["name"] = f"{sample['metadata']['name']}-try"
            path = f"{GROUP}/{self.version}/resourceslices?dryRun=All"
            try:
                answer = await self._api.write_object("POST", path, sample)
            except ApiError as error:
                if error.status != _INVALID:
                    raise
                continue
            kept = bool((answer.get("spec") or {}).get("sharedCounters"))
            self._counters = (self.version, form if kept else CounterForm.NOWHERE)
            break
        else:
            self._counters = (self.version, CounterForm.NOWHERE)
        _log.info("shared counters", node=self._node, version=self.version, kept=self._counters[1])

    @property
    def counters(self) -> CounterForm:
        """Where the API server takes shared counters; nowhere while it has not been tried."""
        known = self._counters
        return known[1] if known is not None and known[0] == self.version else CounterForm.NOWHERE

    async def _live(self) -> dict[str, Mapping[str, Any]]:
        """The slices of this node and driver, by name: Belay's, and those that another driver of that name left."""
        selector = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={DRIVER}"}
        found = await self._api.list_objects(f"{GROUP}/{self.version}/resourceslices", selector)
        return {
            str(body["metadata"]["name"]): body
            for body in found
            if (body.get("spec") or {}).get("nodeName") == self._node
            and (body.get("spec") or {}).get("driver") == DRIVER
        }

    async def _bodies(self, devices: Sequence[Device]) -> list[dict[str, Any]]:
        node = await self._api.read_object(f"/api/v1/nodes/{self._node}")
        uid = ((node or {}).get("metadata") or {}).get("uid")
        owner = (
            {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True} if uid else None
        )
        return slices(
            self._node, owner, devices, self._generation, self.version, taints=self._taints, counters=self.counters
        )

    async def _write(self, wanted: Sequence[Mapping[str, Any]], live: Mapping[str, Mapping[str, Any]]) -> bool:
        """Write the slices. Returns whether the server kept the taints of all devices."""
        kept = True
        for body in wanted:
            name = str(body["metadata"]["name"])
            path = f"{GROUP}/{self.version}/resourceslices"
            before = live.get(name)
            if before is None:
                answer = await self._api.write_object("POST", path, body)
            else:
                version = before["metadata"].get("resourceVersion")
                replacing = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
                answer = await self._api.write_object("PUT", f"{path}/{name}", replacing)
            kept = kept and _tainted(answer) == _tainted(body)
        return kept

    async def _delete(self, name: str) -> None:
        try:
            await self._api.write_object("DELETE", f"{GROUP}/{self.version}/resourceslices/{name}", {})
        except ApiError as error:
            if error.status != 404:
                raise

    def _same(self, live: Mapping[str, Mapping[str, Any]], devices: Sequence[Device]) -> bool:
        """Whether the slices are still those that were written."""
        wanted = slices(
            self._node, None, devices, self._generation, self.version, taints=self._taints, counters=self.counters
        )
        if live.keys() != {body["metadata"]["name"] for body in wanted}:
            return False
        return all(
            _pool(live[body["metadata"]["name"]]) == body["spec"]["pool"]
            and _names(live[body["metadata"]["name"]]) == _names(body)
            and _sets(live[body["metadata"]["name"]]) == _sets(body)
            for body in wanted
        )


def _pool(body: Mapping[str, Any]) -> Mapping[str, Any]:
    pool = (body.get("spec") or {}).get("pool")
    return pool if isinstance(pool, Mapping) else {}


def _names(body: Mapping[str, Any]) -> list[str]:
    return [str(device.get("name")) for device in (body.get("spec") or {}).get("devices") or ()]


def _sets(body: Mapping[str, Any]) -> list[str]:
    return [str(one.get("name")) for one in (body.get("spec") or {}).get("sharedCounters") or ()]


def _tainted(body: Mapping[str, Any]) -> set[str]:
    found = set()
    for device in (body.get("spec") or {}).get("devices") or ():
        if (device.get("basic") or device).get("taints"):
            found.add(str(device.get("name")))
    return found
