"""A chip healed under the job that uses it: what has to be waited for before its ring may be reset.

The engine has told the job's training managers through ``reset-config-<job>`` that ranks are to stop, and orders the
reset with the time they have to read it. From there on this agent waits as the device plugin's graceful fault
tolerance did: for codes that go by themselves, for processes to end, for faults that heal once nothing runs. Pure: the
caller says what is there and when. Source: component/ascend-device-plugin/pkg/device/ascend910.go
(restartRequestProcess, restartProcess, resetProcess; removed after v26.0).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.model.cluster import Online
from engine.model.online import RESTART, RESTART_REQUEST

#: Seconds that the codes of a RestartRequest fault may take to go by themselves.
CODES_SECONDS: Final = 30.0
#: Seconds that training processes may take to end.
PROCESSES_SECONDS: Final = 60.0
#: Seconds between a finished boot and the last look at the chips' codes.
READY_SECONDS: Final = 30.0
#: Seconds between two looks.
TICK: Final = 1.0

#: What is being waited for, as reports name it.
CODES, PROCESSES, HEALING, RESETTING = "codes", "processes", "healing", "resetting"


class Step(NamedTuple):
    """What to do now: ``wait`` seconds, or end with ``result``, or (neither) reset. ``stage`` is for the report."""

    wait: float = 0.0
    result: str = ""
    stage: str = RESETTING


class Watch:
    """One order, from the moment its readers have had their time. ``begun`` and all moments are monotonic seconds;
    ``scale`` multiplies every time."""

    def __init__(self, online: Online, begun: float, scale: float = 1.0) -> None:
        self._online, self._since, self._scale = online, begun, scale
        self._stage = CODES if online.policy == RESTART_REQUEST else PROCESSES

    @property
    def stage(self) -> str:
        """What is being waited for."""
        return self._stage

    def look(self, now: float, processes: int, faulty: bool) -> Step:
        """Say what to do. ``processes`` run on the chips that reset together, ``faulty`` tells whether a fault of
        theirs is left."""
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
            if processes:  # somebody started them again: they have to end first
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


__all__ = ["CODES", "HEALING", "PROCESSES", "READY_SECONDS", "RESETTING", "Step", "Watch"]
