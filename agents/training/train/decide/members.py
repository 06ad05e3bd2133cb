"""The coordinator's state of ranks and recoveries, and its limits. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Limits:
    """Limits of the coordinator, in seconds where nothing else is stated."""

    grace: float = 1.0
    """For a survivor to leave its collective; at least three median steps."""
    last: float = 30.0
    """The same for one whose state no other rank has been found to hold: a busy machine must not cost the last copy."""
    start: float = 900.0
    """From the start of a process to its first READY (imports, building the model)."""
    repair: float = 300.0
    """For forming groups and copying state."""
    leave: float = 1.5
    """For which a finished rank waits for the others before it leaves."""
    settle: float = 0.1
    """For a death to explain a broken link."""
    join: float = 600.0
    """For a lost node to come back."""
    shrink: float = 30.0
    """For a lost node to come back before the job goes on without it."""
    least: int = 0
    """Number of nodes with which the job goes on; 0: all."""
    elected: bool = False
    """Whether nodes elect the coordinator: then those that go on are the majority, so that two parts of a network that
    was cut do not both train."""
    farewell: float = 10.0
    """For a node that was lost while its finished ranks leave to come back; its own launcher says how they ended."""
    quiet: float = 10.0
    """Without a finished step while all ranks are idle: a hang (at least ten median steps)."""
    busy: float = 600.0
    """Without a finished step while a rank works, or waits for something outside of its group."""
    beginning: float = 6.0
    """Before the first step of the job: how many times ``quiet``."""
    hangs: int = 5
    """Hangs in a row, without a finished step between them, that end the job."""
    failures: int = 3
    """Exceptions of the script in a row, without a finished step between them, that end the job."""
    proof: int = 0
    """Steps from one comparison of copies to the next; 0: as many as cost at most 1 %, -1: they are not compared."""
    lies: int = 5
    """Wrong results in a row, without a newly proven step between them, that end the job."""
    deaths: int = 50
    """Faults in a row, without a finished step between them, that end the job."""


class Phase(StrEnum):
    """Phase of one rank."""

    ABSENT = "absent"
    STARTING = "starting"
    FREEING = "freeing"
    READY = "ready"
    TRAINING = "training"
    FINISHED = "finished"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass
class RankStatus:
    """One rank as the coordinator knows it. ``incarnation`` counts its processes, ``done`` its finished steps (-1: it
    holds no state); ``shard`` names its part of the state: ranks of one shard are copies of each other.
    ``checkpoints``: whether it can load some; ``offers``: their steps, None before the question."""

    rank: int
    node: int
    incarnation: int = 0
    phase: Phase = Phase.ABSENT
    done: int = -1
    shard: str = ""
    checkpoints: bool = False
    offers: frozenset[int] | None = None
    deadline: float = 0.0
    waits: str = ""
    """Where it was when no step was finished for a while; continues "rank 3 is"."""
    prepared: int = -1
    """The step whose update it is ready to make, gradients complete, and has not begun; -1: none."""
    kept: frozenset[int] = frozenset()
    """Finished steps of which it has kept a copy of its state."""
    patience: float = 0.0
    """When it is given up although no other rank has been found to hold its state; 0 where it need not be freed."""


@dataclass(frozen=True)
class RunningRank:
    """A rank that runs already: its newest generation, and whether it has entered its training function and left it.
    ``active``: the ranks of that generation where these are not all; ``divides``: whether its script does the shares
    of ranks that are away, None while that is not known."""

    rank: int
    incarnation: int
    generation: int
    entered: bool
    finished: bool
    done: int
    leaving: bool = False
    active: tuple[int, ...] = ()
    divides: bool | None = None


@dataclass
class Recovery:
    """Times of the stages of one recovery, by the clock of events; None: not reached."""

    cause: str
    began: float
    generation: int = 0
    freed: float | None = None
    planned: float | None = None
    entered: float | None = None
    step: int = 0
    ranks: set[int] = field(default_factory=set)
    """Ranks whose processes were lost."""
    wrong: set[int] = field(default_factory=set)
    """Those of them that computed a wrong result."""
    formed: float | None = None
    repaired: float | None = None
    """When the slowest rank had its group, and its state."""
    stepped: float | None = None
    """When every rank had finished a step again."""
