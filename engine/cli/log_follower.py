"""Logs that go on: of the pods that a job has, and of those that recoveries put in their places."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from engine.cli.log_lines import ContinuedLog, read_line
from engine.cli.log_sources import LogPrinter, LogQuestion, RankPod, pods_of, tail_params
from engine.errors import InputError
from engine.kube import Kube, KubeError, NotFound, cancel_all

_EVERY: Final = 2.0
"""Seconds between looks at the job's pods."""
_QUIET: Final = 3600.0
_ENDED: Final = frozenset({"Succeeded", "Finished", "Failed"})
_OVER: Final = frozenset({"Succeeded", "Failed"})


class LogFollower:
    """Follows the logs of one job until it ends or is gone."""

    def __init__(self, kube: Kube, asked: LogQuestion, printer: LogPrinter) -> None:
        self._kube, self._asked, self._printer = kube, asked, printer
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._pods: dict[str, RankPod] = {}
        self._problem = ""
        self._ends = False

    async def run(self) -> bool:
        """Print until the job has ended and its pods' logs are read to the end; False where none had a log.

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
        """Wait until the next look. Raises what ended a stream, such as a closed pipe."""
        running = [task for task in self._streams.values() if not task.done()]
        if running:
            await asyncio.wait(running, timeout=_EVERY, return_when=asyncio.FIRST_EXCEPTION)
        else:
            await asyncio.sleep(_EVERY)
        for task in self._streams.values():
            if task.done():
                task.result()

    async def _look(self, *, first: bool) -> bool:
        """Follow pods that are new; whether no more will come."""
        try:
            job, pods = await pods_of(self._kube, self._asked)
        except InputError as error:
            if first:
                raise
            # a rank between two pods has none; a job that is gone is no longer published
            self._remark_once(error.message)
            return error.where != "--rank"
        except KubeError as error:
            if first:
                raise
            self._remark_once(f"waiting for the cluster: {error}")
            return False

        self._problem = ""
        if first:
            self._printer.several(pods)
            if not pods:
                self._printer.remark(f"{job.short} is {job.phase}, and none of its pods has a node yet")
        tail = tail_params(self._asked, pods) if first else {}
        for pod in pods:
            if pod.uid not in self._streams and (pod.phase == "Running" or pod.phase in _OVER):
                if not first:
                    self._printer.remark(f"{pod.prefix} on {pod.node}")
                self._streams[pod.uid] = asyncio.ensure_future(self._follow(pod, tail))
            self._pods[pod.uid] = pod
        for uid in [uid for uid in self._pods if uid not in {pod.uid for pod in pods}]:
            del self._pods[uid]
        return job.phase in _ENDED

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
            if seen.last:
                params = {key: value for key, value in params.items() if key not in ("tailLines", "sinceSeconds")}
                params["sinceTime"] = seen.last
            await asyncio.sleep(_EVERY)
