"""Results that a shard keeps from pass to pass, so that unchanged objects cost a comparison only.

Modules declare what they keep (``CacheKey``, immutable); the state is in the ``PlanCache`` that the shard owns and
hands to each pass. An entry holds only for equal inputs, so no plan depends on what is in a cache. One thread at a
time uses a cache. What a snapshot holds is never changed in place: a new version is a new object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import eq, is_not
from typing import Any, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
Store = TypeVar("Store")


@dataclass(frozen=True, slots=True, eq=False)
class CacheKey(Generic[Store]):
    """The declaration of one store of every cache: what it is called, how it is made, and how many entries it holds."""

    name: str
    make: Callable[[int], Store]
    limit: int = 1


class PlanCache:
    """What one shard keeps between passes; ``cache[KEY]`` is the store of a declaration.

    Args:
        limit: the most entries of any store, below what its declaration allows; for tests.
    """

    __slots__ = ("_limit", "_stores")

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        self._stores: dict[CacheKey[Any], Any] = {}

    def __getitem__(self, key: CacheKey[Store]) -> Store:
        found: Store | None = self._stores.get(key)
        if found is None:
            found = self._stores[key] = key.make(min(key.limit, self._limit))
        return found


class Memo(Generic[Result]):
    """Keeps ``compute``'s result per key while the object stays equal; the oldest keys go first."""

    __slots__ = ("_known", "_limit")

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
                self._known[key] = (raw, entry[1])  # the next lookup compares with the same object, mostly
                return entry[1]
        result = compute()
        if entry is None and len(self._known) >= self._limit:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = (raw, result)
        return result


class NoOps:
    """Keeps per key the inputs that led to nothing, so that the same inputs need no second look."""

    __slots__ = ("_known", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[Hashable, tuple[Any, ...]] = {}

    def holds(self, key: Hashable, inputs: tuple[Any, ...]) -> bool:
        """Whether the same inputs led to nothing before."""
        known = self._known.get(key)
        if known != inputs:
            return False
        self._known[key] = inputs  # the next lookup compares with the same objects, mostly
        return True

    def add(self, key: Hashable, inputs: tuple[Any, ...]) -> None:
        """Records that these inputs led to nothing."""
        if key not in self._known and len(self._known) >= self._limit:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = inputs


class Table(dict[str, Result]):
    """Values by name, whose users check themselves whether they still hold; the oldest names go first."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def keep(self, name: str, value: Result) -> None:
        """Stores a value; a full table drops its oldest."""
        if name not in self and len(self) >= self._limit:
            self.pop(next(iter(self)), None)
        self[name] = value


class Slot(Generic[Result]):
    """One value of the last pass, None before the first."""

    __slots__ = ("value",)

    def __init__(self, _limit: int = 1) -> None:
        self.value: Result | None = None


def differing(new: Mapping[Name, object], old: Mapping[Name, object]) -> Iterable[Name]:
    """Names whose objects are not the same ones. Thousands are compared per pass, hence without a loop of Python's."""
    if new is old:
        return ()
    if len(new) == len(old) and all(map(eq, new, old)):
        return compress(new, map(is_not, new.values(), old.values()))
    return [name for name in new.keys() | old.keys() if new.get(name) is not old.get(name)]
