"""Server models for simulated nodes.

A row can be made from a product of policies/products (`from_product`), so that a new model is a new file there. Chip
names, AI cores and memory are those of the device plugin's labels (docs/zh/scheduling/06_api/12_k8s.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.agents.drivers.base import Machine
from belay.agents.drivers.simulated import ServerModel
from belay.engine.model.labels import ASCEND_310P
from belay.engine.model.vnpu import ChipCapacity, TemplateSize

_CORES: Final = {
    "910": 30, "910B1": 25, "910B2": 24, "910B2C": 24, "910B3": 20, "910B4": 20, "910B4-1": 20,
    "310P1": 10, "310P3": 8, "310": 2, "Ascend910-9382": 24, "Ascend910-9362": 20,
}  # fmt: skip
_MEMORY: Final = {"910": 32, "910B4": 32, "310P1": 24, "310P3": 24, "310": 8}
_FAMILIES: Final = (
    ("910B", "Ascend910B"),
    ("910", "Ascend910"),
    ("Ascend910-93", "Ascend910A3"),
    ("310P", "Ascend310P"),
    ("310", "Ascend310"),
)
_DRIVER: Final = "25.0.rc1"

SIZES_310P: Final = {
    size.name: size
    for size in (
        TemplateSize("vir01", 1, 1, 3072, {"vpc": 1, "vdec": 1, "jpegd": 2, "venc": 0, "jpege": 1}),
        TemplateSize("vir02", 2, 2, 6144, {"vpc": 3, "vdec": 3, "jpegd": 4, "venc": 1, "jpege": 2}),
        TemplateSize("vir02_1c", 2, 1, 6144, {"vpc": 3, "vdec": 3, "jpegd": 4, "venc": 0, "jpege": 2}),
        TemplateSize("vir04", 4, 4, 12288, {"vpc": 6, "vdec": 6, "jpegd": 8, "venc": 2, "jpege": 4}),
        TemplateSize("vir04_3c", 4, 3, 12288, {"vpc": 6, "vdec": 6, "jpegd": 8, "venc": 1, "jpege": 4}),
    )
}
"""Templates of a 310P chip, those with all numbers known (component/ascend-device-plugin/pkg/common/device.go)."""

TOTALS_310P: Final = ChipCapacity(8, 7, 24576, {"vpc": 12, "vdec": 12, "jpegd": 16, "venc": 3, "jpege": 8}, 7)


def machine(
    resource: str,
    chip_name: str,
    *,
    super_pod_id: int = -2,
    server_index: int = -2,
    rack_id: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> Machine:
    """Describe a node of the given resource and chip, as its driver does."""
    kind = resource.rsplit("/", 1)[-1]
    family = next((family for start, family in _FAMILIES if chip_name.startswith(start)), kind)
    return Machine(
        resource=resource,
        prefix=f"{kind}-",
        chip_name=chip_name,
        accelerator=f"huawei-{kind}",
        server_type=f"{family}-{_CORES.get(chip_name, 20)}",
        driver_version=_DRIVER,
        memory_gb=_MEMORY.get(chip_name, 64),
        super_pod_id=super_pod_id,
        server_index=server_index,
        rack_id=rack_id,
        labels=labels or {},
    )


def from_product(
    spec: Mapping[str, Any],
    groups: Sequence[Sequence[int]],
    *,
    chip_name: str = "",
    super_pod_id: int = -2,
    server_index: int = -2,
    rack_id: int | None = None,
    sizes: Mapping[str, TemplateSize] | None = None,
    totals: ChipCapacity | None = None,
) -> ServerModel:
    """Make a row of a product's ``spec`` (keys as in the file) and its reset groups.

    ``chip_name`` defaults to the product's first.
    """
    names = spec.get("chipNames") or ()
    resource = str(spec["resource"])
    name = chip_name or (str(names[0]) if names else "310P3" if resource.endswith("310P") else "910B3")
    small = resource == ASCEND_310P
    return ServerModel(
        machine=machine(resource, name, super_pod_id=super_pod_id, server_index=server_index, rack_id=rack_id),
        chips=int(spec["chipsPerNode"]),
        chips_per_card=int(spec.get("chipsPerCard") or 1),
        reset_groups=tuple(tuple(group) for group in groups),
        sizes=sizes if sizes is not None else (SIZES_310P if small else {}),
        totals=totals if totals is not None else (TOTALS_310P if small else None),
    )


SERVER_MODELS: Final[Mapping[str, ServerModel]] = {
    "atlas-800t-a2": ServerModel(),
    "atlas-300i-pro": ServerModel(
        machine=machine(ASCEND_310P, "310P3"),
        chips=8,
        reset_groups=(),
        sizes=SIZES_310P,
        totals=TOTALS_310P,
    ),
    "atlas-300i-duo": ServerModel(
        machine=machine(ASCEND_310P, "310P3"),
        chips=8,
        chips_per_card=2,
        reset_groups=tuple((first, first + 1) for first in range(0, 8, 2)),
        sizes=SIZES_310P,
        totals=TOTALS_310P,
    ),
}
"""Models that need no product file."""
