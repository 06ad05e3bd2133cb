"""The kinds people write, and the desired state they add up to.

Everything here is pure and frozen: :mod:`belay.engine.load` reads files into it, the planner computes with it.
"""

from belay.engine.documents.desired import CLUSTER, SHIPPED, Declared, Desired, Manifest
from belay.engine.documents.diagnosis_rules import DiagnosisRule, DiagnosisRules
from belay.engine.documents.fault_policy import (
    AttemptBudgets,
    Attempts,
    DurationRule,
    Expectation,
    FaultPolicy,
    FaultPolicySpec,
    FrequencyRule,
    LevelActions,
    PolicyScope,
    PolicyTest,
    TimelineEvent,
)
from belay.engine.documents.fault_tables import CodeDetail, FaultTable, FaultTableSpec, UnlistedRule
from belay.engine.documents.kinds import (
    API_VERSION,
    BUDGET_UNITS,
    ENDED_JOBS,
    FREED_CHIPS,
    REPEATS,
    BelayDocument,
    BudgetLimit,
    ChipLayout,
    IsolatedChips,
    Isolation,
    IsolationSpec,
    KVCluster,
    KVLink,
    KVLinkSpec,
    KVSide,
    MatchExpression,
    Metadata,
    NodePool,
    NodePoolSpec,
    RepeatLimit,
    SafetyBudget,
    SafetyBudgetSpec,
    Selector,
    Source,
    SourceSpec,
    Verify,
    VNPULayout,
    VNPULayoutSpec,
)
from belay.engine.documents.notifications import (
    MailServer,
    NoticeEvent,
    NotificationPolicy,
    NotificationPolicySpec,
    NotificationRule,
    QuietHours,
    Receiver,
    ReceiverType,
    SecretValue,
)
from belay.engine.documents.products import (
    Handler,
    Placement,
    PlacementStrategy,
    Product,
    ProductSpec,
    ResetRule,
    VNPUSupport,
)
from belay.engine.documents.scalars import Document, Limit, format_duration, parse_chips, parse_duration, parse_limit
from belay.engine.documents.scheduling import (
    CLUSTER_KINDS,
    InitParams,
    Queue,
    Roles,
    SchedulingSettings,
    SchedulingSettingsSpec,
)
from belay.engine.documents.vnpu import (
    DVPP,
    ChipTotals,
    Downgrade,
    DynamicChoice,
    Template,
    VNPURules,
    VNPUTemplates,
    VNPUTemplatesSpec,
)
from belay.engine.documents.workload_kinds import WorkloadKind

KINDS: dict[str, type[BelayDocument]] = {
    model.KIND: model
    for model in (
        DiagnosisRules,
        FaultPolicy,
        FaultTable,
        Isolation,
        KVLink,
        NodePool,
        NotificationPolicy,
        Product,
        SafetyBudget,
        SchedulingSettings,
        Source,
        VNPULayout,
        VNPUTemplates,
        WorkloadKind,
    )
}
"""Every kind of group ``belay.dev/v1alpha1`` with its model."""

__all__ = [
    "API_VERSION", "AttemptBudgets", "Attempts", "BUDGET_UNITS", "BelayDocument", "BudgetLimit",
    "CLUSTER", "CLUSTER_KINDS", "ChipLayout", "ChipTotals", "CodeDetail", "DVPP", "Declared", "Desired",
    "DiagnosisRule", "DiagnosisRules", "Document", "Downgrade",
    "DurationRule", "DynamicChoice", "ENDED_JOBS", "Expectation", "FREED_CHIPS", "FaultPolicy",
    "FaultPolicySpec", "FaultTable",
    "FaultTableSpec", "FrequencyRule", "Handler", "InitParams", "IsolatedChips", "Isolation", "IsolationSpec", "KINDS",
    "KVCluster", "KVLink", "KVLinkSpec", "KVSide", "LevelActions", "Limit", "MailServer", "Manifest", "MatchExpression",
    "Metadata", "NodePool", "NodePoolSpec", "NoticeEvent", "NotificationPolicy", "NotificationPolicySpec",
    "NotificationRule", "Placement", "PlacementStrategy", "PolicyScope", "PolicyTest", "Product", "ProductSpec",
    "Queue", "QuietHours", "REPEATS", "Receiver", "ReceiverType", "RepeatLimit", "ResetRule", "Roles", "SHIPPED",
    "SafetyBudget", "SafetyBudgetSpec",
    "SchedulingSettings",
    "SchedulingSettingsSpec", "SecretValue", "Selector", "Source", "SourceSpec", "Template", "TimelineEvent",
    "UnlistedRule",
    "VNPULayout", "VNPULayoutSpec", "VNPURules", "VNPUSupport", "VNPUTemplates", "VNPUTemplatesSpec", "Verify",
    "WorkloadKind",
    "format_duration", "parse_chips", "parse_duration", "parse_limit",
]  # fmt: skip
