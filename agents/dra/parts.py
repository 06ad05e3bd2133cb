"""The parts that a chip can be cut into when a claim asks for one: its templates, with what each takes of the chip.

A template stands there as often as it fits on an empty chip; shared counters say which parts fit together. Source of
the sizes: policies/vnpu, as the planner has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from belay.agents.drivers.base import Machine
from belay.agents.kubelet import templates
from belay.engine.model.vnpu import ChipCapacity, TemplateSize

#: More parts of one kind stand for nothing that a chip could give (the largest chip has 16 vNPUs).
MAX_OF_A_KIND = 16


class Part(msgspec.Struct, frozen=True):
    """One part: its name, a DNS label below that of its chip, its template, its size and what it consumes, as text."""

    name: str
    template: str
    capacity: Mapping[str, str]
    consumes: Mapping[str, str]


class ChipParts(msgspec.Struct, frozen=True):
    """What each chip of a node has by counter, as text, and the parts that it can be cut into."""

    totals: Mapping[str, str]
    parts: tuple[Part, ...]


def parts_of(machine: Machine, folder: Path | None = None) -> ChipParts | None:
    """The parts of the node's chips; None if they are not cut as pods need them. Raises ValueError naming the file
    that cannot be read.
    """
    found = templates.sizes(machine.resource, machine.chip_name, machine.server_type, folder)
    return chip_parts(*found) if found is not None else None


def chip_parts(total: ChipCapacity, sizes: Sequence[TemplateSize]) -> ChipParts:
    """The parts of a chip."""
    have = _of_chip(total)
    out = []
    for size in sizes:
        takes = _of_template(total, size)
        most = min([have[name] // amount for name, amount in takes.items() if amount], default=0)
        capacity = {"memory": f"{size.memory}Mi", "aiCores": str(size.aicore)}
        label = size.name.replace("_", "-").lower()
        for number in range(min(most, MAX_OF_A_KIND)):
            out.append(Part(f"{label}-{number}", size.name, capacity, _text(takes)))
    return ChipParts(_text(have), tuple(out))


def _of_chip(total: ChipCapacity) -> dict[str, int]:
    """Counters of a chip; names of counters are DNS labels."""
    found = {"ai-cores": total.aicore, "ai-cpus": total.aicpu, "memory": total.memory}
    if total.max_vnpus is not None:
        found["vnpus"] = total.max_vnpus
    return found | total.dvpp


def _of_template(total: ChipCapacity, size: TemplateSize) -> dict[str, int]:
    """What a template takes; one that takes all media engines leaves none to others (belay.engine.model.vnpu)."""
    found = {"ai-cores": size.aicore, "ai-cpus": size.aicpu, "memory": size.memory}
    if total.max_vnpus is not None:
        found["vnpus"] = 1
    engines = total.dvpp if size.dvpp_flag == "yes" else {} if size.dvpp_flag == "no" else size.dvpp
    return found | {name: engines.get(name, 0) for name in total.dvpp}


def _text(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{amount}Mi" if name == "memory" else str(amount) for name, amount in amounts.items()}
