"""Python's cyclic garbage collector in processes that hold a whole cluster.

A worker keeps hundreds of thousands of small objects that hardly change. With its defaults the collector scans all of
them in every pass (200 ms with 10,000 nodes and 20,000 pods), although reference counts free what a pass leaves behind.
With these thresholds it runs a few times a minute.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (100_000, 20, 50)


def settle() -> None:
    """Make the collector run rarely; called once at the start of a process."""
    gc.set_threshold(*THRESHOLDS)


def thresholds() -> tuple[int, int, int]:
    """The current thresholds, for ``restore``."""
    return gc.get_threshold()


def restore(before: tuple[int, int, int]) -> None:
    """Restore the thresholds that ``thresholds`` returned."""
    gc.set_threshold(*before)
