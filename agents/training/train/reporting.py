"""Reports recoveries of `belay train` to `belay server`, in a thread; training never waits for it.

The message is Belay's own (`engine/wire/training/training.proto`): ClusterD's `Recover` decides recoveries, and has no
fields for the stages of a finished one. A service without this call (ClusterD) is not called again.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from belay.agents.training.train.notices import say

if TYPE_CHECKING:
    from belay.agents.training.train.decide.members import Recovery

MAX_WAITING: Final = 64
CALL_SECONDS: Final = 5.0
PAUSES: Final = (0.2, 1.0, 5.0, 15.0, 30.0)
"""Seconds between attempts; the last value repeats until ``GIVEN_UP``."""
GIVEN_UP: Final = 600.0
"""Age in seconds at which a recovery is no longer reported."""
AGAIN: Final = 503
MAX_CAUSE: Final = 500
MAX_RANKS: Final = 1024

STAGES: Final = ("freed", "aligned", "formed", "repaired", "entered", "stepped")


def stages(recovery: Recovery) -> dict[str, float]:
    """Seconds from the fault to the end of each stage that was reached, in order."""
    moments = (
        recovery.freed,
        recovery.planned,
        recovery.formed,
        recovery.repaired,
        recovery.entered,
        recovery.stepped,
    )
    return {
        name: max(0.0, moment - recovery.began)
        for name, moment in zip(STAGES, moments, strict=True)
        if moment is not None
    }


def reporter(environ: Mapping[str, str], world: int, local: int) -> Reporter | None:
    """The reporter of the job in the environment; None without MINDX_TASK_ID and MINDX_SERVER_IP, or without gRPC."""
    job = environ.get("MINDX_TASK_ID", "")
    if not job or not (environ.get("MINDX_SERVER_IP") or environ.get("LOCAL_PROXY_ENABLE") == "on"):
        return None
    try:
        from belay.agents.training.clusterd.client import server_address
    except ImportError:
        say("recoveries are not reported to belay server: grpcio is not installed")
        return None
    return Reporter(job, world, local, server_address(environ))


class Reporter:
    """Reports recoveries in order. ``world`` and ``local``: number of ranks in the job and in one pod; ``now``: the
    clock of a recovery's times (monotonic seconds).
    """

    def __init__(
        self, job: str, world: int, local: int, address: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.job, self.world, self.local, self.address = job, world, local, address
        self._now = now
        self._waiting: collections.deque[Recovery] = collections.deque(maxlen=MAX_WAITING)
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, recovery: Recovery) -> None:
        """Queue a recovery; when more than 64 wait, the oldest is dropped."""
        with self._changed:
            self._waiting.append(recovery)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="recovery-reports", daemon=True)
                self._thread.start()

    def close(self, seconds: float = 1.0) -> None:
        """Wait up to ``seconds`` for the queued recoveries, then give them up."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                recovery = self._waiting.popleft()
            if not self._send(recovery):
                return

    def _send(self, recovery: Recovery) -> bool:
        """Report one recovery; whether the service implements the call."""
        import grpc

        from belay.agents.common import caller_token
        from belay.engine.wire.training import training_pb2 as pb
        from belay.engine.wire.training import training_pb2_grpc

        for attempt in range(1 << 30):
            why = ""
            try:
                with grpc.insecure_channel(self.address) as channel:
                    stub: Any = training_pb2_grpc.TrainingStub(channel)  # type: ignore[no-untyped-call]
                    proof = caller_token.metadata()
                    answer = stub.ReportRecovery(self.message(recovery, pb), timeout=CALL_SECONDS, metadata=proof)
                if answer.code != AGAIN:
                    if answer.code:
                        say(f"belay server refused the report of a recovery: {answer.code} {answer.info[:200]}")
                    return True
                why = answer.info
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    say(f"{self.address} takes no reports of recoveries: it is not a belay server, or an older one")
                    return False
                why = str(error.details() if callable(getattr(error, "details", None)) else error)
            if self._now() - recovery.began > GIVEN_UP:
                say(f"a recovery could not be reported to {self.address} for {GIVEN_UP:g} s: {why[:200]}")
                return True
            with self._changed:
                if not self._closed:
                    self._changed.wait(PAUSES[min(attempt, len(PAUSES) - 1)])
                elif attempt:
                    return False
        return True

    def message(self, recovery: Recovery, pb: Any) -> Any:
        """The message, with its age at this moment."""
        return pb.Recovery(
            job_id=self.job,
            generation=recovery.generation,
            cause=recovery.cause[:MAX_CAUSE],
            ranks=sorted(recovery.ranks)[:MAX_RANKS],
            wrong=sorted(recovery.wrong)[:MAX_RANKS],
            world_size=self.world,
            local_world_size=self.local,
            step=max(0, recovery.step),
            age_us=max(0, round((self._now() - recovery.began) * 1e6)),
            stages=[pb.Stage(name=name, after_us=round(after * 1e6)) for name, after in stages(recovery).items()],
        )


def of_environment(world: int, local: int) -> Reporter | None:
    """The `reporter` of this process's environment."""
    return reporter(os.environ, world, local)
