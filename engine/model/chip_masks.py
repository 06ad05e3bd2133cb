"""Sets of chips as bit masks: bit *i* is the chip with id *i*."""

from __future__ import annotations

from functools import lru_cache


def mask_of(ids: tuple[int, ...] | list[int]) -> int:
    """Bit mask of chip ids."""
    mask = 0
    for i in ids:
        mask |= 1 << i
    return mask


@lru_cache(maxsize=4096)
def ids_of(mask: int) -> tuple[int, ...]:
    """Chip ids of a mask, ascending."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return tuple(out)
