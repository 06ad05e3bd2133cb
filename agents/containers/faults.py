"""The faults that chips have, with the time each was first reported.

Rules: component/container-manager/pkg/fault (event queue, cache, stale check).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from belay.agents.containers.codes import UNKNOWN, Codes
from belay.agents.drivers.base import Code, Event
from belay.engine.model.levels import NORMAL

#: An entry older than this is compared with what the driver reports now (ms).
STALE_MS: Final = 300_000
PER_MINUTE: Final = 10_000
MINUTE_MS: Final = 60_000
PER_CHIP: Final = 100
#: Module path of a code that was read, not received as an event.
READ: Final = (-1, -1, -1, -1)

Module = tuple[int, ...]


class Faults:
    """Chip → code → module → first time (ms). At most `PER_CHIP` entries per chip."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._known: dict[int, dict[str, dict[Module, int]]] = {}
        self._minute, self._received = 0, 0
        self.dropped = 0

    def receive(self, events: Iterable[Event], now_ms: int) -> bool:
        """Record events; return whether a relevant fault appeared. Events beyond `PER_MINUTE` are dropped and
        counted: reading the driver finds the faults later."""
        news = False
        for event in events:
            if now_ms // MINUTE_MS != self._minute:
                self._minute, self._received = now_ms // MINUTE_MS, 0
            self._received += 1
            if self._received > PER_MINUTE:
                self.dropped += 1
                continue
            code = event.code.upper()
            if int(code, 16) == 0 or event.assertion == "once" or self._codes.level(code) in (NORMAL, UNKNOWN):
                continue
            module = tuple(event.module) or READ
            if event.assertion == "recover":
                self._forget(event.chip, code, module)
            else:
                news |= self._remember(event.chip, code, module, now_ms)
        return news

    def read(self, present: Mapping[int, Sequence[Code]], now_ms: int) -> bool:
        """Record the faults that the driver lists; return whether any is new."""
        news = False
        for chip, codes in present.items():
            for code in codes:
                name = code.code.upper()
                known = self._codes.level(name) not in (NORMAL, UNKNOWN)
                if known and int(name, 16) and name not in self._known.get(chip, {}):
                    news |= self._remember(chip, name, READ, now_ms)
        return news

    def settle(self, present: Mapping[int, Sequence[Code]]) -> None:
        """Drop faults that the driver no longer lists, on the chips that it answered for."""
        for chip, codes in present.items():
            there = {code.code.upper() for code in codes}
            for code in [code for code in self._known.get(chip, {}) if code not in there]:
                self._forget(chip, code, None)

    def stale(self, now_ms: int) -> bool:
        """Whether an entry is old, or was only read, so that the driver must be read again."""
        return any(
            module == READ or now_ms - since > STALE_MS
            for codes in self._known.values()
            for modules in codes.values()
            for module, since in modules.items()
        )

    def chips(self) -> list[int]:
        """The chips that have faults."""
        return sorted(self._known)

    def codes(self, chip: int) -> list[str]:
        """The codes that a chip has."""
        return sorted(self._known.get(chip, {}))

    def level(self, chip: int) -> str:
        """The highest level among a chip's faults."""
        return self._codes.worst(self.codes(chip))

    def since(self, chip: int) -> dict[str, int]:
        """Each code of a chip with the earliest time it was reported."""
        return {code: min(modules.values()) for code, modules in sorted(self._known.get(chip, {}).items())}

    def _remember(self, chip: int, code: str, module: Module, now_ms: int) -> bool:
        codes = self._known.setdefault(chip, {})
        modules = codes.setdefault(code, {})
        if module != READ and READ in modules:
            # the same fault by its full name; the time it was first seen counts
            modules[module] = modules.pop(READ)
            return False
        if module in modules or sum(len(one) for one in codes.values()) >= PER_CHIP:
            if not modules:
                del codes[code]
            return False
        modules[module] = now_ms
        return True

    def _forget(self, chip: int, code: str, module: Module | None) -> None:
        codes = self._known.get(chip, {})
        modules = codes.get(code, {})
        if module is None:
            modules.clear()
        else:
            modules.pop(module, None)
            # a code that was only read has no module: any recovery of the code ends it
            modules.pop(READ, None)
        if not modules:
            codes.pop(code, None)
        if not codes:
            self._known.pop(chip, None)
