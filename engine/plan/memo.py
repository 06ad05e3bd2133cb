"""Bounded memos of pure results about raw objects, so that unchanged objects cost a comparison only.

An entry is keyed by a name and holds only for an equal object; nothing of a pass depends on what is in a memo.
What a snapshot holds is never changed in place: a new version is a new object.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import compress
from operator import eq, is_not
from typing import Any, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


class Memo(Generic[Result]):
    """Remembers ``compute``'s result per key while the object stays equal; the oldest keys go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[Hashable, tuple[Any, Result]] = {}

    def of(self, key: Hashable, raw: Any, compute: Callable[[], Result]) -> Result:
        """The result for ``raw``, computed when the key is new or its object has changed."""
        entry = self._known.get(key)
        if entry is not None:
            if entry[0] is raw:
                return entry[1]
            if entry[0] == raw:
                self._known[key] = (raw, entry[1])  # the next look is at the same object, mostly
                return entry[1]
        result = compute()
        if entry is None and len(self._known) >= self._limit:
            self._known.pop(next(iter(self._known)))
        self._known[key] = (raw, result)
        return result


def differing(new: Mapping[Name, object], old: Mapping[Name, object]) -> Iterable[Name]:
    """Names whose objects are not the same ones. Thousands are compared per pass, hence without a loop of Python's."""
    if new is old:
        return ()
    if len(new) == len(old) and all(map(eq, new, old)):
        return compress(new, map(is_not, new.values(), old.values()))
    return [name for name in new.keys() | old.keys() if new.get(name) is not old.get(name)]


class Settled:
    """Remembers per key which inputs led to nothing, so that the same inputs need not be looked at again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[Hashable, tuple[Any, ...]] = {}

    def holds(self, key: Hashable, inputs: tuple[Any, ...]) -> bool:
        """Whether the same inputs led to nothing before."""
        known = self._known.get(key)
        if known != inputs:
            return False
        self._known[key] = inputs  # the next look is at the same objects, mostly
        return True

    def note(self, key: Hashable, inputs: tuple[Any, ...]) -> None:
        """These inputs led to nothing."""
        if key not in self._known and len(self._known) >= self._limit:
            self._known.pop(next(iter(self._known)))
        self._known[key] = inputs
