"""Map each of kubelet's ids to a chip. Pure.

Kubelet counts ids and picks any of them; the scheduler chose chips. So an id that a pod holds represents the chip that
the pod really has, and the free ids represent the free chips: each its own chip while that is free, else another free
one. Health is reported through this mapping, so kubelet has as many free healthy ids as there are free healthy chips.

A chip has a number of equal parts: one when whole chips are offered, ``shareDevCount`` shares, or its AI cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def stands_for(
    own: Mapping[str, int], parts: Mapping[int, int], held: Mapping[str, int], taken: Mapping[int, int]
) -> dict[str, int | None]:
    """Map every id to a chip.

    Args:
        own: id → the chip in its name.
        parts: chip → its number of ids.
        held: id → the chip that the pod holding it really has.
        taken: chip → parts held by pods whose ids kubelet has released.

    Returns:
        id → chip; None if no free chip is left for an id.
    """
    used = Counter(held.values())
    used.update(taken)
    left = {chip: max(0, count - used[chip]) for chip, count in parts.items()}
    found: dict[str, int | None] = dict(held)
    waiting = []
    for name, chip in own.items():
        if name in held:
            continue
        if left.get(chip, 0) > 0:
            left[chip] -= 1
            found[name] = chip
        else:
            waiting.append(name)
    spare = iter([chip for chip in sorted(left) for _ in range(left[chip])])
    for name in waiting:
        found[name] = next(spare, None)
    return {name: found[name] for name in own}


def preferred(
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    own: Mapping[str, int],
    wanted: Mapping[int, int],
    stands: Mapping[str, int | None],
) -> list[str]:
    """Return the ids to take: those named after the wanted chips (chip → parts), then those mapped to them, then any.

    Without wanted chips the lowest free ones are taken. At most ``size`` ids; the mandatory ids come first.
    """
    left = Counter(wanted)
    out = list(must)[:size]
    for name in out:
        left[own.get(name, -1)] -= 1
    rest = [name for name in available if name not in set(out) and name in own]
    rest.sort(key=lambda name: (own[name], name))
    for key in (own, stands):
        for name in list(rest):
            chip = key.get(name)
            if len(out) < size and chip is not None and left[chip] > 0:
                left[chip] -= 1
                out.append(name)
                rest.remove(name)
    # an id that represents its own chip leaves fewer ids mapped to other chips
    rest.sort(key=lambda name: (stands.get(name) != own[name], own[name], name))
    return out + rest[: max(0, size - len(out))]
