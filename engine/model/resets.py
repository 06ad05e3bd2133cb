"""Reset groups: the chips that reset together; shared by planner and node agents.

A reset of one chip resets its whole ring, card or module pair. Sources: component/ascend-device-plugin
pkg/server/hot_reset_manager.go and pkg/device/ascendcommon.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from belay.engine.model.chip_masks import mask_of

#: Two dies of a module plus two of the module that shares its optical ports.
_A3_MODULE_PAIR = 4


def groups(
    written: Sequence[Iterable[int]],
    base: int,
    *,
    scope: str | None = None,
    known: bool = True,
) -> tuple[int, ...]:
    """The reset groups of one node as bit masks, ordered by their lowest chip; every chip of ``base`` is in one.

    Args:
        written: the product's groups of a full node (``Product.reset_groups``).
        base: mask of the chips that the node has.
        scope: the product's ``reset.scope``; ``a3-module`` joins each module with the one beside it.
        known: False when the product is unknown or its row has no reset rule: then the whole node is one group,
            which may wait for more idle chips than needed, but never resets a chip in use.
    """
    if not base:
        return ()
    if not known:
        return (base,)
    masks = [mask_of(list(group)) for group in written]
    if scope == "a3-module":
        masks = _pairs(base)
    return _partition(masks, base)


def said_by_driver(said: Sequence[Iterable[int]], base: int) -> tuple[int, ...]:
    """The reset groups of one node as its driver says, as ``groups`` gives them; empty where it leaves out a chip.

    The driver knows what no table does: which modules of an A3 server share optical ports, and whether an A2 server
    has an HCCS ring.
    """
    masks = [mask_of(list(group)) for group in said]
    named = 0
    for mask in masks:
        named |= mask
    return _partition(masks, base) if base and not base & ~named else ()


def _pairs(base: int) -> list[int]:
    ring = (1 << _A3_MODULE_PAIR) - 1
    return [ring << first for first in range(0, base.bit_length(), _A3_MODULE_PAIR)]


def _partition(masks: Iterable[int], base: int) -> tuple[int, ...]:
    """Merge overlapping groups; a chip in no group resets alone."""
    out: list[int] = []
    for mask in [m & base for m in masks] + [1 << c for c in range(base.bit_length()) if base >> c & 1]:
        if not mask:
            continue
        for other in [o for o in out if o & mask]:
            out.remove(other)
            mask |= other
        out.append(mask)
    return tuple(sorted(out, key=lambda m: m & -m))


def group_of(chip: int, of: Iterable[int]) -> int:
    """The mask of the chip's group; of the chip alone when no group contains it."""
    return next((mask for mask in of if mask >> chip & 1), 1 << chip)
