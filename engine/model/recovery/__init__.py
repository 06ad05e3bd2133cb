"""Process-level recovery: what cluster and training processes say to each other after a fault. See README.md."""

from engine.model.recovery.conversation import Conversation, FaultyRank, JobFacts, Report, Transition
from engine.model.recovery.machine import begun, reset, resumed, step
from engine.model.recovery.protocol import ChangeStrategy, Code, RecoveryEvent, RecoveryStrategy, State

__all__ = [
    "ChangeStrategy", "Code", "Conversation", "FaultyRank", "JobFacts", "RecoveryEvent", "RecoveryStrategy", "Report",
    "State", "Transition", "begun", "reset", "resumed", "step",
]  # fmt: skip
