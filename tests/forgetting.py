"""What the planner's modules remember between passes, to be emptied: as in a process that has seen nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.plan import groups, livepods, passes, settled
from engine.plan.memo import Memo, Settled


def forget() -> None:
    """Empties it."""
    for store in _stores():
        store.clear()


@contextmanager
def nothing_remembered() -> Iterator[None]:
    """Empty inside; afterwards what was there before is there again."""
    stores = _stores()
    kept = [dict(store) for store in stores]
    forget()
    try:
        yield
    finally:
        for store, before in zip(stores, kept, strict=True):
            store.clear()
            store.update(before)


def _stores() -> list[dict[Any, Any]]:
    passes()  # all modules are there
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("engine.plan")]
    found = {id(item): item for module in modules for item in vars(module).values() if isinstance(item, Memo | Settled)}
    return [
        *(memo._known for memo in found.values()),
        settled._KEPT,
        settled._GLANCES,
        groups._LAST,
        livepods._LAST,
    ]
