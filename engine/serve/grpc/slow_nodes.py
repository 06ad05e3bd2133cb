"""Slow nodes: judges the step times that agents report, and reports what is slow as public faults.

ConfigMaps ``ras-feature-slownode-*`` (label ``fd-ol-slow-node=true``, key ``FeatConf``) turn the detection of a job on
and off and set its limits, as those of MindCluster; a job whose profiling is on without one is judged by the defaults.
Only the server that leads judges. What was reported is kept in ``belay-system/belay-slow-nodes``, so that another
server goes on and ends it. Sources: component/ascend-faultdiag-online/pkg/service/servicefunc/slownode (cluster side);
docs/zh/scheduling/04_usage/04_resumable_training/01_solutions_principles.md (FeatConf).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.kube import CONFIGMAP, Kube, KubeError, Object, Reflector, WatchChange, cancel_all
from belay.engine.log import get
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.step_times import NodeSteps, SlowFinding, StepWindow
from belay.engine.serve.grpc.job_view import JobView, places, ranks_of
from belay.engine.serve.grpc.observed_cluster import ObservedCluster, clock_ms
from belay.engine.serve.grpc.ongoing_faults import OngoingFaults
from belay.engine.serve.grpc.profiling import SWITCHES, TrainingDataTraceService
from belay.engine.serve.grpc.public_faults import PubFaultService
from belay.engine.slowness.detector import SlownessDetector
from belay.engine.slowness.excess import culprits
from belay.engine.wire import slownode, steptimes
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import NODES, SLOW_NODES
from belay.engine.wire.unwritten import is_unwritten

_log = get("grpc.slownodes")
PERIOD: Final = 10.0
"""Seconds between two looks at what agents reported."""
STALE_MS: Final = 900_000
"""A report older than this says nothing any more: its agent, or the job's profiling, has ended."""


class _Watched(msgspec.Struct):
    """What is kept of one job while it is measured."""

    detector: SlownessDetector
    settings: slownode.SlowNodeSettings | None


class SlowNodes:
    """One per server; ``leads`` says whether this server judges. ``clock`` is milliseconds since 1970."""

    def __init__(
        self,
        kube: Kube,
        cluster: ObservedCluster,
        public: PubFaultService,
        tracing: TrainingDataTraceService,
        leads: Callable[[], bool],
        *,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        self._cluster, self._tracing = cluster, tracing
        self._leads, self._clock = leads, clock
        self._reports: dict[str, tuple[int, tuple[NodeSteps, ...]]] = {}
        self._settings: dict[tuple[str, str], slownode.SlowNodeSettings] = {}
        self._jobs: dict[str, _Watched] = {}
        self._switched: dict[str, bool] = {}
        self._refused: dict[str, str] = {}
        self._faults = OngoingFaults(kube, public, SLOW_NODES, "slow-nodes", clock)
        self._reflectors = [
            Reflector(kube, CONFIGMAP, NODES, f"{ABOUT_LABEL}={steptimes.ABOUT}", on_change=self._take_steps),
            Reflector(kube, CONFIGMAP, None, f"{slownode.LABEL}=true", on_change=self._take_settings),
        ]

    async def run(self) -> None:
        """Judge until cancelled."""
        tasks = [asyncio.ensure_future(one.run()) for one in self._reflectors]
        try:
            while True:
                await asyncio.sleep(PERIOD)
                if not self._leads():
                    self._jobs.clear()
                    self._faults.forget()
                elif self.synced:
                    try:
                        await self.step()
                    except KubeError as error:
                        _log.warning("what is slow is not recorded, tried again", reason=str(error))
        finally:
            await cancel_all(*tasks)

    @property
    def synced(self) -> bool:
        """Whether reports, settings and jobs are known."""
        return self._cluster.synced and all(one.synced for one in self._reflectors)

    async def step(self) -> None:
        """Judge what is new, and report what began and ended. Raises KubeError."""
        jobs = self._cluster.jobs
        reports = self._by_job()
        by_name = {(view.namespace, view.name): view for view in jobs.values()}
        await self._switch(by_name)
        for gone in self._jobs.keys() - (jobs.keys() & reports.keys()):
            del self._jobs[gone]
        wanted: dict[str, dict[str, Any]] = {}
        for job in sorted(reports.keys() & jobs.keys()):
            view = jobs[job]
            settings = self._settings.get((view.namespace, view.name))
            if settings is not None and not settings.on:
                self._jobs.pop(job, None)
                continue
            known = self._jobs.get(job)
            if known is None or known.settings != settings:
                limits = settings.limits if settings is not None else None
                known = self._jobs[job] = _Watched(SlownessDetector(limits), settings)
            wanted |= await self._judge(view, known.detector, reports[job])
        await self._report(wanted)

    def _by_job(self) -> dict[str, list[NodeSteps]]:
        oldest = self._clock() - STALE_MS
        found: dict[str, list[NodeSteps]] = {}
        for _, (time, rows) in sorted(self._reports.items()):
            for row in rows if time >= oldest else ():
                found.setdefault(row.job, []).append(row)
        return found

    async def _judge(
        self, view: JobView, detector: SlownessDetector, rows: list[NodeSteps]
    ) -> dict[str, dict[str, Any]]:
        observed = self._cluster.observed
        node_of: dict[int, str] = {}
        chip_of: dict[int, int] = {}
        for node in {place.pod.node for place in places(view, observed)}:
            for chip, rank in ranks_of(view, observed, node).items():
                node_of[rank], chip_of[rank] = node, int(chip)
        windows = []
        for row in rows:
            for one in row.windows:
                # a rank that has moved is reported by its old node for a while
                if node_of.setdefault(one.rank, row.node) == row.node:
                    windows.append(one)
        expected = max(len(chip_of), len({one.rank for one in windows}))
        before = detector.findings
        # thousands of ranks take a good part of a second, in which calls are answered
        await asyncio.to_thread(detector.add, windows, node_of, expected)
        for found in detector.findings:
            if found.key not in {one.key for one in before}:
                _log.warning("slow", job=f"{view.namespace}/{view.name}", what=slownode.described(view.name, found))
        shared = _shared(detector.findings, windows)
        return slownode.faults(view.id, f"{view.namespace}/{view.name}", detector.findings, node_of, chip_of, shared)

    async def _report(self, wanted: Mapping[str, dict[str, Any]]) -> None:
        """Send what began and ended, then record it. Raises KubeError."""
        # after a start, what stands is kept until its job has been judged again
        await self._faults.report(wanted, self._unjudged)

    def _unjudged(self, row: Mapping[str, Any]) -> bool:
        """Whether the fault's job is measured, and this server has not judged enough of it yet to know."""
        known = self._jobs.get(str(row.get("job")))
        return known is not None and not known.detector.settled

    async def _switch(self, by_name: Mapping[tuple[str, str], JobView]) -> None:
        """Turn profiling on for jobs whose settings ask for it, once they run, and off when they no longer do."""
        for key, settings in sorted(self._settings.items()):
            view = by_name.get(key)
            if view is not None and view.running and self._switched.get(view.id, False) != settings.on:
                await self._trace(view, settings.on)
        for job in self._refused.keys() - self._cluster.jobs.keys():
            del self._refused[job]
        for job, on in list(self._switched.items()):
            view = self._cluster.jobs.get(job)
            if view is None:
                del self._switched[job]
            elif on and (view.namespace, view.name) not in self._settings:
                await self._trace(view, False)

    async def _trace(self, view: JobView, on: bool) -> None:
        problem = await self._tracing.switch(view, dict.fromkeys(SWITCHES, "on" if on else "off"))
        if not problem:
            self._switched[view.id] = on
            self._refused.pop(view.id, None)
        elif self._refused.get(view.id) != problem:
            self._refused[view.id] = problem
            _log.warning("profiling not switched, tried again", job=f"{view.namespace}/{view.name}", reason=problem)

    def _take_steps(self, reflector: Reflector, change: WatchChange) -> None:
        name = change.key[1]
        if change.obj is None or is_unwritten(change.obj):
            self._reports.pop(name, None)
            return
        try:
            _, time, rows = steptimes.parse_steps(change.obj)
        except WireError as error:
            _log.warning("step times ignored, the last good ones stay", reason=str(error))
            return
        self._reports[name] = (time, rows)

    def _take_settings(self, reflector: Reflector, change: WatchChange) -> None:
        namespace, name = change.key
        if not name.startswith(slownode.PREFIX):
            return
        for key in [key for key, one in self._settings.items() if one.source == f"{namespace}/{name}"]:
            if change.obj is None:
                del self._settings[key]
        if change.obj is not None:
            self._read_settings(change.obj)

    def _read_settings(self, obj: Object) -> None:
        try:
            settings = slownode.parse_settings(obj)
        except WireError as error:
            _log.warning("settings of slow nodes ignored, the last good ones stay", reason=str(error))
            return
        for key in [key for key, one in self._settings.items() if one.source == settings.source]:
            del self._settings[key]
        self._settings[(settings.namespace, settings.job)] = settings


def _shared(findings: Sequence[SlowFinding], windows: Sequence[StepWindow]) -> dict[str, tuple[int, ...]]:
    """The one rank that all slow groups of a kind share and no sound group holds, by kind."""
    found = {}
    for kind in sorted({one.group for one in findings if one.group}):
        slow = {one.ranks for one in findings if one.group == kind}
        sound = {group.ranks for one in windows for group in one.groups if group.kind == kind} - slow
        found[kind] = culprits(slow, sound)
    return found


__all__ = ["SlowNodes"]
