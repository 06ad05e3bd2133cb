"""Fault codes: code → level, and the rules on their occurrences and durations.

Pure functions of rules, recorded history and ``now``, shared by planner and node agents so that both decide alike.
Times are Unix milliseconds. Sources: component/ascend-device-plugin/pkg/common/fault_code.go and
upgradefault.go; docs/zh/scheduling/04_usage/04_resumable_training/03_configuration.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from belay.engine.model.history import CodeMemory
from belay.engine.model.levels import (
    CHIP_LEVELS,
    NETWORK_LEVELS,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    SWITCH_WORDS,
)
from belay.engine.model.quantities import whole_number

NETWORK: Final = "CardNetworkUnhealthy"
CARD: Final = "CardUnhealthy"
PUBLIC: Final = "PublicFault"
HEARTBEAT: Final = "heartbeatTimeOut"
"""The fault of a node that is not ready, or gone, in MindCluster's word."""

#: Maximum occurrences remembered per code; the largest ``times`` of a frequency rule is 100.
MAX_OCCURRENCES: Final = 100
#: Maximum codes remembered per chip; a driver reports at most 128 at once.
MAX_CODES: Final = 128

#: Smaller times are in seconds: 10^11 ms is 1973 (public and hang faults report seconds).
_SECONDS_BELOW: Final = 100_000_000_000

#: How long a filter hides a fault that states no time (ms), and the longest time that one may state (s).
TOLERANCE_MS: Final = 60_000
MAX_TOLERANCE: Final = 86_400
#: One entry of a filter: what is between commas outside brackets.
_ENTRY: Final = re.compile(r"(?:\[[^\]]*\]?|[^,\[])+")
#: Commas and colons of Chinese keyboards, which MindCluster reads as well.
_FULL_WIDTH: Final = str.maketrans("\uff0c\uff1a", ",:")
_SWITCH_LEVELS: Final[dict[str, str]] = {word: level for word, level in SWITCH_WORDS.items() if word not in CHIP_LEVELS}

#: HBM uncorrectable error, and the AIC/AIV bus errors that follow from it.
UCE_CODE: Final = "80E01801"
UCE_COMPANIONS: Final = frozenset({"80C98009", "80CB8009"})
UCE_WINDOW_MS: Final = 5_000


class Frequency(msgspec.Struct, frozen=True):
    """A frequency rule: ``times`` occurrences within ``window_ms`` give ``level``, for ``release_ms`` (0: no end)."""

    times: int
    window_ms: int
    level: str
    release_ms: int = 0
    rule: str = ""


class Duration(msgspec.Struct, frozen=True):
    """A duration rule: presence beyond ``timeout_ms`` gives ``level``, until absent for longer than ``recover_ms``."""

    timeout_ms: int
    recover_ms: int
    level: str
    rule: str = ""


class Unlisted(msgspec.Struct, frozen=True):
    """The rule for codes that no table lists: level by the driver's severity, else ``otherwise``.

    ``network`` applies on the network plane. Severities: "0" suggestion, "1" minor, "2" major, "3" critical.
    """

    by_severity: dict[str, str] = msgspec.field(default_factory=lambda: {"0": NOT_HANDLE, "1": NOT_HANDLE})
    otherwise: str = SEPARATE
    network: str = PRE_SEPARATE

    def level(self, kind: str, severity: int | None = None) -> str:
        """The level; ``severity`` is None when the driver gave none."""
        return self.network if kind == NETWORK else self.by_severity.get(str(severity), self.otherwise)


class CodeRules(msgspec.Struct, frozen=True):
    """All rules on codes; keys are :func:`code_key` of the code.

    ``overrides`` are the fault policies in scope: code → (level, rule name); ``table`` the shipped levels. ``planes``
    are the tables of the planes ``node`` and ``switch`` in their own words, for reports; ``unlisted`` is the rule for
    codes that the chip table does not list.
    """

    overrides: dict[str, tuple[str, str]] = {}
    table: dict[str, str] = {}
    frequency: dict[str, Frequency] = {}
    duration: dict[str, Duration] = {}
    planes: dict[str, dict[str, str]] = {}
    unlisted: Unlisted = Unlisted()


def code_key(code: str) -> str:
    """Canonical form for comparing codes: reports mix case, and codes read as integers lost leading zeros."""
    if code.startswith("["):
        return code.lower()
    return code.upper().removeprefix("0X").lstrip("0") or "0"


def moment(time: int, now_ms: int) -> int:
    """A reported fault time in Unix milliseconds; unknown (0) and future times count as now."""
    if time <= 0:
        return now_ms
    return min(time * 1000 if time < _SECONDS_BELOW else time, now_ms)


def level_of(rules: CodeRules, kind: str, code: str, reported: str, *, severity: int | None = None) -> tuple[str, str]:
    """A code's level and its source: policy, else report, else shipped table, else the unlisted-code rule.

    Returns:
        The level, and the policy's rule name or ``report``, ``table``, ``unlisted``.
    """
    key = code_key(code)
    override = rules.overrides.get(key)
    if override is not None:
        return _on_plane(kind, override[0]), override[1]
    if reported:
        return reported, "report"
    listed = rules.table.get(key)
    if listed is not None:
        return _on_plane(kind, listed), "table"
    return rules.unlisted.level(kind, severity), "unlisted"


def _on_plane(kind: str, level: str) -> str:
    """A level on its plane: the parameter plane ignores what it does not know."""
    return NOT_HANDLE if kind == NETWORK and level not in NETWORK_LEVELS else level


def present(before: CodeMemory | None, raised_ms: int, now_ms: int, rules: CodeRules, code: str) -> CodeMemory:
    """A code's memory after a report that contains it; the same object when nothing changed.

    An occurrence is a first report, a report after an absence, or a newer fault time; under a duration rule it is the
    moment when the fault timed out. A return within the rule's recovery time continues the episode.
    """
    duration = rules.duration.get(code_key(code))
    raised = moment(raised_ms, now_ms)
    if before is None:
        after = CodeMemory(first=raised, last=raised, occurrences=() if duration else (raised,))
    elif not before.present:
        resumed = duration is not None and lingering(before, duration, now_ms)
        fresh = max(raised, before.recovered)
        after = CodeMemory(
            first=before.first if resumed else fresh,
            last=fresh,
            occurrences=before.occurrences if duration else _append(before.occurrences, fresh),
            recovered=before.recovered,
        )
    elif raised_ms > 0 and raised > before.last and duration is None:
        after = msgspec.structs.replace(
            before, last=raised, occurrences=_append(before.occurrences, raised), counted=False
        )
    else:
        after = before
    if duration is not None and timed_out(after, duration, now_ms):
        due = after.first + duration.timeout_ms
        if due > (after.occurrences[-1] if after.occurrences else -1):
            after = msgspec.structs.replace(after, occurrences=_append(after.occurrences, due))
    return after


def absent(before: CodeMemory, now_ms: int, rules: CodeRules, code: str) -> CodeMemory | None:
    """A code's memory after a full report without it; None when no rule needs it."""
    key = code_key(code)
    after = before if not before.present else msgspec.structs.replace(before, present=False, recovered=now_ms)
    frequency, duration = rules.frequency.get(key), rules.duration.get(key)
    if frequency is not None and any(t >= now_ms - frequency.window_ms for t in after.occurrences):
        return after
    if duration is not None and lingering(after, duration, now_ms):
        return after
    return None


def timed_out(seen: CodeMemory, rule: Duration, now_ms: int) -> bool:
    """Whether a present fault has lasted strictly longer than the rule's timeout."""
    return seen.present and now_ms - seen.first > rule.timeout_ms


def lingering(seen: CodeMemory, rule: Duration, now_ms: int) -> bool:
    """Whether a fault that had timed out is absent, but not yet longer than the rule's recovery time.

    A reporter that raised the fault itself keeps it in its report for that time, so it has passed when the fault goes.
    """
    if seen.present or seen.held_by_reporter:
        return False
    return _lasted(seen, rule) and now_ms - seen.recovered <= rule.recover_ms


def _lasted(seen: CodeMemory, rule: Duration) -> bool:
    return seen.recovered - seen.first > rule.timeout_ms


def too_often(seen: CodeMemory, rule: Frequency, now_ms: int) -> bool:
    """Whether the code occurred at least ``times`` times within the window."""
    return sum(1 for t in seen.occurrences if t >= now_ms - rule.window_ms) >= rule.times


def released(seen: CodeMemory | None, since_ms: int, rule: Frequency, now_ms: int) -> bool:
    """Whether the release window of an upgrade made at ``since_ms`` has passed without the fault."""
    if rule.release_ms == 0 or (seen is not None and seen.present):
        return False
    quiet_since = max(since_ms, seen.recovered) if seen is not None else since_ms
    return now_ms - quiet_since > rule.release_ms


def companion(code: str, raised_ms: int, uce_ms: tuple[int, ...], now_ms: int) -> str:
    """What to do with an AIC/AIV bus error: ``drop`` beside an uncorrectable HBM error, ``wait`` to decide, ``keep``.

    Source: component/clusterd/pkg/application/faultmanager/cmprocess/uceaccompany.
    """
    if code_key(code) not in UCE_COMPANIONS:
        return "keep"
    raised = moment(raised_ms, now_ms)
    if any(abs(raised - moment(uce, now_ms)) <= UCE_WINDOW_MS for uce in uce_ms):
        return "drop"
    return "wait" if raised_ms > 0 and now_ms - raised <= UCE_WINDOW_MS else "keep"


class FaultFilters(msgspec.Struct, frozen=True):
    """How long a job tolerates faults: code or level → milliseconds. The entry of a code wins over a level's."""

    codes: dict[str, int] = {}
    levels: dict[str, int] = {}

    def tolerance(self, code: str, level: str) -> int | None:
        """How long after its raising a fault stays hidden from the job (ms); None when it is not hidden."""
        by_code = self.codes.get(code_key(code))
        return by_code if by_code is not None else self.levels.get(level)


def parse_filters(codes_text: str, levels_text: str) -> FaultFilters:
    """Parse annotations ``huawei.com/schedule.filter.faultCode`` and ``.faultLevel`` (``X[:seconds],Y``).

    Seconds are 60 where they are left out, no number or beyond a day. The commas of a switch's code, which is in
    brackets, divide nothing; the words of the switch's table mean the levels that are reported for them.
    """
    return FaultFilters(
        codes={code_key(name): ms for name, ms in _entries(codes_text)},
        levels={_SWITCH_LEVELS.get(name, name): ms for name, ms in _entries(levels_text)},
    )


def _entries(text: str) -> list[tuple[str, int]]:
    out = []
    for item in _ENTRY.findall(text.translate(_FULL_WIDTH))[:1000]:
        name, _, seconds = item.partition(":")
        name, seconds = name.strip(), seconds.strip()
        number = whole_number(seconds)
        if name:
            out.append((name, number * 1000 if number is not None and number <= MAX_TOLERANCE else TOLERANCE_MS))
    return out


def _append(times: tuple[int, ...], moment_ms: int) -> tuple[int, ...]:
    return (*times, moment_ms)[-MAX_OCCURRENCES:]
