"""The step at which a rank's optimizer state is complete, and the limit that holds all ranks at one step. Pure.

Rules of MindIO TFT (component/mindio/tft, processor): a rank is *Updated* at the step that it finished last, *Updating*
between `tft_start_updating_os` and `tft_end_updating_os`, *Copying* while a local copy is made.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from belay.agents.training.compat.tft.constants import DataStatus
from belay.agents.training.compat.tft.replicas import ReplicaGroup, complete


@dataclass(frozen=True)
class RankStep:
    """The state that a rank holds. ``local_copy``: it keeps a complete copy of ``backup_step`` beside the state it
    changes."""

    step: int
    backup_step: int = -1
    data: DataStatus = DataStatus.UPDATED
    local_copy: bool = False

    def usable(self) -> frozenset[int]:
        """The steps whose state can be sent or saved."""
        if self.step <= 0:
            return frozenset()
        if not self.local_copy:
            return frozenset({self.step}) if self.data is DataStatus.UPDATED else frozenset()
        steps = {
            DataStatus.UPDATED: {self.backup_step, self.step},
            DataStatus.COPYING: {self.step},
            DataStatus.UPDATING: {self.backup_step},
        }[self.data]
        return frozenset(step for step in steps if step > 0)

    def holds(self, step: int) -> bool:
        """Whether the state of ``step`` can be sent or saved."""
        if self.local_copy:
            return step in self.usable()
        return step == self.step > 0 and self.data is DataStatus.UPDATED


def holding(states: Mapping[int, RankStep], step: int) -> frozenset[int]:
    """The ranks that can send ``step``."""
    return frozenset([rank for rank, state in states.items() if state.holds(step)])


def highest_complete_step(states: Mapping[int, RankStep], groups: Iterable[ReplicaGroup], shifted: bool = False) -> int:
    """The highest step of which some rank holds every shard; 0 when there is none. Ranks at another step, even healthy
    ones, get it from these.
    """
    listed = list(groups)
    if not listed:
        return 0
    newest = {state.step for state in states.values() if state.holds(state.step)}
    kept = {state.backup_step for state in states.values() if state.local_copy and state.holds(state.backup_step)}
    for step in sorted(newest | kept, reverse=True):
        if complete(listed, holding(states, step), shifted):
            return step
    return 0


class UpdatePermission(enum.Enum):
    """The answer to a train thread before it changes its state."""

    GO = "go"
    WAIT = "wait"
    STOP = "stop"
    DUMP = "dump"


class StepLock:
    """The steps of one rank and the limit that holds it. Not thread-safe: the owner serialises calls."""

    def __init__(self, local_copy: bool = False) -> None:
        self.local_copy = local_copy
        self.step = 0
        self.backup_step = -1
        self.data = DataStatus.UPDATED
        self.limit: int | None = None
        self.stopping = False
        self.dumping = False

    def state(self) -> RankStep:
        """The step that this rank holds."""
        return RankStep(self.step, self.backup_step, self.data, self.local_copy)

    def permission(self) -> UpdatePermission:
        """Whether the next update may start."""
        if self.dumping:
            return UpdatePermission.DUMP
        if self.stopping:
            return UpdatePermission.STOP
        return UpdatePermission.WAIT if self.limit is not None and self.step >= self.limit else UpdatePermission.GO

    def past(self) -> bool:
        """Whether a thread that just finished a step is held."""
        return self.limit is not None and self.step >= self.limit and not self.stopping

    def start(self, backup_step: int = -1) -> None:
        """The state is being changed; ``backup_step`` is the step of the local copy."""
        self.data = DataStatus.UPDATING
        if backup_step >= 0:
            self.backup_step = backup_step

    def copy(self) -> None:
        """The local copy is being made."""
        self.data = DataStatus.COPYING

    def end(self, step: int) -> None:
        """The state is complete at ``step``. Raises ValueError below 1."""
        if step < 1:
            raise ValueError(f"the step of a finished update must be at least 1, got {step}")
        self.step, self.data = step, DataStatus.UPDATED

    def freeze(self) -> int:
        """Let no update start; the step that will be reached: the current or the last one."""
        self.limit = self.step + (self.data is DataStatus.UPDATING)
        return self.limit

    def hold(self, step: int) -> None:
        """Let steps up to ``step`` finish and no other start."""
        self.limit = step

    def at(self, step: int) -> bool:
        """Whether the state of ``step`` is complete."""
        return self.state().holds(step)

    def stop(self) -> None:
        """Stop a thread that is held or about to start an update."""
        self.stopping = True

    def release(self) -> None:
        """Let training continue."""
        self.limit, self.stopping = None, False

    def restored(self, step: int) -> None:
        """The state was put back to ``step``, by a donor, a checkpoint or a roll-back."""
        self.step, self.data = step, DataStatus.UPDATED
        if self.backup_step > step:
            self.backup_step = -1
