"""How many devices requests can have at most: an impossible wish is refused by counting, before any search.

A search for sixteen of fifteen chips would go through thousands of sets. Counted are devices, chips (whole or cut),
counters that devices share, and values of attributes that constraints bind. What is refused has no assignment, and a
device that is left out is in none, so that a search finds the same assignment with these bounds as without them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from belay.engine.plan.claims.devices import Amounts, ClaimDevice, Counter
from belay.engine.plan.claims.requests import Constraint, Request


class Ask(NamedTuple):
    """One request of one claim (by its number among a pod's claims), with the constraints of the claim."""

    claim: int
    request: Request
    constraints: tuple[Constraint, ...]


class Wanted(NamedTuple):
    """An ask, the devices that are free and suit it, and how many of them it wants."""

    ask: Ask
    fitting: list[ClaimDevice]
    number: int


def narrowed(wanted: Sequence[Wanted], left: Amounts) -> list[Wanted] | None:
    """The asks without devices that no assignment can use, in the same order; None when there is no assignment.

    Args:
        left: what is left of the counters that devices share.
    """
    if not _enough(wanted, left):
        return None
    if not any(one.ask.constraints for one in wanted):
        return list(wanted)
    found = list(wanted)
    for claim in sorted({one.ask.claim for one in wanted if one.ask.constraints}):
        rules = next(one.ask.constraints for one in wanted if one.ask.claim == claim)
        for bound in dict.fromkeys(rule.requests for rule in rules):
            same = [rule for rule in rules if rule.requests == bound]
            numbers = [i for i, one in enumerate(found) if one.ask.claim == claim and same[0].concerns(one.ask.request)]
            fitting = _bound([found[i] for i in numbers], same, left)
            if fitting is None:
                return None
            for i, some in zip(numbers, fitting, strict=True):
                found[i] = found[i]._replace(fitting=some)
    return found if _enough(found, left) else None


def equal(one: object, other: object) -> bool:
    """Whether attributes have one value; 1 is not true."""
    return type(one) is type(other) and one == other


def _bound(wanted: Sequence[Wanted], rules: Sequence[Constraint], left: Amounts) -> list[list[ClaimDevice]] | None:
    """The devices of asks that the same constraints bind, of the values for which there are enough; None: of none."""
    attributes = [rule.attribute for rule in rules]
    fitting = [
        [device for device in one.fitting if all(device.values.get(name) is not None for name in attributes)]
        for one in wanted
    ]
    total = sum(one.number for one in wanted)
    every = {(device.pool, device.name): device for some in fitting for device in some}
    for rule in rules:
        if rule.distinct and len(_kinds(every.values(), [rule.attribute])) < total:
            return None
    equal_ones = [rule.attribute for rule in rules if not rule.distinct]
    if equal_ones and total:
        kept: set[int] = set()
        for group in _kinds((device for some in fitting for device in some), equal_ones):
            ids = {id(device) for device in group}
            some = [one._replace(fitting=[d for d in one.fitting if id(d) in ids]) for one in wanted]
            if _enough(some, left):
                kept |= ids
        if not kept:
            return None
        fitting = [[device for device in some if id(device) in kept] for some in fitting]
    return fitting


def _kinds(devices: Iterable[ClaimDevice], attributes: Sequence[str]) -> list[list[ClaimDevice]]:
    """Devices by their values of these attributes, which all of them have."""
    groups: dict[tuple[tuple[type, Hashable], ...], list[ClaimDevice]] = {}
    for device in devices:
        values = [device.values[name] for name in attributes]
        # as ``equal`` compares; what is not a value of an attribute may not be hashable
        key = tuple((type(one), one if isinstance(one, int | str | tuple) else repr(one)) for one in values)
        groups.setdefault(key, []).append(device)
    return list(groups.values())


def _enough(wanted: Sequence[Wanted], left: Amounts) -> bool:
    """Whether each ask has as many devices as it wants, and so have the asks together that get no device twice."""
    own: dict[tuple[str, str], ClaimDevice] = {}
    total = 0
    for one in wanted:
        if len(one.fitting) < one.number:
            return False
        if not one.ask.request.admin:
            # the asks with the fewest devices stand first: what they have together must do for them
            own.update(((device.pool, device.name), device) for device in one.fitting)
            total += one.number
            if _most(one.fitting, left) < one.number or (total > one.number and _most(own.values(), left) < total):
                return False
    for claim in {one.ask.claim for one in wanted if one.ask.request.admin}:
        mine = [one for one in wanted if one.ask.claim == claim]
        if len({device.name for one in mine for device in one.fitting}) < sum(one.number for one in mine):
            return False
    return True


def _most(devices: Iterable[ClaimDevice], left: Amounts) -> int:
    """As many of these devices as fit beside each other, or more: counted by chip and by one counter of each."""
    whole: set[int] = set()
    parts: dict[int | None, dict[Counter | None, list[Fraction]]] = {}
    for device in devices:
        if device.chip is not None and not device.part:
            whole.add(device.chip)
            continue
        counter, amount = device.consumes[0] if device.consumes else (None, Fraction(0))
        parts.setdefault(device.chip, {}).setdefault(counter, []).append(amount)
    found = {chip: sum(_fitting(c, amounts, left) for c, amounts in rows.items()) for chip, rows in parts.items()}
    return sum(found.values()) + sum(not found.get(chip) for chip in whole)


def _fitting(counter: Counter | None, amounts: list[Fraction], left: Amounts) -> int:
    """How many of these amounts a counter covers, the smallest ones first."""
    if counter is None:
        return len(amounts)
    rest, number = left.get(counter, Fraction(0)), 0
    for amount in sorted(amounts):
        rest -= amount
        if rest < 0:
            break
        number += 1
    return number


__all__ = ["Ask", "Wanted", "equal", "narrowed"]
