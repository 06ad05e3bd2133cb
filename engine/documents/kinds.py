"""Belay's own kinds about nodes, isolation, budgets and settings, group ``belay.dev/v1alpha1``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StrictInt, StringConstraints, model_validator

from belay.engine.documents.scalars import (
    Chips,
    Document,
    Duration,
    Flag,
    LabelName,
    LimitValue,
    Name,
    Positive,
    Text,
    Until,
)
from belay.engine.documents.windows import MaintenanceWindow

API_VERSION: Final = "belay.dev/v1alpha1"

_WORD: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[str, StringConstraints(pattern=rf"^([a-z0-9A-Z.-]{{1,253}}/)?{_WORD}$")]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_WORD})?$")]


class Metadata(Document):
    """Name, labels and annotations of a Belay document; these kinds are cluster-scoped, without namespace."""

    name: Name
    labels: Mapping[LabelKey, LabelValue] = Field(default_factory=dict)
    annotations: Mapping[LabelKey, str] = Field(default_factory=dict)


class BelayDocument(Document):
    """Fields of every kind of the group: ``apiVersion``, ``kind``, ``metadata``; subclasses add ``spec``."""

    KIND: ClassVar[str] = ""

    api_version: Literal["belay.dev/v1alpha1"] = Field(alias="apiVersion")
    metadata: Metadata

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return self.metadata.name

    def manifest(self) -> dict[str, Any]:
        """The document as people would write it, with the fields they set: plain JSON types, camelCase."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class MatchExpression(Document):
    """One requirement of a Kubernetes label selector."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[LabelValue, ...] = ()

    @model_validator(mode="after")
    def _values_fit(self) -> MatchExpression:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"operator {self.operator} {'needs' if not self.values else 'takes no'} values")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets the requirement, by Kubernetes' rules."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class Selector(Document):
    """A Kubernetes label selector that is not empty."""

    match_labels: Mapping[LabelKey, LabelValue] = Field(default_factory=dict)
    match_expressions: tuple[MatchExpression, ...] = ()

    @model_validator(mode="after")
    def _asks_for_something(self) -> Selector:
        if not self.match_labels and not self.match_expressions:
            raise ValueError("an empty selector would match everything: give matchLabels or matchExpressions")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected: all labels and all expressions must hold."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.matches(labels) for expression in self.match_expressions
        )


class NodePoolSpec(Document):
    """Nodes reconciled together; without ``product`` each node's Product follows from its labels."""

    selector: Selector
    product: Name | None = None
    shard: LabelName = "main"
    suspend: Flag = False


class NodePool(BelayDocument):
    """A set of nodes with one product, reconciled by one shard."""

    KIND: ClassVar[str] = "NodePool"
    kind: Literal["NodePool"]
    spec: NodePoolSpec


TemplateName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,32}$")]


class ChipLayout(Document):
    """Chips that are cut alike: ``templates`` in the order they are created."""

    chips: Chips
    templates: Annotated[tuple[TemplateName, ...], Field(max_length=16)] = ()


class VNPULayoutSpec(Document):
    """How chips of the selected nodes are cut into vNPUs."""

    pool: Name | None = None
    selector: Selector | None = None
    mode: Literal["static", "dynamic", "soft"]
    chips: tuple[ChipLayout, ...] = ()
    when_busy: Literal["wait", "refuse"] = "wait"

    @model_validator(mode="after")
    def _consistent(self) -> VNPULayoutSpec:
        if (self.pool is None) == (self.selector is None):
            raise ValueError("give exactly one of pool and selector")
        if self.mode == "static" and not self.chips:
            raise ValueError("a static layout lists its chips and their templates")
        if self.mode != "static" and any(row.templates for row in self.chips):
            raise ValueError(f"templates belong to mode static; in mode {self.mode} they follow from the pods")
        named = [chip for row in self.chips for chip in row.chips]
        twice = sorted({chip for chip in named if named.count(chip) > 1})
        if twice:
            raise ValueError(f"chip {twice[0]} is laid out twice")
        return self


class VNPULayout(BelayDocument):
    """Declares the vNPUs of some nodes."""

    KIND: ClassVar[str] = "VNPULayout"
    kind: Literal["VNPULayout"]
    spec: VNPULayoutSpec


class IsolatedChips(Document):
    """Chips of one node taken out by hand."""

    node: Name
    chips: Chips


class IsolationSpec(Document):
    """``until`` is in Unix seconds; ``None`` means until the document is removed."""

    nodes: tuple[Name, ...] = ()
    chips: tuple[IsolatedChips, ...] = ()
    reason: Text
    until: Until | None = None

    @model_validator(mode="after")
    def _names_something(self) -> IsolationSpec:
        if not self.nodes and not self.chips:
            raise ValueError("name nodes or chips to isolate")
        return self


class Isolation(BelayDocument):
    """Chips or nodes taken out of service by hand."""

    KIND: ClassVar[str] = "Isolation"
    kind: Literal["Isolation"]
    spec: IsolationSpec


BudgetAction = Literal["EvictPod", "ResetChips", "IsolateChip", "IsolateNode", "DeleteObject", "PartitionChip"]

#: The total to which a percentage of each action refers; actions with different totals cannot share one.
BUDGET_UNITS: Final[Mapping[str, str]] = {
    "EvictPod": "workloads",
    "ResetChips": "chip groups",
    "PartitionChip": "chips",
    "IsolateChip": "chips",
    "IsolateNode": "nodes",
    "DeleteObject": "objects",
}


class BudgetLimit(Document):
    """At most ``max`` of the listed actions together, within each ``per`` scope and any ``window`` of time.

    ``unit: chips`` counts a deletion by the chips that it frees, ``unit: jobs`` by the running jobs that it ends,
    instead of as one object.
    """

    actions: Annotated[tuple[BudgetAction, ...], Field(min_length=1)]
    per: Literal["cluster", "pool", "superPod", "node"]
    unit: Literal["chips", "jobs"] | None = None
    max: LimitValue
    window: Duration

    @property
    def mixed(self) -> bool:
        """Whether the listed actions count different things, so that only the count of ``max`` applies."""
        return len({BUDGET_UNITS[action] for action in self.actions}) > 1

    def allowed(self, total: int) -> int:
        """Number of actions that the limit allows when ``total`` of the counted things exist in the scope."""
        return self.max.of(None if self.mixed else total)

    @model_validator(mode="after")
    def _can_be_counted(self) -> BudgetLimit:
        if self.window <= 0:
            raise ValueError("the window must be longer than 0s")
        if self.mixed and self.max.count is None:
            raise ValueError("actions counted in different things share no percentage: give a count as well")
        if self.unit and self.actions != ("DeleteObject",):
            counted = "the chips that it frees" if self.unit == "chips" else "the running jobs that it ends"
            raise ValueError(f"unit {self.unit} is for actions: [DeleteObject] alone, counted by {counted}")
        if self.unit == "chips" and self.per not in ("cluster", "pool"):
            raise ValueError("chips freed by deletions are limited per cluster or per pool")
        if self.unit == "jobs" and self.per != "cluster":
            raise ValueError("running jobs ended by deletions are limited per cluster")
        return self


FREED_CHIPS: Final = BudgetLimit.model_validate(
    {"actions": ["DeleteObject"], "per": "pool", "unit": "chips", "max": [8, "10%"], "window": "1h"}
)
"""Chips that deletions may free unless a SafetyBudget in force limits them, so that one mistake in Git cannot empty a
pool under budgets that do not mention chips: one server, or a tenth of a larger pool."""
ENDED_JOBS: Final = BudgetLimit.model_validate(
    {"actions": ["DeleteObject"], "per": "cluster", "unit": "jobs", "max": 1, "window": "10m"}
)
"""Running jobs that deletions may end unless a SafetyBudget in force limits them: one job is
removed on purpose, several may be a folder that was moved."""


RepeatAction = Literal["EvictPod", "CreatePod", "CreateObject", "ResetChips", "PartitionChip"]


class RepeatLimit(Document):
    """The same thing is evicted, created, reset or partitioned at most ``max`` times within any ``window``.

    The thing is the job of an evicted pod, the pod or object that is created, the chips that are reset together, the
    chip that is partitioned. A Deployment's job is each of its replicas.
    """

    actions: Annotated[tuple[RepeatAction, ...], Field(min_length=1)]
    max: Annotated[int, Field(ge=1, le=100, strict=True)]
    window: Duration

    @model_validator(mode="after")
    def _has_a_window(self) -> RepeatLimit:
        if self.window <= 0:
            raise ValueError("the window must be longer than 0s")
        return self


REPEATS: Final = RepeatLimit.model_validate(
    {
        "actions": ["EvictPod", "CreatePod", "CreateObject", "ResetChips", "PartitionChip"],
        "max": 10,
        "window": "30m",
    }
)
"""How often the same thing may be done again unless a SafetyBudget in force says so: no loop runs on unseen."""


class SafetyBudgetSpec(Document):
    """All limits apply; actions without a limit are unlimited, except that ``FREED_CHIPS`` and ``ENDED_JOBS`` limit
    chips freed and jobs ended by deletions. ``windows`` restrict when actions may run. ``repeats`` stop what is done to
    the same thing again and again; actions that no budget names have the limit of ``REPEATS``.
    """

    limits: tuple[BudgetLimit, ...] = ()
    repeats: Annotated[tuple[RepeatLimit, ...], Field(max_length=100)] = ()
    windows: Annotated[tuple[MaintenanceWindow, ...], Field(max_length=100)] = ()

    @model_validator(mode="after")
    def _says_something(self) -> SafetyBudgetSpec:
        if not self.model_fields_set & {"limits", "repeats", "windows"}:
            raise ValueError("give limits, repeats or windows")
        return self


class SafetyBudget(BelayDocument):
    """How much disruption is allowed."""

    KIND: ClassVar[str] = "SafetyBudget"
    kind: Literal["SafetyBudget"]
    spec: SafetyBudgetSpec


CommitName = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class Verify(Document):
    """How commits are verified; ``allowed_signers`` is a file outside the repository.

    ``anchor`` is a commit that every revision must descend from. ``repository`` is the repository's name in trailers
    ``Belay-Source: REPOSITORY BRANCH [FOLDER]`` (default: the path of the URL); with ``require_trailer`` each revision
    must have one of this source. ``allow_rewrite_to`` is the one commit that may come into force without following the
    last accepted revision.
    """

    mode: Literal["none", "ssh", "gpg"] = "none"
    allowed_signers: Text | None = None
    anchor: CommitName | None = None
    repository: Annotated[str, StringConstraints(pattern=r"^[^\s]{1,300}$")] | None = None
    require_trailer: Flag = False
    allow_rewrite_to: CommitName | None = None

    @model_validator(mode="after")
    def _signers_named(self) -> Verify:
        if self.mode != "none" and not self.allowed_signers:
            raise ValueError(f"mode {self.mode} needs allowedSigners, a file outside the repository")
        if self.mode == "none" and (self.anchor or self.require_trailer or self.allow_rewrite_to):
            raise ValueError("anchor, requireTrailer and allowRewriteTo need mode ssh or gpg")
        return self


class SourceSpec(Document):
    """Where the desired state comes from; ``interval`` is how often the remote is polled."""

    url: Text
    branch: Text = "main"
    path: Annotated[str, StringConstraints(max_length=1024)] = ""
    interval: Duration = 30.0
    verify: Verify = Verify()
    suspend: Flag = False


class Source(BelayDocument):
    """A repository and branch; given to the controller, never read from the repository it describes."""

    KIND: ClassVar[str] = "Source"
    kind: Literal["Source"]
    spec: SourceSpec


Address = Annotated[str, StringConstraints(pattern=r"^[^\s:]+:[0-9]{1,5}$")]
KV_PORT: Final = 26000
"""Default port, from the examples of LLM-DataDist's documentation."""
MAX_KV_CLUSTERS: Final = 512
"""Most links of one process (LLM-DataDist, constraints of link_clusters)."""


class KVCluster(Document):
    """One LLM-DataDist cluster: its number (uint64) and the IPv4 addresses it listens on.

    ``node`` is where its process runs; without it the node is found by the addresses, among pods and nodes.
    """

    id: Annotated[StrictInt, Field(ge=0, le=2**64 - 1)]
    addresses: Annotated[tuple[Address, ...], Field(min_length=1, max_length=16)]
    node: Name | None = None


class KVSide(Document):
    """Prefill or decode clusters: the pods that a selector finds, each listening on ``port``, or a written list."""

    namespace: LabelName = "default"
    selector: Selector | None = None
    port: Annotated[StrictInt, Field(ge=1, le=65535)] = KV_PORT
    clusters: Annotated[tuple[KVCluster, ...], Field(max_length=MAX_KV_CLUSTERS)] = ()

    @model_validator(mode="after")
    def _one_way(self) -> KVSide:
        if (self.selector is None) == (not self.clusters):
            raise ValueError("give exactly one of selector and clusters")
        if self.clusters and self.model_fields_set & {"port", "namespace"}:
            raise ValueError("port and namespace belong to a selector; clusters name their own addresses")
        return self


class KVLinkSpec(Document):
    """All decode clusters link to all prefill clusters; each link has ``timeout`` seconds, whole milliseconds."""

    prefill: KVSide
    decode: KVSide
    timeout: Duration = 3.0

    @model_validator(mode="after")
    def _timeout_holds(self) -> KVLinkSpec:
        if not 0.001 <= self.timeout <= 2_147_483.647:
            raise ValueError("timeout must be 1ms or longer; 200ms or more is advised")
        return self


class KVLink(BelayDocument):
    """Which prefill clusters link to which decode clusters."""

    KIND: ClassVar[str] = "KVLink"
    kind: Literal["KVLink"]
    spec: KVLinkSpec


__all__ = [
    "ENDED_JOBS",
    "FREED_CHIPS",
    "REPEATS",
    "RepeatLimit",
    "API_VERSION", "BUDGET_UNITS", "BelayDocument", "BudgetLimit", "ChipLayout", "IsolatedChips", "Isolation",
    "IsolationSpec", "KVCluster", "KVLink", "KVLinkSpec", "KVSide", "MatchExpression", "Metadata", "NodePool",
    "NodePoolSpec", "Positive", "SafetyBudget", "SafetyBudgetSpec", "Selector", "Source", "SourceSpec", "VNPULayout",
    "VNPULayoutSpec", "Verify",
]  # fmt: skip
