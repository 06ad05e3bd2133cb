"""Is it the hardware? A fault that only one chip of a job has is the chip's; one that several have is the software's.

A new fault on a chip of a job waits 30 s; if meanwhile another chip of the job had the same code, all of them are
blamed on the software and forgotten, else the chip is charged with it. Too many charges within the window isolate the
chip until a person, or enough hours, give it back. Functions of what is remembered and ``now``; Unix milliseconds.

Source: component/clusterd/pkg/application/faultmanager/cmprocess (manual fault), pkg/domain/manualfault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from engine.model.history import JobFault

WAIT_MS: Final = 30_000
#: Most faults of one job that wait to be judged; beyond it the newest are left out.
MAX_WAITING: Final = 1_000
_HOUR_MS: Final = 3_600_000
#: What the rule of a hold begins with that came from here.
PREFIX: Final = "hardware:"


class ManualPolicy(msgspec.Struct, frozen=True):
    """``manually_separate_policy.conf``: off unless enabled; ``free_hours`` -1 never releases."""

    enabled: bool = False
    window_hours: int = 24
    threshold: int = 3
    free_hours: int = 48

    @property
    def release_ms(self) -> int:
        """How long after its last isolation a chip is given back; 0 when only a person does."""
        return 0 if self.free_hours < 0 else self.free_hours * _HOUR_MS


def wait(queue: Iterable[JobFault], fresh: Iterable[JobFault]) -> tuple[JobFault, ...]:
    """The queue with new faults, in order of time and bounded."""
    return tuple(sorted({*queue, *fresh})[:MAX_WAITING])


def judge(queue: Iterable[JobFault], now_ms: int) -> tuple[tuple[JobFault, ...], tuple[JobFault, ...]]:
    """What goes on waiting, and the faults that hardware is charged with; each is judged against its own 30 s only,
    so that it does not matter how often or how late this is asked."""
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


def count(times: Iterable[int], more: Iterable[int], policy: ManualPolicy, now_ms: int) -> tuple[tuple[int, ...], bool]:
    """The charges within the window, and whether they are too many; then counting starts anew."""
    since = now_ms - policy.window_hours * _HOUR_MS
    kept = tuple(sorted(t for t in (*times, *more) if t >= since))
    return ((), True) if len(kept) >= policy.threshold else (kept, False)
