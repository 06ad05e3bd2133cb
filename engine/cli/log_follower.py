"""Logs that go on: of the pods that a job has, and of those that recoveries put in their places."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from belay.engine.cli.job_pods import PublishedPods, published_jobs
from belay.engine.cli.log_lines import ContinuedLog, read_line
from belay.engine.cli.log_sources import LogPrinter, LogQuestion, RankPod, found_job, pods_of, tail_params
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, Kube, KubeError, NotFound, cancel_all
from belay.engine.model.wording import counted
from belay.engine.wire import names

MOST_FOLLOWED: Final = 200
"""Streams at once. Each holds a connection of the client, which has 256: the looks at the job need some too."""
_EVERY: Final = 2.0
_LONGEST: Final = 10.0
"""Seconds between looks at the job's pods: at first and after a change, and at most while nothing changes."""
_QUIET: Final = 3600.0
_ENDED: Final = frozenset({"Succeeded", "Finished", "Failed"})
_OVER: Final = frozenset({"Succeeded", "Failed"})


class LogFollower:
    """Follows the logs of one job until it ends or is gone."""

    def __init__(self, kube: Kube, asked: LogQuestion, printer: LogPrinter) -> None:
        self._kube, self._asked, self._printer = kube, asked, printer
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._pods: dict[str, RankPod] = {}
        self._job: PublishedPods | None = None
        self._map = ""
        self._selector: str | None = None
        self._tails: dict[str, dict[str, str]] = {}
        self._wait = _EVERY
        self._problem = ""
        self._ends = False

    async def run(self) -> bool:
        """Print until the job has ended and its pods' logs are read to the end; False if none had a log.

        Raises:
            InputError: there is no such job.
        """
        first = True
        try:
            while True:
                over = await self._look(first=first)
                first = False
                if over:
                    self._ends = True
                    await asyncio.gather(*self._streams.values())
                    return bool(self._streams)
                await self._pause()
        finally:
            await cancel_all(*self._streams.values())

    async def _pause(self) -> None:
        """Wait until the next look, which comes sooner once a stream ends. Raises what ended one, as a closed pipe."""
        waited = 0.0
        while waited < self._wait:
            running = self._running()
            if running:
                await asyncio.wait(running, timeout=_EVERY, return_when=asyncio.FIRST_EXCEPTION)
            else:
                await asyncio.sleep(_EVERY)
            waited += _EVERY
            for task in self._streams.values():
                if task.done():
                    task.result()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for task in self._streams.values() if not task.done()]

    async def _look(self, *, first: bool) -> bool:
        """Follow pods that are new; whether no more will come."""
        try:
            job = await self._published(first=first)
            if job is None:
                return True
            pods, self._selector = await pods_of(self._kube, self._asked, job, self._selector)
        except InputError as error:
            if first:
                raise
            # a rank between two pods has none
            self._remark_once(error.message)
            return error.where != "--rank"
        except KubeError as error:
            if first:
                raise
            self._remark_once(f"waiting for the cluster: {error}")
            return False

        if first:
            self._printer.several(pods)
            if not pods:
                self._printer.remark(f"{job.short} is {job.phase}, and none of its pods has a node yet")
            tail = tail_params(self._asked, pods)
            self._tails = {pod.uid: tail for pod in pods}
        now = {pod.uid: pod for pod in pods}
        self._wait = next_wait(self._wait, changed=first or now != self._pods)
        self._pods = now
        self._follow_new(pods, first=first)
        return job.phase in _ENDED

    async def _published(self, *, first: bool) -> PublishedPods | None:
        """The job as it is published now, of one ConfigMap once it is found; None if it is no longer published."""
        if first or self._job is None:
            self._job, self._map = await found_job(self._kube, self._asked)
            return self._job
        raw = await self._kube.get(CONFIGMAP, self._map, names.SYSTEM)
        job = next((one for one in published_jobs([raw] if raw else []) if one.key == self._job.key), None)
        if job is None:
            self._remark_once(f"{self._job.short} is no longer published")
        return job

    def _follow_new(self, pods: list[RankPod], *, first: bool) -> None:
        """Follow the pods that have a log and no stream yet, as many as there is room for; the rest is counted."""
        new = [pod for pod in pods if pod.uid not in self._streams and (pod.phase == "Running" or pod.phase in _OVER)]
        room = max(0, MOST_FOLLOWED - len(self._running()))
        for pod in new[:room]:
            if not first:
                self._printer.remark(f"{pod.prefix} on {pod.node}")
            self._streams[pod.uid] = asyncio.ensure_future(self._follow(pod, self._tails.get(pod.uid, {})))
        left = len(new) - room
        if left <= 0:
            self._problem = ""
            return
        self._remark_once(
            f"{counted(left, 'pod')} left out: {MOST_FOLLOWED} are followed at once. --rank chooses which"
        )

    def _remark_once(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self._printer.remark(text)

    async def _follow(self, pod: RankPod, tail: dict[str, str]) -> None:
        """Print a pod's log until it is over or gone. A container that starts again has a log of its own."""
        seen, problem = ContinuedLog(), ""
        params = self._asked.params(pod) | tail
        while True:
            # what is read after the pod is over is all there will ever be
            over = self._ends or pod.uid not in self._pods or self._pods[pod.uid].phase in _OVER
            seen.begin()
            try:
                async for text in self._kube.log(pod.namespace, pod.name, {**params, "follow": "true"}, quiet=_QUIET):
                    line = read_line(text)
                    if seen.takes(line):
                        self._printer.line(pod.prefix, line)
                        sys.stdout.flush()
            except NotFound:
                return
            except KubeError as error:
                if over:
                    return
                if str(error) != problem:
                    problem = str(error)
                    self._printer.remark(f"{pod.prefix}: {problem}")
            if over:
                return
            self._wait = _EVERY
            if seen.last:
                params = {key: value for key, value in params.items() if key not in ("tailLines", "sinceSeconds")}
                params["sinceTime"] = seen.last
            await asyncio.sleep(_EVERY)


def next_wait(wait: float, *, changed: bool) -> float:
    """Seconds until the next look, after one that found a change or none."""
    return _EVERY if changed else min(wait * 2, _LONGEST)
