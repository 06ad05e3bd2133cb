"""Process-level recovery: what cluster and training processes say to each other after a fault. See README.md."""

from belay.engine.model.recovery.conversation import Conversation, FaultyRank, JobFacts, Report, Transition
from belay.engine.model.recovery.machine import begun, reset, resumed, step
from belay.engine.model.recovery.protocol import ChangeStrategy, Code, RecoveryEvent, RecoveryStrategy, State

__all__ = [
    "ChangeStrategy", "Code", "Conversation", "FaultyRank", "JobFacts", "RecoveryEvent", "RecoveryStrategy", "Report",
    "State", "Transition", "begun", "reset", "resumed", "step",
]  # fmt: skip
