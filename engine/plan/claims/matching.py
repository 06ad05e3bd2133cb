"""Devices for requests: an assignment of one node's devices that meets counts, selectors and constraints; bounded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from engine.plan.claims.devices import ClaimDevice
from engine.plan.claims.requests import ALL, Constraint, Request

#: Most steps of one search; real claims ask for equal chips, which takes as many steps as chips.
MAX_STEPS: Final = 4096


class Ask(NamedTuple):
    """One request of one claim (by its number among a pod's claims), with the constraints of the claim."""

    claim: int
    request: Request
    constraints: tuple[Constraint, ...]


class Given(NamedTuple):
    """One device for one request."""

    ask: Ask
    device: ClaimDevice


def match(
    asks: Sequence[Ask],
    devices: Sequence[ClaimDevice],
    suiting: Callable[[Request], Collection[str]],
    taken: Collection[str],
    within: Collection[int] | None = None,
) -> list[Given] | None:
    """Devices for all of the requests; None when there are none, or none was found in ``MAX_STEPS`` steps.

    Args:
        suiting: names of the devices that suit a request.
        taken: names of devices that others have; requests with admin access get them too.
        within: chips of which every one must be used, and no other whole chip; None: any.
    """
    free = [one for one in devices if one.name not in taken]
    if within is not None:
        free = [one for one in free if one.part or one.chip in within]
    slots: list[tuple[Ask, list[ClaimDevice]]] = []
    for ask in asks:
        if ask.request.admin:
            continue
        fitting = [one for one in free if one.name in suiting(ask.request)]
        if ask.request.count == ALL:
            every = [one for one in devices if one.name in suiting(ask.request)]
            if not every or len(fitting) < len(every):
                return None
        count = len(fitting) if ask.request.count == ALL else ask.request.count
        slots += [(ask, fitting)] * count
    # the request with the fewest devices first, equal ones side by side
    slots.sort(key=lambda slot: (len(slot[1]), slot[0].claim, slot[0].request.name))
    found = _Search(slots).run()
    if found is None:
        return None
    if within is not None and {one.device.chip for one in found if not one.device.part} != set(within):
        return None
    for ask in asks:
        if ask.request.admin:
            fitting = [one for one in devices if one.name in suiting(ask.request)]
            wanted = len(fitting) if ask.request.count == ALL else ask.request.count
            if not fitting or len(fitting) < wanted:
                return None
            found += [Given(ask, one) for one in fitting[:wanted]]
    return sorted(found, key=lambda one: (one.ask.claim, one.ask.request.name, one.device.name))


class _Search:
    def __init__(self, slots: Sequence[tuple[Ask, list[ClaimDevice]]]) -> None:
        self._slots = slots
        self._steps = 0
        self._used: set[str] = set()
        self._given: list[Given] = []

    def run(self) -> list[Given] | None:
        return list(self._given) if self._next(0, 0) else None

    def _next(self, number: int, start: int) -> bool:
        if number == len(self._slots):
            return True
        ask, fitting = self._slots[number]
        same_next = number + 1 < len(self._slots) and self._slots[number + 1][0] is ask
        for at in range(start, len(fitting)):
            self._steps += 1
            if self._steps > MAX_STEPS:
                return False
            device = fitting[at]
            if device.name in self._used or self._overlaps(device) or not self._meets(ask, device):
                continue
            self._used.add(device.name)
            self._given.append(Given(ask, device))
            # equal slots take devices in order, so that no set is tried twice
            if self._next(number + 1, at + 1 if same_next else 0):
                return True
            self._given.pop()
            self._used.discard(device.name)
        return False

    def _overlaps(self, device: ClaimDevice) -> bool:
        """Whether a whole chip and a part of it would both be given."""
        return any(
            one.device.chip == device.chip and not (one.device.part and device.part)
            for one in self._given
            if device.chip is not None
        )

    def _meets(self, ask: Ask, device: ClaimDevice) -> bool:
        for constraint in ask.constraints:
            if not constraint.concerns(ask.request):
                continue
            value = device.values.get(constraint.attribute)
            if value is None:
                return False
            for one in self._given:
                if one.ask.claim == ask.claim and constraint.concerns(one.ask.request):
                    same = one.device.values.get(constraint.attribute) == value
                    if same is constraint.distinct:
                        return False
        return True


__all__ = ["MAX_STEPS", "Ask", "Given", "match"]
