"""Repeat offenders: chips whose number of failures, counted with decay, exceeds a threshold.

Each failure (the chip plane leaves service) adds one; the sum halves with every half-life. It survives resets and
restarts; a new serial number starts at zero.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.history import FailureMemory

#: Half-life of a failure, in milliseconds (a week).
HALF_LIFE_MS: Final = 7 * 86_400_000
#: Rate from which placement avoids a chip among equals.
THRESHOLD: Final = 2.0
#: Below this rate a chip's failures are forgotten.
FORGOTTEN: Final = 0.05
#: Upper bound of the sum, so that a chip that flapped for long is not avoided for much longer.
MOST: Final = 64.0


class RepeatOffenderRules(msgspec.Struct, frozen=True):
    """How failures are weighed (``FaultPolicy.spec.lemons``)."""

    half_life_ms: int = HALF_LIFE_MS
    threshold: float = THRESHOLD


def rate(lemon: FailureMemory, now_ms: int, rules: RepeatOffenderRules) -> float:
    """The decayed number of failures at ``now_ms``."""
    age = max(0, now_ms - lemon.at)
    return float(round(lemon.failures * 2.0 ** (-age / rules.half_life_ms), 6))


def updated(
    before: FailureMemory | None, failing: bool, serial: str, now_ms: int, rules: RepeatOffenderRules
) -> FailureMemory | None:
    """The memory after a pass; the same object when nothing changed, None when nothing needs remembering.

    ``serial`` is the chip's serial number, empty when unknown.
    """
    if before is not None and serial and before.serial and serial != before.serial:
        before = None
    if before is None:
        return FailureMemory(1.0, now_ms, serial, True) if failing else None
    if failing and not before.failing:
        return FailureMemory(min(MOST, rate(before, now_ms, rules) + 1.0), now_ms, serial or before.serial, True)
    if not failing and not before.failing and rate(before, now_ms, rules) < FORGOTTEN:
        return None
    if failing != before.failing or (serial and not before.serial):
        return msgspec.structs.replace(before, failing=failing, serial=serial or before.serial)
    return before
