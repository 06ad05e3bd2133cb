"""Dynamic vNPUs: the capacity left on a chip for a request of AI cores.

Source: component/ascend-for-volcano/plugin/vnode.go. Its rules on cores, AI CPUs, vGroups and the DVPP hold as they
are; memory and media engines are added up by docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from belay.engine.model.vnpu import ChipCapacity, TemplateSize, unfit

#: Use of a chip's DVPP, by a request or by its vNPUs.
DVPP_YES: Final = "yes"
DVPP_NO: Final = "no"
DVPP_NULL: Final = "null"
#: (vGroups in use, cores): such a chip has no room for a request of that many cores or more.
_GROUP_LIMITS: Final = ((3, 4), (4, 2))
#: One or two vNPUs of a single core share a vGroup by time slices.
_SHARE_A_GROUP: Final = 2


class ChipUse(msgspec.Struct, frozen=True):
    """One pod or vNPU on a chip.

    ``size`` is None for the whole chip, and for an unknown template, which counts as much. ``coming``: the device
    plugin has not named the device yet; ``unstable``: nor had it in an earlier pass. ``group`` is its vGroup, None
    when its name has none.
    """

    size: TemplateSize | None
    whole: bool = False
    coming: bool = False
    unstable: bool = False
    group: int | None = None


class FreeCapacity(msgspec.Struct, frozen=True):
    """Free capacity of a chip: AI cores, AI CPUs, DVPP; and its vGroups in use.

    ``dvpp``: no when one vNPU has all of it, null when some use a share, yes while it is unused. ``cut``: a vNPU is on
    the chip, so it cannot be used whole. ``unstable``: a vNPU is still being created, so no other is placed beside it.
    """

    aicore: int
    aicpu: int
    dvpp: str
    cut: bool
    unstable: bool
    groups: int


def free_capacity(totals: ChipCapacity, tenants: Iterable[ChipUse]) -> FreeCapacity:
    """The capacity that the pods and vNPUs on a chip leave."""
    rows = list(tenants)
    sizes = [row.size for row in rows if row.size is not None]
    full = len(sizes) < len(rows)
    flags = {flag_of(size) for size in sizes}
    dvpp = DVPP_NO if DVPP_YES in flags else DVPP_NULL if DVPP_NULL in flags else DVPP_YES
    return FreeCapacity(
        aicore=0 if full else totals.aicore - sum(size.aicore for size in sizes),
        aicpu=0 if full else totals.aicpu - sum(size.aicpu for size in sizes),
        dvpp=dvpp,
        cut=any(not row.whole for row in rows),
        unstable=any(row.unstable for row in rows),
        groups=_groups(rows),
    )


def unfit_reason(totals: ChipCapacity, tenants: Sequence[ChipUse], size: TemplateSize, *, vgroups: bool) -> str | None:
    """Why a vNPU of this size does not fit beside the others, None when it does; ``vgroups``: the chip has vGroups."""
    room = free_capacity(totals, tenants)
    if room.aicore < size.aicore:
        return f"{max(0, room.aicore)} AI cores left"
    if room.aicpu < size.aicpu:
        return f"{max(0, room.aicpu)} AI CPUs left"
    if vgroups and room.cut:
        for groups, most in _GROUP_LIMITS:
            if room.groups == groups and size.aicore >= most:
                return f"{groups} vGroups in use"
    flag = flag_of(size)
    if (flag == DVPP_YES and room.dvpp != DVPP_YES) or (flag == DVPP_NULL and room.dvpp == DVPP_NO):
        return "its DVPP is in use"
    return unfit(totals, [*(tenant.size for tenant in tenants if tenant.size is not None), size])


def flag_of(size: TemplateSize) -> str:
    """The DVPP flag of a template: yes takes all of it, no takes none, null a share."""
    return size.dvpp_flag or DVPP_NULL


def _groups(rows: Sequence[ChipUse]) -> int:
    """Number of vGroups in use: those in names, and the fewest that the vNPUs still being created need."""
    named: dict[int, int] = {}
    for row in rows:
        if row.group is not None and row.size is not None:
            named[row.group] = named.get(row.group, 0) + row.size.aicore
    coming = [row.size.aicore for row in rows if row.group is None and row.coming and row.size is not None]
    half_used = sum(1 for taken in named.values() if taken == 1)
    singles = max(0, sum(1 for taken in coming if taken == 1) - half_used)
    return len(named) + sum(1 for taken in coming if taken > 1) + -(-singles // _SHARE_A_GROUP)
