"""How often a chip fails, remembered with decay: a repeat offender is a lemon.

Every failure (the chip's own plane leaves service) adds one; the sum halves with every half-life. It survives resets
and restarts, and ends with the hardware: another serial number begins anew.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.model.history import Lemon

#: Half-life of a failure, in milliseconds (a week).
HALF_LIFE_MS: Final = 7 * 86_400_000
#: From this rate on a chip is avoided where others are as good.
THRESHOLD: Final = 2.0
#: Below this rate a chip's failures are forgotten.
FORGOTTEN: Final = 0.05
#: A larger sum is not kept: a chip that flaps for ever must not be avoided for ever.
MOST: Final = 64.0


class LemonRules(msgspec.Struct, frozen=True):
    """How failures are weighed (``FaultPolicy.spec.lemons``)."""

    half_life_ms: int = HALF_LIFE_MS
    threshold: float = THRESHOLD


def rate(lemon: Lemon, now_ms: int, rules: LemonRules) -> float:
    """The decayed number of failures at ``now_ms``."""
    age = max(0, now_ms - lemon.at)
    return float(round(lemon.failures * 2.0 ** (-age / rules.half_life_ms), 6))


def seen(before: Lemon | None, failing: bool, serial: str, now_ms: int, rules: LemonRules) -> Lemon | None:
    """The memory after a look at the chip; the same object while nothing happened, None when nothing needs remembering.

    ``serial`` is the chip's, empty when nobody told it.
    """
    if before is not None and serial and before.serial and serial != before.serial:
        before = None
    if before is None:
        return Lemon(1.0, now_ms, serial, True) if failing else None
    if failing and not before.failing:
        return Lemon(min(MOST, rate(before, now_ms, rules) + 1.0), now_ms, serial or before.serial, True)
    if not failing and not before.failing and rate(before, now_ms, rules) < FORGOTTEN:
        return None
    if failing != before.failing or (serial and not before.serial):
        return msgspec.structs.replace(before, failing=failing, serial=serial or before.serial)
    return before
