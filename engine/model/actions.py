"""The closed set of actions a plan may hold.

Each action says why (``reason``, ``message``), from what (``evidence``) and under which
assumptions (``preconditions``); ``act`` runs it, ``plan`` prints it, status shows it. A new
kind of action needs a row in the contracts first.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Evidence(msgspec.Struct, frozen=True, omit_defaults=False, rename="camel"):
    """Where a decision comes from: rule, file:line of the document, its commit, fault codes and reports."""

    rule: str = ""
    file: str = ""
    line: int = 0
    revision: str = ""
    codes: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()


class Owner(msgspec.Struct, frozen=True):
    """The controller of a pod."""

    kind: str
    name: str


class Action(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", kw_only=True):
    """What every action carries. ``reason`` is a CamelCase enum, ``message`` a sentence for people."""

    reason: str
    message: str
    evidence: Evidence = Evidence()
    preconditions: dict[str, Any] = {}


class CreateObject(Action, frozen=True, tag=True, kw_only=True):
    """Create (server-side apply) an object that does not exist yet."""

    api_version: str
    object_kind: str
    namespace: str
    name: str
    object: dict[str, Any]


class PatchObject(Action, frozen=True, tag=True, kw_only=True):
    """Apply ``patch`` to an object; a patch holding only ``status`` goes to the status subresource.

    ``preconditions.patchType`` is ``apply`` (server-side apply, the default) or ``merge``.
    """

    api_version: str
    object_kind: str
    namespace: str
    name: str
    patch: dict[str, Any]


class DeleteObject(Action, frozen=True, tag=True, kw_only=True):
    """Delete an object (prune, clean-up)."""

    api_version: str
    object_kind: str
    namespace: str
    name: str


class CreatePod(Action, frozen=True, tag=True, kw_only=True):
    """Create a pod of a job that Belay expands."""

    namespace: str
    pod: str
    owner: Owner
    object: dict[str, Any]


class BindPod(Action, frozen=True, tag=True, kw_only=True):
    """Bind a pod to a node and chips; ``annotations`` travel in the same Binding.

    ``preconditions`` holds ``uid`` and ``gang`` (the gang's key, so that act keeps a gang together).
    """

    namespace: str
    pod: str
    node: str
    chips: tuple[str, ...]
    template: str | None = None
    annotations: dict[str, str]


class EvictPod(Action, frozen=True, tag=True, kw_only=True):
    """Ask a pod to go. ``budget_unit`` names the gang or pod that the safety budget counts."""

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
    """Keep a whole node from new work."""

    node: str
    level: str


class ReleaseNode(Action, frozen=True, tag=True, kw_only=True):
    """Take a node back into service."""

    node: str
    level: str


class ResetChips(Action, frozen=True, tag=True, kw_only=True):
    """Order one reset group's reset under a new epoch."""

    node: str
    chips: tuple[str, ...]
    epoch: int
    out_of_band: bool


class PartitionChip(Action, frozen=True, tag=True, kw_only=True):
    """Order a chip's vNPU layout: ``templates`` wanted, what to ``create`` and which vNPUs to ``destroy``."""

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
    """Tell a job's processes something through its reset ConfigMap or gRPC."""

    namespace: str
    name: str
    signal: str
    ranks: tuple[int, ...]


class WriteRankTable(Action, frozen=True, tag=True, kw_only=True):
    """Write a job's rank table (``table`` is the hccl.json object)."""

    namespace: str
    name: str
    table: dict[str, Any]


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
