"""Recovery of a chip under the job that uses it: the conditions to wait for before its ring may be reset.

The engine has ordered the job's training managers through ``reset-config-<job>`` to stop ranks, and orders the reset
with the time they have to read it. From then on this agent waits as the device plugin's graceful fault tolerance did:
for codes that clear without a reset, for processes to end, for faults that heal once no process runs. Pure: the caller
passes the state and the time. Source: component/ascend-device-plugin/pkg/device/ascend910.go
(restartRequestProcess, restartProcess, resetProcess; removed after v26.0).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from belay.engine.model.cluster import InPlaceReset
from belay.engine.model.in_place_recovery import RESTART, RESTART_REQUEST

#: Seconds that the codes of a RestartRequest fault may take to clear without a reset.
CODES_SECONDS: Final = 30.0
#: Seconds that training processes may take to end.
PROCESSES_SECONDS: Final = 60.0
#: Seconds between a finished boot and the last reading of the chips' codes.
READY_SECONDS: Final = 30.0
#: Seconds between two steps.
TICK: Final = 1.0

#: Stages, as reports name them.
CODES, PROCESSES, HEALING, RESETTING = "codes", "processes", "healing", "resetting"


class Step(NamedTuple):
    """The next step: ``wait`` seconds, end with ``result``, or reset if both are empty. ``stage`` is for the report."""

    wait: float = 0.0
    result: str = ""
    stage: str = RESETTING


class InPlaceRecovery:
    """One order, from the end of its readers' time on. ``begun`` and all times are monotonic seconds; ``scale``
    multiplies every duration."""

    def __init__(self, online: InPlaceReset, begun: float, scale: float = 1.0) -> None:
        self._online, self._since, self._scale = online, begun, scale
        self._stage = CODES if online.policy == RESTART_REQUEST else PROCESSES

    @property
    def stage(self) -> str:
        """The stage whose end is awaited."""
        return self._stage

    def next_step(self, now: float, processes: int, faulty: bool) -> Step:
        """Return the next step. ``processes`` is their number on the chips that reset together, ``faulty`` whether a
        fault is left on these chips."""
        if self._stage == CODES:
            if not faulty:
                return self._end("ok")
            if now - self._since < CODES_SECONDS * self._scale:
                return self._wait()
            self._enter(PROCESSES, now)
        if self._stage == PROCESSES:
            if processes:
                if now - self._since < PROCESSES_SECONDS * self._scale:
                    return self._wait()
                return self._end(f"failed: {processes} processes did not end in {PROCESSES_SECONDS:.0f} s")
            self._enter(HEALING if self._online.policy == RESTART else RESETTING, now)
        if self._stage == HEALING:
            if processes:  # they were started again and have to end first
                self._enter(PROCESSES, now)
                return self._wait()
            if now - self._since < self._online.heal_seconds * self._scale:
                return self._wait()
            if not faulty:
                return self._end("ok")
            self._enter(RESETTING, now)
        if not faulty:
            return self._end("ok")
        return Step(wait=TICK, stage=PROCESSES) if processes else Step()

    def _enter(self, stage: str, now: float) -> None:
        self._stage, self._since = stage, now

    def _wait(self) -> Step:
        return Step(wait=TICK, stage=self._stage)

    def _end(self, result: str) -> Step:
        return Step(result=result, stage=self._stage)
