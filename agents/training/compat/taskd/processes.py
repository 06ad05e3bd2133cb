"""The interface of a framework for the agent on the bus: start, stop, restart and watch the processes of a pod."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol


class ProcessState(enum.Enum):
    """The combined state of the processes of a pod."""

    HEALTHY = "HEALTHY"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


class ProcessStatus(NamedTuple):
    """``failed``: global ranks of failed processes; ``result``: the framework's own result, returned at the end."""

    state: ProcessState
    failed: frozenset[int] = frozenset()
    result: Any = None


class Processes(Protocol):
    """The processes of one pod. Ranks are global."""

    def ranks(self) -> tuple[int, ...]:
        """The ranks of this pod; empty before the first start."""

    def restarts(self) -> int:
        """Remaining restarts."""

    def start(self, restarts: int) -> None:
        """Start every process; ``restarts`` remain."""

    def stop(self, ranks: Collection[int] | None = None, *, grace: float = 0.0) -> None:
        """End these processes, all when None: SIGTERM and ``grace`` seconds first, then SIGKILL."""

    def restart(self, ranks: Collection[int]) -> None:
        """End these processes and start them again; the others continue."""

    def monitor(self) -> ProcessStatus:
        """The current state."""

    def descriptors(self) -> Sequence[int]:
        """Descriptors that become readable when a process ends (pidfd); empty if there are none."""

    def finish(self, status: ProcessStatus) -> Any:
        """Finish after all processes succeeded; the result."""


Function = Callable[..., Any]
KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST = "KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST"
MONITOR, RESTART = "MONITOR", "RESTART"
