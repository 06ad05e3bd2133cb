"""Which chip stands behind each id that kubelet knows. Pure.

Kubelet counts ids and takes whichever it likes; the scheduler chose chips. So an id that a pod holds stands for the
chip that the pod really has, and the ids that nobody holds stand for the chips that nobody has: each for its own chip
while that is free, else for another free one. With health told through this mapping, the healthy ids that kubelet has
left are as many as the free healthy chips.

A chip is a number of equal parts: one when whole chips are offered, ``shareDevCount`` shares, or its AI cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def stands_for(
    own: Mapping[str, int], parts: Mapping[int, int], held: Mapping[str, int], taken: Mapping[int, int]
) -> dict[str, int | None]:
    """Give every id its chip.

    Args:
        own: id → the chip that it is named after.
        parts: chip → how many ids it is worth.
        held: id → the chip that the pod holding it really has.
        taken: chip → parts that pods hold whose ids kubelet does not know any more.

    Returns:
        id → chip; None where no free chip is left for an id.
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
    """The ids to take: those named after the wanted chips (chip → parts), then those that stand for them, then any.

    Without wishes the lowest free chips are taken. Never more than ``size`` ids, those that must be taken first.
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
    # an id that stands for its own chip leaves fewer strangers behind
    rest.sort(key=lambda name: (stands.get(name) != own[name], own[name], name))
    return out + rest[: max(0, size - len(out))]
