"""The closed set of actions a plan may hold.

Each action says why (``reason``, ``message``), from what (``evidence``) and under which
assumptions (``preconditions``); ``act`` runs it, ``plan`` prints it, status shows it. A new
kind of action needs a row in the contracts first. As JSON, actions are what ``belay.engine.model.action_documents``
writes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from belay.engine.model.causes import Cause
from belay.engine.model.cluster import InPlaceReset
from belay.engine.model.rules import RuleKind, rule_kind


class Evidence(msgspec.Struct, frozen=True, omit_defaults=False, rename="camel"):
    """The basis of a decision: rule, file:line of the document, the revision in force, fault codes and reports.

    ``cause`` is what the action is taken for; the finished plan names one for every action.
    """

    rule: str = ""
    file: str = ""
    line: int = 0
    revision: str = ""
    codes: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    cause: Cause | msgspec.UnsetType = msgspec.UNSET

    @property
    def rule_kind(self) -> RuleKind:
        """What kind of rule decided."""
        return rule_kind(self.rule)

    @property
    def of_report_alone(self) -> bool:
        """Whether a report alone decided, without any rule."""
        return self.rule in ("", RuleKind.REPORT)


class Owner(msgspec.Struct, frozen=True):
    """The controller of a pod."""

    kind: str
    name: str


class OwnerReference(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an object belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str


class PatchType(StrEnum):
    """How a patch is written: server-side apply, or a JSON merge patch."""

    APPLY = "apply"
    MERGE = "merge"


class Preconditions(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What the plan saw and ``act`` checks again; None: not checked.

    ``uid`` and ``resource_version`` are those of the object that the action changes, ``owner_uid`` and ``job_uid`` of
    what it belongs to; ``node`` is where the pod runs; ``epoch_above`` the last epoch of the chips, ``epoch`` the one
    that the order takes; ``idle`` whether the chips must be unused; ``after`` names objects (apiVersion, kind,
    namespace, name) that must exist first.
    """

    uid: str | None = None
    resource_version: str | None = None
    node: str | None = None
    owner_uid: str | None = None
    job_uid: str | None = None
    epoch_above: int | None = None
    epoch: int | None = None
    idle: bool | None = None
    after: tuple[tuple[str, str, str, str], ...] = ()


class Generate(msgspec.Struct, frozen=True):
    """Content that ``act`` generates (``what``: ``ssh-keys``) for the object's ``owner``."""

    what: str
    owner: OwnerReference = msgspec.field(name="for")


class RankStatus(msgspec.Struct, frozen=True, rename="pascal"):
    """One element of ``RankList`` in ``reset-config-<job>``."""

    rank_id: int
    logic_id: int
    status: str
    policy: str
    initial_policy: str
    error_code: list[int] | None
    error_code_hex: str


class Action(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", kw_only=True):
    """The fields of every action; ``reason`` is a CamelCase enum, ``message`` a sentence for people."""

    reason: str
    message: str
    evidence: Evidence = Evidence()
    preconditions: Preconditions = Preconditions()


class CreateObject(Action, frozen=True, tag=True, kw_only=True):
    """Create (server-side apply) an object that does not exist yet; ``generate`` is what it shall also hold."""

    api_version: str
    object_kind: str
    namespace: str
    name: str
    object: dict[str, Any]
    generate: Generate | None = None


class PatchObject(Action, frozen=True, tag=True, kw_only=True):
    """Apply ``patch`` to an object; a patch holding only ``status`` goes to the status subresource."""

    api_version: str
    object_kind: str
    namespace: str
    name: str
    patch: dict[str, Any]
    patch_type: PatchType = PatchType.APPLY


class DeleteObject(Action, frozen=True, tag=True, kw_only=True):
    """Delete an object (prune, clean-up); ``propagation`` is Kubernetes' ``propagationPolicy``.

    ``budget_unit`` names the gang that goes with it, which the safety budget counts as an eviction.
    """

    api_version: str
    object_kind: str
    namespace: str
    name: str
    propagation: Literal["Background", "Foreground", "Orphan"] | None = None
    budget_unit: str | None = None


class CreatePod(Action, frozen=True, tag=True, kw_only=True):
    """Create a pod of a job that Belay expands."""

    namespace: str
    pod: str
    owner: Owner
    object: dict[str, Any]


class BindPod(Action, frozen=True, tag=True, kw_only=True):
    """Bind a pod to a node and chips; ``annotations`` travel in the same Binding.

    ``gang`` is the gang's key, so that ``act`` keeps a gang together.
    """

    namespace: str
    pod: str
    node: str
    chips: tuple[str, ...]
    template: str | None = None
    annotations: dict[str, str]
    gang: str | None = None


class EvictPod(Action, frozen=True, tag=True, kw_only=True):
    """Delete a pod; ``budget_unit`` names the gang or pod that the safety budget counts."""

    namespace: str
    pod: str
    grace_period_seconds: int
    force: bool
    owner: Owner | None
    budget_unit: str


class IsolateChip(Action, frozen=True, tag=True, kw_only=True):
    """Order a node to keep chips from new work."""

    node: str
    chips: tuple[str, ...]
    level: str


class ReleaseChip(Action, frozen=True, tag=True, kw_only=True):
    """Withdraw an isolation order."""

    node: str
    chips: tuple[str, ...]
    level: str


class IsolateNode(Action, frozen=True, tag=True, kw_only=True):
    """Keep a whole node from new work. ``cordon``: from that of other schedulers, too (``spec.unschedulable``)."""

    node: str
    level: str
    cordon: bool | None = None


class ReleaseNode(Action, frozen=True, tag=True, kw_only=True):
    """Take a node back into service. ``uncordon``: Belay cordoned it."""

    node: str
    level: str
    uncordon: bool | None = None


class ResetChips(Action, frozen=True, tag=True, kw_only=True):
    """Order one reset group's reset under a new epoch.

    ``online`` and ``job`` (the gang's key) belong to a reset under the job that uses the chips; it begins no earlier
    than ``not_before`` (Unix milliseconds).
    """

    node: str
    chips: tuple[str, ...]
    epoch: int
    out_of_band: bool
    job: str | None = None
    not_before: int | None = None
    online: InPlaceReset | None = None


class PartitionChip(Action, frozen=True, tag=True, kw_only=True):
    """Order a chip's vNPU layout: the ``templates`` wanted, those to ``create``, the vNPUs to ``destroy``."""

    node: str
    chip: str
    templates: tuple[str, ...]
    create: tuple[str, ...]
    destroy: tuple[str, ...]
    epoch: int


class ScaleJob(Action, frozen=True, tag=True, kw_only=True):
    """Change a job's replica count."""

    job_kind: str = msgspec.field(name="jobKind")
    namespace: str
    name: str
    replicas: int


class SignalJob(Action, frozen=True, tag=True, kw_only=True):
    """Signal a job's processes through its reset ConfigMap or gRPC.

    ``budget_unit`` names the gang whose eviction the signal goes with; ``rank_list`` are the elements that an episode
    of healing under the job writes.
    """

    namespace: str
    name: str
    signal: str
    ranks: tuple[int, ...]
    budget_unit: str | None = None
    rank_list: tuple[RankStatus, ...] | None = None


class WriteRankTable(Action, frozen=True, tag=True, kw_only=True):
    """Write a job's rank table (``table`` is the hccl.json object).

    It goes into ``config_map`` of the job's namespace; with ``file``, into one of ``config_map_namespace`` from which
    node agents write that file. ``version`` is the table's version as text.
    """

    namespace: str
    name: str
    table: dict[str, Any]
    config_map: str | None = None
    config_map_namespace: str | None = None
    file: str | None = None
    version: str | None = None


AnyAction = (
    CreateObject
    | PatchObject
    | DeleteObject
    | CreatePod
    | BindPod
    | EvictPod
    | IsolateChip
    | ReleaseChip
    | IsolateNode
    | ReleaseNode
    | ResetChips
    | PartitionChip
    | ScaleJob
    | SignalJob
    | WriteRankTable
)


def kind_of(action: Action) -> str:
    """The action's kind, e.g. ``BindPod``."""
    return type(action).__name__
