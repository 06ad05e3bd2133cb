"""Process-level recovery: what cluster and training processes say to each other after a fault. See README.md."""

from engine.model.recovery.conversation import Conversation, Facts, Rank, Report, Step
from engine.model.recovery.machine import begun, reset, resumed, step
from engine.model.recovery.words import Change, Code, Event, State, Strategy

__all__ = [
    "Change", "Code", "Conversation", "Event", "Facts", "Rank", "Report", "State", "Step", "Strategy", "begun",
    "reset", "resumed", "step",
]  # fmt: skip
