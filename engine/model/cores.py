"""Dynamic vNPUs: what is left on a chip for a request of AI cores, judged from who is on it.

Source: component/ascend-for-volcano/plugin/vnode.go. Its rules on cores, AI CPUs, vGroups and the DVPP hold as they
are; beyond them memory and media engines are added up as docs/zh/scheduling/04_usage/02_virtual_instance tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from engine.model.vnpu import Size, Totals, unfit

#: What a request or the tenants of a chip make of its DVPP.
DVPP_YES: Final = "yes"
DVPP_NO: Final = "no"
DVPP_NULL: Final = "null"
#: A chip with as many vGroups in use has no room for a request of as many cores or more.
_GROUP_LIMITS: Final = ((3, 4), (4, 2))
#: One or two vNPUs of a single core share a vGroup by time slices.
_SHARE_A_GROUP: Final = 2


class Tenant(msgspec.Struct, frozen=True):
    """Who is on a chip.

    ``size`` is None for the whole chip, or for a template that nobody knows, which is as much. ``coming``: the device
    plugin has not said yet which device it is; ``unstable``: it has not since an earlier pass. ``group`` is its vGroup,
    None where its name tells none.
    """

    size: Size | None
    whole: bool = False
    coming: bool = False
    unstable: bool = False
    group: int | None = None


class Left(msgspec.Struct, frozen=True):
    """What is left on a chip: AI cores, AI CPUs, vGroups in use, what became of its DVPP.

    ``dvpp`` is no where somebody has all of it, null where some use a share, yes while nobody uses it. ``cut``: some
    vNPU is on it, so it cannot be had whole. ``unstable``: a vNPU is still being made, so nothing new is put beside.
    """

    aicore: int
    aicpu: int
    dvpp: str
    cut: bool
    unstable: bool
    groups: int


def left(totals: Totals, tenants: Iterable[Tenant]) -> Left:
    """What the tenants leave of a chip."""
    rows = list(tenants)
    sizes = [row.size for row in rows if row.size is not None]
    full = len(sizes) < len(rows)
    flags = {flag_of(size) for size in sizes}
    dvpp = DVPP_NO if DVPP_YES in flags else DVPP_NULL if DVPP_NULL in flags else DVPP_YES
    return Left(
        aicore=0 if full else totals.aicore - sum(size.aicore for size in sizes),
        aicpu=0 if full else totals.aicpu - sum(size.aicpu for size in sizes),
        dvpp=dvpp,
        cut=any(not row.whole for row in rows),
        unstable=any(row.unstable for row in rows),
        groups=_groups(rows),
    )


def why_not(totals: Totals, tenants: Sequence[Tenant], size: Size, *, vgroups: bool) -> str | None:
    """Why a vNPU of this size does not fit beside the tenants, None when it does; ``vgroups``: the chip has some."""
    room = left(totals, tenants)
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


def flag_of(size: Size) -> str:
    """The DVPP flag of a template: yes takes all of it, no takes none, null a share."""
    return size.dvpp_flag or DVPP_NULL


def _groups(rows: Sequence[Tenant]) -> int:
    """How many vGroups are in use: those that names tell, and as few more as the vNPUs still being made need."""
    named: dict[int, int] = {}
    for row in rows:
        if row.group is not None and row.size is not None:
            named[row.group] = named.get(row.group, 0) + row.size.aicore
    coming = [row.size.aicore for row in rows if row.group is None and row.coming and row.size is not None]
    half_used = sum(1 for taken in named.values() if taken == 1)
    singles = max(0, sum(1 for taken in coming if taken == 1) - half_used)
    return len(named) + sum(1 for taken in coming if taken > 1) + -(-singles // _SHARE_A_GROUP)
