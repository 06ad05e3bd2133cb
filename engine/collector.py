"""Python's cyclic garbage collector in processes that hold a whole cluster.

A worker keeps hundreds of thousands of small objects that hardly change; the collector's defaults look at all of them
again and again (200 ms each time with 10,000 nodes and 20,000 pods), though what a pass leaves behind is freed by
reference counts. With these thresholds it runs a few times a minute instead of in every pass.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (100_000, 20, 50)


def settle() -> None:
    """Collect rarely from now on; called once at the start of a process."""
    gc.set_threshold(*THRESHOLDS)


def thresholds() -> tuple[int, int, int]:
    """What is in force, for ``restore``."""
    return gc.get_threshold()


def restore(before: tuple[int, int, int]) -> None:
    """As it was."""
    gc.set_threshold(*before)
