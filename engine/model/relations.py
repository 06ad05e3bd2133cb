"""Relation faults: the link or switch fault that broke a job, found by faults on all of its nodes.

A trigger (a failed or retried collective operation) together with a link or switch fault identifies the faulty
hardware: the location of the link or switch fault is separated or counts as sub-healthy. Functions of the memory and
``now``; Unix milliseconds; ``chip`` -1 is the node's switch.

Source: component/clusterd/pkg/application/faultmanager/jobprocess/relationfault, build/relationFaultCustomization.json
and faultDuration.json.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import msgspec

from belay.engine.model.faults import code_key
from belay.engine.model.history import RelationFault

SEPARATE: Final = "Separate"
SUB_HEALTH: Final = "SubHealth"
IGNORED: Final = "ignored"
SWITCH: Final = -1
#: How long a relation fault waits for its trigger, and is remembered after it disappeared.
PATIENCE_MS: Final = 300_000
MAX_REMEMBERED: Final = 2_000

_LINK: Final = "81078603"
_LINGQU: Final = "[0x08520003,na,l2,na]"
#: Errors of the completion queue: on A3 they arrive late, so they are matched when the link fault times out.
CQE: Final = frozenset({"8C1F8608", "4C1F8608"})


class RelationRule(NamedTuple):
    """When ``trigger`` and all of ``relations`` are present in a job, the locations of these get ``strategy``."""

    trigger: str
    relations: tuple[str, ...]
    strategy: str


RULES: Final = (
    RelationRule("8C1F8609", (_LINK,), SUB_HEALTH),
    RelationRule("8C1F860B", (_LINK,), SEPARATE),
    RelationRule("8C1F860B", (_LINGQU,), SEPARATE),
    RelationRule("8C1F8608", (_LINK,), SEPARATE),
    RelationRule("4C1F8608", (_LINK,), SEPARATE),
)
TRIGGERS: Final = frozenset(rule.trigger for rule in RULES)
RELATIONS: Final = frozenset(code for rule in RULES for code in rule.relations)
CODES: Final = TRIGGERS | RELATIONS


class FaultLocation(NamedTuple):
    """A code of the relation table on a chip of the job, or on the switch of one of its nodes."""

    node: str
    chip: int
    code: str


Strategies = dict[tuple[str, int], str]


def follow(
    before: Iterable[RelationFault], there: Collection[FaultLocation], *, a3: bool, since_ms: int, now_ms: int
) -> tuple[tuple[RelationFault, ...], Strategies]:
    """The next memory, and the strategies decided now, by (node, chip).

    Args:
        before: the memory.
        there: the fault locations of this pass (codes in any case).
        a3: whether the job runs in a super pod.
        since_ms: when the job was first observed; older faults did not break it.
        now_ms: the time of the pass.
    """
    known = {(r.node, r.chip, r.code): r for r in before}
    present = {(c.node, c.chip, code_key(c.code)) for c in there if code_key(c.code) in CODES}
    rows: dict[tuple[str, int, str], RelationFault] = {}
    for key in present:
        old = known.get(key)
        rows[key] = old if old is not None and not old.gone else RelationFault(*key, received=now_ms)
    for key, old in known.items():
        # an error of the completion queue is needed until an older link fault has timed out
        patience = PATIENCE_MS if key[2] in RELATIONS else 2 * PATIENCE_MS if key[2] in CQE else -1
        if key not in present and now_ms - old.received <= patience:
            rows[key] = old if old.gone else msgspec.structs.replace(old, gone=now_ms)
    decided: Strategies = {}
    _match(rows, decided, a3)
    _expire(rows, decided, a3=a3, since_ms=since_ms, now_ms=now_ms)
    kept = sorted(rows.values(), key=lambda r: (bool(r.gone), r.received, r.node, r.chip, r.code))[:MAX_REMEMBERED]
    return tuple(sorted(kept, key=lambda r: (r.node, r.chip, r.code))), decided


def worse(one: str, other: str) -> str:
    """Return the graver of two strategies; Separate is graver than SubHealth, either than none."""
    return SEPARATE if SEPARATE in (one, other) else one or other


def _match(rows: dict[tuple[str, int, str], RelationFault], decided: Strategies, a3: bool) -> None:
    for rule in RULES:
        late = rule.trigger in CQE
        if (a3 and late) or not any(r.code == rule.trigger and not r.gone for r in rows.values()):
            continue
        carriers = [r for r in rows.values() if r.code in rule.relations and (late or not r.gone)]
        if {r.code for r in carriers} != set(rule.relations):
            continue
        for row in carriers:
            _decide(rows, decided, row, rule.strategy)


def _expire(
    rows: dict[tuple[str, int, str], RelationFault], decided: Strategies, *, a3: bool, since_ms: int, now_ms: int
) -> None:
    """Decide relation faults that timed out without a strategy.

    A switch becomes sub-healthy; a link is separated when an error of the completion queue followed it in time.
    """
    for row in list(rows.values()):
        if row.gone or row.executed or row.code not in RELATIONS or now_ms - row.received <= PATIENCE_MS:
            continue
        if row.received < since_ms:
            _decide(rows, decided, row, IGNORED)
        elif row.chip == SWITCH:
            _decide(rows, decided, row, SUB_HEALTH)
        else:
            followed = a3 and any(
                r.code in CQE and 0 <= r.received - row.received <= PATIENCE_MS for r in rows.values()
            )
            _decide(rows, decided, row, SEPARATE if followed else IGNORED)


def _decide(
    rows: dict[tuple[str, int, str], RelationFault], decided: Strategies, row: RelationFault, strategy: str
) -> None:
    """Record a strategy: once per fault; Separate is never lowered."""
    key = (row.node, row.chip, row.code)
    before = rows[key].executed
    if before in (SEPARATE, strategy) or (before and strategy == IGNORED):
        return
    rows[key] = msgspec.structs.replace(rows[key], executed=strategy)
    if strategy != IGNORED:
        place = (row.node, row.chip)
        decided[place] = worse(strategy, decided.get(place, ""))
