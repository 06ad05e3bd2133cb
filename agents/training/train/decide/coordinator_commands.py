"""Commands of the coordinator of native recovery. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartRank:
    """Order a node to start a process for a rank."""

    node: int
    rank: int
    incarnation: int
    generation: int
    active: tuple[int, ...] = ()
    """The ranks of the generation, where these are not all of the job."""


@dataclass(frozen=True)
class EndRank:
    """Order a node to kill a rank's process."""

    node: int
    rank: int
    incarnation: int
    why: str


@dataclass(frozen=True)
class JoinGeneration:
    """Order ranks to leave their training function and join a generation."""

    generation: int
    ranks: tuple[int, ...]
    explained: bool = True
    """Whether a process or a node was lost; otherwise ranks show what they saw."""
    active: tuple[int, ...] = ()
    """As in `StartRank`."""


@dataclass(frozen=True)
class GenerationPlan:
    """The start of a generation: at ``step``; receivers get the state from donors. With ``checkpoint``, all other ranks
    load the checkpoint of that step first."""

    generation: int
    step: int
    donors: dict[int, int]
    checkpoint: bool = False
    back: bool = False
    """Whether ranks take the copies of that step that they have kept: what they computed since is wrong."""


@dataclass(frozen=True)
class Commit:
    """The answer to ranks that are ready to make an update: make it, because others have (``go``), or leave the
    step."""

    generation: int
    ranks: tuple[int, ...]
    go: bool


@dataclass(frozen=True)
class AskCheckpoint:
    """Ask every rank which complete checkpoints it can load."""

    generation: int


@dataclass(frozen=True)
class Leave:
    """Let the training functions of these finished ranks return. ``all_finished``: every rank of the job has finished,
    none is started again."""

    ranks: tuple[int, ...]
    all_finished: bool = False


@dataclass(frozen=True)
class SetPace:
    """How often ranks compare what they hold and keep a copy (`pace.Pace`); ``proven``: the newest step after which all
    copies were equal."""

    compare: int
    keep: int
    proven: int


@dataclass(frozen=True)
class EndJob:
    """End the job: 0 done, 1 the script failed or a rank was lost at the end, 2 the state is lost."""

    code: int
    text: str


@dataclass(frozen=True)
class OperatorMessage:
    """A message for the operator."""

    text: str


CoordinatorCommand = (
    StartRank
    | EndRank
    | JoinGeneration
    | GenerationPlan
    | AskCheckpoint
    | Commit
    | Leave
    | SetPace
    | EndJob
    | OperatorMessage
)
