"""All conversations that this server holds: who is initialised and registered, when time moves which of them on.

One server at a time serves all jobs (`leader.py`). What it must know after a restart is in the cluster: conversations
in their ConfigMaps, registration in an annotation of the job's PodGroup.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Final

from engine.kube import CONFIGMAP, Kube, KubeError, Object, end
from engine.log import get
from engine.model.recovery import Conversation, account
from engine.serve.grpc.cluster import Cluster, clock_ms
from engine.serve.grpc.hand import POD_GROUP, Hand
from engine.serve.grpc.jobfacts import ENABLE_KEY
from engine.serve.grpc.jobview import JobView
from engine.serve.grpc.release import Releases
from engine.serve.grpc.talk import Ousted, Talk
from engine.serve.grpc.voice import RETURN
from engine.wire import names, recoveryrecord
from engine.wire.errors import WireError

_log = get("grpc.recover")
MAX_JOBS: Final = 10_000
#: Annotation of a PodGroup (or the pod of rank 0): how far its job came, ``inited`` or ``registered``.
STAGE_KEY: Final = "belay.dev/process-recovery"
INITED: Final = "inited"
REGISTERED: Final = "registered"
#: Seconds between looks at everything, if nothing happens earlier.
PERIOD: Final = 1.0
#: Seconds that a job without a PodGroup may be without pods before it counts as gone.
MISSING: Final = 60.0
_STORIES: Final = 64


class Desk:
    """The conversations. ``clock`` is milliseconds since 1970, ``nanos`` nanoseconds for uuids."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        *,
        hand: Hand | None = None,
        clock: Callable[[], int] = clock_ms,
        nanos: Callable[[], int] = time.time_ns,
        max_jobs: int = MAX_JOBS,
    ) -> None:
        self.kube = kube
        self.cluster = cluster
        self.hand = hand or Hand(kube, cluster)
        self.releases = Releases(kube, cluster, clock=clock)
        self.clock = clock
        self.epoch = 0
        self.talks: dict[str, Talk] = {}
        self.closing = False
        self.ended_with: dict[str, Conversation] = {}
        self._nanos = nanos
        self._max_jobs = max_jobs
        self._inited: set[str] = set()
        self._missing: dict[str, float] = {}
        self._seen = -1
        self._adopted = float("-inf")
        self._telling: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        cluster.listen(self._wake.set)

    def uuid(self) -> str:
        """The name of a signal's round: nanoseconds in upper-case hex, 16 random bytes in lower-case (ClusterD's)."""
        return f"{self._nanos():X}-{os.urandom(16).hex()}"

    # who is known

    def inited(self, job: str) -> bool:
        """Whether Init was called for the job, here or at a server before."""
        return job in self._inited or job in self.talks or self._stage(job) in (INITED, REGISTERED)

    def find(self, job: str) -> Talk | None:
        """The conversation of a registered job."""
        talk = self.talks.get(job)
        if talk is None and self._stage(job) == REGISTERED and len(self.talks) < self._max_jobs:
            # clients of the server before may tell of faults before their streams stand again: these must not end that
            returning = time.monotonic() - self._adopted < RETURN
            talk = self.talks[job] = Talk(self, job, expect=returning)
        return talk

    async def init(self, view: JobView) -> None:
        """Remember that Init was called."""
        self._inited.add(view.id)
        if not await self.hand.mark_group(view, notes={STAGE_KEY: INITED}):
            _log.warning("Init is remembered by this server only", job=view.id)

    @property
    def full(self) -> bool:
        """Whether no more jobs are taken."""
        return len(self.talks) >= self._max_jobs

    async def register(self, view: JobView) -> bool:
        """Serve the job from now on; False when its PodGroup cannot be labelled."""
        if not await self.hand.mark_group(view, labels={ENABLE_KEY: "on"}, notes={STAGE_KEY: REGISTERED}):
            return False
        self._inited.add(view.id)
        self.talks.setdefault(view.id, Talk(self, view.id))
        return True

    # life

    async def adopt(self, epoch: int) -> int:
        """Take over every conversation that is kept in the cluster. Raises KubeError."""
        self.epoch, self._adopted = epoch, time.monotonic()
        listing = await self.kube.list(CONFIGMAP, names.SYSTEM, recoveryrecord.SELECTOR)
        for raw in listing.items:
            try:
                record = recoveryrecord.parse(raw)
            except WireError as error:
                _log.warning("conversation not readable", reason=str(error))
                continue
            job = record.conversation.job
            if job and job not in self.talks:
                talk = self.talks[job] = Talk(self, job, record=record, stored=raw)
                talk.resume()
        return len(self.talks)

    async def run(self) -> None:
        """Let time pass until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.pulse()
            except Exception:
                _log.exception("looking at the jobs failed")
                await asyncio.sleep(PERIOD)  # whatever is due stays due: without a pause this would turn at full speed
                continue
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def pulse(self) -> None:
        """Look at every job once."""
        await self._drop_gone()
        changed, self._seen = self.cluster.version != self._seen, self.cluster.version
        due = [talk for talk in self.talks.values() if changed or talk.active]
        await asyncio.gather(*(self._look(talk) for talk in due))
        if self.cluster.synced and not self.cluster.stale:
            await self.releases.purge(known=self.cluster.jobs.keys())

    def leave(self) -> None:
        """Another server serves the jobs from now on: streams end, what is kept stays."""
        talks, self.talks = self.talks, {}
        self._inited.clear()
        for talk in talks.values():
            talk.end()

    def ousted(self, talk: Talk) -> None:
        """Another server has written this job's conversation."""
        if self.talks.get(talk.job) is talk:
            del self.talks[talk.job]
        talk.end()
        _log.warning("another server has taken the job over", job=talk.job)

    def ended(self, job: str, talk: Conversation) -> None:
        """A conversation has come to its end: its story is kept for a while and logged."""
        self.ended_with[job] = talk
        while len(self.ended_with) > _STORIES:
            self.ended_with.pop(next(iter(self.ended_with)))
        last = talk.story[-1] if talk.story else None
        steps = account.chapter(talk.story)
        story = " → ".join(note.state.removesuffix("State") for note in steps[-16:])
        seconds = (steps[-1].at - steps[0].at) / 1000 if steps else 0.0
        _log.info("recovery ended", job=job, story=story, code=last.code if last else 0, seconds=round(seconds, 3))
        good = last is not None and last.event in account.GOOD
        self._tell(job, good, f"process recovery took {seconds:.1f} s: {story}")

    def _tell(self, job: str, good: bool, text: str) -> None:
        """An Event of the job's PodGroup (or first pod), for `kubectl describe` and `belay explain`."""
        view = self.cluster.jobs.get(job)
        first = view.by_rank().get(0) if view is not None else None
        if view is None or (not view.group and first is None) or self.closing:
            return
        about: Object = (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": first.name, "uid": first.uid}} if first else {}
        )
        if view.group:
            about = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind, "metadata": {"name": view.group}}
        about["metadata"]["namespace"] = view.namespace
        reason, kind = ("ProcessRecovered", "Normal") if good else ("ProcessRecoveryEnded", "Warning")
        task = asyncio.ensure_future(self._event(about, reason, text, kind))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _event(self, about: Object, reason: str, text: str, kind: Any) -> None:
        try:
            await self.kube.event(about, reason, text, now=self.clock() / 1000, kind=kind, component="belay-server")
        except KubeError as error:
            _log.warning("event not written", reason=str(error))

    async def aclose(self) -> None:
        """End everything that runs for the talks; nothing in the cluster changes."""
        self.closing = True
        workers = [task for talk in self.talks.values() for task in talk.tasks]
        self.leave()
        await end(*workers, *self._telling)

    def _stage(self, job: str) -> str:
        view = self.cluster.jobs.get(job)
        return view.annotations.get(STAGE_KEY, "") if view is not None else ""

    def _there(self, job: str) -> bool:
        view = self.cluster.jobs.get(job)
        return view is not None and (bool(view.group) or not self.cluster.pod_groups)

    async def _look(self, talk: Talk) -> None:
        try:
            await talk.look()
        except Ousted:
            return
        except KubeError as error:
            _log.warning("job not looked at", job=talk.job, reason=str(error))

    def _pause(self) -> float:
        moments = [talk.due for talk in self.talks.values() if talk.active]
        soonest = min((moment for moment in moments if moment is not None), default=None)
        if soonest is None:
            return PERIOD
        return min(PERIOD, max(0.005, (soonest - self.clock()) / 1000))

    async def _drop_gone(self) -> None:
        """Jobs whose PodGroup is gone, or all of whose pods have been for a while."""
        if not self.cluster.synced or self.cluster.stale:
            return
        now = time.monotonic()
        for job in [*self.talks, *self._inited]:
            if self._there(job):
                self._missing.pop(job, None)
                continue
            since = self._missing.setdefault(job, now)
            if now - since < (2.0 if self.cluster.pod_groups else MISSING):
                continue
            self._missing.pop(job, None)
            self._inited.discard(job)
            talk = self.talks.pop(job, None)
            if talk is not None:
                _log.info("job is gone", job=job)
                await talk.forget()


__all__ = ["INITED", "MAX_JOBS", "REGISTERED", "STAGE_KEY", "Desk"]
