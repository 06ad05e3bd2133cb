"""Kind ``VNPUTemplates``: the sizes of vNPUs that a chip family supports.

Sources: component/ascend-device-plugin/pkg/common/device.go, component/ascend-for-volcano/plugin/factory.go and
docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from belay.engine.documents.kinds import BelayDocument, TemplateName
from belay.engine.documents.scalars import Count, Document, Flag, Positive, Text
from belay.engine.model.vnpu import ChipCapacity, TemplateSize


class DVPP(Document):
    """Media engines by kind, in instances; ``None`` is not documented."""

    vpc: Count | None = None
    vdec: Count | None = None
    jpegd: Count | None = None
    pngd: Count | None = None
    venc: Count | None = None
    jpege: Count | None = None


class ChipTotals(Document):
    """Totals of one chip; ``server_types`` distinguishes variants that share chip names."""

    variant: Text | None = None
    chip_names: tuple[Text, ...] = ()
    server_types: tuple[Text, ...] = ()
    aicore: Positive
    aicpu: Positive
    memory_mi_b: Annotated[Positive, Field(alias="memoryMiB")]
    max_vnpus: Positive | None = None
    dvpp: DVPP | None = None
    unverified: tuple[Text, ...] = ()

    @cached_property
    def totals(self) -> ChipCapacity:
        """The row as the model type that decides which vNPUs fit together."""
        return ChipCapacity(self.aicore, self.aicpu, self.memory_mi_b, _engines(self.dvpp), self.max_vnpus)


class Template(Document):
    """One size; ``suffix`` ends the Kubernetes resource name, ``dvpp_flag`` yes takes all media engines, no takes none.

    ``memory_by_aicore`` overrides ``memory_mi_b`` on chips with that many AI cores.
    """

    name: TemplateName
    suffix: Text
    aicore: Positive
    aicpu: Positive
    memory_mi_b: Annotated[Positive, Field(alias="memoryMiB")]
    memory_by_aicore: Mapping[str, Positive] = Field(default_factory=dict)
    dvpp: DVPP | None = None
    dvpp_flag: Literal["yes", "no"] | None = None
    unverified: tuple[Text, ...] = ()

    def size(self, chip_cores: int) -> TemplateSize:
        """What the template takes of a chip with ``chip_cores`` AI cores."""
        memory = self.memory_by_aicore.get(str(chip_cores), self.memory_mi_b)
        return TemplateSize(self.name, self.aicore, self.aicpu, memory, _engines(self.dvpp), self.dvpp_flag)


class DynamicChoice(Document):
    """Which template a dynamic request of ``aicore`` cores gets; ``level`` and ``dvpp`` are pod labels."""

    aicore: Positive
    level: Literal["low", "high"] | None = None
    dvpp: Literal["yes", "no", "null"] | None = None
    template: TemplateName


class Downgrade(Document):
    """A smaller template for chips that are short of AI CPUs."""

    template: TemplateName
    to: TemplateName


class VNPURules(Document):
    """How templates combine and how dynamic requests choose among them.

    ``requests`` are the legal ``npu-core`` requests besides multiples of a whole chip; ``vgroups`` are the groups of
    at least ``vgroup_min_cores`` cores that a 310P is divided into.
    """

    requests: tuple[Positive, ...] = ()
    choices: tuple[DynamicChoice, ...] = ()
    downgrades: tuple[Downgrade, ...] = ()
    vgroups: tuple[Count, ...] = ()
    vgroup_min_cores: Positive | None = None
    excluded_products: tuple[Text, ...] = ()


class VNPUTemplatesSpec(Document):
    """One chip family: its chips, its templates, its rules."""

    family: Text
    resource_prefix: Text
    chips: Annotated[tuple[ChipTotals, ...], Field(min_length=1)]
    templates: Annotated[tuple[Template, ...], Field(min_length=1)]
    static: Flag
    dynamic: Flag
    soft: Flag = False
    rules: VNPURules = VNPURules()


class VNPUTemplates(BelayDocument):
    """The templates of one chip family."""

    KIND: ClassVar[str] = "VNPUTemplates"
    kind: Literal["VNPUTemplates"]
    spec: VNPUTemplatesSpec

    @cached_property
    def by_name(self) -> Mapping[str, Template]:
        """Templates by name, such as ``vir04_3c``."""
        return {template.name: template for template in self.spec.templates}

    @cached_property
    def by_suffix(self) -> Mapping[str, Template]:
        """Templates by resource suffix, such as ``4c.3cpu``."""
        return {template.suffix: template for template in self.spec.templates}

    def choice(self, cores: int, level: str, dvpp: str) -> Template | None:
        """The template for a dynamic request on the family's chips; None when there is none."""
        for row in self.spec.rules.choices:
            if row.aicore == cores and row.level in (None, level) and row.dvpp in (None, dvpp):
                return self.by_name.get(row.template)
        return None

    def smaller(self, template: str) -> Template | None:
        """The smaller template for a chip short of AI CPUs; None when there is none."""
        found = next((row.to for row in self.spec.rules.downgrades if row.template == template), "")
        return self.by_name.get(found)

    def totals(self, chip_name: str = "", server_type: str = "") -> ChipTotals:
        """The row of a chip, by its server type, else its name, else the family's first row."""
        rows = self.spec.chips
        by_type = (row for row in rows if server_type in row.server_types)
        by_name = (row for row in rows if chip_name in row.chip_names)
        return next(by_type, None) or next(by_name, None) or rows[0]


def _engines(dvpp: DVPP | None) -> dict[str, int]:
    """The media engines with a documented number."""
    return {} if dvpp is None else {name: count for name, count in dvpp.model_dump().items() if count is not None}
