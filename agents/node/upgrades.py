"""Levels that chips were raised to because codes came too often or stayed too long: ``UpgradeFaultReason``.

The agent publishes them in its device information as MindCluster's device plugin does, reads them back from there after
a restart, and lets a person end a manual isolation by taking the chip's name from key ``ManuallySeparateNPU``; adding
names does nothing. Source: component/ascend-device-plugin/pkg/common/upgradefault.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.agents.drivers.base import Plane
from belay.engine.model import faults
from belay.engine.model.cluster import Upgrade
from belay.engine.model.faults import CodeRules
from belay.engine.model.history import CodeMemory
from belay.engine.model.levels import MANUALLY_SEPARATE, NORMAL, worst

FREQUENCY: Final = "FaultFrequency"
DURATION: Final = "FaultDuration"
AUTOFILL: Final = "FaultAutofill"
AUTOFILL_CODE: Final = "AutofillFaultCode"
#: Codes of the parameter and UB planes as they are compared: the published form omits the plane.
NETWORK_CODES: Final = frozenset(
    map(faults.code_key, ("81078603", "81078607", "81B18603", "110000002", "110001024", "020001002", "020000002"))
)
#: Reasons kept in all; a node has few chips, so more of them are a mistake.
MAX_REASONS: Final = 1024

Key = tuple[int, Plane, str]
"""Chip, plane, code."""
Seen = Mapping[Key, CodeMemory]


class Reason(msgspec.Struct, frozen=True, order=True):
    """Why a chip's plane has a level; ``time_ms`` is when it got it, ``code`` as it is compared."""

    chip: int
    time_ms: int
    code: str
    level: str
    kind: str
    plane: Plane = "chip"

    @property
    def wire(self) -> dict[str, Any]:
        """The reason as ``UpgradeFaultReason`` shows it, its fields in the original's order."""
        code = self.code if self.kind == AUTOFILL else self.code.lower()
        return {
            "upgrade_time": self.time_ms, "fault_code": code, "fault_level": self.level, "upgrade_type": self.kind,
        }  # fmt: skip


class Upgrades:
    """The reasons in force. ``changed`` counts every change, ``ended`` collects reasons until they are reported."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[Key, str], Reason] = {}
        self.changed = 0
        self.ended: list[Reason] = []

    def level(self, chip: int, plane: Plane) -> str:
        """The worst level that a reason gives a chip's plane, NormalNPU without one."""
        return worst(NORMAL, *(r.level for r in self._reasons.values() if r.chip == chip and r.plane == plane))

    def of_codes(self, chip: int, plane: Plane) -> list[Reason]:
        """The reasons of a chip's plane that name a code, in order."""
        found = [r for r in self._reasons.values() if r.chip == chip and r.plane == plane and r.kind != AUTOFILL]
        return sorted(found)

    @property
    def manual(self) -> tuple[int, ...]:
        """Chips that only an operator can release, ascending."""
        return tuple(sorted({r.chip for r in self._reasons.values() if r.level == MANUALLY_SEPARATE}))

    def published(self, name: Callable[[int], str]) -> dict[str, list[dict[str, Any]]]:
        """Return the reasons in force by device name, as ``UpgradeFaultReason`` holds them."""
        return grouped(sorted(self._reasons.values()), name)

    def holds(self, key: Key) -> bool:
        """Whether the code has already raised the chip for coming too often."""
        return (key, FREQUENCY) in self._reasons

    def raised(self, key: Key, level: str, now_ms: int) -> None:
        """A code came too often."""
        self._put(key, Reason(key[0], now_ms, key[2], level, FREQUENCY, _plane(key, level)))

    def settle(self, seen: Seen, rules: CodeRules, now_ms: int) -> None:
        """Bring every reason in line with the observed codes and the rules in force."""
        self._lasting(seen, rules, now_ms)
        for (key, kind), reason in list(self._reasons.items()):
            if kind == FREQUENCY:
                self._frequent(key, reason, seen.get(key), rules, now_ms)
            elif kind == AUTOFILL:
                longest = _longest_release(rules)
                if longest and now_ms - reason.time_ms > longest:
                    self._drop(key, kind)

    def release(self, chips: Iterable[int]) -> None:
        """End all manual reasons of chips that an operator removed from ``ManuallySeparateNPU``."""
        gone = set(chips)
        for (key, kind), reason in list(self._reasons.items()):
            if reason.chip in gone and reason.level == MANUALLY_SEPARATE:
                self._drop(key, kind)

    def restore(self, told: Sequence[Upgrade], manual: Iterable[int], now_ms: int) -> None:
        """Adopt the published state: reasons by frequency, and chips isolated by hand without any reason.

        Durations are derived again from the present codes.
        """
        held = set(manual)
        for row in told[:MAX_REASONS]:
            if row.kind == DURATION or (row.level == MANUALLY_SEPARATE and row.chip not in held):
                continue
            if row.kind == AUTOFILL:
                key: Key = (row.chip, "chip", AUTOFILL_CODE)
                self._put(key, Reason(row.chip, row.time_ms, AUTOFILL_CODE, MANUALLY_SEPARATE, AUTOFILL))
            elif (code := faults.code_key(row.code)) != "0":
                key = (row.chip, "network" if code in NETWORK_CODES else "chip", code)
                self._put(key, Reason(row.chip, row.time_ms, code, row.level, FREQUENCY, _plane(key, row.level)))
        for chip in held - set(self.manual):
            self._put((chip, "chip", AUTOFILL_CODE), Reason(chip, now_ms, AUTOFILL_CODE, MANUALLY_SEPARATE, AUTOFILL))

    def _lasting(self, seen: Seen, rules: CodeRules, now_ms: int) -> None:
        """Reasons by duration stand while their fault has lasted too long, or has not been away for long enough."""
        for key, past in seen.items():
            rule = rules.duration.get(key[2])
            if rule is None:
                continue
            if faults.timed_out(past, rule, now_ms) or faults.lingering(past, rule, now_ms):
                since = past.first + rule.timeout_ms
                self._put(key, Reason(key[0], since, key[2], rule.level, DURATION, _plane(key, rule.level)))
            elif (key, DURATION) in self._reasons:
                self._drop(key, DURATION)
        for key, kind in list(self._reasons):
            if kind == DURATION and (key not in seen or key[2] not in rules.duration):
                self._drop(key, kind)

    def _frequent(self, key: Key, reason: Reason, past: CodeMemory | None, rules: CodeRules, now_ms: int) -> None:
        rule = rules.frequency.get(key[2])
        if rule is None:
            # a rule that is gone takes its upgrades with it, but what isolates by hand stays until a person ends it
            if reason.level != MANUALLY_SEPARATE:
                self._drop(key, FREQUENCY)
        elif faults.released(past, reason.time_ms, rule, now_ms):
            self._drop(key, FREQUENCY)
        elif reason.level != rule.level:
            self._put(key, msgspec.structs.replace(reason, level=rule.level, plane=_plane(key, rule.level)))

    def _put(self, key: Key, reason: Reason) -> None:
        if self._reasons.get((key, reason.kind)) != reason and len(self._reasons) < MAX_REASONS:
            self._reasons[(key, reason.kind)] = reason
            self.changed += 1

    def _drop(self, key: Key, kind: str) -> None:
        self.ended = [*self.ended, self._reasons.pop((key, kind))][-MAX_REASONS:]
        self.changed += 1


def grouped(reasons: Iterable[Reason], name: Callable[[int], str]) -> dict[str, list[dict[str, Any]]]:
    """Reasons by device name, as they are published."""
    out: dict[str, list[dict[str, Any]]] = {}
    for reason in reasons:
        out.setdefault(name(reason.chip), []).append(reason.wire)
    return out


def _plane(key: Key, level: str) -> Plane:
    """A chip isolated by hand is out as a whole, whatever plane its code is of."""
    return "chip" if level == MANUALLY_SEPARATE else key[1]


def _longest_release(rules: CodeRules) -> int:
    """Milliseconds after which chips without a reason are released; 0 means never, as when one rule has no end."""
    times = [rule.release_ms for rule in rules.frequency.values()]
    return max(times) if times and all(times) else 0
