"""What the sessions of one server share: its clients, its clock and its epoch."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from belay.engine.kube import Kube
from belay.engine.model.recovery import Conversation
from belay.engine.serve.grpc.observed_cluster import ObservedCluster, clock_ms
from belay.engine.serve.grpc.recovery.cluster_writer import ClusterWriter
from belay.engine.serve.grpc.recovery.release import Releases
from belay.engine.wire import names


class SessionContext(ABC):
    """One server's. ``clock`` is milliseconds since 1970, ``nanos`` nanoseconds for uuids.

    ``epoch`` grows with each server that takes over; ``closing`` says that this one ends; ``namespace`` has the records
    of conversations.
    """

    def __init__(
        self,
        kube: Kube,
        cluster: ObservedCluster,
        *,
        writer: ClusterWriter | None = None,
        clock: Callable[[], int] = clock_ms,
        nanos: Callable[[], int] = time.time_ns,
        namespace: str = names.SYSTEM,
    ) -> None:
        self.kube = kube
        self.namespace = namespace
        self.cluster = cluster
        self.writer = writer or ClusterWriter(kube, cluster)
        self.releases = Releases(kube, cluster, clock=clock)
        self.clock = clock
        self.epoch = 0
        self.closing = False
        self._nanos = nanos

    def uuid(self) -> str:
        """The name of a signal's round: nanoseconds in upper-case hex, 16 random bytes in lower-case (ClusterD's)."""
        return f"{self._nanos():X}-{os.urandom(16).hex()}"

    @abstractmethod
    def wake(self) -> None:
        """Look again when the next session is due: one has set a time limit."""

    @abstractmethod
    def ended(self, job: str, conversation: Conversation) -> None:
        """Receive a conversation that ended."""

    @abstractmethod
    def taken_over(self, job: str, session: object) -> None:
        """End ``session``: another server has written the job's conversation."""
