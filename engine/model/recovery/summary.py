"""The summary of a conversation that ended: its duration, the level at which it ended, its steps with times.

Kept as an annotation of the job's PodGroup, because the record of a conversation is deleted at its end; the planner
reads it from there and adds it to the job's recoveries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.recovery.conversation import Annotate, Conversation, JobFacts, StepRecord, rank_numbers
from belay.engine.model.recovery.protocol import HCCL, UCE, RecoveryEvent, State

#: Codes of the faults that processes report without a code: on-chip memory and network.
CODE_OF: Final[Mapping[str, str]] = {UCE: "80E01801", HCCL: "8C1F860B"}
MAX_CODES: Final = 8
_MAX_ACCOUNTS: Final = 3
_MAX_STEPS: Final = 32
_MAX_PODS: Final = 256
_MAX_TEXT: Final = 64 * 1024

RETRY: Final = "retry"
IN_PLACE: Final = "in-place"
PROCESS: Final = "process"
SHRINK: Final = "shrink"
STANDBY: Final = "standby"
RESCHEDULED: Final = "rescheduled"
CANCELLED: Final = "cancelled"

#: Events after which training goes on.
GOOD: Final = frozenset({RecoveryEvent.RECOVERED.value, RecoveryEvent.SCALED_OUT.value, RecoveryEvent.RESTART_OK.value})
_LEVELS: Final = {
    RecoveryEvent.RETRY_SENT.value: RETRY, RecoveryEvent.RECOVER_SENT.value: PROCESS,
    RecoveryEvent.SCALE_IN_SENT.value: SHRINK,
}  # fmt: skip


class RecoverySummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One conversation that ended. Times are Unix milliseconds.

    ``level`` is how far the job had to go in the end: ``retry``, ``in-place``, ``process``, ``shrink``, ``standby``,
    ``rescheduled`` (process recovery did not help) or ``cancelled`` (its clients left or subscribed again). ``good``:
    its processes reported that training went on. ``pods`` are the ranks of the pods that were hit.
    """

    begun: int
    ended: int
    level: str
    good: bool = False
    pods: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()


def newest_conversation(story: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
    """The steps of the newest conversation in a story, from the event that began it."""
    last = len(story) - 1 if story and story[-1].state == State.INIT else len(story)
    first = next((i + 1 for i in range(last - 1, -1, -1) if story[i].state == State.INIT), 0)
    return story[first:]


def codes_of(conversation: Conversation, facts: JobFacts) -> tuple[str, ...]:
    """The fault codes of a conversation: those known before, those of its ranks, those its processes reported."""
    if not conversation.ranks:
        return conversation.codes
    own = [CODE_OF[rank.kind] for rank in conversation.ranks if rank.kind in CODE_OF]
    return tuple(dict.fromkeys((*conversation.codes, *facts.codes, *sorted(set(own)))))[:MAX_CODES]


def summary_write(before: Conversation, after: Conversation, facts: JobFacts) -> Annotate | None:
    """The annotation with the summary of a conversation that has just ended.

    None while it has not, and for one that was no recovery.
    """
    if before.state is State.INIT or after.state is not State.INIT or not (before.ranks or before.hot_pod):
        return None
    steps = newest_conversation(after.story)
    if not steps:
        return None
    per_pod = max(1, facts.devices_per_pod)
    pods = sorted({number // per_pod for number in rank_numbers(before.ranks)})
    shown = steps if len(steps) <= _MAX_STEPS else (*steps[: _MAX_STEPS // 2], *steps[-_MAX_STEPS // 2 :])
    one = RecoverySummary(
        begun=steps[0].at,
        ended=steps[-1].at,
        level=_level(before, steps),
        good=steps[-1].event in GOOD,
        pods=tuple(pods[:_MAX_PODS]),
        codes=before.codes,
        steps=shown,
    )
    kept = (*(other for other in read(facts.accounts) if other.begun < one.begun), one)[-_MAX_ACCOUNTS:]
    return Annotate(PROCESS_RECOVERIES, msgspec.json.encode(kept).decode())


def read(text: str) -> tuple[RecoverySummary, ...]:
    """The summaries in an annotation, oldest first; empty when the text is not of this format."""
    if not text or len(text) > _MAX_TEXT:
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[RecoverySummary, ...])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return ()
    fit = (one for one in found if 0 < one.begun <= one.ended and len(one.steps) <= _MAX_STEPS)
    return tuple(sorted(fit, key=lambda one: one.begun))[-_MAX_ACCOUNTS:]


def _level(before: Conversation, steps: tuple[StepRecord, ...]) -> str:
    last = steps[-1]
    if last.event == "reset":
        return CANCELLED
    if before.hot_pod:
        return STANDBY
    if last.event not in GOOD:
        return RESCHEDULED
    if last.event == RecoveryEvent.SCALED_OUT:
        return SHRINK
    level = next((_LEVELS[note.event] for note in reversed(steps) if note.event in _LEVELS), RESCHEDULED)
    return IN_PLACE if level == PROCESS and before.in_place else level


__all__ = ["CODE_OF", "MAX_CODES", "RecoverySummary", "newest_conversation", "codes_of", "read", "summary_write"]
