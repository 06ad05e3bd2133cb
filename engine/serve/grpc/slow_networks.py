"""Slow networks: judges the pings that agents report, and reports what is slow or lossy as public faults.

Only the server that leads judges. What was reported is kept in ``belay-system/belay-slow-networks``, so that another
server goes on and ends it. Source: component/ascend-faultdiag-online/pkg/algo_src/netfault (cluster side).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from belay.engine.kube import CONFIGMAP, Kube, KubeError, Reflector, WatchChange, cancel_all
from belay.engine.log import get
from belay.engine.model.cluster import Observed
from belay.engine.model.labels import ABOUT_LABEL, NODE_RACK
from belay.engine.model.pings import NodePings, PathEnd
from belay.engine.serve.grpc.observed_cluster import ObservedCluster, clock_ms
from belay.engine.serve.grpc.ongoing_faults import OngoingFaults
from belay.engine.serve.grpc.public_faults import PubFaultService
from belay.engine.slowness.network import NetworkDetector
from belay.engine.slowness.paths import PingSample
from belay.engine.wire import pings, slownetwork
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import NODES, SLOW_NETWORKS
from belay.engine.wire.superpods import addresses
from belay.engine.wire.unwritten import is_unwritten

_log = get("grpc.slownetworks")
PERIOD: Final = 10.0
"""Seconds between two looks at what agents reported."""
STALE_WINDOWS: Final = 5
"""Windows after which a report says nothing any more: its agent, or the pings, have ended."""


class SlowNetworks:
    """One per server; ``leads`` says whether this server judges. ``clock`` is milliseconds since 1970."""

    def __init__(
        self,
        kube: Kube,
        cluster: ObservedCluster,
        public: PubFaultService,
        leads: Callable[[], bool],
        *,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        self._cluster, self._leads, self._clock = cluster, leads, clock
        self._reports: dict[str, tuple[int, NodePings]] = {}
        self._detectors: dict[int, NetworkDetector] = {}
        self._faults = OngoingFaults(kube, public, SLOW_NETWORKS, "slow-networks", clock)
        self._said: frozenset[str] = frozenset()
        self._reflector = Reflector(kube, CONFIGMAP, NODES, f"{ABOUT_LABEL}={pings.ABOUT}", on_change=self._take)

    async def run(self) -> None:
        """Judge until cancelled."""
        task = asyncio.ensure_future(self._reflector.run())
        try:
            while True:
                await asyncio.sleep(PERIOD)
                if not self._leads():
                    self._detectors.clear()
                    self._faults.forget()
                elif self._cluster.synced and self._reflector.synced:
                    try:
                        await self.step()
                    except KubeError as error:
                        _log.warning("what is slow is not recorded, tried again", reason=str(error))
        finally:
            await cancel_all(task)

    @property
    def newest(self) -> int:
        """The newest window that was judged; -1 before the first."""
        return max((one.newest for one in self._detectors.values()), default=-1)

    async def step(self) -> None:
        """Judge what is new, and report what began and ended. Raises KubeError."""
        observed, now = self._cluster.observed, self._clock()
        known = slownetwork.recorded_delays(await self._faults.load())
        fresh: dict[int, list[NodePings]] = {}
        for name, (time, report) in sorted(self._reports.items()):
            if report.node in observed.nodes and now - time <= STALE_WINDOWS * report.seconds * 1000:
                fresh.setdefault(report.seconds, []).append(report)
            elif report.node not in observed.nodes:
                _log.debug("pings of a node that is gone", name=name)
        for gone in self._detectors.keys() - fresh.keys():
            del self._detectors[gone]
        ends = ends_by_address(observed) if fresh else {}
        wanted: dict[str, dict[str, Any]] = {}
        for seconds, reports in sorted(fresh.items()):
            detector = self._detectors.setdefault(seconds, NetworkDetector(known=known))
            window = now // (seconds * 1000)
            if window < detector.newest:
                detector.restart()  # the clock was set back: all new windows would be late
            # thousands of paths take a good part of a second, in which calls are answered
            await asyncio.to_thread(_judge, detector, reports, ends, window)
            wanted |= slownetwork.faults(detector.findings, observed.nodes.keys())
        for key in wanted.keys() - self._said:
            _log.warning("slow network", what=wanted[key]["text"])
        self._said = frozenset(wanted)
        await self._faults.report(wanted, self._unjudged)

    def _unjudged(self, row: Mapping[str, Any]) -> bool:
        """Whether pings are measured, and this server has not judged enough of them yet to know."""
        return any(not one.settled for one in self._detectors.values())

    def _take(self, reflector: Reflector, change: WatchChange) -> None:
        name = change.key[1]
        if change.obj is None or is_unwritten(change.obj):
            self._reports.pop(name, None)
            return
        try:
            self._reports[name] = pings.parse_pings(change.obj)
        except WireError as error:
            _log.warning("pings ignored, the last good ones stay", reason=str(error))


def _judge(
    detector: NetworkDetector, reports: Sequence[NodePings], ends: Mapping[tuple[int, str], PathEnd], newest: int
) -> None:
    """``newest``: the window that the clock is in; what claims to be later is not believed."""
    super_pods = {end.node: end.super_pod for end in ends.values()}
    nodes = 0
    for report in reports:
        rows: dict[int, list[PingSample]] = {}
        super_pod = super_pods.get(report.node, -1)
        for one in report.windows:
            source = ends.get((super_pod, one.source))
            if one.number > newest or source is None or source.node != report.node:
                continue  # an agent speaks for the chips of its node only
            target = ends.get((super_pod, one.target)) or PathEnd(one.target)
            rows.setdefault(one.number, []).append(PingSample(source, target, one.delay, one.sent, one.lost))
        for number, samples in sorted(rows.items()):
            detector.add(report.node, number, samples)
        nodes += bool(rows)
    # a window is complete without the nodes whose rows all were left out
    detector.judge(nodes)


def ends_by_address(observed: Observed) -> dict[tuple[int, str], PathEnd]:
    """The chip behind each address that nodes publish for their chips, by super pod: another one has the same ids."""
    found: dict[tuple[int, str], PathEnd] = {}
    for name, node in sorted(observed.nodes.items()):
        report = observed.reports.get(name)
        super_pod = report.super_pod_id if report is not None else -1
        rack = node.annotations.get(NODE_RACK, "")
        rack_id = int(rack) if rack.isascii() and rack.isdecimal() and len(rack) < 7 else -1
        for full, device in sorted(node.base_devices.items()):
            chip = full.rpartition("-")[2]
            if chip.isascii() and chip.isdecimal() and len(chip) < 4:
                for address, layer, plane in addresses(device):
                    end = PathEnd(address, name, int(chip), super_pod, rack_id, plane, layer)
                    found.setdefault((super_pod, address), end)
    return found


__all__ = ["SlowNetworks", "ends_by_address"]
