"""Writes ``cluster-system/super-pod-<id>``, without which the chips of a super pod do not ping each other.

Only the server that leads writes, only while ``pingmesh-config`` activates pings, and not beside a ClusterD. A node
that leaves its super pod is taken out; the ConfigMap of a super pod without nodes is left as it is. Chips of Ascend950
follow lists, one a server: ``super-pod-<id>-pings-<server>``, which agents read where no folder is shared
(`ping_lists.py`). Source: component/clusterd/pkg/application/pingmesh/publisher.go, collector_v2.go.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError
from belay.engine.log import get
from belay.engine.model.cluster import Observed
from belay.engine.model.labels import ACCELERATOR_TYPE, NODE_RACK, NODE_SERVER_TYPE, NPU
from belay.engine.model.pings import PathEnd
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.serve.grpc.ping_lists import PLANES, ping_lists
from belay.engine.serve.grpc.slow_networks import ends_by_address
from belay.engine.wire import superpods
from belay.engine.wire.superpods import SuperPodServer

if TYPE_CHECKING:
    from belay.engine.documents import Desired

_log = get("grpc.superpods")
PERIOD: Final = 15.0
MAX_WRITES: Final = 64
"""ConfigMaps that one look writes; the next one goes on."""
MAX_SERVERS: Final = 384
MAX_SERVERS_950: Final = 1024
KINDS: Final = ("950-SuperPod-Atlas-8", "850-SuperPod-Atlas-8")
"""Labels ``accelerator-type`` of the servers of Ascend950 that form super pods."""


@functools.cache
def _shipped() -> Desired:
    from belay.engine.load import load

    return load({}).desired


def _writes_aggregates(observed: Observed) -> bool:
    """Whether no ClusterD runs beside us."""
    from belay.engine.plan import resolve_roles  # documents take 14 MiB, and few clusters have super pods that ping

    return resolve_roles(_shipped(), observed)["aggregate"] == "on"


class SuperPods:
    """One per server; ``leads`` says whether this server writes."""

    def __init__(self, kube: Kube, cluster: ObservedCluster, leads: Callable[[], bool]) -> None:
        self._kube, self._cluster, self._leads = kube, cluster, leads
        self._written: dict[str, bytes] = {}
        """Digests of what each ConfigMap holds: the lists of a thousand servers fill tens of megabytes."""
        self._listed = b""
        """Digest of the ends whose ping lists are all written."""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            if not self._leads():
                self._forget()
            elif self._cluster.synced:
                try:
                    await self.step()
                except KubeError as error:
                    _log.warning("super pods are not written, tried again", reason=str(error))

    async def step(self) -> None:
        """Write what has changed. Raises KubeError."""
        observed = self._cluster.observed
        if not superpods.pings_wanted(await self._kube.get(CONFIGMAP, superpods.CONFIG, superpods.NAMESPACE)):
            self._forget()
            return
        if not _writes_aggregates(observed):
            self._forget()
            return
        # lists of a thousand servers take a good part of a second, in which calls are answered; one is held at a time
        bodies: Iterator[dict[str, Any]] = iter(await asyncio.to_thread(super_pod_maps, observed))
        ends, digest = await asyncio.to_thread(_ends, observed)
        if digest != self._listed:
            bodies = itertools.chain(bodies, _maps(observed, ends))
        writes, whole = 0, True
        while (body := await asyncio.to_thread(next, bodies, None)) is not None:
            name, held = body["metadata"]["name"], _digest(body["data"])
            if self._written.get(name) == held:
                continue
            if writes >= MAX_WRITES:
                return
            writes += 1
            live = await self._kube.get(CONFIGMAP, name, superpods.NAMESPACE)
            try:
                if live is None:
                    await self._kube.create(CONFIGMAP, body)
                elif live.get("data") != body["data"]:
                    await self._kube.replace(CONFIGMAP, {**live, "data": body["data"]})
            except Conflict:
                whole = False
                continue  # the next look reads it again
            self._written[name] = held
        if whole:
            self._listed = digest

    def _forget(self) -> None:
        self._written.clear()
        self._listed = b""


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=16).digest()


def _ends(observed: Observed) -> tuple[list[PathEnd], bytes]:
    """What ping lists are made of, and its digest."""
    ends = [end for end in ends_by_address(observed).values() if end.super_pod >= 0 and end.layer == PLANES]
    indexes = {node: observed.reports[node].server_index for node in sorted({end.node for end in ends})}
    return ends, _digest((ends, indexes))


def super_pod_maps(observed: Observed) -> list[dict[str, Any]]:
    """The ConfigMaps of all super pods, by id."""
    pods: dict[int, dict[str, SuperPodServer]] = {}
    versions: dict[int, str] = {}
    for name, report in sorted(observed.reports.items()):
        node = observed.nodes.get(name)
        if node is None or report.super_pod_id < 0:
            continue
        bus, kind = report.resource == NPU, node.labels.get(ACCELERATOR_TYPE, "")
        if bus and kind not in KINDS:
            continue
        devices = {
            int(chip): str(device.get("SuperDeviceID", ""))
            for full, device in node.base_devices.items()
            if (chip := full.rpartition("-")[2]).isascii() and chip.isdecimal()
        }
        servers = pods.setdefault(report.super_pod_id, {})
        most = MAX_SERVERS_950 if bus else MAX_SERVERS
        if len(servers) < most and devices and all(number.isdecimal() for number in devices.values()):
            rack = node.annotations.get(NODE_RACK, "") if bus else ""
            known = rack.isascii() and rack.isdecimal() and len(rack) < 7
            place = max(0, report.server_index)
            servers[name] = SuperPodServer(place, devices, int(rack) if known else -1, kind if bus else "")
            versions.setdefault(report.super_pod_id, node.annotations.get(NODE_SERVER_TYPE, "").strip())
    return [
        superpods.super_pod_map(number, versions.get(number, ""), servers)
        for number, servers in sorted(pods.items())
        if servers
    ]


def ping_list_maps(observed: Observed) -> Iterator[dict[str, Any]]:
    """The ping lists of all servers of Ascend950, by super pod and server, one after the other.

    A server whose number in its super pod is not known has none: lists go by that number.
    """
    yield from _maps(observed, _ends(observed)[0])


def _maps(observed: Observed, ends: Sequence[PathEnd]) -> Iterator[dict[str, Any]]:
    for node, rows in ping_lists(ends):
        report = observed.reports[node]
        if report.server_index >= 0:
            yield superpods.ping_list_map(report.super_pod_id, report.server_index, rows)


__all__ = ["SuperPods", "ping_list_maps", "super_pod_maps"]
