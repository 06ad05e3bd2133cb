"""vNPU templates on one chip: what fits together, and the changes to a wanted layout. Shared by planner and agent.

Sources: component/ascend-device-plugin/pkg/common/device.go (templates, totals),
docs/zh/scheduling/04_usage/02_virtual_instance (what may share a chip).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from belay.engine.model.quantities import whole_number


class TemplateSize(msgspec.Struct, frozen=True):
    """Size of one template: AI cores, AI CPUs, memory in MiB, media engines.

    ``dvpp_flag`` yes takes every media engine of the chip, no takes none, None takes ``dvpp``.
    """

    name: str
    aicore: int
    aicpu: int
    memory: int
    dvpp: dict[str, int] = {}
    dvpp_flag: str | None = None


class ChipCapacity(msgspec.Struct, frozen=True):
    """Capacity of one chip, in the units of ``TemplateSize``; ``max_vnpus`` is None when only the sums limit it."""

    aicore: int
    aicpu: int
    memory: int
    dvpp: dict[str, int] = {}
    max_vnpus: int | None = None


class ExistingVNPU(msgspec.Struct, frozen=True):
    """A vNPU that the node reports; ``busy`` when a pod or process uses it."""

    id: int
    template: str
    busy: bool


class VNPUChange(msgspec.Struct, frozen=True):
    """The changes from the existing vNPUs of one chip to the wanted ones.

    ``destroy``: ids, ascending. ``create``: templates, largest first, so that splits and merges never meet a fragmented
    chip. ``blocked``: ids of busy vNPUs that are not wanted; nothing changes while there are any.
    """

    create: tuple[str, ...]
    destroy: tuple[int, ...]
    blocked: tuple[int, ...]

    @property
    def needed(self) -> bool:
        """Whether the chip differs from the wanted layout."""
        return bool(self.create or self.destroy or self.blocked)


def unfit(totals: ChipCapacity, sizes: Iterable[TemplateSize]) -> str | None:
    """Why the templates do not fit on one chip together, None when they do."""
    rows = list(sizes)
    if totals.max_vnpus is not None and len(rows) > totals.max_vnpus:
        return f"{len(rows)} vNPUs, a chip takes at most {totals.max_vnpus}"
    for what, total, taken in (
        ("AI cores", totals.aicore, sum(size.aicore for size in rows)),
        ("AI CPUs", totals.aicpu, sum(size.aicpu for size in rows)),
        ("MiB of memory", totals.memory, sum(size.memory for size in rows)),
    ):
        if taken > total:
            return f"{taken} {what}, a chip has {total}"
    return _media(totals, rows)


def change(existing: Sequence[ExistingVNPU], wanted: Sequence[str]) -> VNPUChange:
    """The changes to a wanted layout; busy vNPUs are kept first, so that as few as possible block."""
    missing = Counter(wanted)
    surplus: list[ExistingVNPU] = []
    for vnpu in sorted(existing, key=lambda v: (not v.busy, v.id)):
        if missing[vnpu.template] > 0:
            missing[vnpu.template] -= 1
        else:
            surplus.append(vnpu)
    blocked = tuple(sorted(v.id for v in surplus if v.busy))
    order = {template: index for index, template in enumerate(dict.fromkeys(wanted))}
    create = sorted(missing.elements(), key=lambda template: (-cores(template), order[template]))
    return VNPUChange(create=tuple(create), destroy=tuple(sorted(v.id for v in surplus if not v.busy)), blocked=blocked)


def cores(template: str) -> int:
    """AI cores of a template: the number after ``vir`` up to the first underscore; 0 for an unknown name."""
    digits = template.removeprefix("vir").split("_", 1)[0]
    return whole_number(digits) or 0


def _media(totals: ChipCapacity, rows: Sequence[TemplateSize]) -> str | None:
    if not totals.dvpp:  # how many engines the chip has is not documented, so cores and AI CPUs decide
        return None
    whole = [size for size in rows if size.dvpp_flag == "yes"]
    others = [size for size in rows if size.dvpp_flag != "no"]
    if whole and len(others) > 1:
        return f"{whole[0].name} takes all media engines, only templates without them fit beside it"
    for engine, total in sorted(totals.dvpp.items()):
        taken = sum(_engine(size.dvpp, engine) for size in rows if size.dvpp_flag != "no")
        if not whole and taken > total:
            return f"{taken} {engine} engines, a chip has {total}"
    return None


def _engine(dvpp: Mapping[str, int], engine: str) -> int:
    return dvpp.get(engine, 0)
