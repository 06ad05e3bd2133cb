"""A processor's connection to the controller: addresses, registration, status of the rank. Pure."""

from __future__ import annotations

from typing import Any

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import TrainState
from belay.agents.training.compat.tft.messages import Message
from belay.agents.training.compat.tft.processor_commands import (
    Connect,
    ProcessorCommand,
    ProcessorSettings,
    SendToController,
)
from belay.agents.training.compat.tft.replicas import ReplicaGroup
from belay.agents.training.compat.tft.steplock import StepLock


class ControllerLink:
    """The connection, and the state of one rank that its messages report."""

    def __init__(self, settings: ProcessorSettings) -> None:
        self.settings = settings
        self.lock = StepLock(settings.local_copy)
        self.term = 0
        self.generation = 0
        self.repair_id = 0  # not 0: this process replaces a lost one
        self.linked = False
        self.registered = False
        self.refused = ""
        self.leaving = False
        self.state = TrainState.NORMAL
        self.code = ""
        self.loaded = 0
        self.reported = False  # the train thread waits in the handler after a report
        self.resume = False  # … and may continue
        self.replicas: tuple[ReplicaGroup, ...] = ()
        self.dp: tuple[int, ...] = ()
        self.addresses = list(settings.addresses)
        self._out: list[ProcessorCommand] = []
        self._count = 0
        self._try = 0
        self._freed = False
        self._pace = 0.0
        self._orphaned: float | None = None
        self._standby: float | None = None
        self._beat = 2.0
        self._next_beat = 0.0
        self._replicas_n = self._replicas_noted = 0

    def take(self) -> list[ProcessorCommand]:
        """The commands since the last call, in order."""
        found, self._out = self._out, []
        return found

    def status(self) -> dict[str, Any]:
        """The status that every answer carries; `n` grows, so that the controller drops late ones."""
        self._count += 1
        return {
            "n": self._count, "step": self.lock.step, "backup": self.lock.backup_step, "data": int(self.lock.data),
            "state": int(self.state), "code": self.code, "parked": self.reported and not self.resume,
            "gen": self.generation, "loaded": self.loaded, "freed": self._freed, "pace": self._pace,
        }  # fmt: skip

    def _send(self, message: Message) -> None:
        if self.linked:
            self._out.append(SendToController(message))

    def _send_status(self) -> None:
        if self.registered:
            self._send({"op": m.STATUS, "status": self.status()})

    # -- the link ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to the controller."""
        self._connect(0.0)

    def _connect(self, wait: float) -> None:
        if self.addresses and not self.leaving:
            self._out.append(Connect(self.addresses[self._try % len(self.addresses)], wait))

    def link(self, now: float) -> None:
        """The connection to the controller, or to a backup, was opened."""
        self.linked, self.registered = True, False
        self._standby = None
        self._next_beat = now + self._beat
        self._register()

    def _register(self) -> None:
        settings = self.settings
        self._send(
            {
                "op": m.REGISTER, "versions": list(m.VERSIONS), "rank": settings.rank, "world": settings.world,
                "job": settings.job, "session": settings.session, "repair_id": self.repair_id,
                "local_copy": settings.local_copy, "uce": settings.uce, "arf": settings.arf, "zit": settings.zit,
                "controller": settings.controller, "status": self.status(),
            }
        )  # fmt: skip

    def unlink(self, now: float) -> None:
        """The connection was lost or could not be opened: try the next address."""
        was = self.linked
        self.linked = self.registered = False
        if self._orphaned is None:
            self._orphaned = now
        if not was or self.refused:
            self._try += 1
        self._connect(0.0 if not self._try else min(self.settings.retry_wait, 0.05 * 2 ** min(self._try, 10)))

    def set_replicas(self, groups: tuple[ReplicaGroup, ...]) -> None:
        """Declare the optimizer state that this rank holds."""
        self.replicas = groups
        self._replicas_changed()

    def set_dp_group(self, ranks: tuple[int, ...]) -> None:
        """Declare the original data-parallel group."""
        self.dp = ranks
        self._replicas_changed()

    def _replicas_changed(self) -> None:
        self._replicas_n += 1
        self._push_replicas()

    def _push_replicas(self) -> None:
        if self.registered and (self.replicas or self.dp):
            found = [
                {"kind": g.kind, "ranks": list(g.ranks), "copies": g.copies, "shift": g.shift} for g in self.replicas
            ]
            self._send({"op": m.REPLICAS, "n": self._replicas_n, "replicas": found, "dp": list(self.dp)})
