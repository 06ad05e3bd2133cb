"""Registrations for a job's state and their streams, one registration per job and role.

Used by the services Config, Fault and TrainingDataTrace. Each message has a subject: the job of the registration, or
one of many jobs. A message equal to the last one about its subject is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

import grpc

from belay.engine.serve.grpc.streams import Context, MessageQueue

Message = TypeVar("Message")
MAX_JOBS = 10_000
_QUEUED = 4


def _any(_: object) -> bool:
    return True


class Publisher(Generic[Message]):
    """One registration. Each subscriber gets the current state, then every new one.

    ``opens`` says of a message whether it may be the first about its subject: "no fault" need not be said of what never
    had one.
    """

    def __init__(self, job: str, role: str, opens: Callable[[Message], bool] = _any) -> None:
        self.job, self.role = job, role
        self.stopped = False
        self._opens = opens
        self._queues: set[MessageQueue[Message]] = set()
        self._last: dict[str, Message] = {}

    @property
    def has_subscribers(self) -> bool:
        """Whether it has subscribers."""
        return bool(self._queues)

    @property
    def subjects(self) -> Collection[str]:
        """What the last messages were about, without those after which nothing was left to say."""
        return self._last.keys()

    def publish(self, message: Message, subject: str = "") -> bool:
        """Send a message unless it equals the last one; returns whether it was sent."""
        about = subject or self.job
        before = self._last.get(about)
        if message == before or (before is None and not self._opens(message)):
            return False

        if self._opens(message):
            self._last[about] = message
        else:
            del self._last[about]
        for queue in self._queues:
            queue.put(message)
        return True

    def publish_all(self, messages: Mapping[str, Message | None]) -> None:
        """Send messages by subject; None forgets what was said about a subject that is gone."""
        for subject, message in messages.items():
            if message is None:
                self._last.pop(subject, None)
            else:
                self.publish(message, subject)

    async def serve(self, context: Context, current: Mapping[str, Message]) -> None:
        """Stream to one subscriber until either side ends it; ``current`` is the newest message by subject."""
        openings = [message for message in current.values() if self._opens(message)]
        queue: MessageQueue[Message] = MessageQueue(len(openings) + _QUEUED)

        self.publish_all(current)  # it may be newer than the last messages to the others
        for message in openings:
            queue.put(message)
        self._queues.add(queue)

        try:
            await context.send_initial_metadata(())
            await queue.pump(context)
        finally:
            self._queues.discard(queue)

    def stop(self) -> None:
        """End every stream."""
        self.stopped = True
        for queue in self._queues:
            queue.close()


class Publishers(Generic[Message]):
    """The registrations of one service, for at most ``most`` jobs. With ``yields``, registrations without subscribers
    make room for new ones, oldest first. ``opens``: see `Publisher`.
    """

    def __init__(self, most: int = MAX_JOBS, *, yields: bool = False, opens: Callable[[Message], bool] = _any) -> None:
        self._most, self._yields, self._opens = most, yields, opens
        self._found: dict[tuple[str, str], Publisher[Message]] = {}
        self._jobs: dict[str, int] = {}

    def register(self, job: str, role: str) -> Publisher[Message] | None:
        """A new registration that replaces an older one of the job and role; None beyond the limit."""
        old = self._found.get((job, role))
        if old is not None:
            old.stop()
        elif job not in self._jobs and len(self._jobs) >= self._most and not self._room():
            return None
        else:
            self._jobs[job] = self._jobs.get(job, 0) + 1
        publisher: Publisher[Message] = Publisher(job, role, self._opens)
        self._found[(job, role)] = publisher
        return publisher

    async def find(self, job: str, role: str, context: Context, *, shown_role: str | None = None) -> Publisher[Message]:
        """The registration. Aborts the call when there is none, naming ``shown_role`` or else the role."""
        found = self._found.get((job, role))
        if found is None:
            who = role if shown_role is None else shown_role
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job} not registered, role={who}")
            raise AssertionError("abort raises")
        return found

    def publish(self, messages_of: Callable[[str, Collection[str]], Mapping[str, Message | None]]) -> None:
        """Send every subscriber the newest state of its job. ``messages_of`` gets a job and the subjects about which
        its subscribers know something.
        """
        listening = [publisher for publisher in self._found.values() if publisher.has_subscribers]
        subjects: dict[str, set[str]] = {}
        for publisher in listening:
            subjects.setdefault(publisher.job, set()).update(publisher.subjects)

        newest = {job: messages_of(job, known) for job, known in subjects.items()}
        for publisher in listening:
            publisher.publish_all(newest[publisher.job])

    def has_subscribers(self, job: str) -> bool:
        """Whether the job has subscribers in any role."""
        return any(each.has_subscribers for each in self._found.values() if each.job == job)

    def jobs_of(self, role: str) -> list[str]:
        """The jobs with subscribers in that role."""
        return [each.job for each in self._found.values() if each.role == role and each.has_subscribers]

    def publish_to(self, job: str, message: Message) -> None:
        """Send a message to every subscriber of the job."""
        for publisher in self._found.values():
            if publisher.job == job and publisher.has_subscribers:
                publisher.publish(message)

    def forget(self, there: Callable[[str], bool]) -> None:
        """Drop registrations without subscribers of jobs that are gone."""
        for (job, role), publisher in list(self._found.items()):
            if not publisher.has_subscribers and not there(job):
                self._drop(job, role)

    def _room(self) -> bool:
        """Drop one idle job; whether there was one."""
        has_subscribers = {job for (job, _), publisher in self._found.items() if publisher.has_subscribers}
        idle = next((job for job in self._jobs if job not in has_subscribers), None) if self._yields else None
        for role in [role for job, role in self._found if job == idle]:
            self._drop(str(idle), role)
        return idle is not None

    def _drop(self, job: str, role: str) -> None:
        del self._found[(job, role)]
        self._jobs[job] -= 1
        if not self._jobs[job]:
            del self._jobs[job]

    def close(self) -> None:
        """End every stream and registration."""
        for publisher in self._found.values():
            publisher.stop()
        self._found.clear()
        self._jobs.clear()


__all__ = ["MAX_JOBS", "Publisher", "Publishers"]
