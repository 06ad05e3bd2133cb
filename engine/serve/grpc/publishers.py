"""Who registered for a stream of news about a job, and the streams themselves: one per job and role, newest state wins.

The streams of the services Config, Fault and TrainingDataTrace. A message equal to the last one is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from engine.serve.grpc.streams import Context, Outbox

Message = TypeVar("Message")
MAX_JOBS = 10_000
_QUEUED = 4


class Publisher(Generic[Message]):
    """One registration. Everybody who subscribes to it gets each new state, beginning with the one that there is."""

    def __init__(self, job: str, role: str) -> None:
        self.job, self.role = job, role
        self.stopped = False
        self._boxes: set[Outbox[Message]] = set()
        self._last: Message | None = None

    @property
    def used(self) -> bool:
        """Whether anybody listens."""
        return bool(self._boxes)

    def publish(self, message: Message) -> bool:
        """Send unless it was the last one; whether it was news."""
        if message == self._last:
            return False
        self._last = message
        for box in self._boxes:
            box.put(message)
        return True

    async def serve(self, context: Context, current: Message | None) -> None:
        """Stream to one subscriber until either side ends it."""
        box: Outbox[Message] = Outbox(_QUEUED)
        if current is not None:
            self.publish(current)  # it may be newer than what the others were told last
            box.put(current)
        self._boxes.add(box)
        try:
            await context.send_initial_metadata(())
            await box.pump(context)
        finally:
            self._boxes.discard(box)

    def stop(self) -> None:
        """End every stream."""
        self.stopped = True
        for box in self._boxes:
            box.close()


class Publishers(Generic[Message]):
    """The registrations of one service, at most so many jobs; where ``yields``, those to which nobody listens make room
    for new ones, oldest first.
    """

    def __init__(self, most: int = MAX_JOBS, *, yields: bool = False) -> None:
        self._most, self._yields = most, yields
        self._found: dict[tuple[str, str], Publisher[Message]] = {}
        self._jobs: dict[str, int] = {}

    def register(self, job: str, role: str) -> Publisher[Message] | None:
        """A new registration, in place of an older one of the job and role; None beyond the limit."""
        old = self._found.get((job, role))
        if old is not None:
            old.stop()
        elif job not in self._jobs and len(self._jobs) >= self._most and not self._room():
            return None
        else:
            self._jobs[job] = self._jobs.get(job, 0) + 1
        publisher: Publisher[Message] = Publisher(job, role)
        self._found[(job, role)] = publisher
        return publisher

    async def of(self, job: str, role: str, context: Context, *, told: str | None = None) -> Publisher[Message]:
        """The registration; aborts the call when there is none, naming the role or what was ``told`` for it."""
        found = self._found.get((job, role))
        if found is None:
            who = role if told is None else told
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job} not registered, role={who}")
            raise AssertionError("abort raises")
        return found

    def publish(self, message_of: Callable[[str], Message | None]) -> None:
        """Tell every subscriber what is new of its job."""
        known: dict[str, Any] = {}
        for publisher in list(self._found.values()):
            if publisher.used:
                job = publisher.job
                if job not in known:
                    known[job] = message_of(job)
                if known[job] is not None:
                    publisher.publish(known[job])

    def heard(self, job: str) -> bool:
        """Whether anybody listens to what is told of the job."""
        return any(each.used for each in self._found.values() if each.job == job)

    def tell(self, job: str, message: Message) -> None:
        """Tell everybody who subscribed to the job."""
        for publisher in self._found.values():
            if publisher.job == job and publisher.used:
                publisher.publish(message)

    def forget(self, there: Callable[[str], bool]) -> None:
        """Drop registrations of jobs that are gone and to which nobody listens."""
        for (job, role), publisher in list(self._found.items()):
            if not publisher.used and not there(job):
                self._drop(job, role)

    def _room(self) -> bool:
        """Whether room for one more job could be made."""
        used = {job for (job, _), publisher in self._found.items() if publisher.used}
        idle = next((job for job in self._jobs if job not in used), None) if self._yields else None
        for role in [role for job, role in self._found if job == idle]:
            self._drop(str(idle), role)
        return idle is not None

    def _drop(self, job: str, role: str) -> None:
        del self._found[(job, role)]
        self._jobs[job] -= 1
        if not self._jobs[job]:
            del self._jobs[job]

    def close(self) -> None:
        """End everything."""
        for publisher in self._found.values():
            publisher.stop()
        self._found.clear()
        self._jobs.clear()


__all__ = ["MAX_JOBS", "Publisher", "Publishers"]
