"""The codes present on each chip, from events and polls.

An event adds a code at once; a code is removed only by a poll in which the driver no longer lists it, because events
may arrive out of order (component/ascend-device-plugin/pkg/common/fault_code.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from belay.agents.drivers.base import CARD_DROP, RESET_FINISHED, Code, Event, Plane

MAX_EVENTS_PER_MINUTE: Final = 1000
"""Beyond this number an event only triggers a poll."""

MAX_CODES: Final = 128
"""Codes kept per chip; the driver reports no more at once."""


_DROPPED: Final[tuple[Plane, str]] = ("chip", CARD_DROP)


class Present(msgspec.Struct, frozen=True):
    """A code on a chip and its start (Unix milliseconds). ``once``: an event without an end, shown for one report."""

    code: str
    plane: Plane
    since_ms: int
    severity: int | None = None
    once: bool = False


class PresentFaults:
    """The present codes of every chip."""

    def __init__(self) -> None:
        self._present: dict[int, dict[tuple[Plane, str], Present]] = {}
        self._again: list[tuple[int, Present]] = []
        self._minute = 0
        self._count = 0

    def chip(self, chip: int) -> tuple[Present, ...]:
        """Return the codes of one chip, by plane and code."""
        return tuple(entry for _, entry in sorted(self._present.get(chip, {}).items()))

    def poll(self, codes: Mapping[int, Sequence[Code]], now_ms: int) -> bool:
        """Replace the codes by those that the driver lists, keeping the first time of known ones; a chip that is not
        listed could not be read, and keeps its codes. Returns whether anything changed."""
        fresh = {chip: known for chip, known in self._present.items() if chip not in codes}
        for chip, listed in codes.items():
            known = self._present.get(chip, {})
            entries = {key: entry for key, entry in known.items() if entry.once}
            for code in listed[:MAX_CODES]:
                key = (code.plane, code.code.upper())
                if key[1].strip("0") and key[1] != RESET_FINISHED:
                    old = known.get(key)
                    since = old.since_ms if old and not old.once else (code.time_ms or now_ms)
                    entries[key] = Present(key[1], code.plane, since, _severity(code.severity, old))
            # a chip off the bus names nothing but that: what it had before is not over
            fresh[chip] = {**known, **entries} if _DROPPED in entries else entries
        changed = fresh != self._present
        self._present = fresh
        return changed

    def event(self, event: Event, now_ms: int) -> bool:
        """Receive one event. Returns whether the chip must be polled."""
        code = event.code.upper()
        if not code.strip("0"):
            return False
        if code == RESET_FINISHED or self._flood(now_ms):
            return True
        if event.assertion == "recover":
            return True
        chip = self._present.setdefault(event.chip, {})
        key = (event.plane, code)
        entry = Present(code, event.plane, event.time_ms or now_ms, event.severity, event.assertion == "once")
        if key not in chip and len(chip) < MAX_CODES:
            chip[key] = entry
        elif key in chip and len(self._again) < MAX_EVENTS_PER_MINUTE:
            old = chip[key]
            chip[key] = msgspec.structs.replace(old, severity=_severity(event.severity, old))
            self._again.append((event.chip, entry))
        return False

    def again(self) -> list[tuple[int, Present]]:
        """Return, once, the events of codes that were present already, by chip: they change no report, but each is an
        occurrence (component/ascend-device-plugin/pkg/common/upgradefault.go)."""
        found, self._again = self._again, []
        return found

    def passing(self) -> list[tuple[int, Present]]:
        """Return the codes that happen once and wait to be reported, by chip."""
        return [(chip, entry) for chip, entries in self._present.items() for entry in entries.values() if entry.once]

    def end_cycle(self, reported: Sequence[tuple[int, Present]]) -> None:
        """Forget codes that happen once, after these were reported."""
        for chip, entry in reported:
            entries = self._present.get(chip, {})
            if entries.get((entry.plane, entry.code)) == entry:
                del entries[(entry.plane, entry.code)]

    def _flood(self, now_ms: int) -> bool:
        if self._minute != (minute := now_ms // 60_000):
            self._minute, self._count = minute, 0
        self._count += 1
        return self._count > MAX_EVENTS_PER_MINUTE


def _severity(said: int | None, before: Present | None) -> int | None:
    """The severity of a code. Only its event states it, so an event without one leaves it as it was."""
    return before.severity if said is None and before is not None else said
