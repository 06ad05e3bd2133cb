"""The content of each slot: a bounded pool that reuses warm slots and evicts durable content, least recently used
first.

It has no threads and no I/O except creating memory; the writing process calls it under one lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from belay.agents.training.checkpoint import slots
from belay.agents.training.checkpoint.slots import HEADER, UNIT, Memory, SlotState

WARM = 2
"""Slots of fitting size that one owner gets before its own durable content is written over: one holds the newest
durable save while the other is filled."""


@dataclass
class Slot:
    """A slot and its state in the pool; ``client``: the connection that fills it; ``readers``: connections that read
    it."""

    number: int
    memory: Memory
    state: SlotState = SlotState.FREE
    generation: int = 0
    size: int = 0
    owner: str = ""
    client: int | None = None
    path: str = ""
    links: tuple[str, ...] = ()
    used: int = 0
    readers: dict[int, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether its content may be evicted."""
        return self.state in (SlotState.DURABLE, SlotState.HELD) and not self.readers

    def mark(self, state: SlotState) -> None:
        """Change the state, here and in the header that ranks read."""
        self.state = state
        self.memory.mark(self.generation, state, self.size)


class Pool:
    """Slots of at most ``limit`` bytes together; saves are numbered from ``first``."""

    def __init__(self, limit: int, make: Callable[[int], Memory] = slots.create, first: int = 1) -> None:
        self.limit, self.make = limit, make
        self.slots: dict[int, Slot] = {}
        self._numbers, self._generations, self._clock = itertools.count(1), itertools.count(first), itertools.count(1)

    @property
    def used(self) -> int:
        """Bytes of all slots."""
        return sum(slot.memory.length for slot in self.slots.values())

    def allocate(self, size: int, owner: str, client: int) -> Slot | None:
        """A slot for ``size`` bytes, to be filled by ``client``; ``None`` when nothing can be evicted.

        Raises ``ValueError`` for a size that never fits, ``OSError`` when the host has no memory.
        """
        length = -(-(size + HEADER) // UNIT) * UNIT
        if length > self.limit:
            raise ValueError(f"{size} bytes never fit into a pool of {self.limit}")
        slot = self._free(length) or self._own(length, owner) or self._new(size, length) or self._evicted(length)
        if slot is None:
            for other in self._idle():
                # too small alone: make room
                self.remove(other)
                if slot := self._new(size, length):
                    break
        if slot is None:
            return None
        slot.generation, slot.size, slot.owner, slot.client = next(self._generations), size, owner, client
        slot.path, slot.links = "", ()
        slot.used = next(self._clock)
        slot.mark(SlotState.FILLING)
        return slot

    def find(self, number: object, generation: object) -> Slot:
        """The slot of a save. Raises ``KeyError`` when it holds another one by now."""
        slot = self.slots.get(number) if isinstance(number, int) else None
        if slot is None or slot.generation != generation:
            raise KeyError(f"slot {number!r:.20} does not hold save {generation!r:.20}")
        return slot

    def resident(self, path: str) -> Slot | None:
        """The newest complete content of ``path`` in memory."""
        whole = [
            slot
            for slot in self.slots.values()
            if path in (slot.path, *slot.links) and slot.state in (SlotState.COMMITTED, SlotState.DURABLE)
        ]
        return max(whole, key=lambda slot: slot.generation, default=None)

    def touch(self, slot: Slot) -> None:
        """Mark a slot as just used."""
        slot.used = next(self._clock)

    def release(self, slot: Slot) -> None:
        """Drop the content; the memory stays warm."""
        slot.path, slot.links, slot.client = "", (), None
        slot.mark(SlotState.FREE)

    def remove(self, slot: Slot) -> None:
        """Free the memory."""
        slot.mark(SlotState.FREE)
        del self.slots[slot.number]
        slot.memory.close()

    def leave(self, client: int) -> None:
        """Remove a client: drop the slots that it was filling, release those that it was reading."""
        for slot in list(self.slots.values()):
            slot.readers.pop(client, None)
            if slot.client == client and slot.state in (SlotState.FILLING, SlotState.FAILED):
                self.release(slot)

    def _fits(self, slot: Slot, length: int) -> bool:
        return length <= slot.memory.length <= 2 * length + UNIT

    def _free(self, length: int) -> Slot | None:
        free = [slot for slot in self.slots.values() if slot.state is SlotState.FREE and not slot.readers]
        return min((s for s in free if self._fits(s, length)), key=lambda slot: slot.memory.length, default=None)

    def _own(self, length: int, owner: str) -> Slot | None:
        own = [slot for slot in self.slots.values() if slot.owner == owner and self._fits(slot, length)]
        idle = [slot for slot in own if slot.idle]
        return min(idle, key=lambda slot: slot.used) if idle and len(own) >= WARM else None

    def _new(self, size: int, length: int) -> Slot | None:
        if self.used + length > self.limit:
            for slot in [slot for slot in self.slots.values() if slot.state is SlotState.FREE and not slot.readers]:
                self.remove(slot)
                if self.used + length <= self.limit:
                    break
            else:
                return None
        slot = Slot(next(self._numbers), self.make(size))
        self.slots[slot.number] = slot
        return slot

    def _evicted(self, length: int) -> Slot | None:
        return next((slot for slot in self._idle() if self._fits(slot, length)), None)

    def _idle(self) -> Iterator[Slot]:
        # copies for other hosts are evicted last: such a host may be the lost one
        return iter(
            sorted((s for s in self.slots.values() if s.idle), key=lambda s: (s.state is SlotState.HELD, s.used))
        )
