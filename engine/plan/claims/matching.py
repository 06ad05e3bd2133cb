"""Devices for requests: an assignment of one node's devices that meets counts, selectors and constraints; bounded.

The rules are those of Kubernetes' allocator (k8s.io/dynamic-resource-allocation/structured): a device has one user but
for admin access, which still gets no device twice within a claim; counters that devices share are never exceeded; "all"
means every device that the selectors take, and fails when one of them is taken or has a taint that is not tolerated;
constraints hold for all devices of their requests; a claim has at most 32 devices.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from belay.engine.plan.claims.bounds import Ask, Wanted, equal, narrowed
from belay.engine.plan.claims.devices import Amounts, ClaimDevice, Counter
from belay.engine.plan.claims.requests import ALL, MAX_DEVICES, Request

#: Most steps of one search; real claims ask for equal chips, which takes as many steps as chips.
MAX_STEPS: Final = 4096


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
    left: Amounts | None = None,
) -> list[Given] | None:
    """Devices for all of the requests; None when there are none, or none was found in ``MAX_STEPS`` steps.

    Args:
        suiting: names of the devices that suit a request.
        taken: names of devices that others have; requests with admin access get them too.
        within: chips of which every one must be used, and no other whole chip; None: any.
        left: what is left of the counters that devices share.
    """
    free = [one for one in devices if one.name not in taken]
    if within is not None:
        free = [one for one in free if one.part or one.chip in within]
    wanted: list[Wanted] = []
    for ask in asks:
        request = ask.request
        names = suiting(request)
        fitting = [one for one in (devices if request.admin else free) if one.name in names]
        count = request.count
        if count == ALL:
            # those that suit are selected; only the others are asked for their selectors again
            count = sum(one.name in names or request.selects(one) for one in devices)
            if not count or len(fitting) < count:
                return None
        wanted.append(Wanted(ask, fitting, count))
    sizes: Count[int] = Count()
    for one in wanted:
        sizes[one.ask.claim] += one.number
    if any(number > MAX_DEVICES for number in sizes.values()):
        return None
    # the request with the fewest devices first, equal ones side by side; watchers take what the others left
    wanted.sort(key=lambda one: (one.ask.request.admin, len(one.fitting), one.ask.claim, one.ask.request.name))
    usable = narrowed(wanted, left or {})
    if usable is None:
        return None
    found = _Search([(one.ask, one.fitting) for one in usable for _ in range(one.number)], left or {}).run()
    if found is None:
        return None
    own = {one.device.chip for one in found if not one.device.part and not one.ask.request.admin}
    if within is not None and own != set(within):
        return None
    return sorted(found, key=lambda one: (one.ask.claim, one.ask.request.name, one.device.name))


class _Search:
    def __init__(self, slots: Sequence[tuple[Ask, list[ClaimDevice]]], left: Amounts) -> None:
        self._slots, self._left = slots, left
        self._steps = 0
        self._given: list[Given] = []
        self._spent: dict[Counter, Fraction] = {}

    def run(self) -> list[Given] | None:
        return list(self._given) if self._next(0, 0) else None

    def _next(self, number: int, start: int) -> bool:
        if number == len(self._slots):
            return True
        ask, fitting = self._slots[number]
        run = 1  # equal slots from here on: they take one device each of those that follow
        while number + run < len(self._slots) and self._slots[number + run][0] is ask:
            run += 1
        same_next = run > 1
        for at in range(start, len(fitting) - run + 1):
            self._steps += 1
            if self._steps > MAX_STEPS:
                return False
            device = fitting[at]
            if self._clashes(ask, device) or not self._meets(ask, device):
                continue
            self._given.append(Given(ask, device))
            self._spend(ask, device, 1)
            # equal slots take devices in order, so that no set is tried twice
            if self._next(number + 1, at + 1 if same_next else 0):
                return True
            self._given.pop()
            self._spend(ask, device, -1)
        return False

    def _clashes(self, ask: Ask, device: ClaimDevice) -> bool:
        """Whether a device is given already, or shares more with the others than there is."""
        if ask.request.admin:
            return any(one.device.name == device.name and one.ask.claim == ask.claim for one in self._given)
        others = [one.device for one in self._given if not one.ask.request.admin]
        if any(one.name == device.name for one in others):
            return True
        # a whole chip and a part of it
        if device.chip is not None and any(
            one.chip == device.chip and not (one.part and device.part) for one in others
        ):
            return True
        return any(
            self._spent.get(counter, 0) + amount > self._left.get(counter, 0) for counter, amount in device.consumes
        )

    def _spend(self, ask: Ask, device: ClaimDevice, sign: int) -> None:
        if not ask.request.admin:
            for counter, amount in device.consumes:
                self._spent[counter] = self._spent.get(counter, Fraction(0)) + sign * amount

    def _meets(self, ask: Ask, device: ClaimDevice) -> bool:
        for constraint in ask.constraints:
            if not constraint.concerns(ask.request):
                continue
            value = device.values.get(constraint.attribute)
            if value is None:
                return False
            for one in self._given:
                if one.ask.claim == ask.claim and constraint.concerns(one.ask.request):
                    same = equal(one.device.values.get(constraint.attribute), value)
                    if same is constraint.distinct:
                        return False
        return True


__all__ = ["MAX_STEPS", "Ask", "Given", "match"]
