"""Attribution of faults: a code on one chip of a job is a hardware fault, a code on several chips a software fault.

A new fault on a chip of a job waits 30 s. If another chip of the job reports the same code meanwhile, all of these
faults count as software and are dropped; else the chip is charged. Too many charges within the window isolate the chip
until a person or enough hours release it. Functions of the memory and ``now``; Unix milliseconds.

Source: component/clusterd/pkg/application/faultmanager/cmprocess (manual fault), pkg/domain/manualfault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from belay.engine.model.history import JobFault

WAIT_MS: Final = 30_000
#: Maximum waiting faults of one job; beyond it the newest are dropped.
MAX_WAITING: Final = 1_000
_HOUR_MS: Final = 3_600_000


class ManualPolicy(msgspec.Struct, frozen=True):
    """``manually_separate_policy.conf``: off unless enabled; ``free_hours`` -1 never releases."""

    enabled: bool = False
    window_hours: int = 24
    threshold: int = 3
    free_hours: int = 48

    @property
    def release_ms(self) -> int:
        """Milliseconds after its last isolation at which a chip is released; 0 when only a person releases it."""
        return 0 if self.free_hours < 0 else self.free_hours * _HOUR_MS


def enqueue(queue: Iterable[JobFault], fresh: Iterable[JobFault]) -> tuple[JobFault, ...]:
    """The queue with the new faults, ordered by time and bounded."""
    return tuple(sorted({*queue, *fresh})[:MAX_WAITING])


def attribute(queue: Iterable[JobFault], now_ms: int) -> tuple[tuple[JobFault, ...], tuple[JobFault, ...]]:
    """Split the queue into faults that keep waiting and faults charged to hardware.

    Each fault is compared within its own 30 s, so the result does not depend on when or how often this runs.
    """
    waiting = sorted(queue)
    charged: list[JobFault] = []
    while waiting and now_ms - waiting[0].at >= WAIT_MS:
        oldest = waiting[0]
        window = [f for f in waiting if f.code == oldest.code and f.at <= oldest.at + WAIT_MS]
        same = [f for f in window if (f.node, f.chip) == (oldest.node, oldest.chip)]
        if len(same) == len(window):
            charged += same
        waiting = [f for f in waiting if f not in window]
    return tuple(waiting), tuple(charged)


def charge(
    times: Iterable[int], more: Iterable[int], policy: ManualPolicy, now_ms: int
) -> tuple[tuple[int, ...], bool]:
    """The charges within the window, and whether they reach the threshold; then counting restarts."""
    since = now_ms - policy.window_hours * _HOUR_MS
    kept = tuple(sorted(t for t in (*times, *more) if t >= since))
    return ((), True) if len(kept) >= policy.threshold else (kept, False)
