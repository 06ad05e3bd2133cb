"""The device plugin of a simulated kubelet: a node's devices, their holders, and their allocation.

Behaviour: component/ascend-device-plugin/pkg/server/plugin.go (Allocate, GetAnnotation) and manager.go (AscendReal,
kltDev).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from belay.engine.model.cluster import AgentVNPU
from belay.engine.model.labels import ASCEND_REAL, HUAWEI_PREFIX, KUBELET_DEVICES, PREDICATE_TIME
from belay.engine.sandbox.nodes_shape import Shape
from belay.engine.wire.podannotations import (
    PREDICATE_TIME_USED,
    Configuration,
    Device,
    chip_names,
    configuration_key,
)
from belay.engine.workloads import objects as o

Json = dict[str, Any]


class Devices(msgspec.Struct, frozen=True):
    """The devices of a node now.

    ``unhealthy`` are device names that the report excludes; ``suffixes`` maps a vNPU template to the tail of its
    resource name.
    """

    shape: Shape
    unhealthy: frozenset[str] = frozenset()
    vnpus: tuple[AgentVNPU, ...] = ()
    suffixes: Mapping[str, str] = {}
    base: Mapping[str, Mapping[str, Any]] = {}

    @property
    def whole(self) -> list[str]:
        """Chips without vNPUs."""
        cut = {f"{self.shape.prefix}{vnpu.chip}" for vnpu in self.vnpus}
        return [name for name in self.shape.names if name not in cut]

    def slices(self) -> dict[str, list[str]]:
        """Resource → names of its vNPUs (``Ascend310P-4c-100-0``: size, id, chip)."""
        out: dict[str, list[str]] = {}
        for vnpu in self.vnpus:
            suffix = self.suffixes.get(vnpu.template)
            if suffix:
                family = self.shape.prefix.rstrip("-")
                out.setdefault(f"{HUAWEI_PREFIX}{family}-{suffix}", []).append(
                    f"{family}-{suffix}-{vnpu.id}-{vnpu.chip}"
                )
        return out

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """(capacity, allocatable) by resource: unhealthy devices are counted, but not offered."""
        capacity = {self.shape.resource: len(self.whole)}
        allocatable = {self.shape.resource: sum(name not in self.unhealthy for name in self.whole)}
        for resource, names in self.slices().items():
            capacity[resource] = len(names)
            allocatable[resource] = sum(not self._on_bad_chip(name) for name in names)
        return capacity, allocatable

    def offered(self, resource: str) -> list[str]:
        """Healthy devices of a resource."""
        if resource == self.shape.resource:
            return [name for name in self.whole if name not in self.unhealthy]
        return [name for name in self.slices().get(resource, ()) if not self._on_bad_chip(name)]

    def _on_bad_chip(self, vnpu: str) -> bool:
        return f"{self.shape.prefix}{vnpu.rsplit('-', 1)[-1]}" in self.unhealthy


class PodRejection(msgspec.Struct, frozen=True):
    """Why a kubelet does not run a pod."""

    reason: str
    message: str


def requested(pod: Json) -> tuple[str, int]:
    """The pod's NPU resource and how many of it; ("", 0) when it asks for none."""
    resource, count = "", 0
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        for key, value in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            if key.startswith(HUAWEI_PREFIX) and str(value).isdecimal():
                resource, count = key, count + int(value)
    return resource, count


def held(pods: Iterable[Json]) -> dict[str, str]:
    """Device name → ``namespace/name`` of the admitted pod that holds it. A terminating pod still does, a finished
    one does not."""
    out: dict[str, str] = {}
    for pod in pods:
        if o.finished(pod) or not (pod.get("status") or {}).get("startTime"):
            continue
        resource, count = requested(pod)
        if count:
            meta = pod["metadata"]
            for name in chip_names(meta.get("annotations") or {}, resource):
                out[name] = f"{meta.get('namespace')}/{meta['name']}"
    return out


def allocate(
    pod: Json, others: Sequence[Json], devices: Devices, holders: Mapping[str, str], host_ip: str, seed: str
) -> dict[str, str] | PodRejection:
    """Give ``pod`` its devices: the annotations to write, or why not.

    Of all pods on the node with an equal request, the device plugin serves the one that the scheduler placed first. If
    kubelet asks for another pod, the two pods swap chips, as on a real node. ``others`` are the pod itself and those
    that wait or run; ``holders`` maps the devices that those really have.
    """
    resource, count = requested(pod)
    if not count:
        return {}
    offered = devices.offered(resource)
    free = [name for name in offered if name not in holders]
    if len(free) < count:
        return _failed(
            f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
        )
    chosen_by_kubelet = sorted(free, key=lambda name: _mix(seed, name))[:count]
    names = _meant(pod, others, resource, count, devices, chosen_by_kubelet, holders)
    if isinstance(names, PodRejection):
        return names
    for name in names:
        if name in holders:
            return _failed(f"rpc error: code = Unknown desc = device {name} is held by pod {holders[name]}")
        if name not in offered:
            return _failed(f"rpc error: code = Unknown desc = device {name} is not healthy or not there")
    return _annotations(pod, names, chosen_by_kubelet, devices, resource, host_ip)


def _meant(
    pod: Json,
    others: Sequence[Json],
    resource: str,
    count: int,
    devices: Devices,
    chosen_by_kubelet: list[str],
    holders: Mapping[str, str],
) -> list[str] | PodRejection:
    """The devices that the scheduler chose. A pod whose devices went to another one gets that pod's devices."""
    if resource != devices.shape.resource:
        return chosen_by_kubelet  # static vNPUs: kubelet's choice is used as it is
    candidates = []
    for other in others:
        notes = other["metadata"].get("annotations") or {}
        names = [part for part in str(notes.get(resource, "")).split(",") if part]
        when = str(notes.get(PREDICATE_TIME, ""))
        if not names or not requested(other)[1] == count == len(names) or not when.isdecimal():
            continue
        served = when == PREDICATE_TIME_USED
        if not (any if served else all)(name in holders for name in names):
            candidates.append((served, int(when), other["metadata"]["name"], names))
    if candidates:
        return min(candidates)[3]
    if count == len(devices.shape.names):
        return chosen_by_kubelet  # it requests all devices of the node
    if own := str((pod["metadata"].get("annotations") or {}).get(resource, "")):
        return own.split(",")
    name = pod["metadata"]["name"]
    return _failed(f"rpc error: code = Unknown desc = no pod passes the filter for {resource}: {name} has no chips")


def _annotations(
    pod: Json, names: list[str], chosen: list[str], devices: Devices, resource: str, host_ip: str
) -> dict[str, str]:
    real = sorted(names, key=_tail)
    notes = pod["metadata"].get("annotations") or {}
    out = {
        ASCEND_REAL: ",".join(real),
        KUBELET_DEVICES: ",".join(sorted(chosen, key=_tail)),
        PREDICATE_TIME: PREDICATE_TIME_USED,
    }
    key = configuration_key(resource)
    if key not in notes or notes.get(ASCEND_REAL) != out[ASCEND_REAL]:
        out[key] = _configuration(pod, real, devices, host_ip, virtual=resource != devices.shape.resource)
    return out


def _configuration(pod: Json, names: list[str], devices: Devices, host_ip: str, *, virtual: bool) -> str:
    rows = []
    for name in names:
        base = devices.base.get(name, {})
        ip = "127.0.0.1" if virtual else str(base.get("IP", "-1"))
        rows.append(
            Device(device_id=str(_tail(name)), device_ip=ip, super_device_id=str(base.get("SuperDeviceID") or ""))
        )
    meta = pod["metadata"]
    value = Configuration(
        pod_name=meta["name"],
        server_id=str(meta.get("uid", "")),
        server_ip=host_ip,
        host_ip=host_ip,
        devices=tuple(rows),
    )
    return msgspec.json.encode(value).decode()


def _tail(name: str) -> int:
    tail = name.rsplit("-", 1)[-1]
    return int(tail) if tail.isdecimal() else -1


def _failed(text: str) -> PodRejection:
    return PodRejection(
        "UnexpectedAdmissionError", f"Pod was rejected: Allocate failed due to {text}, which is unexpected"
    )


def _mix(seed: str, text: str) -> str:
    return hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).hexdigest()
