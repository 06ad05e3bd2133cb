"""Kind ``WorkloadKind``: where objects of one kind say how many pods they have, and which of them start together.

A row for a kind of your own is a document in Git; the shipped ones are in ``policies/workloads/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt, StringConstraints, field_validator, model_validator

from belay.engine.documents.kinds import BelayDocument
from belay.engine.documents.scalars import Document
from belay.engine.model import workload_kinds as rows
from belay.engine.model.workload_kinds import StartTogether

_PART = r"(\*|[A-Za-z0-9_][A-Za-z0-9_-]*|\[[^\[\]]{1,253}\])"
FieldPath = Annotated[str, StringConstraints(pattern=rf"^{_PART}(\.{_PART})*$", max_length=300)]
KeyText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9./_-]*$", max_length=316)]
GroupName = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)]
KindName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]
PluralName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
VersionName = Annotated[str, StringConstraints(pattern=r"^v[0-9]+((alpha|beta)[0-9]+)?$")]


class NumberField(Document):
    """A field with a number of pods, and the number where the field is absent."""

    path: FieldPath
    default: Annotated[StrictInt, Field(ge=0, le=100_000)] = 1

    def factor(self) -> rows.Factor:
        """The field as the engine reads it."""
        return rows.Factor(parts_of(self.path), self.default)


class FieldCondition(Document):
    """Holds where a field has one of the values; of a field that is absent the value is empty."""

    path: FieldPath
    values: Annotated[tuple[Annotated[str, StringConstraints(max_length=100)], ...], Field(min_length=1, max_length=20)]

    def condition(self) -> rows.Condition:
        """The condition as the engine reads it."""
        return rows.Condition(parts_of(self.path), self.values)


class RoleFields(Document):
    """Where roles stand whose fields are alike, such as the elements of one list."""

    path: FieldPath | None = None
    replicas: Annotated[tuple[NumberField, ...], Field(max_length=4)] = ()
    template: FieldPath | None = None
    minimum: Annotated[tuple[NumberField, ...], Field(max_length=4)] = ()
    minimum_when: FieldCondition | None = None

    def role(self) -> rows.WorkloadRole:
        """The fields as the engine reads them."""
        return rows.WorkloadRole(
            path=parts_of(self.path or ""),
            factors=tuple(one.factor() for one in self.replicas),
            template=parts_of(self.template or ""),
            minimum=tuple(one.factor() for one in self.minimum),
            minimum_when=self.minimum_when.condition() if self.minimum_when else None,
        )


class WorkloadKindSpec(Document):
    """One kind of workload."""

    group: GroupName
    versions: Annotated[tuple[VersionName, ...], Field(min_length=1, max_length=8)]
    kind: KindName
    plural: PluralName
    together: Literal["whole", "groups", "none"] = "whole"
    roles: Annotated[tuple[RoleFields, ...], Field(max_length=20)] = ()
    minimum: Annotated[tuple[FieldPath, ...], Field(max_length=4)] = ()
    stepwise: FieldCondition | None = None
    group_labels: Annotated[tuple[KeyText, ...], Field(max_length=16)] = ()
    size: Annotated[tuple[NumberField, ...], Field(max_length=4)] = ()
    size_keys: Annotated[tuple[KeyText, ...], Field(max_length=16)] = ()
    pod_keys: Annotated[tuple[KeyText, ...], Field(max_length=4)] = ()
    rank_keys: Annotated[tuple[KeyText, ...], Field(max_length=4)] = ()
    queue: FieldPath | None = None
    priority_class: FieldPath | None = None
    annotations: Annotated[Mapping[KeyText, FieldPath], Field(max_length=20)] = {}

    @field_validator("minimum", "queue", "priority_class")
    @classmethod
    def _names_one_field(cls, value: object) -> object:
        paths = value if isinstance(value, tuple) else (value,)
        if any("*" in parts_of(path) for path in paths if isinstance(path, str)):
            raise ValueError("* stands for many fields; name one")
        return value

    @model_validator(mode="after")
    def _groups_have_labels(self) -> WorkloadKindSpec:
        if self.together == "groups" and not self.group_labels:
            raise ValueError("together: groups needs groupLabels, by which pods name their group")
        if self.together == "none" and (self.roles or self.minimum or self.size or self.stepwise):
            raise ValueError("together: none waits for no pod: leave out roles, minimum, size and stepwise")
        return self


class WorkloadKind(BelayDocument):
    """A kind of workload: where its objects say how many pods they have, and which of these start together."""

    KIND: ClassVar[str] = "WorkloadKind"
    kind: Literal["WorkloadKind"]
    spec: WorkloadKindSpec

    def row(self) -> rows.WorkloadRow:
        """The document as a row of the table."""
        spec = self.spec
        return rows.WorkloadRow(
            name=self.name,
            group=spec.group,
            versions=spec.versions,
            kind=spec.kind,
            plural=spec.plural,
            together=StartTogether(spec.together),
            roles=tuple(one.role() for one in spec.roles),
            minimum=tuple(parts_of(path) for path in spec.minimum),
            stepwise=spec.stepwise.condition() if spec.stepwise else None,
            group_labels=spec.group_labels,
            size=tuple(one.factor() for one in spec.size),
            size_keys=spec.size_keys,
            pod_keys=spec.pod_keys,
            rank_keys=spec.rank_keys,
            queue=parts_of(spec.queue or ""),
            priority_class=parts_of(spec.priority_class or ""),
            annotations=tuple((key, parts_of(path)) for key, path in sorted(spec.annotations.items())),
        )


def parts_of(path: str) -> tuple[str, ...]:
    """The fields of a path; a name with dots stands in brackets, as in ``metadata.labels.[a.b/c]``."""
    parts: list[str] = []
    rest = path
    while rest:
        if rest.startswith("["):
            name, _, rest = rest[1:].partition("]")
            rest = rest.removeprefix(".")
        else:
            name, _, rest = rest.partition(".")
        parts.append(name)
    return tuple(parts)


__all__ = [
    "FieldCondition", "NumberField", "RoleFields", "WorkloadKind", "WorkloadKindSpec", "parts_of",
]  # fmt: skip
