"""Every edit of every sample, one after the other: see ``tests/edits``."""

from __future__ import annotations

from functools import cache

from tests.edits.mutations import Edit, every_edit
from tests.edits.world import samples, world

CHUNK = 500
_TWICE = 20
"""Each so many-th edit is also looked at by a new process, which knows only what stands in ``belay-sync``."""


@cache
def every() -> tuple[Edit, ...]:
    """All edits, in the order of files, so that what was read of a file need not be read again."""
    return tuple(every_edit(samples()))


def count() -> int:
    """How many edits there are."""
    return len(every())


def chunk(first: int, count: int) -> tuple[int, list[str]]:
    """Make ``count`` edits; returns how many of them were refused, and what went wrong."""
    refused, failures = 0, []
    for number in range(first, first + count):
        edit = every()[number % len(every())]
        try:
            refused += world().check(edit, twice=number % _TWICE == 0)[0]
        except Exception as error:
            failures.append(f"edits seed {number}: {edit}: {type(error).__name__}: {str(error)[:300]}")
    return refused, failures
