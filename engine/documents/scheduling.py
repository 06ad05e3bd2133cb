"""Kind ``SchedulingSettings``: scheduler names, queues, roles and Volcano's ``init-params``.

Keys and ranges of ``init-params`` are those of component/ascend-for-volcano (common/util and plugin/factory.go).
Without a ConfigMap of Volcano the defaults are those of the YAML that MindCluster ships (volcano-v*.yaml:
``super-pod-size`` 48, ``prefer-previous-node`` true); in a cluster that has one, an argument that it lacks has the
default of the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator

from belay.engine.documents.kinds import BelayDocument
from belay.engine.documents.scalars import Count, Document, Duration, Flag, Name, Positive
from belay.engine.model import quantities

DEFAULT_SUPER_POD_NODES: Final = 48
DEFAULT_RESERVE_NODES: Final = 2
DEFAULT_GRACE_SECONDS: Final = 900


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() else value


def _truth(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _version(value: object) -> object:
    return f"{value:.1f}" if isinstance(value, float) else value


_INTEGER: Final = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]+$"}]}
_TRUTH: Final = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]}
WholeText = Annotated[Positive, BeforeValidator(_whole), WithJsonSchema(_INTEGER)]
TruthText = Annotated[Flag, BeforeValidator(_truth), WithJsonSchema(_TRUTH)]


class InitParams(Document):
    """``init-params`` arguments; Volcano writes all of them as text, so text is accepted for numbers and booleans."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, alias_generator=None
    )

    grace_over_time: Annotated[WholeText, Field(alias="grace-over-time", ge=2, le=3600)] = DEFAULT_GRACE_SECONDS
    preset_virtual_device: Annotated[TruthText, Field(alias="presetVirtualDevice")] = True
    nslb_version: Annotated[
        Literal["1.0", "2.0"], BeforeValidator(_version), Field(alias="nslb-version"),
        WithJsonSchema({"enum": ["1.0", "2.0", 1.0, 2.0]}),
    ] = "1.0"  # fmt: skip
    shared_tor_num: Annotated[WholeText, Field(alias="shared-tor-num", ge=1, le=2)] = 2
    use_cluster_info_manager: Annotated[TruthText, Field(alias="useClusterInfoManager")] = True
    self_maintain_available_card: Annotated[TruthText, Field(alias="self-maintain-available-card")] = True
    super_pod_size: Annotated[WholeText | None, Field(alias="super-pod-size")] = DEFAULT_SUPER_POD_NODES
    reserve_nodes: Annotated[WholeText | None, Field(alias="reserve-nodes")] = None
    force_enqueue: Annotated[TruthText, Field(alias="forceEnqueue")] = True
    resource_level_config: Annotated[str | None, Field(alias="resource-level-config", max_length=65_536)] = None
    prefer_previous_node: Annotated[TruthText, Field(alias="prefer-previous-node")] = True

    @field_validator("resource_level_config")
    @classmethod
    def _is_json(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                trees = json.loads(text)
            except (ValueError, RecursionError) as problem:
                raise ValueError(f"not JSON: {problem}") from problem
            if not isinstance(trees, dict):
                raise ValueError('must be a JSON object such as {"default": {"level1": {"label": "..."}}}')
        return text

    @property
    def super_pod_nodes(self) -> int:
        """Nodes of a super pod: the setting, else 48."""
        return self.super_pod_size or DEFAULT_SUPER_POD_NODES

    @property
    def reserved_nodes(self) -> int:
        """Nodes kept free in each super pod; a value as large as the super pod falls back to 2, or 0 in a tiny one."""
        reserve, size = self.reserve_nodes or DEFAULT_RESERVE_NODES, self.super_pod_nodes
        if reserve < size:
            return reserve
        return DEFAULT_RESERVE_NODES if size > DEFAULT_RESERVE_NODES else 0

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, object], base: InitParams | None = None, *, configured: bool = False
    ) -> InitParams:
        """Read Volcano's own configuration as Volcano does: a bad value means the default, unknown keys are ignored.

        Args:
            base: supplies what the arguments leave out.
            configured: the cluster has a configuration of Volcano, even if it states no arguments.
        """
        fields = dict(base.model_dump(exclude_unset=True)) if base else {}
        for key, value in arguments.items():
            name = _FIELD_OF.get(key)
            if name is None:
                continue
            fields.pop(name, None)
            text = _argument(value)
            parsed: dict[str, Any] = {name: _TRUTHS[name](text)} if name in _TRUTHS else {name: text}
            try:
                cls.model_validate(parsed)
            except ValueError:
                continue
            fields.update(parsed)
        return cls.model_validate({**_DEFAULTS_OF_THE_CODE, **fields} if arguments or configured else fields)

    @classmethod
    def unread(cls, arguments: Mapping[str, object]) -> dict[str, str]:
        """Why ``from_arguments`` could not read an argument, and the value used instead, by key."""
        found: dict[str, str] = {}
        for key in sorted(set(arguments) & set(_FIELD_OF)):
            name, text = _FIELD_OF[key], _argument(arguments[key])
            if name in _TRUTHS:
                if text not in ("true", "false"):
                    found[key] = f"{text[:40]!r} is neither true nor false and counts as false"
                continue
            try:
                cls.model_validate({name: text})
            except ValidationError as error:
                why = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
                found[key] = f"{text[:40]!r} cannot be read, the default holds: {why}"
        return found


def _argument(value: object) -> str:
    return str(value).strip() if not isinstance(value, bool) else str(value).lower()


#: What an argument means that Volcano's configuration lacks, where the shipped YAML writes another value.
_DEFAULTS_OF_THE_CODE: Final[Mapping[str, Any]] = {
    "super_pod_size": None,
    "prefer_previous_node": False,
    "preset_virtual_device": False,
}
_FIELD_OF: Final[Mapping[str, str]] = {str(info.alias): name for name, info in InitParams.model_fields.items()}
#: A present key with any text but "true" is false, whatever its default.
_TRUTHS: Final = dict.fromkeys(
    (
        "preset_virtual_device",
        "use_cluster_info_manager",
        "self_maintain_available_card",
        "force_enqueue",
        "prefer_previous_node",
    ),
    "true".__eq__,
)


def _quantity(value: object) -> object:
    """A count, or a Kubernetes quantity as text."""
    if isinstance(value, str) and quantities.parse(value) is None:
        raise ValueError(f"{value[:40]!r} is not a Kubernetes quantity such as 8, 500m or 16Gi")
    return value


Quantity = Annotated[Count | Annotated[str, Field(max_length=64)], BeforeValidator(_quantity)]
Amounts = Mapping[str, Quantity]


class Queue(Document):
    """A queue of jobs; without ``capability`` it may use everything.

    Amounts are Kubernetes quantities per resource (``cpu: 4`` is four cores). ``deserved`` states its share, which
    otherwise follows from ``weight``; ``guarantee`` is kept free of other queues. ``preemptable``: within the queue,
    jobs of higher priority may evict others; ``reclaimable``: queues below their share may evict what it has beyond
    its own; ``movable``: pods of its Deployments may be moved to other chips where that makes room for a job that
    needs more chips of one node than lie free together.
    """

    name: Name
    weight: Positive = 1
    priority: Count = 0
    parent: Name | None = None
    capability: Amounts = Field(default_factory=dict)
    deserved: Amounts = Field(default_factory=dict)
    guarantee: Amounts = Field(default_factory=dict)
    reclaimable: Flag = False
    preemptable: Flag = False
    movable: Flag = False


class Starvation(Document):
    """When nodes are reserved for a job at the head of its queue.

    The nodes that a job needs, once it has waited for chips longer than ``after``, take no newer NPU work until it
    starts, at most for ``hold``; ``after: 0s`` switches this off.
    """

    after: Duration = 1800.0
    hold: Duration = 43_200.0


Role = Literal["on", "off", "auto"]


class Roles(Document):
    """Roles that Belay takes; ``auto`` takes one only where no live component of MindCluster or Volcano holds it."""

    schedule: Role = "auto"
    expand_ascend_job: Role = "auto"
    expand_volcano_job: Role = "auto"
    aggregate: Role = "auto"
    device_report: Role = "auto"


ClusterKind = Literal["FaultPolicy", "Isolation", "KVLink", "NodePool", "SafetyBudget", "VNPULayout"]
#: Kinds whose objects in the cluster may count beside Git. Settings cannot: they would allow themselves.
CLUSTER_KINDS: Final[tuple[str, ...]] = get_args(ClusterKind)


ANY_NAMESPACE: Final = "*"


class PublicFaultSource(Document):
    """A namespace whose ConfigMaps with public faults count; ``*`` is every namespace.

    ``pools``: the NodePools on whose nodes they count (``default`` are the nodes of no pool); none given: all nodes.
    """

    namespace: Name | Literal["*"]
    pools: tuple[Name, ...] = ()


#: Where MindCluster's components and documents put such ConfigMaps (docs/zh/scheduling/06_api/04_clusterd).
PUBLIC_FAULT_SOURCES: Final = tuple(
    PublicFaultSource(namespace=name) for name in ("cluster-system", "kube-system", "mindx-dl")
)


class SchedulingSettingsSpec(Document):
    """Defaults apply without the document.

    ``default_scheduler``: ``schedulerName`` of AscendJobs that name none. With ``default-scheduler`` they run as under
    MindCluster's ``-enableGangScheduling=false``: Kubernetes places their pods one by one, without a PodGroup.

    ``public_fault_sources``: namespaces whose ConfigMaps with public faults (label ``mc-consumer-publicfault=true``)
    count, and for which nodes. Who may write a ConfigMap in one of them may take its nodes out of service.

    ``cluster_documents``: kinds of Belay whose objects in the cluster count although Git does not declare them. Such
    objects of other kinds are ignored, and a condition on them says so.

    ``kueue_quota``: in whose queues jobs count that Kueue has admitted, as its Workloads say.

    ``not_ready_debounce``: for how long (s) a node must have been NotReady before its jobs are moved. Kubernetes has
    waited its own grace period (40 s) by then, so 0 moves them at once; more spares jobs a restart for nodes that flap.
    """

    scheduler_names: Annotated[tuple[Name, ...], Field(min_length=1)] = ("belay", "volcano")
    default_scheduler: Name = "volcano"
    init_params: InitParams = InitParams()
    queues: tuple[Queue, ...] = ()
    starvation: Starvation = Starvation()
    roles: Roles = Roles()
    not_ready_debounce: Duration = 0.0
    cluster_documents: tuple[ClusterKind, ...] = ()
    kueue_quota: Literal["kueue", "queues"] = "kueue"
    public_fault_sources: Annotated[tuple[PublicFaultSource, ...], Field(max_length=1000)] = PUBLIC_FAULT_SOURCES

    @field_validator("queues")
    @classmethod
    def _unique(cls, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
        names = [queue.name for queue in queues]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"queue {name} is declared twice")
        return queues


class SchedulingSettings(BelayDocument):
    """Settings that change decisions."""

    KIND: ClassVar[str] = "SchedulingSettings"
    kind: Literal["SchedulingSettings"]
    spec: SchedulingSettingsSpec = SchedulingSettingsSpec()
