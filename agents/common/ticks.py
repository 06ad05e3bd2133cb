"""Common moments for the periodic work of one process: an idle machine is woken once for all that is due.

Each wake-up of an idle processor costs more than most of the looks that it is for. So what is done every so many
seconds is done at whole seconds of the monotonic clock, and with a period of 5, 10 or 60 s at those that five divides.
"""

from __future__ import annotations

import math
from typing import Final

FIVE: Final = 5.0


def due(now: float, seconds: float) -> float:
    """The last common moment within so many seconds from ``now``: what runs on time keeps its period exactly, what
    comes late does not move the next time. Periods of no whole seconds have no common moments."""
    if seconds < 1.0 or seconds % 1.0:
        return now + seconds
    grid = FIVE if seconds % FIVE == 0.0 else 1.0
    moment = math.floor((now + seconds) / grid) * grid
    return moment if moment > now else now + seconds
