"""What a conversation tells once it is over: how long it took, at which level it ended, each step with its time.

It is kept as an annotation of the job's PodGroup, because the record of a conversation goes with its end: the planner
enters it in the ledger of training time from there, whenever it comes to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.model.recovery.conversation import Annotate, Conversation, Facts, Note
from engine.model.recovery.words import HCCL, UCE, Event, State

#: Annotation of a PodGroup (or the pod of rank 0): the newest accounts of its job, oldest first, as JSON.
KEY: Final = "belay.dev/process-recoveries"
#: The codes of what processes tell without one: on-chip memory and network faults.
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
GOOD: Final = frozenset({Event.RECOVERED.value, Event.SCALED_OUT.value, Event.RESTART_OK.value})
_LEVELS: Final = {
    Event.RETRY_SENT.value: RETRY, Event.RECOVER_SENT.value: PROCESS, Event.SCALE_IN_SENT.value: SHRINK,
}  # fmt: skip


class Account(msgspec.Struct, frozen=True, omit_defaults=True):
    """One conversation that is over. Times are Unix milliseconds.

    ``level`` is how far the job had to go in the end: ``retry``, ``in-place``, ``process``, ``shrink``, ``standby``,
    ``rescheduled`` (process recovery did not help) or ``cancelled`` (its clients left or began anew). ``good`` says
    whether its processes said that training went on. ``pods`` are the ranks of the pods that were hit.
    """

    begun: int
    ended: int
    level: str
    good: bool = False
    pods: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    steps: tuple[Note, ...] = ()


def chapter(story: tuple[Note, ...]) -> tuple[Note, ...]:
    """The steps of the newest conversation in a story, from the event that began it."""
    last = len(story) - 1 if story and story[-1].state == State.INIT else len(story)
    first = next((i + 1 for i in range(last - 1, -1, -1) if story[i].state == State.INIT), 0)
    return story[first:]


def codes_of(talk: Conversation, facts: Facts) -> tuple[str, ...]:
    """The fault codes behind a conversation: those known before, its ranks' own ones, what its processes told."""
    if not talk.ranks:
        return talk.codes
    told = [CODE_OF[rank.kind] for rank in talk.ranks if rank.kind in CODE_OF]
    return tuple(dict.fromkeys((*talk.codes, *facts.codes, *sorted(set(told)))))[:MAX_CODES]


def told(before: Conversation, after: Conversation, facts: Facts) -> Annotate | None:
    """The write that keeps the account of a conversation which has just come to its end; None for one that has not, or
    that was no recovery.
    """
    if before.state is State.INIT or after.state is not State.INIT or not (before.ranks or before.hot_pod):
        return None
    steps = chapter(after.story)
    if not steps:
        return None
    per_pod = max(1, facts.devices_per_pod)
    pods = sorted({int(rank.rank) // per_pod for rank in before.ranks if rank.rank.isascii() and rank.rank.isdecimal()})
    shown = steps if len(steps) <= _MAX_STEPS else (*steps[: _MAX_STEPS // 2], *steps[-_MAX_STEPS // 2 :])
    one = Account(
        begun=steps[0].at,
        ended=steps[-1].at,
        level=_level(before, steps),
        good=steps[-1].event in GOOD,
        pods=tuple(pods[:_MAX_PODS]),
        codes=before.codes,
        steps=shown,
    )
    kept = (*(other for other in read(facts.accounts) if other.begun < one.begun), one)[-_MAX_ACCOUNTS:]
    return Annotate(KEY, msgspec.json.encode(kept).decode())


def read(text: str) -> tuple[Account, ...]:
    """The accounts that an annotation tells, oldest first; none for a text that nobody here wrote."""
    if not text or len(text) > _MAX_TEXT:
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[Account, ...])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return ()
    fit = (one for one in found if 0 < one.begun <= one.ended and len(one.steps) <= _MAX_STEPS)
    return tuple(sorted(fit, key=lambda one: one.begun))[-_MAX_ACCOUNTS:]


def _level(before: Conversation, steps: tuple[Note, ...]) -> str:
    last = steps[-1]
    if last.event == "reset":
        return CANCELLED
    if before.hot_pod:
        return STANDBY
    if last.event not in GOOD:
        return RESCHEDULED
    if last.event == Event.SCALED_OUT:
        return SHRINK
    level = next((_LEVELS[note.event] for note in reversed(steps) if note.event in _LEVELS), RESCHEDULED)
    return IN_PLACE if level == PROCESS and before.in_place else level


__all__ = ["CODE_OF", "KEY", "MAX_CODES", "Account", "chapter", "codes_of", "read", "told"]
