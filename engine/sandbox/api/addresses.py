"""Cluster IPs of services, from 10.96.0.0/16."""

from __future__ import annotations

import ipaddress
import random

from belay.engine.sandbox.api.errors import field_invalid, invalid
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.store import ClusterStore, ObjectChanged

NETWORK = ipaddress.ip_network("10.96.0.0/16")
_FIRST, _LAST = 10, NETWORK.num_addresses - 2


class Addresses:
    """The allocated addresses; follows the store, so that deleting a service frees its address."""

    def __init__(self, store: ClusterStore) -> None:
        self._taken = {address for entry in store.collection("services").entries() if (address := _address(entry.obj))}
        store.listeners.append(self._changed)

    def _changed(self, event: ObjectChanged) -> None:
        if event.entry.storage != "services":
            return
        if event.old is not None and (address := _address(event.old.obj)):
            self._taken.discard(address)
        if event.type != "DELETED" and (address := _address(event.entry.obj)):
            self._taken.add(address)

    def allocate(self, resource: ServedResource, service: JSON, *, dry_run: bool) -> None:
        """Give a new service its address, or check the one it asks for.

        Raises ApiError 422 when the address is taken or outside the range.
        """
        spec = service["spec"]
        wanted = spec.get("clusterIP") or ""
        if spec.get("type") == "ExternalName" or wanted == "None":
            if wanted == "None":
                spec["clusterIPs"] = ["None"]
            return
        if wanted:
            self._check(resource, service, wanted)
        else:
            wanted = self._free()
        spec["clusterIP"] = wanted
        spec["clusterIPs"] = [wanted]

    def _check(self, resource: ServedResource, service: JSON, wanted: str) -> None:
        try:
            inside = ipaddress.ip_address(wanted) in NETWORK
        except ValueError:
            inside = False
        why = "" if inside else f"provided IP is not in the valid range. The range of valid IPs is {NETWORK}"
        if wanted in self._taken:
            why = "failed to allocate IP: provided IP is already allocated"
        if why:
            raise invalid(resource, service["metadata"]["name"], [field_invalid("spec.clusterIPs", [wanted], why)])

    def _free(self) -> str:
        start = random.randint(_FIRST, _LAST)
        for offset in range(_LAST - _FIRST + 1):
            number = _FIRST + (start - _FIRST + offset) % (_LAST - _FIRST + 1)
            address = str(NETWORK.network_address + number)
            if address not in self._taken:
                return address
        raise RuntimeError(f"no free address in {NETWORK}")


def _address(service: JSON) -> str:
    address = (service.get("spec") or {}).get("clusterIP") or ""
    return "" if address == "None" else str(address)
