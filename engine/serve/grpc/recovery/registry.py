"""All sessions of this server: which jobs are initialised and registered, and when each session is due.

One server at a time serves all jobs (`leader.py`). What it needs after a restart is in the cluster: conversations in
their ConfigMaps, registration in an annotation of the job's PodGroup.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from belay.engine.kube import CONFIGMAP, Kube, KubeError, Object, cancel_all
from belay.engine.log import get
from belay.engine.model.labels import PROCESS_RECOVER_ENABLE, PROCESS_RECOVERY
from belay.engine.model.recovery import Conversation, summary
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.observed_cluster import ObservedCluster, clock_ms
from belay.engine.serve.grpc.recovery.cluster_writer import POD_GROUP, ClusterWriter
from belay.engine.serve.grpc.recovery.context import SessionContext
from belay.engine.serve.grpc.recovery.session import Session, TakenOver
from belay.engine.serve.grpc.recovery.subscribers import RETURN_SECONDS
from belay.engine.wire import names, recoveryrecord
from belay.engine.wire.errors import WireError

_log = get("grpc.recover")
MAX_JOBS: Final = 10_000
INITED: Final = "inited"
REGISTERED: Final = "registered"
#: Longest time in seconds between refreshes of all sessions.
PERIOD: Final = 1.0
#: Seconds without pods after which a job without a PodGroup counts as gone.
MISSING: Final = 60.0
_STORIES: Final = 64


class Registry(SessionContext):
    """The conversations, and what they share."""

    def __init__(
        self,
        kube: Kube,
        cluster: ObservedCluster,
        *,
        writer: ClusterWriter | None = None,
        clock: Callable[[], int] = clock_ms,
        nanos: Callable[[], int] = time.time_ns,
        max_jobs: int = MAX_JOBS,
        namespace: str = names.SYSTEM,
    ) -> None:
        super().__init__(kube, cluster, writer=writer, clock=clock, nanos=nanos, namespace=namespace)
        self.sessions: dict[str, Session] = {}
        self.last_conversations: dict[str, Conversation] = {}
        self._max_jobs = max_jobs
        self._inited: set[str] = set()
        self._missing: dict[str, float] = {}
        self._seen = -1
        self._adopted = float("-inf")
        self._events: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        cluster.on_refresh(self._wake.set)

    # registration

    def inited(self, job: str) -> bool:
        """Whether Init was called for the job, at this server or an earlier one."""
        return job in self._inited or job in self.sessions or self._stage(job) in (INITED, REGISTERED)

    def find(self, job: str) -> Session | None:
        """The session of a registered job."""
        session = self.sessions.get(job)
        if session is None and self._stage(job) == REGISTERED and len(self.sessions) < self._max_jobs:
            # clients of the previous server may report faults before they have subscribed again, and must not end that
            returning = time.monotonic() - self._adopted < RETURN_SECONDS
            session = self.sessions[job] = Session(self, job, expect=returning)
        return session

    async def init(self, view: JobView) -> None:
        """Record that Init was called."""
        self._inited.add(view.id)
        if not await self.writer.mark_group(view, notes={PROCESS_RECOVERY: INITED}):
            _log.warning("Init not recorded in the cluster, a new server will not know it", job=view.id)

    @property
    def full(self) -> bool:
        """Whether no more jobs are accepted."""
        return len(self.sessions) >= self._max_jobs

    async def register(self, view: JobView) -> bool:
        """Serve the job from now on; False when its PodGroup cannot be labelled."""
        if not await self.writer.mark_group(
            view, labels={PROCESS_RECOVER_ENABLE: "on"}, notes={PROCESS_RECOVERY: REGISTERED}
        ):
            return False
        self._inited.add(view.id)
        self.sessions.setdefault(view.id, Session(self, view.id))
        return True

    # time

    async def adopt(self, epoch: int) -> int:
        """Take over every conversation stored in the cluster; returns the number of sessions. Raises KubeError."""
        self.epoch, self._adopted = epoch, time.monotonic()
        listing = await self.kube.list(CONFIGMAP, self.namespace, recoveryrecord.SELECTOR)
        for raw in listing.items:
            try:
                record = recoveryrecord.parse(raw)
            except WireError as error:
                _log.warning("conversation not readable", reason=str(error))
                continue
            job = record.conversation.job
            if job and job not in self.sessions:
                session = self.sessions[job] = Session(self, job, record=record, stored=raw)
                session.resume()
        return len(self.sessions)

    async def run(self) -> None:
        """Refresh the sessions that are due, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.refresh()
            except Exception:
                _log.exception("refresh of the sessions failed")
                await asyncio.sleep(PERIOD)  # the sessions stay due: without a pause this would be a hot loop
                continue
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def refresh(self) -> None:
        """Refresh every session that is active, or all when the cluster changed."""
        await self._drop_gone()
        changed, self._seen = self.cluster.version != self._seen, self.cluster.version
        due = [session for session in self.sessions.values() if changed or session.active]
        await asyncio.gather(*(self._refresh(session) for session in due))
        if self.cluster.synced and not self.cluster.stale:
            await self.releases.purge(known=self.cluster.jobs.keys())

    def drop_sessions(self) -> None:
        """End every session without changing the cluster: another server serves the jobs."""
        sessions, self.sessions = self.sessions, {}
        self._inited.clear()
        for session in sessions.values():
            session.end()

    def taken_over(self, job: str, session: object) -> None:
        """End a session whose conversation another server has written."""
        if self.sessions.get(job) is session:
            del self.sessions[job]
        _log.warning("job taken over by another server", job=job)

    def ended(self, job: str, conversation: Conversation) -> None:
        """Log a conversation that ended and keep it for a while."""
        self.last_conversations[job] = conversation
        while len(self.last_conversations) > _STORIES:
            self.last_conversations.pop(next(iter(self.last_conversations)))
        last = conversation.story[-1] if conversation.story else None
        steps = summary.newest_conversation(conversation.story)
        story = " → ".join(note.state.removesuffix("State") for note in steps[-16:])
        seconds = (steps[-1].at - steps[0].at) / 1000 if steps else 0.0
        _log.info("recovery ended", job=job, story=story, code=last.code if last else 0, seconds=round(seconds, 3))
        good = last is not None and last.event in summary.GOOD
        self._record_event(job, good, f"process recovery took {seconds:.1f} s: {story}")

    def _record_event(self, job: str, good: bool, text: str) -> None:
        """Write an Event of the job's PodGroup (or first pod), for `kubectl describe` and `belay explain`."""
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
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _event(self, about: Object, reason: str, text: str, kind: Any) -> None:
        try:
            await self.kube.event(about, reason, text, now=self.clock() / 1000, kind=kind, component="belay-server")
        except KubeError as error:
            _log.warning("event not written", reason=str(error))

    async def aclose(self) -> None:
        """End every task of the sessions; nothing in the cluster changes."""
        self.closing = True
        workers = [task for session in self.sessions.values() for task in session.tasks]
        self.drop_sessions()
        await cancel_all(*workers, *self._events)

    def _stage(self, job: str) -> str:
        view = self.cluster.jobs.get(job)
        return view.annotations.get(PROCESS_RECOVERY, "") if view is not None else ""

    def _exists(self, job: str) -> bool:
        view = self.cluster.jobs.get(job)
        return view is not None and (bool(view.group) or not self.cluster.pod_groups)

    async def _refresh(self, session: Session) -> None:
        try:
            await session.refresh()
        except TakenOver:
            return
        except KubeError as error:
            _log.warning("session not refreshed", job=session.job, reason=str(error))

    def wake(self) -> None:
        """Wake the loop, which may have gone to sleep for longer than a session waits."""
        self._wake.set()

    def _pause(self) -> float:
        moments = [session.due for session in self.sessions.values() if session.active]
        soonest = min((moment for moment in moments if moment is not None), default=None)
        if soonest is None:
            return PERIOD
        return min(PERIOD, max(0.005, (soonest - self.clock()) / 1000))

    async def _drop_gone(self) -> None:
        """Drop jobs whose PodGroup is gone, or whose pods have all been gone for a while."""
        if not self.cluster.synced or self.cluster.stale:
            return
        now = time.monotonic()
        for job in [*self.sessions, *self._inited]:
            if self._exists(job):
                self._missing.pop(job, None)
                continue
            since = self._missing.setdefault(job, now)
            if now - since < (2.0 if self.cluster.pod_groups else MISSING):
                continue
            self._missing.pop(job, None)
            self._inited.discard(job)
            session = self.sessions.pop(job, None)
            if session is not None:
                _log.info("job is gone", job=job)
                await session.forget()


__all__ = ["INITED", "MAX_JOBS", "REGISTERED", "Registry"]
