"""Progress of a job's recovery, for those who do not take part: the planner, and people."""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.recovery.conversation import Conversation, FaultyRank, StepRecord
from belay.engine.model.recovery.protocol import ChangeStrategy, RecoveryStrategy, State

#: Every state ends at its time limit. This long after it (ms) another server would have taken the job over; an older
#: record is abandoned.
ABANDONED_MS: Final = 60_000
#: States before the decision.
BEFORE: Final = frozenset({
    State.WAIT_FLUSHING, State.STOP_TRAIN, State.WAIT_STOP, State.WAIT_FLUSHED, State.GLOBAL_FAULT, State.WAIT_STRATEGY,
})  # fmt: skip
#: States in which the decision is carried out.
AFTER: Final = frozenset({State.DECIDED, State.WAIT_RECOVER, State.CHECK})

#: States of an operation; when it fails, a normal recovery follows.
OPERATING: Final = frozenset({
    State.PAUSE, State.WAIT_PAUSE, State.SWITCH_NIC, State.WAIT_SWITCH_NIC, State.STRESS_TEST, State.WAIT_STRESS_TEST,
    State.CONTINUE, State.WAIT_CONTINUE,
})  # fmt: skip


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One open recovery. Times are Unix milliseconds; its record is valid until ``until``."""

    job: str
    state: State
    begun: int
    since: int
    until: int
    ranks: tuple[FaultyRank, ...] = ()
    chosen: str = ""
    in_place: bool = False
    last: str = ""
    story: tuple[StepRecord, ...] = ()

    def in_place_open(self, now_ms: int) -> bool:
        """Whether processes are being restarted in their pods, or may still be."""
        if not self.ranks or now_ms > self.until or self.last not in ("", ChangeStrategy.RETRY):
            return False
        if self.state in AFTER:
            return self.in_place and self.chosen in ("", RecoveryStrategy.RECOVER)
        return self.state is State.INIT or self.state in BEFORE


def progress_of(conversation: Conversation) -> RecoveryProgress | None:
    """The progress of a conversation; None when its job has no fault, or an operation is under way."""
    if conversation.state in OPERATING or (conversation.state is State.INIT and conversation.pre_exit is None):
        return None
    limit = max(conversation.since, conversation.deadline or 0, conversation.pre_exit or 0)
    begun = conversation.since
    for step in reversed(conversation.story):
        if step.state == State.INIT:
            break
        begun = min(begun, step.at)
    return RecoveryProgress(
        job=conversation.job, state=conversation.state, begun=begun, since=conversation.since,
        until=limit + ABANDONED_MS, ranks=conversation.ranks, chosen=conversation.chosen,
        in_place=conversation.in_place, last=conversation.last, story=conversation.story,
    )  # fmt: skip


__all__ = ["ABANDONED_MS", "AFTER", "BEFORE", "OPERATING", "RecoveryProgress", "progress_of"]
