"""The controller's record of a rank. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from belay.agents.training.compat.tft.constants import TrainState
from belay.agents.training.compat.tft.replicas import ReplicaGroup
from belay.agents.training.compat.tft.steplock import RankStep


@dataclass
class Peer:
    """One rank as the controller knows it."""

    rank: int
    link: int | None = None
    session: str = ""
    status: int = -1
    step: RankStep = field(default_factory=lambda: RankStep(0))
    state: TrainState = TrainState.NORMAL
    code: str = ""
    parked: bool = False
    freed: float | None = None
    pace: float = 0.0
    loaded: int = 0
    generation: int = 0
    seen: float = 0.0
    suspect: float | None = None
    finished: bool = False
    repair_id: int = 0
    hot: bool = False
    new: bool = False  # replaces a lost process and holds nothing yet
    controller: str = ""
    uce: bool = True
    replicas: tuple[ReplicaGroup, ...] = ()
    dp: tuple[int, ...] = ()
