"""How far the recovery of a job has come, as those see it who do not take part: the planner, and people."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.model.recovery.conversation import Conversation, Note, Rank
from engine.model.recovery.words import Change, State, Strategy

#: Every state moves on by itself at its limit. So long after it (ms) another server would have taken the job over and
#: moved it on; a record older than that is nobody's any more.
ABANDONED_MS: Final = 60_000
#: States on the way to the decision.
BEFORE: Final = frozenset({
    State.WAIT_FLUSHING, State.STOP_TRAIN, State.WAIT_STOP, State.WAIT_FLUSHED, State.GLOBAL_FAULT, State.WAIT_STRATEGY,
})  # fmt: skip
#: States in which what was decided is carried out.
AFTER: Final = frozenset({State.DECIDED, State.WAIT_RECOVER, State.CHECK})

#: States in which an operation is carried out; when it fails, what follows is a recovery like any other.
OPERATING: Final = frozenset({
    State.PAUSE, State.WAIT_PAUSE, State.SWITCH_NIC, State.WAIT_SWITCH_NIC, State.STRESS_TEST, State.WAIT_STRESS_TEST,
    State.CONTINUE, State.WAIT_CONTINUE,
})  # fmt: skip


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One recovery under way. Times are Unix milliseconds; ``until`` is how long its record is believed."""

    job: str
    state: State
    begun: int
    since: int
    until: int
    ranks: tuple[Rank, ...] = ()
    chosen: str = ""
    in_place: bool = False
    last: str = ""
    story: tuple[Note, ...] = ()

    def in_place_open(self, now_ms: int) -> bool:
        """Whether processes are being started again in their pods, or that may still be decided."""
        if not self.ranks or now_ms > self.until or self.last not in ("", Change.RETRY):
            return False
        if self.state in AFTER:
            return self.in_place and self.chosen in ("", Strategy.RECOVER)
        return self.state is State.INIT or self.state in BEFORE


def standing(talk: Conversation) -> Standing | None:
    """The standing of a conversation; None when nothing is wrong with its job, or an operation is under way."""
    if talk.state in OPERATING or (talk.state is State.INIT and talk.pre_exit is None):
        return None
    limit = max(talk.since, talk.deadline or 0, talk.pre_exit or 0)
    begun = talk.since
    for note in reversed(talk.story):
        if note.state == State.INIT:
            break
        begun = min(begun, note.at)
    return Standing(
        job=talk.job, state=talk.state, begun=begun, since=talk.since, until=limit + ABANDONED_MS, ranks=talk.ranks,
        chosen=talk.chosen, in_place=talk.in_place, last=talk.last, story=talk.story,
    )  # fmt: skip


__all__ = ["ABANDONED_MS", "AFTER", "BEFORE", "OPERATING", "Standing", "standing"]
